"""What threads and the consumer wait for between stages has a name as well."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dstream import clips
from dstream.clock import FakeClock
from dstream.diagnose.bench.accounting import thread_times
from dstream.diagnose.bench.interruption import Interruption
from dstream.diagnose.bench.run import Wish, run_whole
from dstream.loader.batch import Batch
from dstream.loader.work import Fetched, Work
from dstream.store.opening import open_store
from loader_data import fill, new_url, videos


class _OwnTime(FakeClock):
    """Time passes in each thread alone: a little when it looks, and where it is told."""

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def monotonic_s(self) -> float:
        self.sleep(0.001)
        return float(self._of_thread.now_s)

    def sleep(self, duration_s: float) -> None:
        self._of_thread.now_s = getattr(self._of_thread, "now_s", 0.0) + duration_s


def test_waiting_for_the_queue_of_fetched_clips_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, put = _OwnTime(), Work.put

    def slow(work: Work, fetched: Fetched) -> None:
        clock.sleep(1.0)
        put(work, fetched)

    monkeypatch.setattr(Work, "put", slow)
    opened = clips(fill(open_store(new_url()), videos(tmp_path, 2)), frames=4, clock=clock)
    with opened.loader(2, epochs=2, workers=1, fetchers=2) as loader:
        taken = sum(len(batch) for batch in loader)
    fetching = thread_times(opened.meter.snapshot().sums, 0.0, {})[0]
    assert fetching.waits_s["for the queue"] > taken
    assert 0.95 < fetching.explained_share < 1  # nothing takes up what has no name


def test_letting_go_of_a_batch_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _OwnTime()
    monkeypatch.setattr(Batch, "__del__", lambda batch: clock.sleep(1.0), raising=False)
    opened = clips(fill(open_store(new_url()), videos(tmp_path, 2)), frames=4, clock=clock)
    loader = opened.loader(2, epochs=None, workers=1, fetchers=2)
    wish = Wish(clips=20, step_s=1.0)
    run = run_whole(opened, loader, wish, clock, lambda taken: None, Interruption())
    assert run.threads[2].waits_s["for the release"] > 10
    assert run.threads[2].explained_share > 0.95
