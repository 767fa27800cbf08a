"""Which extents the segments hold, as far as this process has looked."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from dstream.cache.folder import CacheFolder
from dstream.cache.layout import INDEX, SegmentName
from dstream.cache.record import Record
from dstream.cache.segment import read_records
from dstream.clock import Clock
from dstream.measure import Meter

_PLACE_BITS = 40
_PLACE_MASK = (1 << _PLACE_BITS) - 1
_LIST_EVERY_S = 1.0
"""Two changes of a directory in one tick of the kernel's clock look like one: list anyway."""


class ExtentIndex:
    """Extent -> segment and place, about 120 bytes an extent. Thread-safe.

    Args:
        folder: the cache's directory.
        meter: counts broken slots.
        clock: paces listings.
    """

    def __init__(self, folder: CacheFolder, meter: Meter, clock: Clock) -> None:
        self._folder, self._meter, self._clock = folder, meter, clock
        self._lock = threading.Lock()
        self._places: dict[int, int] = {}
        self._segments: dict[int, SegmentName] = {}
        self._counts: dict[int, int] = {}
        """About how many extents each segment has."""
        self._stale = 0
        """About how many places are in segments that are gone."""
        self._seen: dict[int, int] = {}
        """Bytes of each segment's ``.index`` file that were read."""
        self._sealed: set[int] = set()
        """Segments that nobody will add to."""
        self._listed: tuple[int, float] | None = None

    def renew(self) -> None:
        """In a forked child: what was read is still true."""
        self._lock = threading.Lock()

    def find(self, key: int) -> tuple[SegmentName, int] | None:
        """Segment and place of an extent."""
        packed = self._places.get(key)
        if packed is None:
            return None
        name = self._segments.get(packed >> _PLACE_BITS)
        return None if name is None else (name, packed & _PLACE_MASK)

    def add(self, name: SegmentName, records: Iterable[Record]) -> None:
        """Learn of extents."""
        with self._lock:
            self._add(name, records)

    def _add(self, name: SegmentName, records: Iterable[Record]) -> None:
        base = name.number << _PLACE_BITS
        for record in records:
            if record.is_seal:
                self._sealed.add(name.number)
            else:
                self._places[record.key] = base | record.place
                self._counts[name.number] = self._counts.get(name.number, 0) + 1
        self._segments[name.number] = name

    def drop(self, key: int) -> None:
        """Forget an extent."""
        with self._lock:
            self._places.pop(key, None)

    def refresh(self) -> None:
        """Learn what other processes added and deleted.

        Raises:
            OSError: the directory is gone or cannot be read.
        """
        with self._lock:
            self._list()
            for name in list(self._segments.values()):
                if name.number not in self._sealed:
                    self._read_on(name)

    def unsealed(self, scope: str) -> list[SegmentName]:
        """Segments of a scope that may still be written, oldest first."""
        with self._lock:
            names = sorted(self._segments.values())
            return [n for n in names if n.scope == scope and n.number not in self._sealed]

    def _list(self) -> None:
        changed_ns = self._folder.segments.stat().st_mtime_ns
        now_s = self._clock.monotonic_s()
        if self._listed is not None:
            before_ns, before_s = self._listed
            if before_ns == changed_ns and now_s - before_s < _LIST_EVERY_S:
                return
        self._listed = changed_ns, now_s
        present = {name.number: name for name in self._folder.list()}
        gone = self._segments.keys() - present.keys()
        self._segments = present
        for number in gone:
            self._seen.pop(number, None)
            self._sealed.discard(number)
            self._stale += self._counts.pop(number, 0)
        if 2 * self._stale > len(self._places):
            # All at once and seldom: a segment may go every few hundred misses.
            self._stale = 0
            self._places = {
                key: packed
                for key, packed in self._places.items()
                if packed >> _PLACE_BITS in present
            }

    def _read_on(self, name: SegmentName) -> None:
        seen = self._seen.get(name.number, 0)
        try:
            size_bytes = (self._folder.segments / f"{name}{INDEX}").stat().st_size
            if size_bytes <= seen:
                return
            records, seen, broken = read_records(self._folder.segments, name, seen)
        except FileNotFoundError:
            return
        self._add(name, records)
        self._seen[name.number] = seen
        if broken:
            self._meter.event("cache-rot", "index", broken)
