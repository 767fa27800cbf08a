"""Index groups: the GOP and packet tables of a shard's videos as one object.

An object is a 16-byte header and one self-contained entry a video, so that a reader fetches
either the whole group or one entry's byte range. ``docs/format.md`` has the layout. Parsing
needs numpy, zstandard and json: nothing that dislikes a fork.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import xxhash
import zstandard

from dstream.errors import CorruptDataError, FormatVersionError, MediaError, MediaReason
from dstream.format import columns, residuals
from dstream.format.columns import Int64s
from dstream.format.index import (
    Access,
    IndexCost,
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

FREE_ROWS = 1 << 20
"""Rows that a table may have however small its entry is: regular columns take no bytes."""

FREE_BYTES = 64 << 20
"""What an entry may unpack to however small it is."""

MAX_RATIO = 1024
"""Further rows, and further unpacked bytes, for each byte of an entry. Real ones: 1/2 and 10."""

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
    """One video's entry.

    Raises:
        MediaError: a video of so many packets that readers would take its entry for damage.
    """
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
        document["packets"] = _pack_columns(residuals.packet_residuals(index.packets), blobs)
    document["gops"] = _pack_columns(residuals.gop_residuals(index.gops, index.packets), blobs)
    checksum = index.gops.checksum
    document["has_checksums"] = checksum is not None
    if checksum is not None:
        blobs.append(np.ascontiguousarray(checksum, dtype="<u8").tobytes())
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    raw = b"".join((len(text).to_bytes(4, "little"), text, *blobs))
    frame = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(raw)
    digest = xxhash.xxh3_64_intdigest(raw)
    entry = _ENTRY.pack(_ENTRY_MAGIC, VERSION, MIN_READER, len(raw), digest, len(frame)) + frame
    rows = max(len(index.gops), 0 if index.packets is None else len(index.packets))
    fault = _implausible(rows, index.size_bytes, len(entry))
    if fault is None and len(raw) > _most_raw_bytes(len(frame)):
        fault = f"{len(raw)} bytes of tables in a frame of {len(frame)}"
    if fault:
        raise MediaError(f"its index cannot be stored: {fault}", reason=MediaReason.INDEX_TOO_LARGE)
    return entry


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
        return _parse(document, cursor, len(data))
    except (
        KeyError, TypeError, ValueError, ZeroDivisionError, IndexError, RecursionError,
    ) as error:  # fmt: skip
        raise CorruptDataError(f"index entry: its description cannot be read: {error}") from error


def _parse(document: Mapping[str, object], cursor: _Cursor, entry_bytes: int) -> VideoIndex:
    # Everything that can be wrong is looked at first: a column may take no bytes and be long.
    extradata = bytes(cursor.take(_int(document, "extradata_bytes")))
    header = bytes(cursor.take(_int(document, "header_bytes")))
    track = _track(document["track"], extradata)
    access = Access(str(document["access"]))
    size_bytes = _int(document, "size_bytes")
    cost = document["cost"]
    if not isinstance(cost, list):
        raise CorruptDataError("index entry: its cost is no list")
    read = IndexCost(int(cost[0]), int(cost[1]), bool(cost[2]))
    has_checksums = bool(document["has_checksums"])
    packet_specs = None
    if "packets" in document:
        packet_specs = _specs(document["packets"], _PACKET_COLUMNS)
    gop_specs = _specs(document["gops"], _GOP_COLUMNS)
    gop_rows = columns.rows_of(gop_specs)
    packet_rows = 0 if packet_specs is None else columns.rows_of(packet_specs)
    fault = _implausible(max(packet_rows, gop_rows), size_bytes, entry_bytes)
    if fault:
        raise CorruptDataError(f"index entry: {fault}")
    specs = [*gop_specs.values(), *(packet_specs or {}).values()]
    cursor.need(sum(map(columns.planes_size_bytes, specs)) + 8 * gop_rows * has_checksums)
    packets = None
    if packet_specs is not None:
        packets = residuals.restore_packets(_unpack_columns(packet_specs, cursor))
    gops = residuals.restore_gops(_unpack_columns(gop_specs, cursor), packets)
    if has_checksums:
        stored = cursor.take(8 * len(gops))
        gops = replace(gops, checksum=np.frombuffer(stored, dtype="<u8").astype(np.uint64))
    return VideoIndex(track, access, gops, packets, header, size_bytes, read)


def _implausible(rows: int, size_bytes: int, entry_bytes: int) -> str | None:
    """What is wrong with a table of so many rows, of a file and in an entry of these sizes."""
    if rows > columns.MAX_ROWS:
        return f"a table of {rows} rows, the limit is {columns.MAX_ROWS}"
    if rows > FREE_ROWS and rows > size_bytes:
        return f"a table of {rows} rows, but the video has only {size_bytes} bytes"
    if rows > FREE_ROWS + MAX_RATIO * entry_bytes:
        return f"a table of {rows} rows in an entry of {entry_bytes} bytes"
    return None


def _pack_columns(values: Mapping[str, Int64s], blobs: list[bytes]) -> dict[str, object]:
    specs: dict[str, object] = {}
    for name, column in values.items():
        packed = columns.pack(column)
        specs[name] = packed.spec()
        blobs.append(packed.planes)
    return specs


def _specs(document: object, names: Sequence[str]) -> dict[str, dict[str, object]]:
    """The specs of a table's columns, in the order in which their bytes follow."""
    if not isinstance(document, dict) or not all(isinstance(document[n], dict) for n in names):
        raise CorruptDataError("index entry: its columns are not described")
    return {name: document[name] for name in names}


def _unpack_columns(specs: Mapping[str, dict[str, object]], cursor: _Cursor) -> dict[str, Int64s]:
    return {
        name: columns.unpack(spec, cursor.take(columns.planes_size_bytes(spec)))
        for name, spec in specs.items()
    }


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


def _most_raw_bytes(frame_bytes: int) -> int:
    return min(MAX_ENTRY_BYTES, FREE_BYTES + MAX_RATIO * frame_bytes)


def _decompress(frame: bytes, raw_bytes: int) -> bytes:
    """Unpack a frame whose size is known; a frame that claims another size is never unpacked."""
    try:
        if (
            raw_bytes > _most_raw_bytes(len(frame))
            or zstandard.frame_content_size(frame) != raw_bytes
        ):
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

    def need(self, size_bytes: int) -> None:
        """Raise when fewer bytes than this are left."""
        if size_bytes > len(self._data) - self._position:
            raise CorruptDataError("index entry: it ends before its last column")
