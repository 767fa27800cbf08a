"""Which bytes of an object were read: a set of disjoint half-open ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Intervals:
    """Disjoint ranges ``[start, stop)``, touching ones merged."""

    __slots__ = ("_starts", "_stops", "size_bytes")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.size_bytes = 0
        """Bytes in all ranges together."""

    def add(self, start: int, stop: int) -> int:
        """Add a range; how many of its bytes were not there before.

        >>> seen = Intervals()
        >>> seen.add(0, 10), seen.add(5, 15), seen.add(2, 3), seen.size_bytes
        (10, 5, 0, 15)
        """
        if stop <= start:
            return 0
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        held = sum(self._stops[number] - self._starts[number] for number in range(first, last))
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        added = stop - start - held
        self.size_bytes += added
        return added

    def ranges(self) -> list[tuple[int, int]]:
        """All ranges in order."""
        return list(zip(self._starts, self._stops, strict=True))
