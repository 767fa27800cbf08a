"""How many clips to fetch at the same time: found by trying, unless a number was given.

More requests at once hide a longer round trip, until the link, the store or this process is
full. So the number grows while decoders wait for bytes and growing brings more of them, and it
halves when the store asks to slow down (additive-increase, multiplicative-decrease is what TCP
does about the same question; here the increase is a share, since a window is seconds long).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Literal

from dstream.clock import Clock
from dstream.measure import Meter

FIRST = 16
MOST = 64
LEAST = 2

_AWAITED_SHARE = 0.1
"""Below this share of clips that a decoder was waiting for, fetching keeps up."""
_WORTHWHILE = 1.05
"""A larger number has to bring this much more, or it is taken back."""
_CALM_WINDOWS = 10
"""Windows without growth after a throttle, or after growth in vain."""
_WINDOW_S = 0.5
"""Shortest window: below, rates are noise."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """A number of fetches at the same time, and how it came to be."""

    limit: int
    before: int = 0
    """What it was before the last growth, while that is on trial; else 0."""
    rate_before: float = 0.0
    """Bytes a second then."""
    calm: int = 0
    """Windows left without growth."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one window brought."""

    bytes_per_s: float
    awaited_share: float
    """Clips that a decoder was waiting for, of all."""
    throttles: int


def adapted(now: Concurrency, seen: Seen) -> Concurrency:
    """The number for the next window. Pure.

    >>> adapted(Concurrency(16), Seen(1e6, 0.5, 0)).limit
    24
    >>> adapted(Concurrency(16), Seen(1e6, 0.5, 3)).limit
    8
    """
    if seen.throttles:
        return Concurrency(max(LEAST, now.limit // 2), calm=_CALM_WINDOWS)
    if now.before and seen.bytes_per_s < now.rate_before * _WORTHWHILE:
        return Concurrency(now.before, calm=_CALM_WINDOWS)
    if now.calm:
        return replace(now, before=0, calm=now.calm - 1)
    if seen.awaited_share < _AWAITED_SHARE or now.limit >= MOST:
        return Concurrency(now.limit)
    return Concurrency(min(MOST, now.limit + max(1, now.limit // 2)), now.limit, seen.bytes_per_s)


class Tuner:
    """Watches one loader's fetching and applies :func:`adapted`. Thread-safe.

    Args:
        fetchers: a fixed number, or ``auto``.
        meter: tells of throttles.
        clock: measures windows.
    """

    def __init__(self, fetchers: int | Literal["auto"], meter: Meter, clock: Clock) -> None:
        self._is_fixed = fetchers != "auto"
        self._state = Concurrency(FIRST if fetchers == "auto" else fetchers)
        self._meter, self._clock = meter, clock
        self._lock = threading.Lock()
        self._clips = self._bytes = 0
        self._awaited = 0
        self._throttles = 0
        self._began_s = clock.monotonic_s()

    @property
    def limit(self) -> int:
        """The number now."""
        return self._state.limit

    def fetched(self, size_bytes: int, awaited: int) -> bool:
        """Count a fetched clip; True when that changed the number.

        Args:
            size_bytes: of the clip.
            awaited: clips that a decoder was waiting for, since the beginning.
        """
        if self._is_fixed:
            return False
        with self._lock:
            self._clips += 1
            self._bytes += size_bytes
            elapsed_s = self._clock.monotonic_s() - self._began_s
            if self._clips < 2 * self.limit or elapsed_s < _WINDOW_S:
                return False
            throttles = sum(self._meter.snapshot().event("throttle").values())
            seen = Seen(
                self._bytes / elapsed_s,
                (awaited - self._awaited) / self._clips,
                throttles - self._throttles,
            )
            before = self._state.limit
            self._state = adapted(self._state, seen)
            self._clips = self._bytes = 0
            self._awaited, self._throttles = awaited, throttles
            self._began_s = self._clock.monotonic_s()
            return self._state.limit != before
