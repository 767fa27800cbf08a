"""Documents as the repository stores them: canonical JSON in one zstd frame.

The same document gives the same bytes (sorted keys, no spaces, UTF-8, fixed compression
level), so a hash of the bytes stands for the content. Reading is bounded: neither a forged
frame header nor deep nesting can exhaust memory or the stack. Parsing takes up to 25 times the
text's size, so every kind of document has its own limit, which its writer keeps as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import zstandard

from dstream.errors import CorruptDataError, InvalidInputError, RefusedError
from dstream.units import format_bytes

_LEVEL = 3


def encode_document(
    document: Mapping[str, object], *, max_bytes: int | None = None, where: str = "document"
) -> bytes:
    """The stored bytes of ``document``.

    Args:
        document: JSON values.
        max_bytes: the most that its text may take: what its reader passes to
            :func:`decode_document`, so that nothing is written that cannot be read back.
        where: what is being written, for the error.

    Raises:
        InvalidInputError: it holds something JSON cannot say (NaN, bytes, lone surrogates).
        RefusedError: its text is longer than ``max_bytes``.
    """
    try:
        text = json.dumps(
            document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        raw = text.encode()
    except (TypeError, ValueError) as fault:
        raise InvalidInputError(f"cannot be stored as JSON: {fault}") from fault
    if max_bytes is not None and len(raw) > max_bytes:
        raise RefusedError(
            f"{where}: its text would take {format_bytes(len(raw))}, the limit is "
            f"{format_bytes(max_bytes)}; shorten messages and attributes, or spread what it lists "
            "over more names",
            size_bytes=len(raw),
            limit_bytes=max_bytes,
        )
    return zstandard.ZstdCompressor(level=_LEVEL).compress(raw)


def decode_document(data: bytes, *, max_bytes: int, where: str) -> dict[str, object]:
    """The document in ``data``.

    Args:
        data: one zstd frame.
        max_bytes: the most that it may decompress to.
        where: what is being read, for the error.

    Raises:
        CorruptDataError: not zstd, larger than ``max_bytes``, not JSON, or not an object.
    """
    raw = _decompress(data, max_bytes, where)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as fault:
        raise CorruptDataError(f"{where}: not JSON: {fault}", where=where) from fault
    if not isinstance(document, dict):
        raise CorruptDataError(
            f"{where}: got a {type(document).__name__}, expected a JSON object", where=where
        )
    return document


def text_size_bytes(data: bytes) -> int:
    """Size of the text in what :func:`encode_document` gave."""
    return zstandard.frame_content_size(data)


def _decompress(data: bytes, max_bytes: int, where: str) -> bytes:
    # Our writers always declare the size. libzstd never writes past the declared size, so
    # checking the declaration bounds the memory, whatever the frame really holds.
    try:
        size_bytes = zstandard.frame_content_size(data)
        if not 0 <= size_bytes <= max_bytes:
            raise CorruptDataError(
                f"{where}: the zstd frame declares {size_bytes} bytes, expected 0 to {max_bytes}",
                where=where,
            )
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as fault:
        raise CorruptDataError(f"{where}: not a whole zstd frame: {fault}", where=where) from fault
