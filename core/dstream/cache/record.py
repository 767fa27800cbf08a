"""What is cached, and the 64 bytes that stand before each extent in a segment.

A record is written twice: in the ``.data`` file before the extent's bytes, and in the ``.index``
file, whose fixed slots are read as one piece. Its own checksum is seeded with the segment's
number, so that a record of another segment, or half of one, is none.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import xxhash

RECORD_BYTES = 64
IMMUTABLE = "immutable"
"""Tag of objects that are written once under a name of their own."""

_MAGIC = b"dsx1"
_FIELDS = struct.Struct("<4s4x16sQQQQ")
_CHECKSUM = struct.Struct("<Q")
_KEY = struct.Struct("<16sQQ")


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """Which bytes an object's name stood for: another version has another identity."""

    store_url: str
    key: str
    tag: str
    """Its version and ETag, or ``immutable``."""

    @property
    def digest(self) -> bytes:
        """16 bytes that no other identity has."""
        hasher = hashlib.blake2b(digest_size=16)
        for part in (self.store_url, self.key, self.tag):
            encoded = part.encode("utf-8", "surrogatepass")
            hasher.update(len(encoded).to_bytes(4, "little") + encoded)
        return hasher.digest()


def identity_of(
    store_url: str, key: str, etag: str | None, version: str | None
) -> ObjectIdentity | None:
    """The identity of an object, or None where its ETag does not tell its bytes apart.

    Args:
        store_url: of the store that holds it.
        key: the object.
        etag: what reads insist on; None for an object that never changes.
        version: VersionId in a versioned bucket.

    >>> identity_of("s3://b", "k", 'W/"1"', None) is None
    True
    """
    if etag is None:
        return ObjectIdentity(store_url, key, IMMUTABLE)
    if not etag or etag.startswith("W/"):
        return None
    return ObjectIdentity(store_url, key, f"{version or ''}\0{etag}")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``[start, stop)`` of an object, cached as one piece."""

    start: int
    stop: int
    checksum: int | None = None
    """xxh3_64 that the bytes must have, where it is known."""

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Record:
    """Where an extent lies in a segment, and what its bytes must hash to."""

    identity: bytes
    """:attr:`ObjectIdentity.digest`."""
    start: int
    """First byte of the extent in its object."""
    size_bytes: int
    place: int
    """Where the record stands in the ``.data`` file; the bytes follow it."""
    checksum: int
    """xxh3_64 of the bytes."""

    @property
    def is_seal(self) -> bool:
        """It is no extent, but says that none will follow in this segment."""
        return self.size_bytes == 0

    @property
    def end_place(self) -> int:
        """Where the next record stands."""
        return self.place + RECORD_BYTES + self.size_bytes

    @property
    def key(self) -> int:
        """A 64-bit number by which the extent is looked up."""
        return extent_key(self.identity, self.start, self.size_bytes)


def extent_key(identity: bytes, start: int, size_bytes: int) -> int:
    """The number by which an extent is looked up; the record then tells whether it is the one."""
    return xxhash.xxh3_64_intdigest(_KEY.pack(identity, start, size_bytes))


def encode_record(record: Record, segment: int) -> bytes:
    """64 bytes for segment number ``segment``."""
    head = _FIELDS.pack(
        _MAGIC, record.identity, record.start, record.size_bytes, record.place, record.checksum
    )
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head, seed=segment))


def decode_record(data: bytes, segment: int) -> Record | None:
    """The record in 64 bytes, or None: torn, rotten, or of another segment."""
    head = data[: _FIELDS.size]
    if len(data) != RECORD_BYTES or not data.startswith(_MAGIC):
        return None
    if _CHECKSUM.unpack_from(data, _FIELDS.size)[0] != xxhash.xxh3_64_intdigest(head, seed=segment):
        return None
    _, identity, start, size_bytes, place, checksum = _FIELDS.unpack(head)
    return Record(identity, start, size_bytes, place, checksum)
