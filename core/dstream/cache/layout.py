"""Names and sizes in a cache's directory.

::

    cache.json                                   format version and byte budget
    lock                                         held while a segment is reserved or deleted
    users/<scope>                                held (shared) by every process that uses a scope
    segments/<number>-<capacity>-<scope>.data    records, each followed by its extent
    segments/<number>-<capacity>-<scope>.index   the records alone, 64 bytes each

All that a reservation needs to know stands in the names: no file has to be read, or trusted.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from dstream.units import MIB

FORMAT_VERSION = 1
MARKER, LOCK, USERS, SEGMENTS = "cache.json", "lock", "users", "segments"
DATA, INDEX = ".data", ".index"

SEGMENT_BYTES = 64 * MIB
_LEAST_SEGMENT_BYTES = MIB
_SEGMENTS_OF_SMALL_BUDGETS = 32

_NAME = re.compile(r"(\d{10})-(\d{1,15})-([0-9a-f]{16})\.(?:data|index)")


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A segment, as its files are named."""

    number: int
    """Rises; never used again."""
    capacity_bytes: int
    """What it may grow to, records included; reserved as a whole."""
    scope: str
    """Which data set it was filled for: 16 hexadecimal digits."""

    def __str__(self) -> str:
        return f"{self.number:010d}-{self.capacity_bytes}-{self.scope}"


def parse_segment(file_name: str) -> SegmentName | None:
    """The segment that a file belongs to; None for any other file.

    >>> parse_segment("0000000007-4194304-00000000deadbeef.data")
    SegmentName(number=7, capacity_bytes=4194304, scope='00000000deadbeef')
    """
    match = _NAME.fullmatch(file_name)
    return None if match is None else SegmentName(int(match[1]), int(match[2]), match[3])


def scope_of(label: str) -> str:
    """The scope of what people call ``label``."""
    return hashlib.blake2b(label.encode("utf-8", "replace"), digest_size=8).hexdigest()


def segment_bytes(budget_bytes: int) -> int:
    """Capacity of a segment: 64 MiB, less where the budget would hold only a few of them.

    >>> segment_bytes(200 * 10**9), segment_bytes(320 * MIB), segment_bytes(1000)
    (67108864, 10485760, 1000)
    """
    small = max(budget_bytes // _SEGMENTS_OF_SMALL_BUDGETS, _LEAST_SEGMENT_BYTES)
    return min(SEGMENT_BYTES, small, budget_bytes)


def encode_marker(budget_bytes: int) -> bytes:
    """The text of ``cache.json``."""
    document = {"format_version": FORMAT_VERSION, "budget_bytes": budget_bytes}
    return json.dumps(document).encode() + b"\n"


def decode_marker(data: bytes) -> tuple[int, int] | None:
    """(format version, budget in bytes), or None where the text is damaged."""
    try:
        document = json.loads(data)
        version, budget = document["format_version"], document["budget_bytes"]
    except (ValueError, TypeError, KeyError):
        return None
    if type(version) is not int or type(budget) is not int or budget < 1:
        return None
    return version, budget
