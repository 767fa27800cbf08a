"""What one row of a stored array is: its element type and its shape, as text and as values.

Element types have numpy's names; those that numpy lacks have torch's (``bfloat16``,
``float8_e4m3fn``) and are kept as their bits, in whole numbers of the same width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import numpy as np

from dstream.errors import MediaError, MediaReason

ARRAY_CODEC = "array"
"""``VideoTrack.codec`` of arrays: a packet is a row's bytes as they are."""

_NUMPY_NAMES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_BITS = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}
_TEXT = re.compile(r"(>?)(\w{1,20})\[((?:\d{1,15}(?:,\d{1,15}){0,63})?)\]")


@dataclass(frozen=True, slots=True)
class RowForm:
    """Element type and shape of a row."""

    dtype: str
    """``float32``, ``bfloat16`` ..."""
    shape: tuple[int, ...]
    big_endian: bool = False
    """How the elements are stored. They are always delivered in this machine's order."""

    def __str__(self) -> str:
        order = ">" if self.big_endian else ""
        return f"{order}{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def memory_dtype(self) -> np.dtype[np.generic]:
        """Of the array that holds rows: the type itself, or whole numbers for its bits."""
        return np.dtype(_BITS.get(self.dtype, self.dtype))

    @property
    def stored_dtype(self) -> np.dtype[np.generic]:
        """The same in the order of bytes that the file has."""
        return self.memory_dtype.newbyteorder(">" if self.big_endian else "<")

    @property
    def torch_only(self) -> str | None:
        """The type's name where numpy has no such type."""
        return self.dtype if self.dtype in _BITS else None

    @property
    def size_bytes(self) -> int:
        """Bytes of a row."""
        return prod(self.shape) * self.memory_dtype.itemsize


def row_form(pix_fmt: str) -> RowForm | None:
    """What a track's ``pix_fmt`` says of its rows; None for pictures.

    >>> row_form("bfloat16[16,64]")
    RowForm(dtype='bfloat16', shape=(16, 64), big_endian=False)
    >>> row_form("yuv420p") is None
    True

    Raises:
        MediaError: it names a type that this version does not know.
    """
    if not pix_fmt.endswith("]"):
        return None
    found = _TEXT.fullmatch(pix_fmt)
    if found is None or found[2] not in (*_NUMPY_NAMES, *_BITS):
        raise MediaError(
            f"rows of the unknown form {pix_fmt!r:.100}; a newer dstream may know it",
            reason=MediaReason.BAD_ARRAY,
            pix_fmt=pix_fmt,
        )
    shape = tuple(int(length) for length in found[3].split(",") if length)
    return RowForm(found[2], shape, bool(found[1]))
