"""The cache of one node's extents, as one process sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dstream.cache.flights import Flight, Flights
from dstream.cache.folder import BusyError, CacheFolder
from dstream.cache.index import ExtentIndex
from dstream.cache.lifetimes import Uses
from dstream.cache.record import ByteRange, ObjectIdentity, Record, extent_key
from dstream.cache.segment import (
    BrokenRecordError,
    FilePart,
    blot_out,
    locate_extent,
    read_extent,
)
from dstream.cache.writing import Admission, off_reason
from dstream.clock import Clock, SystemClock
from dstream.errors import InvalidInputError
from dstream.forks import renew_after_fork
from dstream.measure import Meter

Fetch = Callable[[Sequence[int]], Sequence[bytes]]
"""Given places in the list of ranges, their bytes in the same order."""


class ExtentCache:
    """Extents of objects on this node's disk, shared by all processes that name the directory.

    Whatever is wrong with the directory or the bytes in it, a read returns what the store has:
    what cannot be verified is fetched again, and what cannot be written is not. Each such case is
    counted by its reason. Safe to use from many threads and in forked processes; pickled, it is
    opened anew in the other process.

    Args:
        directory: on a local disk; made when it is missing. Several data sets may share it.
        budget_bytes: what the files may take together; what was set last by default. All
            processes go by the value that was set last.
        label: what people call the data set; its segments go together.
        meter: counts hits, misses, what was admitted and what was not.
        clock: for short waits and durations.
        beside: labels of other data sets that are read through it, whose segments shall stay.

    Raises:
        InvalidInputError: the directory is a file, or no budget was ever set.
        FormatVersionError: a newer dstream made the cache.
    """

    def __init__(
        self,
        directory: str | Path,
        budget_bytes: int | None = None,
        *,
        label: str = "",
        meter: Meter | None = None,
        clock: Clock | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        if budget_bytes is not None and budget_bytes < 1:
            raise InvalidInputError(f"cache_bytes must be at least 1, got {budget_bytes}")
        self.directory = Path(directory)
        self.label = label
        self._budget_bytes = budget_bytes
        self._meter = meter or Meter()
        self._clock: Clock = clock or SystemClock()
        self._folder = CacheFolder(self.directory, self._clock)
        self._index = ExtentIndex(self._folder, self._meter, self._clock)
        self._flights = Flights()
        self._admission = Admission(self._folder, self._index, label, self._meter, self._clock)
        self.read_too(beside)
        self._reads_from_disk = True
        self._open()
        renew_after_fork(self)

    def _open(self) -> None:
        """Make the directory and set the budget; what cannot be done turns the cache off."""
        known = None
        try:
            known = self._folder.budget_bytes()
            wanted = self._budget_bytes or known
            if wanted is not None:
                self._folder.prepare()
                self._admission.begin(wanted)
        except BusyError:
            self._meter.event("cache-refused", "busy")
        except OSError as error:
            self._admission.stop(error)
            self._reads_from_disk = self._folder.has_segments()
        if self._budget_bytes is None and known is None:
            raise InvalidInputError(
                f"the cache in {self.directory} has no budget yet: give cache_bytes, or set "
                "DSTREAM_CACHE_BYTES",
                directory=str(self.directory),
            )
        self._admission.budget_bytes = self._budget_bytes or known or 1

    def __reduce__(self) -> tuple[object, ...]:
        beside = self._admission.labels[1:]
        given = (self.directory, self._budget_bytes, self.label, self._meter, self._clock, beside)
        return _opened, given

    def renew(self) -> None:
        """In a forked child: the parent's threads and its segment did not come along."""
        self._flights = Flights()
        self._index.renew()
        self._admission.renew()

    def read_too(self, labels: Iterable[str]) -> None:
        """Other data sets are read through it as well: let their segments stay."""
        known = self._admission.labels
        self._admission.labels = tuple(dict.fromkeys((*known, *labels)))

    def close(self) -> None:
        """Let other processes go on with this one's segment, and with the data set's room."""
        self._admission.close()

    @property
    def is_off(self) -> bool:
        """Nothing can be written any more."""
        return not self._admission.is_on

    @property
    def is_full(self) -> bool:
        """The budget is used up, so that whatever comes takes the place of something else."""
        return self._admission.is_full

    def read(
        self,
        identity: ObjectIdentity | None,
        ranges: Sequence[ByteRange],
        fetch: Fetch,
        *,
        fresh: bool = False,
        uses: Sequence[Uses] | None = None,
    ) -> list[bytes]:
        """The bytes of ``ranges`` of one object, from the cache or by one call of ``fetch``.

        What another thread of the process is fetching already is waited for. A range is cached
        as it is: one that begins or ends elsewhere is another extent.

        Args:
            identity: of the object; None is not cached.
            ranges: any, in any order.
            fetch: gets the places in ``ranges`` that are missing, ascending.
            fresh: what the cache has is wrong: forget it and fetch.
            uses: when each of the ranges is read again, for who follows a plan.

        Raises:
            Whatever ``fetch`` raises.
        """
        if identity is None:
            self._meter.event("cache-refused", "weak-identity", len(ranges))
            return list(fetch(range(len(ranges))))
        self._admission.hold()
        request = _Request.make(identity, ranges, uses)
        for key, place in request.places.items():
            self._admission.note_read(request.uses_of(key), ranges[place].size_bytes)
        got: dict[int, bytes] = {}
        if fresh:
            self._refresh()  # so that it is not found again
            for key in request.places:
                self._index.drop(key)
            self._fetch_missing(request, list(request.places), fetch, got)
        while len(got) < len(request.places):
            mine, others = self._flights.claim(key for key in request.places if key not in got)
            try:
                missing = self._look_up(request, mine, got)
                self._fetch_missing(request, missing, fetch, got)
            finally:
                for key in mine:
                    self._flights.land(key, got.get(key))
            self._join(others, got)
        return [got[key] for key in request.keys]

    def locate(
        self, identity: ObjectIdentity, ranges: Sequence[ByteRange]
    ) -> list[FilePart] | None:
        """Where the ranges lie on this node's disk, for who reads the files; None if not all do.

        The bytes were verified when they were written, and are not looked at now. A file that is
        evicted meanwhile is gone for who opens it later.
        """
        request = _Request.make(identity, ranges)
        if any(self._index.find(key) is None for key in request.places):
            self._refresh()
        parts: list[FilePart] = []
        for key in request.keys:
            found = self._index.find(key)
            if found is None:
                return None
            try:
                parts.append(
                    locate_extent(self._folder.segments, found[0], request.record(key, found[1]))
                )
            except (BrokenRecordError, LookupError, OSError):
                return None  # it is read through the host, which counts what is wrong
            self._admission.note_read(None, parts[-1].size_bytes)
            self._admission.note_hit(key, found[0].number, parts[-1].size_bytes)
        self._meter.add("cache.hits", len(parts))
        self._meter.add("bytes.cache_hit", sum(part.size_bytes for part in parts))
        return parts

    def _look_up(self, request: _Request, keys: list[int], got: dict[int, bytes]) -> list[int]:
        """Put what the disk has into ``got``; returns the keys of the rest."""
        began_s = self._clock.monotonic_s()
        missing: list[int] = []
        looked = False
        for key in keys:
            if not self._reads_from_disk:
                missing.append(key)
                continue
            if self._index.find(key) is None and not looked:
                looked = True
                self._refresh()
            data = self._read_extent(request, key)
            if data is None:
                missing.append(key)
            else:
                got[key] = data
        if len(missing) < len(keys):
            self._count_hits(data for key in keys if (data := got.get(key)) is not None)
            self._meter.add("seconds.cache", self._clock.monotonic_s() - began_s)
        return missing

    def _refresh(self) -> None:
        try:
            self._index.refresh()
        except OSError as error:
            self._reads_from_disk = False
            self._admission.stop(error)

    def _read_extent(self, request: _Request, key: int) -> bytes | None:
        """A verified extent; None where it must be fetched."""
        found = self._index.find(key)
        if found is None:
            return None
        name, place = found
        try:
            data = read_extent(self._folder.segments, name, request.record(key, place))
            self._admission.note_hit(key, name.number, len(data), request.uses_of(key))
            return data
        except BrokenRecordError as broken:
            self._meter.event("cache-rot", str(broken))
            with suppress(OSError):
                blot_out(self._folder.segments, name, place)
        except (FileNotFoundError, LookupError):
            pass  # evicted, or written over, since we looked: a miss like any other
        except OSError as error:
            self._meter.event("cache-rot", off_reason(error))
        self._index.drop(key)
        return None

    def _fetch_missing(
        self, request: _Request, keys: list[int], fetch: Fetch, got: dict[int, bytes]
    ) -> None:
        if not keys:
            return
        places = sorted(request.places[key] for key in keys)
        missed_bytes = sum(request.ranges[place].size_bytes for place in places)
        self._meter.add("cache.misses", len(places))
        self._meter.add("bytes.cache_missed", missed_bytes)
        for place, data in zip(places, fetch(places), strict=True):
            key = request.keys[place]
            self._admission.admit(request.digest, request.ranges[place], data, request.uses_of(key))
            got[key] = data

    def _join(self, others: dict[int, Flight], got: dict[int, bytes]) -> None:
        """Take what other threads obtain; what they could not is left to the caller."""
        for key, flight in others.items():
            flight.done.wait()
            if flight.data is not None:
                got[key] = flight.data
                self._count_hits([flight.data])
                self._meter.add("cache.joined", 1)

    def _count_hits(self, pieces: Iterable[bytes]) -> None:
        sizes = [len(data) for data in pieces]
        self._meter.add("cache.hits", len(sizes))
        self._meter.add("bytes.cache_hit", sum(sizes))


@dataclass(frozen=True, slots=True)
class _Request:
    """One call of :meth:`ExtentCache.read`."""

    digest: bytes
    ranges: Sequence[ByteRange]
    keys: list[int]
    """Of each range."""
    places: dict[int, int]
    """Key -> its first place; a range may be asked for twice."""
    uses: Sequence[Uses] | None

    @classmethod
    def make(
        cls,
        identity: ObjectIdentity,
        ranges: Sequence[ByteRange],
        uses: Sequence[Uses] | None = None,
    ) -> _Request:
        digest = identity.digest
        keys = [extent_key(digest, part.start, part.size_bytes) for part in ranges]
        places: dict[int, int] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, place)
        return cls(digest, ranges, keys, places, uses)

    def uses_of(self, key: int) -> Uses | None:
        """When a key's range is read again, where that is known."""
        return None if self.uses is None else self.uses[self.places[key]]

    def record(self, key: int, place: int) -> Record:
        """What has to stand at ``place`` of a segment, if it is a key's range."""
        part = self.ranges[self.places[key]]
        checksum = -1 if part.checksum is None else part.checksum
        return Record(self.digest, part.start, part.size_bytes, place, checksum)


def _opened(
    directory: Path,
    budget_bytes: int | None,
    label: str,
    meter: Meter,
    clock: Clock,
    beside: tuple[str, ...],
) -> ExtentCache:
    return ExtentCache(
        directory, budget_bytes, label=label, meter=meter, clock=clock, beside=beside
    )
