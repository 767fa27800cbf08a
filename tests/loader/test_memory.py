"""Memory: epochs add none, and bytes that are fetched ahead stay within their budget."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from dstream.units import MIB

BENCH = Path(__file__).parents[2] / "bench" / "memory.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("memory_bench", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_three_epochs_take_no_more_than_one(bench: Any, tmp_path: Path) -> None:
    first, *_, third = bench.in_process("after_epochs", str(bench.small_videos(tmp_path / "s")), 3)
    assert third <= 1.02 * first


def test_bytes_that_are_fetched_ahead_stay_within_their_budget(bench: Any, tmp_path: Path) -> None:
    # GOPs of 5.5 MB: 64 fetching threads would hold 350 MB.
    video = bench.noise_video(tmp_path / "noise.mp4", size=(640, 360), frames=64, gop=16)
    for budget_bytes in (32 * MIB, 128 * MIB):
        taken_bytes = bench.in_process("under_budget", str(video), budget_bytes)["taken_bytes"]
        assert budget_bytes / 2 < taken_bytes < budget_bytes + 24 * MIB
