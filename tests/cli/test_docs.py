"""The documents do what they say: Python blocks run, commands parse, links lead somewhere."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import typer

from cli_runner import dstream
from dstream import Clips, LoaderReport, api
from dstream_cli.main import app
from made_video import make_video

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/cli.md", "docs/loader.md", "docs/recipes.md"]
COMMAND = typer.main.get_command(app)


@dataclass(frozen=True, slots=True)
class Block:
    where: str
    language: str
    note: str
    """What the HTML comment before the block says: ``file: x.py`` or ``uses: demo``."""
    text: str


def blocks(language: str, pages: Sequence[str] = DOCUMENTS) -> Iterator[Block]:
    for name in pages:
        text = (ROOT / name).read_text()
        pattern = r"(?:<!-- (.*?) -->\n)?^```(\w*)\n(.*?)^```$"
        for match in re.finditer(pattern, text, re.M | re.S):
            if match[2] == language:
                line = text[: match.start(3)].count("\n") + 1
                yield Block(f"{name}:{line}", language, match[1] or "", match[3])


PYTHON = list(blocks("python"))
PAGES = DOCUMENTS + sorted(
    name for page in (ROOT / "docs").glob("*.md") if (name := f"docs/{page.name}") not in DOCUMENTS
)
COMMANDS = [
    (block.where, line.removeprefix("$ "))
    for language in ("sh", "console")
    for block in blocks(language, PAGES)
    for line in block.text.replace("\\\n", " ").splitlines()
    if re.match(r"(\$ )?dstream ", line)
]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as ``make demo`` leaves it, with other pictures."""
    monkeypatch.chdir(tmp_path)
    for name in ("bikes.mp4", "carphone_pristine.mp4"):
        make_video(tmp_path / ".demo" / "clips" / name, frames=150)
    assert dstream("init", ".demo/repo").code == 0
    assert dstream("ingest", ".demo/clips", "--name", "demo", "--repo", ".demo/repo").code == 0
    return tmp_path


@pytest.fixture
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository made by the recipe that the document shows."""
    monkeypatch.chdir(tmp_path)
    (recipe,) = (block for block in PYTHON if block.note == "file: chapters.py")
    (tmp_path / "chapters.py").write_text(recipe.text)
    make_video(tmp_path / "talks" / "talk.mp4", frames=120)
    make_video(tmp_path / "talks" / "silent.mp4", frames=20)
    (tmp_path / "talks" / "talk.chapters.json").write_text(
        '[{"start_s": 0, "end_s": 1.5, "title": "a"}, {"start_s": 1.5, "end_s": 9, "title": "b"}]'
    )
    dstream("init", "repo")
    ran = dstream(
        "ingest", "./talks", "--name", "talks", "--recipe", "./chapters.py", "--repo", "repo"
    )
    assert ran.code == 3
    assert "2 samples" in ran.out
    assert "silent.mp4: no chapters" in ran.out
    return tmp_path


@pytest.mark.parametrize(
    "block", [block for block in PYTHON if block.note == "uses: demo"], ids=lambda b: b.where
)
def test_blocks_on_the_demo_run(
    block: Block, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "from torch" in block.text:
        pytest.importorskip("torch")
    exec(compile(block.text, block.where, "exec"), {"__name__": "example"})
    assert capsys.readouterr().err == ""


def test_the_recipe_of_the_document_works(talks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in PYTHON if block.note == "uses: talks")
    exec(compile(block.text, block.where, "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert re.sub(r"[^0-9]+", " ", printed).split() == ["1"] * 8
    ran = dstream(
        "bench", "talks", "--recipe", "./chapters.py", "--clips", "4", "--frames", "4",
        "--repo", "repo",
    )  # fmt: skip
    assert ran.code == 0
    ran = dstream("bench", "talks", "--clips", "4", "--frames", "4", "--repo", "repo")
    assert ran.code == 2
    assert "'chapters'" in ran.err


def test_the_arrays_of_the_document_are_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latents").mkdir()
    np.save(tmp_path / "latents" / "a.npy", np.zeros((200, 4, 8), np.float16))
    dstream("init", "repo")
    ran = dstream(
        "ingest", "./latents", "--name", "latents", "--recipe", "arrays", "--repo", "repo"
    )
    assert ran.code == 0
    (block,) = (block for block in PYTHON if block.note == "uses: latents")
    exec(compile(block.text, block.where, "exec"), {"__name__": "example"})
    assert "[16, 4, 8]" in capsys.readouterr().out.replace("(", "[").replace(")", "]")


def test_every_python_block_is_used_by_a_test() -> None:
    assert len(PYTHON) >= 4
    known = {"file: chapters.py", "uses: demo", "uses: talks", "uses: latents"}
    assert {block.note for block in PYTHON} == known


def test_the_page_of_the_loader_has_every_option_and_field() -> None:
    text = (ROOT / "docs" / "loader.md").read_text()
    first_cells = " ".join(re.findall(r"^\| ([^|]+) \|", text, re.M))
    told = set(re.findall(r"`(\w+)`", first_cells))
    calls = (api.Repo.clips, api.clips, Clips.loader)
    options = {name for call in calls for name in inspect.signature(call).parameters}
    fields = {field.name for field in dataclasses.fields(LoaderReport)}
    assert told == (options - {"self", "reference", "source"}) | fields


@pytest.mark.parametrize(("where", "line"), COMMANDS, ids=[f"{w}: {c}" for w, c in COMMANDS])
def test_every_command_that_is_shown_parses(where: str, line: str) -> None:
    words = shlex.split(re.sub(r"\s+(#|\||&&).*", "", line))[1:]
    with COMMAND.make_context("dstream", words) as context:
        command = COMMAND.commands[words[0]]  # type: ignore[attr-defined]
        with command.make_context(words[0], words[1:], parent=context):
            pass


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_tests_and_benchmarks_that_are_named_are_there() -> None:
    named = 0
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text()
        for file, test in re.findall(r"`(?:tests/)?(\w+/test_\w+\.py)(?:::(\w+))?`", text):
            code = (ROOT / "tests" / file).read_text()
            assert not test or f"def {test}(" in code, f"{page.name}: {file}::{test}"
            named += 1
        for file in re.findall(r"`(?:python )?(bench/\w+\.py)", text):
            # what an earlier commit had says so
            assert (ROOT / file).exists() or f"`{file}` of commit" in text, f"{page.name}: {file}"
    assert named > 60
