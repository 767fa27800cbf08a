"""What docs/frameworks.md shows runs, with every framework that is installed."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import dstream
from dstream.store.opening import open_store
from loader_data import fill, publish, videos

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
BLOCKS = re.findall(r"^<!-- uses: demo -->\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
SCRIPTS = re.findall(r"^<!-- file: .*? -->\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository as ``make demo`` leaves it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    fill(open_store("source"), videos(tmp_path / "made", 2, frames=64, size=(64, 64)))
    publish(".demo/repo", "source", packed=True, name="demo")
    return tmp_path


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_page_run(number: int, demo: Path) -> None:
    text = BLOCKS[number]
    for module in re.findall(r"^(?:from|import) (torch\w*|lightning|accelerate)", text, re.M):
        pytest.importorskip(module, exc_type=ImportError)
    if "import lightning" in text:
        warnings.simplefilter("ignore")  # its own, of torch and of few workers
    exec(compile(text, f"docs/frameworks.md, block {number}", "exec"), {"__name__": "example"})


def test_the_training_of_the_page_runs_and_goes_on(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank, in this process; test_resume_ranks.py runs its like under torchrun."""
    dist = pytest.importorskip("torch.distributed", exc_type=ImportError)
    (block,) = SCRIPTS
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        try:
            exec(compile(block, "train.py", "exec"), {"__name__": "__main__"})
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    with dstream.open(".demo/repo") as repo:
        steps = [g.step or 0 for g in repo.catalog.generations("run7")]
    assert sorted(steps) == [5, 10]  # the second run went on from step 10


def test_every_block_of_the_page_is_run() -> None:
    assert BLOCKS
    assert len(BLOCKS) + len(SCRIPTS) == PAGE.read_text().count("```python")
