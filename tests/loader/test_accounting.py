"""The time of every thread of a loader is in named sums, all of it, each moment once."""

from __future__ import annotations

import threading
from pathlib import Path

from dstream import clips
from dstream.clock import FakeClock
from dstream.measure import Meter
from dstream.measure.laps import Laps
from dstream.store.opening import open_store
from loader_data import fill, new_url, videos


def test_laps_leave_no_gap() -> None:
    clock, meter = FakeClock(100.0), Meter()
    laps = Laps(meter, clock)
    for name, seconds in (("wait", 2.0), ("work", 3.0), ("wait", 0.25), ("rest", 0.0)):
        clock.sleep(seconds)
        laps.end(name)
    assert meter.snapshot().sums == {"wait": 2.25, "work": 3.0, "rest": 0.0}


class _CountingClock(FakeClock):
    """A second passes in a thread whenever it looks at the clock, and at no other time."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks: dict[str, int] = {}

    def monotonic_s(self) -> float:
        name = threading.current_thread().name
        self.ticks[name] = self.ticks.get(name, 0) + 1
        return float(self.ticks[name])


def test_every_second_of_every_thread_is_in_one_sum(tmp_path: Path) -> None:
    store = fill(open_store(new_url()), videos(tmp_path, 2))
    clock = _CountingClock()
    opened = clips(store, frames=4, clips_per_file=8, clock=clock)
    with opened.loader(2, epochs=2, workers=2, fetchers=3, clips_per_gop=2) as loader:
        assert sum(len(batch) for batch in loader) == 32
    sums = opened.meter.snapshot().sums
    names = {
        "fetch": ("fetch_idle", "fetch_threads", "fetch_handover"),
        "decode": ("decode_idle", "decode_threads"),
    }
    for kind, pieces in names.items():
        lived_s = sum(
            ticks - 1 for name, ticks in clock.ticks.items() if name.startswith(f"dstream-{kind}-")
        )
        assert lived_s > 32
        assert sum(sums[f"seconds.{piece}"] for piece in pieces) == lived_s
    assert sums["seconds.fetch_stage"] < sums["seconds.fetch_threads"]
    assert sums["seconds.fetch_handover"] == 32 + 3  # a tick a clip, and one at each thread's end
    assert sums["seconds.decode_stage"] < sums["seconds.decode_threads"]
    assert sums["seconds.deliver"] == 16  # one tick a batch
    assert sums["seconds.start"] >= 1  # and one that the threads are started
