"""Values as JSON takes them, and text as a terminal may be given it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum


def plain(value: object) -> object:
    """``value`` as JSON types: dataclasses and mappings as objects, NaN and infinities as null.

    Raises nothing: what JSON has no form for is given as text.

    >>> plain({"a": (1, float("nan")), 2: {"x"}})
    {'a': [1, None], '2': ['x']}
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if hasattr(value, "tolist"):  # numpy, without importing it
        return plain(value.tolist())
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [plain(inner) for inner in value]
    return str(value)


def printable(text: str, lines: bool = True) -> str:
    """``text`` without control characters: names from a bucket must not steer a terminal.

    Args:
        text: any text.
        lines: keep the ends of lines. Without, a name cannot pretend to be two.

    >>> print(printable("a\\x1b[2Jb\\tc"))
    a\\x1b[2Jb\\tc
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or (lines and c == "\n") else c.encode("unicode_escape").decode()
        for c in text
    )


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def timestamp(time_s: float | None) -> str:
    """A time in UTC for people and machines; empty where it is unknown.

    >>> timestamp(1_700_000_000.4)
    '2023-11-14T22:13:20Z'
    """
    if time_s is None:
        return ""
    try:
        return datetime.fromtimestamp(int(time_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "?"  # a writer's clock can hold anything


def sparkline(values: Iterable[float], width: int = 60) -> str:
    """Bars of ``values`` from 0 to their maximum; more than ``width`` are pooled by maximum.

    >>> sparkline([0, 1, 2, 4, 8])
    '▁▂▃▅█'
    """
    numbers = list(values)
    if not numbers:
        return ""
    per_bar = math.ceil(len(numbers) / width)
    pooled = [max(numbers[i : i + per_bar]) for i in range(0, len(numbers), per_bar)]
    top = max(pooled) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] for value in pooled)


_BARS = "▁▂▃▄▅▆▇█"
