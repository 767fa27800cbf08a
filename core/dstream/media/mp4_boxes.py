"""ISO base media (mp4, mov) boxes: sizes and places only, with every length checked."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstream.errors import MediaError, MediaReason
from dstream.media.window import Window

HEAD_BYTES = 128 * 1024
"""Read first: most often all boxes before the media data, and the first keyframe."""
HOP_BYTES = 16 * 1024
"""Read at each jump: holds a box header, and most often a whole moof."""
MAX_MOOV_BYTES = 1 << 30
MAX_BOXES = 100_000
MAX_PROGRESSIVE_HOPS = 64
_CONTAINERS = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf", b"mvex"))
_SAMPLE_ENTRY_BYTES = 78
"""Fixed fields of a visual sample entry, behind the box header."""


@dataclass(frozen=True, slots=True)
class Box:
    """One box: absolute places in the file."""

    kind: bytes
    start: int
    body: int
    """Where its content starts."""
    stop: int


def parse_header(data: bytes, position: int, limit: int) -> Box | None:
    """The box whose first 16 bytes (or all there are) are ``data``; None if that is none.

    ``limit`` is where the enclosing box or file ends; a size of zero reaches it.
    """
    if len(data) < 8:
        return None
    size, kind = struct.unpack_from(">I4s", data)
    header_bytes = 8
    if size == 1:
        if len(data) < 16:
            return None
        size = int.from_bytes(data[8:16], "big")
        header_bytes = 16
    elif size == 0:
        size = limit - position
    if size < header_bytes:
        return None
    return Box(kind, position, position + header_bytes, position + size)


def children(data: bytes, start: int, stop: int) -> Iterator[Box]:
    """Boxes of ``data[start:stop]``; places are indices of ``data``. Ends at the first bad one."""
    position = start
    while position + 8 <= stop:
        box = parse_header(data[position : position + 16], position, stop)
        if box is None or box.stop > stop:
            return
        yield box
        position = box.stop


def find_all(data: bytes, path: tuple[bytes, ...], start: int, stop: int) -> Iterator[Box]:
    """Boxes reached by going down ``path``."""
    for box in children(data, start, stop):
        if box.kind == path[0]:
            if len(path) == 1:
                yield box
            else:
                yield from find_all(data, path[1:], box.body, box.stop)


def is_encrypted(data: bytes, start: int, stop: int, depth: int = 0) -> bool:
    """Whether a moov (or moof) names protected samples of a video track (or of any track).

    Looks for ``encv`` sample entries, for ``sinf`` inside other entries, and for sample
    encryption boxes (``senc``, and its ``uuid`` of PIFF) which only encrypted samples have.
    """
    for box in children(data, start, stop):
        if box.kind == b"senc":
            return True
        if box.kind == b"uuid" and data[box.body : box.body + 16] == _PIFF_SENC:
            return True
        if box.kind == b"stsd" and _has_protected_entry(data, box):
            return True
        if box.kind == b"trak" and not _is_video_track(data, box):
            continue
        if (
            box.kind in _CONTAINERS
            and depth < 8
            and is_encrypted(data, box.body, box.stop, depth + 1)
        ):
            return True
    return False


_PIFF_SENC = bytes.fromhex("a2394f525a9b4f14a2446c427c648df4")


def _is_video_track(data: bytes, trak: Box) -> bool:
    handlers = find_all(data, (b"mdia", b"hdlr"), trak.body, trak.stop)
    return any(data[box.body + 8 : box.body + 12] == b"vide" for box in handlers)


def _has_protected_entry(data: bytes, stsd: Box) -> bool:
    for entry in children(data, stsd.body + 8, stsd.stop):
        if entry.kind in (b"encv", b"drmi"):
            return True
        inner = children(data, entry.body + _SAMPLE_ENTRY_BYTES, entry.stop)
        if any(box.kind == b"sinf" for box in inner):
            return True
    return False


@dataclass(frozen=True, slots=True)
class TrackHeader:
    """What libav does not hand out of one ``trak``."""

    handler: bytes
    track_id: int
    rotation_deg: int
    mirrored: bool
    timescale: int


def track_headers(moov: bytes) -> list[TrackHeader]:
    """One for every ``trak`` of a moov box, in file order, as libav numbers its streams."""
    result = []
    for trak in find_all(moov, (b"trak",), 8, len(moov)):
        handler, track_id, matrix, timescale = b"", 0, b"", 0
        for box in find_all(moov, (b"tkhd",), trak.body, trak.stop):
            long_times = moov[box.body : box.body + 1] == b"\1"
            id_at = box.body + (20 if long_times else 12)
            track_id = int.from_bytes(moov[id_at : id_at + 4], "big")
            matrix = moov[id_at + 28 : id_at + 64]
            if box.stop < id_at + 64:
                matrix = b""
        for box in find_all(moov, (b"mdia", b"mdhd"), trak.body, trak.stop):
            scale_at = box.body + (20 if moov[box.body : box.body + 1] == b"\1" else 12)
            timescale = int.from_bytes(moov[scale_at : scale_at + 4], "big")
        for box in find_all(moov, (b"mdia", b"hdlr"), trak.body, trak.stop):
            handler = moov[box.body + 8 : box.body + 12]
        turn, mirrored = _orientation(matrix)
        result.append(TrackHeader(handler, track_id, turn, mirrored, timescale))
    return result


def _orientation(matrix: bytes) -> tuple[int, bool]:
    """(clockwise degrees, mirrored) of a track header's matrix (ISO/IEC 14496-12 6.2.2)."""
    if len(matrix) != 36:
        return 0, False
    a, b, _, c, d, *_ = struct.unpack(">9i", matrix)
    return orientation(a, b, c, d)


def orientation(a: int, b: int, c: int, d: int) -> tuple[int, bool]:
    """(clockwise degrees, mirrored) of x' = ax + cy, y' = bx + dy, with y pointing down.

    >>> orientation(0, 1, -1, 0), orientation(-1, 0, 0, 1), orientation(1, 0, 0, -1)
    ((90, False), (0, True), (180, True))
    """
    if a * d - b * c == 0:
        return 0, False
    if abs(d) >= abs(c):
        turn = 0 if d > 0 else 180
    else:
        turn = 90 if c < 0 else 270
    return turn, a * d - b * c < 0


Span = tuple[int, bytes]
"""Bytes of a file and where they start."""


def filled(spans: Sequence[Span], size_bytes: int) -> list[Span]:
    """``spans`` with a ``free`` box header in each gap, so that a parser walks over it."""
    result: list[Span] = []
    position = 0
    for start, data in sorted(spans, key=lambda span: span[0]):
        result += _filler(position, start)
        result.append((start, data))
        position = start + len(data)
    return result + _filler(position, size_bytes)


def _filler(start: int, stop: int) -> list[Span]:
    gap = stop - start
    if gap < 8:
        return []
    if gap < 1 << 32:
        return [(start, struct.pack(">I4s", gap, b"free"))]
    return [(start, struct.pack(">I4sQ", 1, b"free", gap))]


@dataclass(frozen=True, slots=True)
class Layout:
    """The boxes of a file up to the end of its moov."""

    boxes: tuple[Box, ...]
    """Top-level boxes met so far, in file order."""
    moov: Box
    ftyp: bytes
    moov_bytes: bytes


def read_layout(window: Window) -> Layout:
    """Walk the top-level boxes to moov and read it.

    Raises:
        MediaError: no moov, or one that is larger than the file.
    """
    name = window.reader.name
    window.get(0, HEAD_BYTES)
    boxes: list[Box] = []
    ftyp = b""
    position = hops = 0
    while position + 8 <= window.size_bytes:
        if not window.has(position, min(position + 16, window.size_bytes)):
            hops += 1
        header = window.get(position, position + 16, ahead_bytes=HOP_BYTES)
        box = parse_header(header, position, window.size_bytes)
        if box is None or hops > MAX_PROGRESSIVE_HOPS or len(boxes) > MAX_BOXES:
            break
        boxes.append(box)
        if box.kind == b"ftyp" and box.stop - box.start <= HEAD_BYTES:
            ftyp = window.get(box.start, box.stop)
        if box.kind == b"moov":
            return Layout(tuple(boxes), box, ftyp, _read_moov(window, box))
        position = box.stop
    truncated = bool(boxes) and boxes[-1].stop > window.size_bytes
    raise MediaError(
        f"{name!r} has no moov box, so its packets cannot be found"
        + ("; it ends inside a box: the file is truncated" if truncated else ""),
        reason=MediaReason.TRUNCATED if truncated else MediaReason.DAMAGED,
        name=name,
    )


def _read_moov(window: Window, box: Box) -> bytes:
    size = box.stop - box.start
    if box.stop > window.size_bytes:
        raise MediaError(
            f"{window.reader.name!r}: its moov claims {size} bytes at {box.start}, but the file"
            f" has {window.size_bytes}",
            reason=MediaReason.TRUNCATED,
            name=window.reader.name,
        )
    if size > MAX_MOOV_BYTES:
        raise MediaError(
            f"{window.reader.name!r}: a moov of {size} bytes is more than the"
            f" {MAX_MOOV_BYTES} that are parsed",
            reason=MediaReason.INDEX_TOO_LARGE,
            name=window.reader.name,
        )
    return window.get(box.start, box.stop)
