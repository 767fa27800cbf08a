"""Admits extents: reserves segments within the budget and appends to one of them."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

import xxhash

from dstream.cache.folder import BusyError, CacheFolder
from dstream.cache.index import ExtentIndex
from dstream.cache.layout import SegmentName, scope_of, segment_bytes
from dstream.cache.lifetimes import Uses
from dstream.cache.policy import Reservation, Room, cost_bytes, over_budget
from dstream.cache.record import ByteRange, extent_key
from dstream.cache.segment import BrokenRecordError, OpenSegment, SegmentGoneError, SegmentWriter
from dstream.clock import Clock
from dstream.errors import FormatVersionError
from dstream.measure import Meter

_LOG = logging.getLogger("dstream")

_LOOK_AGAIN_S = 1.0
"""How long a cache that was full, or locked, is taken to be so still."""

_REASONS = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EFBIG: "disk-full",
    errno.EROFS: "read-only",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ENOENT: "vanished",
    errno.ENOTDIR: "vanished",
    errno.ESTALE: "vanished",
    errno.EMFILE: "too-many-files",
    errno.ENFILE: "too-many-files",
}


def off_reason(error: OSError | FormatVersionError) -> str:
    """Under which reason it is counted that an error turned the cache off.

    >>> off_reason(OSError(errno.ENOSPC, "")), off_reason(OSError(errno.EIO, ""))
    ('disk-full', 'io-error')
    """
    if isinstance(error, FormatVersionError):
        return "newer-format"
    return _REASONS.get(error.errno or 0, "io-error")


class _RefusedError(Exception):
    """An extent is not admitted; the message is the reason's code."""


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A segment that makes room, and the keys and places of what lives in it."""

    segment: OpenSegment
    places: Sequence[tuple[int, int]]


class Admission:
    """The writing half of a cache. Thread-safe; nothing in it waits for another process.

    Args:
        folder: the cache's directory.
        index: learns what is written.
        label: of the data set that segments are filled for.
        meter: counts what is admitted, refused and evicted.
        clock: paces looks at a full cache.
    """

    def __init__(
        self, folder: CacheFolder, index: ExtentIndex, label: str, meter: Meter, clock: Clock
    ) -> None:
        self._folder, self._index, self._meter, self._clock = folder, index, meter, clock
        self._scope = scope_of(label)
        self._lock = threading.Lock()
        self._writer: SegmentWriter | None = None
        self.labels: tuple[str, ...] = (label,)
        """Of the data sets that are read, the own one first."""
        self._user_files: dict[str, int] = {}
        """Label -> what holds its data set; -1: it was tried."""
        self._pause: tuple[str, float] | None = None
        """Why nothing is tried, and until when."""
        self._room = Room()
        self.budget_bytes = 1
        """Where the directory does not tell."""
        self.is_on = True
        """Whether anything can be written."""

    @property
    def is_full(self) -> bool:
        """See :attr:`Room.is_full`."""
        return self._room.is_full

    def begin(self, budget_bytes: int) -> None:
        """Set the budget, delete what exceeds it, and hold the data set's segments.

        Raises:
            BusyError: the directory is being changed.
            OSError: it cannot be written.
        """
        with self._folder.locked():
            self._folder.set_budget(budget_bytes)
            names = self._folder.list()
            leaving = self._folder.leaving(name.scope for name in names) - {self._scope}
            self._evict(over_budget(names, budget_bytes=budget_bytes, leaving=leaving))
        self._room.begin(names)

    def hold(self) -> None:
        """Tell other processes which data sets are in use, as far as that can be told."""
        for label in self.labels:
            if label in self._user_files:
                continue
            self._user_files[label] = -1
            try:
                self._user_files[label] = self._folder.use(label)
            except (BusyError, OSError):
                self._meter.event("fallback", "cache-not-held")

    def renew(self) -> None:
        """In a forked child: the segment in work is the parent's."""
        self._lock = threading.Lock()
        self._room.renew()
        if self._writer is not None:
            self._writer.leave()
        self._writer = None

    def close(self) -> None:
        """Give up the segment in work and the hold on the data set's segments."""
        with self._lock:
            self._close_writer()
            self._let_go()

    def __del__(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        while self._user_files:
            _, descriptor = self._user_files.popitem()
            if descriptor >= 0:
                os.close(descriptor)

    def stop(self, error: OSError | FormatVersionError) -> None:
        """Write nothing any more."""
        if self.is_on:
            self.is_on = False
            reason = off_reason(error)
            self._meter.event("cache-off", reason)
            _LOG.warning(
                "nothing more is kept in the cache %s (%s: %s): what it lacks comes from the store",
                self._folder.directory,
                reason,
                getattr(error, "strerror", None) or error,
            )

    def note_read(self, uses: Uses | None, size_bytes: int) -> None:
        """See :meth:`Room.note_read`."""
        self._room.note_read(uses, size_bytes)

    def note_hit(self, key: int, segment: int, size_bytes: int, uses: Uses | None = None) -> None:
        """An extent was there; see :meth:`Room.note_hit`."""
        self._room.note_hit(key, segment, size_bytes, uses)

    def admit(
        self, identity: bytes, part: ByteRange, data: bytes, uses: Uses | None = None
    ) -> None:
        """Keep an extent if there is room for one that has these uses; counted either way."""
        try:
            self._admit(identity, part, data, uses)
        except _RefusedError as refused:
            self._refuse(str(refused), len(data))
        except BusyError:
            self._rest("busy")
            self._refuse("busy", len(data))
        except (OSError, FormatVersionError) as error:
            with self._lock:
                self.stop(error)
                self._close_writer()
            self._refuse("off", len(data))
        else:
            self._meter.add("cache.admitted", 1)
            self._meter.add("bytes.cache_admitted", len(data))

    def _rest(self, reason: str) -> None:
        self._pause = reason, self._clock.monotonic_s() + _LOOK_AGAIN_S

    def _refuse(self, reason: str, size_bytes: int) -> None:
        if reason == "full":
            self._room.note_refused(size_bytes)
        self._meter.event("cache-refused", reason)
        self._meter.add("bytes.cache_refused", size_bytes)

    def _admit(self, identity: bytes, part: ByteRange, data: bytes, uses: Uses | None) -> None:
        if not self.is_on:
            raise _RefusedError("off")
        if len(data) != part.size_bytes or not data:
            raise _RefusedError("size")
        if self._pause is not None and self._clock.monotonic_s() < self._pause[1]:
            raise _RefusedError(self._pause[0])
        if not self._room.is_worth_it(uses):
            raise _RefusedError("later")
        checksum = xxhash.xxh3_64_intdigest(data)
        if part.checksum not in (None, checksum):
            raise _RefusedError("checksum")
        key = extent_key(identity, part.start, len(data))
        with self._lock:
            self._index.refresh()
            if self._index.find(key) is not None:
                raise _RefusedError("duplicate")
            try:
                segment = self._append(identity, part.start, data, checksum)
            except SegmentGoneError:  # cleared under us
                self._close_writer()
                segment = self._append(identity, part.start, data, checksum)
        self._room.note_there(key, segment.number, len(data), uses)

    def _append(self, identity: bytes, start: int, data: bytes, checksum: int) -> SegmentName:
        if cost_bytes(len(data)) > self._segment_bytes():
            writer = self._begin_segment(len(data))
        else:
            if self._writer is not None and not self._writer.has_room(len(data)):
                self._writer.seal()
                self._close_writer()
            if self._writer is None:
                self._writer = self._begin_segment(len(data))
            writer = self._writer
        self._index.add(writer.name, [writer.append(identity, start, data, checksum)])
        if writer is not self._writer:
            writer.seal()
            writer.close()
        return writer.name

    def _segment_bytes(self) -> int:
        return segment_bytes(self._folder.budget_bytes() or self.budget_bytes)

    def _begin_segment(self, size_bytes: int) -> SegmentWriter:
        """A segment with room for an extent: one that was left unfinished, or a new one."""
        with self._folder.locked():
            budget_bytes = self._folder.budget_bytes() or self.budget_bytes
            usual_bytes = segment_bytes(budget_bytes)
            if cost_bytes(size_bytes) <= usual_bytes:
                self._index.refresh()
                for name in self._index.unsealed(self._scope):
                    writer = self._go_on(name, size_bytes)
                    if writer is not None:
                        self._room.note_made(name)
                        return writer
            if cost_bytes(size_bytes) > budget_bytes:
                raise _RefusedError("too-large")
            reservation = self._reserve(budget_bytes, usual_bytes, cost_bytes(size_bytes))
            if reservation is None:
                self._rest("full")
                raise _RefusedError("full")
            self._pause = None
            leaving = self._leaving(reservation)
            self._evict(reservation.evict)
            number = self._folder.next_number()
            name = SegmentName(number, reservation.capacity_bytes, self._scope)
            new = SegmentWriter.begin(self._folder.segments, name, create=True)
            if new is None:
                raise _RefusedError("busy")
        for segment in leaving:
            self._move(segment, new, size_bytes)
        self._room.note_made(name, reservation.evict)
        return new

    def _leaving(self, reservation: Reservation) -> list[_Leaving]:
        """What moves on, while it is listed: readers forget a segment as soon as it is gone."""
        places: dict[SegmentName, list[tuple[int, int]]] = {}
        for key in self._room.moving(reservation):
            found = self._index.find(key)
            if found is not None and found[0] in reservation.evict:
                places.setdefault(found[0], []).append((key, found[1]))
        leaving: list[_Leaving] = []
        for name, of in places.items():
            with suppress(FileNotFoundError):  # deleted by hand
                leaving.append(_Leaving(OpenSegment(self._folder.segments, name), of))
        return leaving

    def _move(self, leaving: _Leaving, writer: SegmentWriter, need_bytes: int) -> None:
        """Copy what lives in a segment that made room, as far as the extent's room is left."""
        with closing(leaving.segment) as segment:
            for key, place in leaving.places:
                try:
                    record, data = segment.extent_at(place)
                except BrokenRecordError as broken:
                    self._meter.event("cache-rot", str(broken))
                    continue
                except OSError as error:
                    self._meter.event("cache-rot", off_reason(error))
                    continue
                if record.key != key or not writer.has_room(len(data) + cost_bytes(need_bytes)):
                    continue
                moved = writer.append(record.identity, record.start, data, record.checksum)
                self._index.add(writer.name, [moved])
                self._room.note_moved(key, writer.name.number)
                self._meter.add("cache.moved", 1)
                self._meter.add("bytes.cache_moved", len(data))

    def _reserve(self, budget_bytes: int, usual_bytes: int, need_bytes: int) -> Reservation | None:
        names = self._folder.list()
        leaving = self._folder.leaving(name.scope for name in names) - {self._scope}
        busy = set(self._index.unsealed(self._scope))
        return self._room.reserve(
            names,
            [name for name in names if name.scope == self._scope and name not in busy],
            budget_bytes=budget_bytes,
            segment_bytes=usual_bytes,
            need_bytes=need_bytes,
            leaving=leaving,
        )

    def _go_on(self, name: SegmentName, size_bytes: int) -> SegmentWriter | None:
        try:
            writer = SegmentWriter.begin(self._folder.segments, name)
        except FileNotFoundError:  # who deleted it was killed half way
            self._folder.delete([name])
            return None
        if writer is None or writer.has_room(size_bytes):
            return writer
        writer.seal()
        writer.close()
        return None

    def _evict(self, names: tuple[SegmentName, ...]) -> None:
        if names:
            freed = self._folder.delete(names)
            self._meter.add("cache.evicted_segments", len(names))
            self._meter.add("bytes.cache_evicted", freed)

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
