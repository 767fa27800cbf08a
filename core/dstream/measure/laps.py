"""A thread's time, cut without gaps: what is not in one piece is in the next."""

from __future__ import annotations

from dstream.clock import Clock
from dstream.measure.counters import Meter


class Laps:
    """Adds the time since the last cut to a named sum. One per thread.

    All sums together are the time from the making to the last cut, to the last clock tick: no
    time of the thread is in none of them, or in two.
    """

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self._meter, self._clock = meter, clock
        self.last_s = clock.monotonic_s()
        """When the last cut was."""

    def end(self, name: str) -> float:
        """What was done since the last cut is called ``name``; returns when this one is."""
        now_s = self._clock.monotonic_s()
        self._meter.add(name, now_s - self.last_s)
        self.last_s = now_s
        return now_s
