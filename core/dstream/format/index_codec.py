"""Index groups: the GOP and packet tables of a shard's videos as one object.

An object is a 16-byte header and one self-contained entry a video, so that a reader fetches
either the whole group or one entry's byte range. ``docs/format.md`` has the layout. Parsing
needs numpy, zstandard and json: nothing that dislikes a fork.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction

import numpy as np
import xxhash
import zstandard

from dstream.errors import CorruptDataError, FormatVersionError
from dstream.format import columns
from dstream.format.columns import Int64s
from dstream.format.index import (
    Access,
    GopTable,
    IndexCost,
    PacketTable,
    VideoIndex,
    VideoTrack,
)

VERSION = 1
MIN_READER = 1
"""The oldest reader that understands what this one writes."""

MAX_ENTRY_BYTES = 1 << 30
"""An entry that claims to unpack to more than this is taken for damage."""

MAX_TEXT_BYTES = 1 << 20
"""The same for its JSON text, which has a fixed number of short fields."""

_GROUP = struct.Struct("<4sHHQ")  # magic, version, min_reader, entries
_GROUP_MAGIC = b"DSIX"
_ENTRY = struct.Struct("<4sHHQQQ")  # magic, version, min_reader, raw size, xxh3 of raw, frame size
_ENTRY_MAGIC = b"DSIE"
_ZSTD_LEVEL = 9
_FRACTIONS = ("sar", "time_base", "rate")
_PACKET_COLUMNS = ("dts", "pts", "size_bytes", "offset_bytes", "duration", "flags")
_GOP_COLUMNS = ("first_packet", "key_pts", "offset_bytes", "size_bytes", "payload_bytes")


def encode_index_group(indexes: Sequence[VideoIndex]) -> tuple[bytes, list[tuple[int, int]]]:
    """One object holding the indexes of several videos.

    Returns:
        The object's bytes, and for each video the (offset, size) of its entry in them.
    """
    return join_entries([encode_index_entry(index) for index in indexes])


def join_entries(entries: Sequence[bytes]) -> tuple[bytes, list[tuple[int, int]]]:
    """What :func:`encode_index_group` gives, of entries that are encoded already."""
    out = bytearray(_GROUP.pack(_GROUP_MAGIC, VERSION, MIN_READER, len(entries)))
    spans: list[tuple[int, int]] = []
    for entry in entries:
        spans.append((len(out), len(entry)))
        out += entry
    return bytes(out), spans


def decode_index_group(data: bytes) -> list[VideoIndex]:
    """Every index of a whole group object, in the order they were written.

    Raises:
        CorruptDataError: the bytes are no index group, or damaged.
        FormatVersionError: a newer dstream wrote them.
    """
    (count,) = _unpack_header(_GROUP, _GROUP_MAGIC, data, "index group")
    indexes: list[VideoIndex] = []
    position = _GROUP.size
    for _ in range(count):
        rest = memoryview(data)[position:]
        _, _, frame_bytes = _unpack_header(_ENTRY, _ENTRY_MAGIC, rest, "index entry")
        size = _ENTRY.size + frame_bytes
        indexes.append(decode_index_entry(bytes(rest[:size])))
        position += size
    if position != len(data):
        raise CorruptDataError(
            f"index group: {len(data) - position} bytes are left over after {count} entries"
        )
    return indexes


def encode_index_entry(index: VideoIndex) -> bytes:
    """One video's entry."""
    blobs: list[bytes] = [index.track.extradata, index.header]
    document: dict[str, object] = {
        "track": _track_document(index.track),
        "access": str(index.access),
        "size_bytes": index.size_bytes,
        "cost": [index.cost.bytes_read, index.cost.runs, index.cost.full_pass],
        "extradata_bytes": len(index.track.extradata),
        "header_bytes": len(index.header),
    }
    if index.packets is not None:
        document["packets"] = _pack_columns(_packet_residuals(index.packets), blobs)
    document["gops"] = _pack_columns(_gop_residuals(index.gops, index.packets), blobs)
    checksum = index.gops.checksum
    document["has_checksums"] = checksum is not None
    if checksum is not None:
        blobs.append(np.ascontiguousarray(checksum, dtype="<u8").tobytes())
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    raw = b"".join((len(text).to_bytes(4, "little"), text, *blobs))
    frame = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(raw)
    digest = xxhash.xxh3_64_intdigest(raw)
    return _ENTRY.pack(_ENTRY_MAGIC, VERSION, MIN_READER, len(raw), digest, len(frame)) + frame


def decode_index_entry(data: bytes) -> VideoIndex:
    """One video's index from the bytes of its entry.

    Raises:
        CorruptDataError: the bytes are no index entry, or damaged.
        FormatVersionError: a newer dstream wrote them.
    """
    raw_bytes, digest, frame_bytes = _unpack_header(_ENTRY, _ENTRY_MAGIC, data, "index entry")
    frame = data[_ENTRY.size :]
    if len(frame) != frame_bytes:
        raise CorruptDataError(f"index entry: {len(frame)} bytes follow, expected {frame_bytes}")
    raw = _decompress(frame, raw_bytes)
    if xxhash.xxh3_64_intdigest(raw) != digest:
        raise CorruptDataError("index entry: its checksum does not fit its bytes")
    cursor = _Cursor(memoryview(raw))
    try:
        text_bytes = int.from_bytes(cursor.take(4), "little")
        if text_bytes > MAX_TEXT_BYTES:
            raise CorruptDataError(f"index entry: its description has {text_bytes} bytes")
        document = json.loads(bytes(cursor.take(text_bytes)))
        return _parse(document, cursor)
    except (
        KeyError, TypeError, ValueError, ZeroDivisionError, IndexError, RecursionError,
    ) as error:  # fmt: skip
        raise CorruptDataError(f"index entry: its description cannot be read: {error}") from error


def _parse(document: Mapping[str, object], cursor: _Cursor) -> VideoIndex:
    extradata = bytes(cursor.take(_int(document, "extradata_bytes")))
    header = bytes(cursor.take(_int(document, "header_bytes")))
    packets = None
    if "packets" in document:
        packets = _restore_packets(_unpack_columns(document["packets"], _PACKET_COLUMNS, cursor))
    gops = _restore_gops(_unpack_columns(document["gops"], _GOP_COLUMNS, cursor), packets)
    if document["has_checksums"]:
        stored = cursor.take(8 * len(gops))
        gops = replace(gops, checksum=np.frombuffer(stored, dtype="<u8").astype(np.uint64))
    cost = document["cost"]
    if not isinstance(cost, list):
        raise CorruptDataError("index entry: its cost is no list")
    return VideoIndex(
        track=_track(document["track"], extradata),
        access=Access(str(document["access"])),
        gops=gops,
        packets=packets,
        header=header,
        size_bytes=_int(document, "size_bytes"),
        cost=IndexCost(int(cost[0]), int(cost[1]), bool(cost[2])),
    )


# Columns that follow from others are stored as what is left after the guess: mostly zeros.


def _packet_residuals(packets: PacketTable) -> dict[str, Int64s]:
    return {
        "dts": packets.dts,
        "pts": packets.pts - packets.dts,
        "size_bytes": packets.size_bytes,
        "offset_bytes": packets.offset_bytes - _chained(packets.offset_bytes, packets.size_bytes),
        "duration": packets.duration,
        "flags": packets.flags.astype(np.int64),
    }


def _restore_packets(stored: Mapping[str, Int64s]) -> PacketTable:
    sizes = stored["size_bytes"]
    _same_length(stored)
    flags = stored["flags"]
    if len(flags) and not 0 <= int(flags.min()) <= int(flags.max()) < 256:
        raise CorruptDataError("index entry: packet flags are out of range")
    return PacketTable(
        offset_bytes=_unchain(stored["offset_bytes"], sizes),
        size_bytes=sizes,
        pts=stored["pts"] + stored["dts"],
        dts=stored["dts"],
        duration=stored["duration"],
        flags=flags.astype(np.uint8),
    )


def _gop_residuals(gops: GopTable, packets: PacketTable | None) -> dict[str, Int64s]:
    guess = _gop_guess(gops.first_packet, packets)
    offsets = gops.offset_bytes - guess.offset_bytes
    return {
        "first_packet": gops.first_packet,
        "key_pts": gops.key_pts - guess.key_pts,
        "offset_bytes": offsets,
        "size_bytes": gops.size_bytes - _up_to_next(gops.offset_bytes),
        "payload_bytes": gops.payload_bytes - guess.payload_bytes,
    }


def _restore_gops(stored: Mapping[str, Int64s], packets: PacketTable | None) -> GopTable:
    _same_length(stored)
    guess = _gop_guess(stored["first_packet"], packets)
    offsets = stored["offset_bytes"] + guess.offset_bytes
    return GopTable(
        offset_bytes=offsets,
        size_bytes=stored["size_bytes"] + _up_to_next(offsets),
        key_pts=stored["key_pts"] + guess.key_pts,
        first_packet=stored["first_packet"],
        payload_bytes=stored["payload_bytes"] + guess.payload_bytes,
    )


@dataclass(frozen=True, slots=True)
class _GopGuess:
    key_pts: Int64s
    offset_bytes: Int64s
    payload_bytes: Int64s


def _gop_guess(first_packet: Int64s, packets: PacketTable | None) -> _GopGuess:
    """What the packet table says of each GOP; zeros where it says nothing."""
    zeros = np.zeros(len(first_packet), dtype=np.int64)
    if packets is None or len(first_packet) == 0 or len(packets) == 0:
        return _GopGuess(zeros, zeros, zeros)
    known = (first_packet >= 0) & (first_packet < len(packets))
    at = np.where(known, first_packet, 0)
    ends = np.append(at[1:], len(packets))
    total = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(packets.size_bytes)))
    return _GopGuess(
        np.where(known, packets.pts[at], 0),
        np.where(known, packets.offset_bytes[at], 0),
        np.where(known, total[ends] - total[at], 0),
    )


def _chained(offsets: Int64s, sizes: Int64s) -> Int64s:
    """Where each unit would start if it followed the one before: 0, then offset + size."""
    return np.concatenate((np.zeros(min(1, len(offsets)), np.int64), (offsets + sizes)[:-1]))


def _unchain(gaps: Int64s, sizes: Int64s) -> Int64s:
    """Undo the subtraction of :func:`_chained`: offset = sum of gaps so far + sizes before."""
    return np.cumsum(gaps) + np.cumsum(sizes) - sizes


def _up_to_next(offsets: Int64s) -> Int64s:
    """Distance to the next offset; 0 for the last."""
    return np.append(np.diff(offsets), np.zeros(min(1, len(offsets)), np.int64))


def _pack_columns(values: Mapping[str, Int64s], blobs: list[bytes]) -> dict[str, object]:
    specs: dict[str, object] = {}
    for name, column in values.items():
        packed = columns.pack(column)
        specs[name] = packed.spec()
        blobs.append(packed.planes)
    return specs


def _unpack_columns(specs: object, names: Sequence[str], cursor: _Cursor) -> dict[str, Int64s]:
    if not isinstance(specs, dict):
        raise CorruptDataError("index entry: its columns are not described")
    return {
        name: columns.unpack(specs[name], cursor.take(columns.planes_size_bytes(specs[name])))
        for name in names
    }


def _same_length(stored: Mapping[str, Int64s]) -> None:
    lengths = {name: len(column) for name, column in stored.items()}
    if len(set(lengths.values())) != 1:
        raise CorruptDataError(f"index entry: columns of one table differ in length: {lengths}")


def _track_document(track: VideoTrack) -> dict[str, object]:
    document: dict[str, object] = {}
    for field in fields(VideoTrack):
        value = getattr(track, field.name)
        if field.name == "extradata":
            continue
        if isinstance(value, Fraction):
            value = [value.numerator, value.denominator]
        document[field.name] = value
    return document


def _track(document: object, extradata: bytes) -> VideoTrack:
    if not isinstance(document, dict):
        raise CorruptDataError("index entry: its track is not described")
    values = {
        field.name: document[field.name]
        for field in fields(VideoTrack)
        if field.name != "extradata"
    }
    for name in _FRACTIONS:
        numerator, denominator = values[name]
        values[name] = Fraction(int(numerator), int(denominator))
    return VideoTrack(extradata=extradata, **values)


def _unpack_header(
    layout: struct.Struct, magic: bytes, data: bytes | memoryview, what: str
) -> tuple[int, ...]:
    if len(data) < layout.size:
        raise CorruptDataError(f"{what}: {len(data)} bytes are too few for its header")
    found, version, min_reader, *rest = layout.unpack_from(data)
    if found != magic:
        raise CorruptDataError(f"{what}: it starts with {found!r}, expected {magic!r}")
    if min_reader > VERSION:
        raise FormatVersionError(
            f"{what}: written in format {version}, which needs a reader of format {min_reader}; "
            f"this dstream reads up to {VERSION}: update it",
            version=version,
            min_reader=min_reader,
        )
    return tuple(rest)


def _decompress(frame: bytes, raw_bytes: int) -> bytes:
    """Unpack a frame whose size is known; a frame that claims another size is never unpacked."""
    try:
        if raw_bytes > MAX_ENTRY_BYTES or zstandard.frame_content_size(frame) != raw_bytes:
            raise CorruptDataError("index entry: it claims an impossible size")
        return zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=raw_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CorruptDataError(f"index entry: damaged ({error})") from error


def _int(document: Mapping[str, object], name: str) -> int:
    value = document[name]
    if not isinstance(value, int):
        raise CorruptDataError(f"index entry: {name} is {value!r:.40}, expected a number")
    return value


class _Cursor:
    """Takes consecutive slices of a buffer and never runs over its end."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def take(self, size_bytes: int) -> memoryview:
        stop = self._position + size_bytes
        if size_bytes < 0 or stop > len(self._data):
            raise CorruptDataError("index entry: it ends before its last column")
        piece = self._data[self._position : stop]
        self._position = stop
        return piece
