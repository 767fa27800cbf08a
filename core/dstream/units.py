"""Numbers as people write and read them: byte sizes, durations, rates."""

from __future__ import annotations

import re

from dstream.errors import InvalidInputError

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_SUFFIXES = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "kib": KIB,
    "m": 1000**2, "mb": 1000**2, "mib": MIB,
    "g": 1000**3, "gb": 1000**3, "gib": GIB,
    "t": 1000**4, "tb": 1000**4, "tib": 1024**4,
}  # fmt: skip


def parse_bytes(text: str) -> int:
    """Read a byte size such as ``256MiB``, ``1.5 GB`` or ``4096``.

    Raises:
        InvalidInputError: when the text is no size.

    >>> parse_bytes("1.5 kB"), parse_bytes("2MiB")
    (1500, 2097152)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _SUFFIXES:
        raise InvalidInputError(f"not a byte size: {text!r}; write for example 256MiB or 1.5GB")
    return round(float(match[1]) * _SUFFIXES[match[2].lower()])


def format_bytes(size_bytes: float) -> str:
    """A byte size with three figures and a decimal suffix.

    >>> format_bytes(0), format_bytes(999), format_bytes(1_234_567)
    ('0 B', '999 B', '1.23 MB')
    """
    if size_bytes < 1000:
        return f"{size_bytes:.0f} B"
    for suffix in ("kB", "MB", "GB", "TB"):
        size_bytes /= 1000
        if size_bytes < 999.5 or suffix == "TB":
            break
    return f"{size_bytes:.3g} {suffix}" if size_bytes < 1000 else f"{size_bytes:,.0f} {suffix}"


def format_duration(duration_s: float) -> str:
    """A duration in the two units that matter.

    >>> format_duration(0.5), format_duration(75), format_duration(7320)
    ('0.5 s', '1 min 15 s', '2 h 02 min')
    """
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    whole_s = round(duration_s)
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60:02d} s"
    if whole_s < 48 * 3600:
        return f"{whole_s // 3600} h {whole_s % 3600 // 60:02d} min"
    return f"{whole_s / 86400:.1f} days"


_DURATIONS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def parse_duration(text: str) -> float:
    """Seconds from ``30d``, ``12h``, ``90min``, ``45s`` or ``2w``.

    Raises:
        InvalidInputError: when the text is no duration.

    >>> parse_duration("30d"), parse_duration("1.5 h"), parse_duration("0s")
    (2592000.0, 5400.0, 0.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d|w)\s*", text)
    if match is None:
        raise InvalidInputError(f"not a duration: {text!r}; write for example 30d, 12h or 90min")
    return float(match[1]) * _DURATIONS_S[match[2]]
