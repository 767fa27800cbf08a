"""Checks of one part of a dataset below its tables: files in shards, index entries, GOPs."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

import xxhash

from dstream.catalog.contents import Contents
from dstream.errors import CorruptDataError, DstreamError
from dstream.format.index_codec import decode_index_entry
from dstream.format.manifest import Part
from dstream.format.references import IN_REPOSITORY
from dstream.format.tables import Columns
from dstream.measure import Purpose
from dstream.store.base import Store
from dstream.units import MIB

Found = tuple[str, str, int]
"""(where, what is wrong or nothing, bytes that were read)."""

_Entries = dict[int, list[tuple[int, int, int]]]
"""(offset, size, checksum) of the groups of pictures, by the file's row."""

_CHUNK_BYTES = 8 * MIB


def check_part(
    store: Store, contents: Contents, part: Part, sizes: Mapping[str, int], *, deep: bool
) -> Iterator[Found]:
    """What is wrong with a part's shards and index groups.

    Args:
        store: the repository's.
        contents: reads tables.
        part: one part of a dataset.
        sizes: of the objects that are there.
        deep: decode every index entry, and compare every file of a shard with its checksums.
    """
    files = contents.table(part.files, ("name", "object", "store", "offset_bytes", "size_bytes",
                                        "checksum"))  # fmt: skip
    streams = contents.table(
        part.streams, ("file", "index_object", "index_offset_bytes", "index_size_bytes")
    )
    contents.table(part.samples)
    for row in range(len(files["name"])):
        key = str(files["object"][row])
        stop = int(files["offset_bytes"][row]) + int(files["size_bytes"][row])
        if files["store"][row] == IN_REPOSITORY and key in sizes and stop > sizes[key]:
            yield key, f"has {sizes[key]} bytes, file {files['name'][row]!r} ends at {stop}", 0
    if not deep:
        return
    entries = yield from _check_entries(store, streams, sizes)
    for row in range(len(files["name"])):
        if files["store"][row] == IN_REPOSITORY and str(files["object"][row]) in sizes:
            yield _check_file(store, files, row, entries.get(row, []))


def _check_entries(
    store: Store, streams: Columns, sizes: Mapping[str, int]
) -> Generator[Found, None, _Entries]:
    """Decode every index entry; gives the checksums of GOPs by the file's row."""
    gops: _Entries = {}
    group, data = "", b""
    for row in range(len(streams["file"])):
        key = str(streams["index_object"][row])
        if key not in sizes:
            continue
        if key != group:
            group, data = key, store.get(key, purpose=Purpose.TABLE).data
            yield key, "", len(data)
        start = int(streams["index_offset_bytes"][row])
        stop = start + int(streams["index_size_bytes"][row])
        try:
            index = decode_index_entry(data[start:stop])
        except CorruptDataError as error:
            yield key, f"the entry at {start} is damaged: {error}", 0
            continue
        if index.gops.checksum is not None:
            gops.setdefault(int(streams["file"][row]), []).extend(
                zip(
                    index.gops.offset_bytes.tolist(),
                    index.gops.size_bytes.tolist(),
                    index.gops.checksum.tolist(),
                    strict=True,
                )
            )
    return gops


def _check_file(store: Store, files: Columns, row: int, gops: list[tuple[int, int, int]]) -> Found:
    """One file inside a shard: its own checksum, or those of its groups of pictures."""
    key, start = str(files["object"][row]), int(files["offset_bytes"][row])
    size, name = int(files["size_bytes"][row]), str(files["name"][row])
    checksum = files["checksum"][row]
    read = 0
    try:
        if checksum is not None:
            digest = xxhash.xxh3_64()
            for at in range(0, size, _CHUNK_BYTES):
                stop = min(size, at + _CHUNK_BYTES)
                digest.update(store.get(key, start + at, start + stop, purpose=Purpose.COPY).data)
                read = stop
            if f"xxh3:{digest.hexdigest()}" != checksum:
                return key, f"file {name!r} is not what it was: its checksum differs", read
            return key, "", read
        for number, (at, length, expected) in enumerate(gops):
            data = store.get(key, start + at, start + at + length, purpose=Purpose.COPY).data
            read += length
            if xxhash.xxh3_64_intdigest(data) != expected:
                return key, f"file {name!r}: group of pictures {number} is not what it was", read
    except DstreamError as error:
        return key, f"file {name!r} cannot be read: {error}", read
    return key, "", read
