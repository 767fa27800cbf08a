"""Files that libav reads: real bytes where we have them, zeros elsewhere, or a whole reader.

libav's demuxers know the containers' many exceptions; these classes let it look at a file of
which only the headers were fetched, and translate its exceptions in one place.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import av
import av.error

from dstream.errors import MediaError, MediaReason
from dstream.media.window import Window

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

TABLE_OPTIONS: Mapping[str, str] = {
    "probesize": "32",
    "analyzeduration": "0",
    "fpsprobesize": "0",
    "fflags": "+nofillin+noparse",
}
"""Trust the container's tables alone: no packet is looked into, none is decoded."""


_KEPT_ZEROS_BYTES = 1 << 20


@lru_cache(maxsize=8)
def _zeros(size_bytes: int) -> bytes:
    """Media data are read as zeros by the gigabyte: the usual sizes are made once."""
    return bytes(size_bytes)


class VirtualFile(io.RawIOBase):
    """A file of ``size_bytes`` whose bytes are ``spans``, and zeros between them."""

    def __init__(self, size_bytes: int, spans: Sequence[tuple[int, bytes]]) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self._spans = sorted(spans, key=lambda span: span[0])
        self._starts = [offset for offset, _ in self._spans]
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read starts."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, as any file does."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """The next ``size`` bytes, fewer at the end of the file."""
        start = self._position
        stop = self._size_bytes if size < 0 else min(self._size_bytes, start + size)
        if stop <= start:
            return b""
        self._position = stop
        nearest = max(0, bisect_right(self._starts, start) - 1)
        spans = self._spans[nearest : bisect_right(self._starts, stop - 1)]
        if not spans or (len(spans) == 1 and spans[0][0] + len(spans[0][1]) <= start):
            size = stop - start
            return _zeros(size) if size <= _KEPT_ZEROS_BYTES else bytes(size)
        result = bytearray(stop - start)
        for offset, data in spans:
            first, last = max(offset, start), min(offset + len(data), stop)
            if first < last:
                result[first - start : last - start] = data[first - offset : last - offset]
        return bytes(result)


class ReaderFile(io.RawIOBase):
    """A whole file, fetched in large chunks of which the latest are kept."""

    def __init__(self, window: Window, chunk_bytes: int = 4 << 20, kept: int = 12) -> None:
        super().__init__()
        self._window = window
        self._reader = window.reader
        self._chunk_bytes = chunk_bytes
        self._kept = kept
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read starts."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, as any file does."""
        end = self._reader.size_bytes
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: end}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill ``buffer`` from here, at most to the end of one chunk."""
        view = memoryview(buffer).cast("B")
        if self._position >= self._reader.size_bytes:
            return 0
        number, skip = divmod(self._position, self._chunk_bytes)
        piece = self._chunk(number)[skip : skip + len(view)]
        view[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def get(self, start_byte: int, stop_byte: int) -> bytes:
        """The bytes of a range, cut at the end of the file."""
        stop_byte = min(stop_byte, self._reader.size_bytes)
        pieces: list[bytes] = []
        while start_byte < stop_byte:
            number, skip = divmod(start_byte, self._chunk_bytes)
            piece = self._chunk(number)[skip : skip + stop_byte - start_byte]
            pieces.append(piece)
            start_byte += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _chunk(self, number: int) -> bytes:
        if number in self._chunks:
            self._chunks.move_to_end(number)
            return self._chunks[number]
        start = number * self._chunk_bytes
        stop = min(self._reader.size_bytes, start + self._chunk_bytes)
        known = self._window.known(start, stop)
        data = known + self._reader.read(start + len(known), stop)
        self._chunks[number] = data
        if len(self._chunks) > self._kept:
            self._chunks.popitem(last=False)
        return data


@contextmanager
def libav_errors(name: str, reason: MediaReason = MediaReason.DAMAGED) -> Iterator[None]:
    """Turn what libav raises into a MediaError of the given reason."""
    try:
        yield
    except av.error.FFmpegError as error:
        raise MediaError(
            f"{name!r} cannot be parsed: {error.strerror or error}", reason=reason, name=name
        ) from error
    except (ValueError, OverflowError, UnicodeError) as error:
        raise MediaError(f"{name!r} cannot be parsed: {error}", reason=reason, name=name) from error


@contextmanager
def open_libav(
    file: io.RawIOBase | io.BytesIO,
    name: str,
    *,
    format_name: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Iterator[InputContainer]:
    """Open ``file`` with libav; what it raises until the end of the block is a MediaError."""
    with libav_errors(name):
        container = av.open(
            file,
            "r",
            format=format_name,
            options=dict(options or {}),
            metadata_errors="replace",
            buffer_size=65536,
        )
        try:
            yield container
        finally:
            container.close()


def demux_packets(
    container: InputContainer, streams: Sequence[VideoStream]
) -> Iterator[Packet[VideoStream]]:
    """The packets of some streams, without the empty ones that mark the end."""
    if not streams:
        return
    packets = container.demux(tuple(streams))
    while True:
        try:
            packet = next(packets, None)
        except IndexError:
            # Streams that appear in the middle of a file are missing from PyAV's list, which it
            # notices only after the last packet, when it makes those that mark the end.
            return
        if packet is None:
            return
        if packet.size:
            yield packet
