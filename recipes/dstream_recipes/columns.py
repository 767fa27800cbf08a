"""Python values of a side table's columns, turned into numpy arrays of one type each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dstream.errors import MediaError, MediaReason

Value = None | bool | int | float | str | list["Value"]
Array = NDArray[np.generic]

MAX_TEXT_CHARS = 4096
"""Longest text cell: text arrays take four bytes a character of their longest cell."""

_NUMBERS = frozenset({bool, int, float, type(None)})
_TEXTS = frozenset({str, type(None)})
_INT64 = np.iinfo(np.int64)


def bad_side_file(name: str, fault: str, **facts: object) -> MediaError:
    """The error for a side file that cannot be used: ``name`` and what is wrong with it."""
    return MediaError(f"{name}: {fault}", reason=MediaReason.BAD_SIDE_FILE, **facts)


@dataclass(frozen=True, slots=True, eq=False)
class SideTable:
    """A parsed side file: columns of equal length in file order, read-only."""

    rows: int
    columns: Mapping[str, Array]
    """bool, int64, float64 or text [rows], or numbers [rows, K] for a column of lists."""

    def numeric_scalars(self) -> list[str]:
        """Names of the columns that hold one number a row."""
        return [name for name, a in self.columns.items() if a.ndim == 1 and a.dtype.kind in "bif"]


def typed_table(name: str, values: Mapping[str, Sequence[Value]], rows: int) -> SideTable:
    """Give every column one type.

    ``true``/``false`` become bool; whole numbers int64; numbers with fractions or gaps float64
    (a gap is NaN); text stays text (a gap is empty); lists of one length become 2-D.

    Raises:
        MediaError: ``bad-side-file`` for mixed kinds, ragged lists, whole numbers beyond int64
            and overlong text, naming column and row.
    """
    columns = {}
    for column, cells in values.items():
        array = _typed_column(name, column, cells)
        array.flags.writeable = False
        columns[column] = array
    return SideTable(rows, columns)


def _typed_column(name: str, column: str, cells: Sequence[Value]) -> Array:
    kinds = set(map(type, cells))
    if kinds <= _NUMBERS:
        return _numbers(name, column, cells, kinds)
    if kinds <= _TEXTS:
        return _texts(name, column, cells)
    if kinds == {list}:
        return _lists(name, column, cells)
    first, other = _first_mix(cells)
    raise bad_side_file(
        name,
        f"column {column!r} mixes kinds: row {first} is {_shown(cells[first])}, row {other} is "
        f"{_shown(cells[other])}",
        column=column,
        row=other,
    )


def _first_mix(cells: Sequence[Value]) -> tuple[int, int]:
    """Two rows whose cells are of different kinds; gaps go with numbers and text."""
    first = next(row for row, cell in enumerate(cells) if cell is not None)
    family = _family(cells[first])
    allowed = (family,) if family is list else (family, type(None))
    return first, next(row for row, c in enumerate(cells) if _family(c) not in allowed)


def _family(cell: Value) -> type:
    return float if isinstance(cell, bool | int | float) else type(cell)


def _numbers(name: str, column: str, cells: Sequence[Value], kinds: set[type]) -> Array:
    if kinds == {bool}:
        return np.array(cells, dtype=np.bool_)
    if kinds <= {bool, int} and kinds:
        try:
            return np.array(cells, dtype=np.int64)
        except OverflowError as error:
            row = next(
                row
                for row, cell in enumerate(cells)
                if isinstance(cell, int) and not _INT64.min <= cell <= _INT64.max
            )
            raise bad_side_file(
                name, f"column {column!r}, row {row}: beyond 64 bits", column=column, row=row
            ) from error
    try:
        return np.array(cells, dtype=np.float64)  # None becomes NaN
    except OverflowError as error:
        raise bad_side_file(
            name, f"column {column!r} holds a whole number too large for a float", column=column
        ) from error


def _texts(name: str, column: str, cells: Sequence[Value]) -> Array:
    texts = [cell if isinstance(cell, str) else "" for cell in cells]
    longest = max(range(len(texts)), key=lambda row: len(texts[row]))
    if len(texts[longest]) > MAX_TEXT_CHARS:
        raise bad_side_file(
            name,
            f"column {column!r}, row {longest}: {len(texts[longest])} characters of text, "
            f"at most {MAX_TEXT_CHARS} are kept per frame",
            column=column,
            row=longest,
        )
    return np.array(texts, dtype=np.str_)


def _lists(name: str, column: str, cells: Sequence[Value]) -> Array:
    lists = [cell for cell in cells if isinstance(cell, list)]
    width = len(lists[0])
    for row, cell in enumerate(lists):
        if len(cell) != width:
            raise bad_side_file(
                name,
                f"column {column!r} is ragged: row 0 has {width} numbers, row {row} has "
                f"{len(cell)}",
                column=column,
                row=row,
            )
    flat = list(chain.from_iterable(lists))
    kinds = set(map(type, flat))
    if not kinds <= _NUMBERS:
        raise bad_side_file(name, f"column {column!r}: lists may hold numbers only", column=column)
    return _numbers(name, column, flat, kinds).reshape(len(lists), width)


def _shown(cell: Value) -> str:
    text = repr(cell)
    return text if len(text) <= 40 else text[:39] + "…"
