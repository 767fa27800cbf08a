"""Until when extents live by one plan, and how much of each segment that is. Not thread-safe."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence


def lives_until(now: int, upcoming: Sequence[int], span: int) -> int:
    """The last of an extent's uses before the first gap that is longer than ``span``.

    >>> lives_until(10, [12, 15, 40, 41], 5), lives_until(10, [40], 5)
    (15, 10)
    """
    for use in upcoming:
        if use - now > span:
            break
        now = use
    return now


class Lives:
    """The extents that live, on the clock of their plan. None that is dead for long."""

    def __init__(self) -> None:
        self._extents: dict[int, tuple[int, int, int]] = {}
        """Extent -> segment, size and until when it lives."""
        self._live_bytes: dict[int, int] = {}
        self._living: dict[int, set[int]] = {}
        """Both by segment number."""
        self._due: list[tuple[int, int]] = []
        """When extents die, and which: a heap. Some have got a longer life meanwhile."""

    def is_known(self, key: int, segment: int, now: int) -> bool:
        """Whether the extent is known to lie in that segment, and to live longer than ``now``."""
        known = self._extents.get(key)
        return known is not None and known[0] == segment and known[2] > now

    def put(self, key: int, segment: int, size_bytes: int, until: int) -> None:
        """An extent in a segment lives until then, whatever was known of it."""
        self.drop(key)
        self._extents[key] = segment, size_bytes, until
        self._live_bytes[segment] = self._live_bytes.get(segment, 0) + size_bytes
        self._living.setdefault(segment, set()).add(key)
        heapq.heappush(self._due, (until, key))

    def move(self, key: int, segment: int) -> None:
        """An extent, if it lives, lies in another segment now."""
        known = self._extents.get(key)
        if known is not None:
            self.put(key, segment, known[1], known[2])

    def drop(self, key: int) -> None:
        """Forget an extent."""
        known = self._extents.pop(key, None)
        if known is None:
            return
        segment, size_bytes, _ = known
        self._live_bytes[segment] -= size_bytes
        self._living[segment].discard(key)
        if not self._living[segment]:
            del self._living[segment], self._live_bytes[segment]

    def bury(self, now: int) -> None:
        """Forget what is dead by now."""
        while self._due and self._due[0][0] <= now:
            until, key = heapq.heappop(self._due)
            if (known := self._extents.get(key)) is not None and known[2] == until:
                self.drop(key)

    def end(self, segment: int) -> None:
        """A segment is gone."""
        for key in list(self.living(segment)):
            self.drop(key)

    def live_bytes(self, segment: int) -> int:
        """So much of a segment lives."""
        return self._live_bytes.get(segment, 0)

    def living(self, segment: int) -> Collection[int]:
        """The extents that live in a segment."""
        return self._living.get(segment, ())

    def size_bytes(self, key: int) -> int:
        """Of an extent that lives."""
        return self._extents[key][1]
