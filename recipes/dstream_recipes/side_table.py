"""Bytes of a JSON Lines, CSV or Parquet file to a :class:`SideTable`. Nothing is trusted."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter

from dstream.loader.single_flight import SingleFlightCache
from dstream.units import format_bytes
from dstream_recipes.columns import SideTable, Value, bad_side_file, typed_table

MAX_TABLE_BYTES = 256 * 1024**2
MAX_COLUMNS = 4096
_MAX_NESTING = 8
_CACHED_BYTES = 128 * 1024**2

Columns = dict[str, list[Value]]


def parse_side_table(name: str, data: bytes) -> SideTable:
    """Read a side table; the end of ``name`` says which format it has.

    Tables are kept, 128 MiB of them with their files, so that the clips of one sample parse it
    once even when those of others come between.

    Raises:
        MediaError: ``bad-side-file``, with ``name`` and the row or column at fault.
    """
    if len(data) > MAX_TABLE_BYTES:
        raise bad_side_file(
            name, f"{format_bytes(len(data))} is beyond {format_bytes(MAX_TABLE_BYTES)}"
        )
    return _TABLES.get((name, data), lambda: _Kept(_parse(name, data), len(data))).table


@dataclass(frozen=True, slots=True)
class _Kept:
    table: SideTable
    key_bytes: int
    """Of the file, which is held as long as its table."""

    @property
    def size_bytes(self) -> int:
        return self.key_bytes + sum(column.nbytes for column in self.table.columns.values())


_TABLES: SingleFlightCache[tuple[str, bytes], _Kept] = SingleFlightCache(
    _CACHED_BYTES, attrgetter("size_bytes")
)


def _parse(name: str, data: bytes) -> SideTable:
    columns, rows = _parser_of(name)(name, data)
    if len(columns) > MAX_COLUMNS:
        raise bad_side_file(name, f"{len(columns)} columns, at most {MAX_COLUMNS} are read")
    return typed_table(name, columns, rows)


def _parser_of(name: str) -> Callable[[str, bytes], tuple[Columns, int]]:
    lowered = name.lower()
    for ending, parser in _PARSERS.items():
        if lowered.endswith(ending):
            return parser
    raise bad_side_file(name, f"expected one of {', '.join(_PARSERS)}")


def _text_of(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad_side_file(name, f"not UTF-8 text at byte {error.start}") from error


# --- JSON Lines ---------------------------------------------------------------------------


def _parse_jsonl(name: str, data: bytes) -> tuple[Columns, int]:
    lines = enumerate(_text_of(name, data).split("\n"), start=1)
    documents = [_json_object(name, number, line) for number, line in lines if line.strip()]
    return _columns_of(name, documents), len(documents)


def _json_object(name: str, line_number: int, line: str) -> dict[str, object]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise bad_side_file(
            name, f"line {line_number} is not JSON: {error}", line=line_number
        ) from error
    if not isinstance(document, dict):
        raise bad_side_file(
            name,
            f"line {line_number} is a {type(document).__name__}, expected one object a line",
            line=line_number,
        )
    return document


def _columns_of(name: str, documents: Sequence[Mapping[str, object]]) -> Columns:
    """Rows as objects to columns; a name that a row lacks is a gap there."""
    columns: Columns = {}
    for row, document in enumerate(documents):
        for path, value in _flat(name, row, document):
            cells = columns.setdefault(path, [])
            if len(cells) > row:
                raise bad_side_file(name, f"row {row} names column {path!r} twice", row=row)
            cells.extend([None] * (row - len(cells)))
            cells.append(value)
    for cells in columns.values():
        cells.extend([None] * (len(documents) - len(cells)))
    return columns


def _flat(
    name: str, row: int, document: Mapping[str, object], prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Value]]:
    """``{"mouse": {"dx": 1}}`` as ``("mouse.dx", 1)``, in order."""
    if depth > _MAX_NESTING:
        raise bad_side_file(name, f"row {row} is nested deeper than {_MAX_NESTING}", row=row)
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(name, row, value, f"{path}.", depth + 1)
        elif value is None or isinstance(value, bool | int | float | str | list):
            yield path, value
        elif isinstance(value, Decimal):
            yield path, float(value)
        elif isinstance(value, tuple):
            yield path, list(value)
        else:
            raise bad_side_file(
                name,
                f"column {path!r} holds {type(value).__name__}, which has no array form",
                column=path,
            )


# --- CSV ----------------------------------------------------------------------------------


def _parse_csv(name: str, data: bytes) -> tuple[Columns, int]:
    reader = csv.reader(io.StringIO(_text_of(name, data), newline=""), strict=True)
    try:
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise bad_side_file(name, f"line {reader.line_num} is not CSV: {error}") from error
    if not lines:
        return {}, 0
    header, body = [title.strip() for title in lines[0]], lines[1:]
    _check_header(name, header)
    for row, line in enumerate(body):
        if len(line) != len(header):
            raise bad_side_file(
                name,
                f"row {row} has {len(line)} cells, the header has {len(header)}",
                row=row,
            )
    cells_by_column = zip(*body, strict=True) if body else ([] for _ in header)
    return {
        title: _csv_cells(name, title, cells)
        for title, cells in zip(header, cells_by_column, strict=True)
    }, len(body)


def _check_header(name: str, header: Sequence[str]) -> None:
    if any(_FLOAT.fullmatch(title) for title in header) or "" in header:
        raise bad_side_file(
            name, f"its first line must name the columns, got {','.join(header)[:60]!r}"
        )
    twice = sorted({title for title in header if header.count(title) > 1})
    if twice:
        raise bad_side_file(name, f"column {twice[0]!r} appears twice")


_INT = re.compile(r"[+-]?[0-9]{1,30}")
_FLOAT = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf(inity)?)", re.I
)
_BOOLS = {"true": True, "false": False}


def _csv_cells(name: str, title: str, cells: Sequence[str]) -> list[Value]:
    """One column's text as values: all of them bools, numbers or lists, or else text."""
    texts = [cell.strip() for cell in cells]
    present = [text for text in texts if text]
    if all(text.lower() in _BOOLS for text in present):
        return [_BOOLS[text.lower()] if text else None for text in texts]
    if all(map(_INT.fullmatch, present)):
        return [int(text) if text else None for text in texts]
    if all(map(_FLOAT.fullmatch, present)):
        return [float(text) if text else None for text in texts]
    if all(text.startswith("[") for text in present):
        return [_csv_list(name, title, row, text) for row, text in enumerate(texts)]
    return list(cells)


def _csv_list(name: str, title: str, row: int, text: str) -> Value:
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError) as error:
        raise bad_side_file(
            name, f"column {title!r}, row {row} is not a list: {error}", column=title, row=row
        ) from error
    return value if isinstance(value, list) else None


# --- Parquet ------------------------------------------------------------------------------


def _parse_parquet(name: str, data: bytes) -> tuple[Columns, int]:
    from dstream_recipes.parquet import parquet_rows  # DuckDB loads only where it is needed

    titles, rows = parquet_rows(name, data)
    documents = [dict(zip(titles, row, strict=True)) for row in rows]
    columns = _columns_of(name, documents)
    return columns, len(documents)


_PARSERS = {".jsonl": _parse_jsonl, ".csv": _parse_csv, ".parquet": _parse_parquet}
