"""The two files of one segment: appended by one process at a time, read by all.

The ``.data`` file is locked by the process that writes; the kernel lets go of the lock when that
process ends, however it ends. An extent's bytes are written first, its slot in the ``.index`` file
last, so an extent that is listed was once written whole. Whoever goes on with a segment begins
after the last record that is listed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from dstream.cache.layout import DATA, INDEX, SegmentName
from dstream.cache.policy import cost_bytes
from dstream.cache.record import RECORD_BYTES, Record, decode_record, encode_record

_MODE = 0o600


class SegmentGoneError(Exception):
    """The segment was deleted while it was written."""


class BrokenRecordError(Exception):
    """Bytes on the disk are not those that were written. Fact: what is broken."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes ``[start_byte, stop_byte)`` of a local file."""

    path: Path
    start_byte: int
    stop_byte: int

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.stop_byte - self.start_byte


def locate_extent(folder: Path, name: SegmentName, wanted: Record) -> FilePart:
    """Where the bytes of an extent lie; they are not looked at. As :func:`read_extent`."""
    path = folder / f"{name}{DATA}"
    descriptor = os.open(path, os.O_RDONLY)
    try:
        record = _record_at(descriptor, name, wanted)
    finally:
        os.close(descriptor)
    start = record.place + RECORD_BYTES
    return FilePart(path, start, start + record.size_bytes)


def read_extent(folder: Path, name: SegmentName, wanted: Record) -> bytes:
    """The bytes of the extent that ``wanted`` names; its checksum is taken from the disk.

    Args:
        folder: of the segments.
        name: the segment.
        wanted: identity, start, size and place are held against the disk's record; a checksum
            that is not -1 as well.

    Raises:
        LookupError: another extent is there now.
        BrokenRecordError: torn or rotten.
        OSError: the segment is gone, or the disk fails.
    """
    descriptor = os.open(folder / f"{name}{DATA}", os.O_RDONLY)
    try:
        return _bytes_of(descriptor, _record_at(descriptor, name, wanted))
    finally:
        os.close(descriptor)


class OpenSegment:
    """A segment that can still be read when it was deleted, until it is closed.

    Raises:
        OSError: it is gone already.
    """

    def __init__(self, folder: Path, name: SegmentName) -> None:
        self.name = name
        self._descriptor = os.open(folder / f"{name}{DATA}", os.O_RDONLY)

    def extent_at(self, place: int) -> tuple[Record, bytes]:
        """The extent whose record stands at ``place``, verified.

        Raises:
            BrokenRecordError: torn or rotten.
            OSError: the disk fails.
        """
        record = _any_record_at(self._descriptor, self.name, place)
        return record, _bytes_of(self._descriptor, record)

    def close(self) -> None:
        """Let go of the file."""
        _close(self._descriptor)
        self._descriptor = -1

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()


def _bytes_of(descriptor: int, record: Record) -> bytes:
    data = os.pread(descriptor, record.size_bytes, record.place + RECORD_BYTES)
    if len(data) != record.size_bytes or xxhash.xxh3_64_intdigest(data) != record.checksum:
        raise BrokenRecordError("bytes")
    return data


def _any_record_at(descriptor: int, name: SegmentName, place: int) -> Record:
    record = decode_record(os.pread(descriptor, RECORD_BYTES, place), name.number)
    if record is None or record.place != place:
        raise BrokenRecordError("record")
    return record


def _record_at(descriptor: int, name: SegmentName, wanted: Record) -> Record:
    record = decode_record(os.pread(descriptor, RECORD_BYTES, wanted.place), name.number)
    if record is None:
        raise BrokenRecordError("record")
    found = (record.identity, record.start, record.size_bytes, record.place)
    if found != (wanted.identity, wanted.start, wanted.size_bytes, wanted.place):
        raise LookupError("another extent lies there")
    if wanted.checksum not in (-1, record.checksum):
        raise BrokenRecordError("source-checksum")
    return record


def blot_out(folder: Path, name: SegmentName, place: int) -> None:
    """Make a broken record unreadable, so that later processes miss it without reading it.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = os.open(folder / f"{name}{DATA}", os.O_WRONLY)
    try:
        os.pwrite(descriptor, bytes(RECORD_BYTES), place)
    finally:
        os.close(descriptor)


def read_records(folder: Path, name: SegmentName, start_byte: int) -> tuple[list[Record], int, int]:
    """What the ``.index`` file lists from ``start_byte`` on.

    Returns the records, where to go on next time, and how many slots before that are broken.
    Slots after the last good one may be in the making, and are left for next time.

    Raises:
        OSError: the file is gone, or the disk fails.
    """
    descriptor = os.open(folder / f"{name}{INDEX}", os.O_RDONLY)
    try:
        size_bytes = os.fstat(descriptor).st_size
        text = os.pread(descriptor, max(0, size_bytes - start_byte), start_byte)
    finally:
        os.close(descriptor)
    found = list(_slots(text, name))
    records = [record for _, record in found]
    used = found[-1][0] + RECORD_BYTES if found else 0
    return records, start_byte + used, used // RECORD_BYTES - len(records)


def _slots(text: bytes, name: SegmentName) -> Iterator[tuple[int, Record]]:
    for place in range(0, len(text) - RECORD_BYTES + 1, RECORD_BYTES):
        record = decode_record(text[place : place + RECORD_BYTES], name.number)
        if record is not None and (record.is_seal or record.end_place <= name.capacity_bytes):
            yield place, record


class SegmentWriter:
    """Appends extents to one segment. Holds its lock until it is closed; not thread-safe."""

    def __init__(self, name: SegmentName, data_file: int, index_file: int) -> None:
        self.name = name
        self._data_file = data_file
        self._index_file = index_file
        self._tail = 0
        self._index_tail = 0

    @classmethod
    def begin(
        cls, folder: Path, name: SegmentName, *, create: bool = False
    ) -> SegmentWriter | None:
        """Begin a new segment, or go on with one that is there; None where another writes it.

        Raises:
            OSError: the files cannot be opened or written.
        """
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        data_file = os.open(folder / f"{name}{DATA}", flags, _MODE)
        index_file = -1
        try:
            fcntl.flock(data_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            index_file = os.open(folder / f"{name}{INDEX}", os.O_RDWR | os.O_CREAT, _MODE)
            writer = cls(name, data_file, index_file)
            writer._go_on(folder)
            return writer
        except BaseException as error:
            _close(data_file, index_file)
            if isinstance(error, BlockingIOError | SegmentGoneError):
                return None
            raise

    def _go_on(self, folder: Path) -> None:
        """Find the end, and cut off what a killed process left behind it."""
        records, self._index_tail, _ = read_records(folder, self.name, 0)
        ends = (record.end_place for record in records if not record.is_seal)
        self._tail = max(ends, default=0)
        self._cut()
        self._check_there()

    def _check_there(self) -> None:
        if not os.fstat(self._data_file).st_nlink:
            raise SegmentGoneError(str(self.name))

    def has_room(self, size_bytes: int) -> bool:
        """Whether an extent of ``size_bytes`` still fits."""
        used = self._tail + self._index_tail
        return used + cost_bytes(size_bytes) <= self.name.capacity_bytes

    def append(self, identity: bytes, start: int, data: bytes, checksum: int) -> Record:
        """Add an extent for which there is room.

        Raises:
            SegmentGoneError: somebody deleted the segment.
            OSError: the disk is full, or fails; nothing of the extent is listed.
        """
        self._check_there()
        record = Record(identity, start, len(data), self._tail, checksum)
        text = encode_record(record, self.name.number)
        try:
            _write(self._data_file, (text, data), self._tail)
            _write(self._index_file, (text,), self._index_tail)
        except OSError:
            self._cut()
            raise
        self._tail = record.end_place
        self._index_tail += RECORD_BYTES
        return record

    def seal(self) -> None:
        """Tell readers that nothing will be added, so that they need not look again.

        Raises:
            OSError: it cannot be written.
        """
        seal = Record(bytes(16), 0, 0, self._tail, 0)
        _write(self._index_file, (encode_record(seal, self.name.number),), self._index_tail)
        self._index_tail += RECORD_BYTES

    def _cut(self) -> None:
        os.ftruncate(self._data_file, self._tail)
        os.ftruncate(self._index_file, self._index_tail)

    def close(self) -> None:
        """Let another process go on with the segment."""
        if self._data_file >= 0:
            # By name: a forked child has the file open too, and would keep the lock.
            fcntl.flock(self._data_file, fcntl.LOCK_UN)
        self.leave()

    def leave(self) -> None:
        """In a forked child: drop the files, and leave the parent its lock."""
        _close(self._data_file, self._index_file)
        self._data_file = self._index_file = -1

    def __del__(self) -> None:
        self.leave()


def _write(descriptor: int, pieces: tuple[bytes, ...], place: int) -> None:
    written = os.pwritev(descriptor, pieces, place)
    wanted = sum(map(len, pieces))
    if written < wanted:  # the disk is nearly full; what is left says why
        rest = memoryview(b"".join(pieces))
        while written < wanted:
            written += os.pwrite(descriptor, rest[written:], place + written)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
