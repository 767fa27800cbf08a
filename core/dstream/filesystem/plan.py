"""Which reads the wanted byte ranges become, and what was counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from dstream.loader.source import FileLocation
from dstream.measure import Purpose, Snapshot

Wanted = tuple[FileLocation, int, int]
"""Bytes ``[start, stop)`` of a file."""

RANGES, NEEDED, READS = "filesystem.ranges", "bytes.filesystem_needed", "filesystem.reads"
"""Names of this layer's sums on the meter."""


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """One read of one object; it serves one or more of the wanted ranges."""

    location: FileLocation
    """Of the first file that it serves; others lie in the same object."""
    start_byte: int
    """In the object."""
    stop_byte: int
    serves: tuple[int, ...]
    """Places among the wanted ranges."""

    @property
    def object_url(self) -> str:
        """Of the object."""
        return f"{self.location.store.url}/{self.location.key}"

    def cut(self, data: bytes, wanted: Wanted) -> bytes:
        """A wanted range out of this read's bytes."""
        location, start, stop = wanted
        first = location.offset_bytes + start - self.start_byte
        return data[first : first + stop - start]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The reads that serve some wanted ranges. A read is a request, unless a cache has it."""

    reads: tuple[PlannedRead, ...]
    ranges: int
    """Wanted ranges."""
    needed_bytes: int
    """Their sizes together; overlaps count twice."""

    @property
    def read_bytes(self) -> int:
        """Bytes of the reads."""
        return sum(read.stop_byte - read.start_byte for read in self.reads)

    @property
    def merged_ranges(self) -> int:
        """Wanted ranges that cost no read of their own, empty ones included."""
        return self.ranges - len(self.reads)


def plan_reads(wanted: Sequence[Wanted], max_gap_bytes: int = 0) -> ReadPlan:
    """The fewest reads that serve ``wanted`` and skip every gap wider than ``max_gap_bytes``.

    Ranges of several files that lie in one object, as those of a shard do, are merged too.
    """
    objects: dict[tuple[object, ...], list[tuple[int, int, int]]] = {}
    for place, (location, start, stop) in enumerate(wanted):
        if start < stop:
            key = (location.store.url, location.key, location.etag, location.version)
            at = location.offset_bytes
            objects.setdefault(key, []).append((at + start, at + stop, place))
    reads: list[PlannedRead] = []
    for ranges in objects.values():
        run: list[int] = []
        run_start = run_stop = -1
        for start, stop, place in sorted(ranges):
            if run and start - run_stop > max_gap_bytes:
                reads.append(PlannedRead(wanted[run[0]][0], run_start, run_stop, tuple(run)))
                run = []
            if not run:
                run_start, run_stop = start, stop
            run.append(place)
            run_stop = max(run_stop, stop)
        reads.append(PlannedRead(wanted[run[0]][0], run_start, run_stop, tuple(run)))
    return ReadPlan(tuple(reads), len(wanted), sum(stop - start for _, start, stop in wanted))


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What a file system has done so far. Subtract two to get a phase."""

    ranges: int
    """Byte ranges that callers asked for."""
    needed_bytes: int
    """Their sizes together."""
    reads: int
    """What they became after merging."""
    requests: int
    """Requests for file bytes that left the process, repeated ones included."""
    received_bytes: int
    """What these brought."""
    other_requests: int
    """Catalog, tables and listings."""
    cache_hits: int
    cache_hit_bytes: int
    cache_misses: int

    def minus(self, earlier: ReadReport) -> ReadReport:
        """What happened since ``earlier``."""
        return ReadReport(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))


def report_of(counted: Snapshot) -> ReadReport:
    """The counters of a meter that one file system uses."""
    data, sums = counted.total(purpose=Purpose.DATA), counted.sums
    return ReadReport(
        ranges=int(sums.get(RANGES, 0)),
        needed_bytes=int(sums.get(NEEDED, 0)),
        reads=int(sums.get(READS, 0)),
        requests=data.count,
        received_bytes=data.bytes_received,
        other_requests=counted.total().count - data.count,
        cache_hits=int(sums.get("cache.hits", 0)),
        cache_hit_bytes=int(sums.get("bytes.cache_hit", 0)),
        cache_misses=int(sums.get("cache.misses", 0)),
    )
