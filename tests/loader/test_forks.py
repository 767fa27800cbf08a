"""A child that is forked while a loader runs goes on by itself instead of waiting for ever."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

import dstream
from dstream.loader.plan import Order
from loader_data import videos

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def in_child(work: Any) -> Any:
    """What ``work()`` gives in a forked process; fails when there is no answer in time."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=lambda: theirs.send(work()), daemon=True)
    child.start()
    try:
        assert ours.poll(60), "the child hangs"
        return ours.recv()
    finally:
        child.kill()
        child.join()


def opened(folder: Path) -> dstream.Clips:
    videos(folder, frames=48)
    return dstream.clips(folder, frames=4, clips_per_file=4, array="numpy")


def test_a_running_loader_goes_on_in_a_forked_child(tmp_path: Path) -> None:
    clips = opened(tmp_path)
    with clips.loader(batch_size=2) as alone:
        expected = [batch.positions.tolist() for batch in alone]
    with clips.loader(batch_size=2) as loader:
        next(loader)
        assert in_child(lambda: [b.positions.tolist() for b in loader]) == expected[1:]
        assert [b.positions.tolist() for b in loader] == expected[1:]


def test_dropping_a_loader_in_a_forked_child_does_not_wait(tmp_path: Path) -> None:
    with opened(tmp_path).loader(batch_size=2) as loader:
        next(loader)
        assert in_child(loader.close) is None


def test_random_access_in_a_child_that_was_forked_while_a_loader_ran(tmp_path: Path) -> None:
    clips = opened(tmp_path)
    with clips.loader(batch_size=2, epochs=None) as loader:
        for _ in range(5):
            next(loader)
            assert in_child(lambda: len(clips[0].video)) == 4


def test_what_ends_a_thread_reaches_the_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Order, positions: list[int]) -> None:
        raise RuntimeError(f"no draw at {positions[0]}")

    monkeypatch.setattr(Order, "draw_many", broken)
    with opened(tmp_path).loader(batch_size=2) as loader:
        with pytest.raises(RuntimeError, match="no draw at 0"):
            next(loader)
