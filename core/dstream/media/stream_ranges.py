"""Which byte ranges of a transport or program stream can be demuxed alone, proved by doing it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xxhash

from dstream.errors import MediaError, MediaReason
from dstream.format.index import GopTable, PacketTable
from dstream.media.packet_rows import Row
from dstream.media.ts_demux import align, demux_range

LEAST_PACKETS = 8
"""Shorter GOPs are joined: opening a demuxer for each would cost more than it saves."""
_TAIL_PACKETS = 3
"""Packets behind a range whose bytes may hold the end of its last frame."""
_MAX_JOINED = 16
_MAX_RANGE_BYTES = 512 << 20


def digest(data: bytes | memoryview) -> int:
    """Identity of a packet's bytes."""
    return xxhash.xxh3_64_intdigest(data)


class RangeFinder:
    """Cuts one stream into ranges while its packets go by, so that the bytes are still at hand."""

    def __init__(
        self, container: str, header: bytes, get: Callable[[int, int], bytes], size_bytes: int
    ) -> None:
        self._container = container
        self._header = header
        self._get = get
        self._size_bytes = size_bytes
        self._rows: list[Row] = []
        self._digests: list[int] = []
        self._keys: list[int] = []
        self._open: int | None = None
        """First packet of the range that is being collected."""
        self._due: tuple[int, int] | None = None
        """(packet that ends the open range, packet count at which it is cut)."""
        self.starts: list[int] = []
        """First packets of the ranges found."""
        self.bounds: list[tuple[int, int]] = []
        """Byte ranges ``[start, stop)``, one for each."""
        self._joined = 0

    def add(self, row: Row, data: bytes | memoryview, is_key: bool) -> None:
        """The next packet of the stream."""
        number = len(self._rows)
        self._rows.append(row)
        self._digests.append(digest(data))
        if is_key and self._open is None:
            self._open = number
        elif is_key and self._due is None and self._open is not None:
            is_apart = row.offset > self._rows[self._open].offset
            if number - self._open >= LEAST_PACKETS and is_apart:
                self._due = (number, number + _TAIL_PACKETS)
        if self._due is not None and len(self._rows) > self._due[1]:
            self._cut(self._due[0])

    def finish(self) -> None:
        """No more packets.

        Raises:
            MediaError: the last packets cannot be had from any range.
        """
        if self._due is not None:
            self._cut(self._due[0])
        if self._open is None:
            return
        stop = len(self._rows)
        start_byte = self._rows[self._open].offset
        while not self._proves(self._open, stop, start_byte, self._size_bytes):
            if not self.starts:
                raise self._unreadable()
            self._open = self.starts.pop()
            start_byte = self.bounds.pop()[0]
        self.starts.append(self._open)
        self.bounds.append((start_byte, self._size_bytes))

    def _cut(self, key: int) -> None:
        """End the open range at a keyframe if both sides then stand alone."""
        self._due = None
        if self._open is None:
            return
        start_byte = self._rows[self._open].offset
        near = self._rows[key].offset
        far = max(row.offset for row in self._rows[key : key + _TAIL_PACKETS + 1])
        for stop_byte in (near, far):
            if stop_byte > start_byte and self._proves(self._open, key, start_byte, stop_byte):
                self.starts.append(self._open)
                self.bounds.append((start_byte, stop_byte))
                self._open, self._joined = key, 0
                return
        self._joined += 1  # the range goes on to the next keyframe
        if self._joined > _MAX_JOINED:
            raise self._unreadable()

    def _proves(self, first: int, stop: int, start_byte: int, stop_byte: int) -> bool:
        if stop_byte - start_byte > _MAX_RANGE_BYTES:
            raise self._unreadable()
        data = self._get(start_byte, stop_byte)
        rows = self._rows[first:stop]
        try:
            found = demux_range(self._container, self._header, data)
        except MediaError:
            return False
        run = align(found, [row.size for row in rows], [row.pts for row in rows])
        return run is not None and all(
            digest(packet.data) == self._digests[i] for i, packet in enumerate(run, first)
        )

    def _unreadable(self) -> MediaError:
        return MediaError(
            f"no byte range of this {self._container} stream gives its packets alone",
            reason=MediaReason.DAMAGED,
        )

    def gops(self, table: PacketTable) -> GopTable:
        """The ranges as a GOP table; ranges may overlap by the end of a frame."""
        starts = np.array(self.starts, np.int64)
        bounds = np.array(self.bounds, np.int64).reshape(-1, 2)
        return GopTable(
            offset_bytes=bounds[:, 0],
            size_bytes=bounds[:, 1] - bounds[:, 0],
            key_pts=table.pts[starts],
            first_packet=starts,
            payload_bytes=np.add.reduceat(table.size_bytes, starts),
        )
