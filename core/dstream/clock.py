"""Time as a component: the library never asks the operating system for the time elsewhere."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the library needs of time. Pass :class:`SystemClock`, or a fake one in tests."""

    def now_s(self) -> float:
        """Seconds since the epoch, UTC. A hint for people; no decision depends on it."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go backwards, for durations."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Wait ``duration_s`` seconds."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def now_s(self) -> float:
        """Seconds since the epoch, UTC."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Wait ``duration_s`` seconds."""
        time.sleep(duration_s)


class FakeClock:
    """A clock that moves only when told to, or when something sleeps on it."""

    def __init__(self, start_s: float = 1_000_000_000.0) -> None:
        self.time_s = start_s
        self.slept_s: list[float] = []

    def now_s(self) -> float:
        """The fake wall time."""
        return self.time_s

    def monotonic_s(self) -> float:
        """The same fake time."""
        return self.time_s

    def sleep(self, duration_s: float) -> None:
        """Advance at once by ``duration_s`` and remember it in ``slept_s``."""
        self.slept_s.append(duration_s)
        self.time_s += duration_s
