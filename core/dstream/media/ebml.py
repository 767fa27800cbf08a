"""EBML: the elements that Matroska and WebM are made of, with every length checked."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

UNKNOWN_SIZE = -1
"""An element that ends where something starts that cannot be inside of it."""
HEADER_BYTES = 12
"""The longest element header: 4 bytes of id, 8 of size."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element: its id, and the places of its header and content."""

    kind: int
    start: int
    body: int
    size: int
    """Of the content; UNKNOWN_SIZE where the file does not say."""

    @property
    def stop(self) -> int:
        """One past the content; only for known sizes."""
        return self.body + self.size


def parse_element(data: bytes | memoryview, at: int, place: int) -> Element | None:
    """The element whose header is at ``data[at:]``; None if there is none or it is cut.

    Args:
        data: bytes.
        at: index of the header in them.
        place: position of ``data[at]`` that the result counts from.

    >>> parse_element(bytes.fromhex("ec81ff"), 0, 100)
    Element(kind=236, start=100, body=102, size=1)
    """
    available = len(data) - at
    if available < 2 or data[at] < 0x10:
        return None
    id_bytes = 9 - data[at].bit_length()
    if available < id_bytes + 1 or not data[at + id_bytes]:
        return None
    kind = int.from_bytes(data[at : at + id_bytes], "big")
    size_at = at + id_bytes
    size_bytes = 9 - data[size_at].bit_length()
    if available < id_bytes + size_bytes:
        return None
    mask = (1 << (7 * size_bytes)) - 1
    size = int.from_bytes(data[size_at : size_at + size_bytes], "big") & mask
    body = place + id_bytes + size_bytes
    return Element(kind, place, body, UNKNOWN_SIZE if size == mask else size)


def children(data: bytes, start: int, stop: int) -> Iterator[Element]:
    """Elements of ``data[start:stop]``; places are indices. Ends at the first bad or cut one."""
    position = start
    while position < stop:
        element = parse_element(data[position : position + HEADER_BYTES], 0, position)
        if element is None or element.size == UNKNOWN_SIZE or element.stop > stop:
            return
        yield element
        position = element.stop


def read_uint(data: bytes | memoryview) -> int:
    """An unsigned integer of up to 8 bytes."""
    return int.from_bytes(data[:8], "big")


def read_float(data: bytes) -> float:
    """A float of 4 or 8 bytes; 0 for anything else."""
    if len(data) == 4:
        return float(struct.unpack(">f", data)[0])
    if len(data) == 8:
        return float(struct.unpack(">d", data)[0])
    return 0.0


def read_vint(data: bytes | memoryview, at: int) -> tuple[int, int] | None:
    """(value, length) of a variable-length integer at ``data[at:]``, or None."""
    if at >= len(data) or not data[at]:
        return None
    length = 9 - data[at].bit_length()
    if at + length > len(data):
        return None
    raw = int.from_bytes(data[at : at + length], "big")
    return raw & ((1 << (7 * length)) - 1), length


def encode_element(kind: int, content: bytes) -> bytes:
    """An element of known size."""
    id_bytes = kind.to_bytes((kind.bit_length() + 7) // 8, "big")
    return id_bytes + (0x0100000000000000 | len(content)).to_bytes(8, "big") + content
