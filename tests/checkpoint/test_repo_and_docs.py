"""An open repository has the same functions, and the document does what it says."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path

import pytest
import typer

import dstream
from checkpoint_made import files_in, make_folder
from dstream.catalog import Catalog
from dstream.checkpoint import LAYOUTS
from dstream.errors import ConflictError, DstreamError
from dstream.store.opening import open_store
from dstream_cli.fetch import Layout
from dstream_cli.main import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "checkpoints.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S)
    for line in block.splitlines()
    if line.startswith("dstream ")
]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    store = open_store("repo")
    Catalog.create(store)
    store.close()
    return "./repo"


def test_an_open_repository_publishes_and_fetches(url: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "source")
    (folder / "hollow").mkdir()
    with dstream.open(url) as repo:
        done = repo.publish(folder, "run", step=3, promote="prod", loader_state={"batch": 9})
        assert repo.fetch("run@prod", tmp_path / "dest").generation == done.generation
        assert repo.meter.snapshot().event("publish-skip") == {"empty-folder": 1}
        (folder / "more").write_text("x")
        repo.publish(folder, "run", step=4, idempotency_key="k")
        with pytest.raises(ConflictError):
            repo.publish(folder, "run", step=5, idempotency_key="k")
    assert "more" not in files_in(tmp_path / "dest")


def test_a_frozen_view_fetches_what_it_lists(url: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "source")
    with dstream.open(url) as repo:
        repo.publish(folder, "run", step=1)
        frozen = repo.at(repo.catalog.head().seq)
        before = files_in(folder)
        (folder / "run.sh").write_text("new")
        repo.publish(folder, "run", step=2)
        frozen.fetch("run@latest", tmp_path / "old")
        assert files_in(tmp_path / "old") == before
        with pytest.raises(DstreamError):
            frozen.publish(folder, "run", step=3)


def test_the_python_of_the_document_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: no process group
            exec(compile(block, "docs/checkpoints.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert printed == "run7@v1\n500 {'epoch': 3, 'batch': 120}\n"
    with dstream.open(url) as repo:
        assert repo.catalog.resolve("run7@best").step == 501


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_document_parse(line: str) -> None:
    words = shlex.split(line)[1:]
    command = typer.main.get_command(app)
    with command.make_context("dstream", words) as context:
        verb = command.commands[words[0]]  # type: ignore[attr-defined]
        with verb.make_context(words[0], words[1:], parent=context):
            pass


def test_the_document_names_tests_that_there_are() -> None:
    names = set(re.findall(r"`(test_\w+\.py)`", TEXT))
    assert names
    assert names <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


def test_the_verb_knows_every_layout() -> None:
    assert set(Layout.__args__) == set(LAYOUTS)  # type: ignore[attr-defined]
