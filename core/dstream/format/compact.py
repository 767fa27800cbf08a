"""Columns of a table for keeping in memory: texts compressed, whole numbers in few bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dstream.errors import CorruptDataError
from dstream.format.duck import locked_connection, path_text, quoted, translated
from dstream.format.tables import NUMBERS, spool_table, text_fault, without_nulls
from dstream.format.text_column import BLOCK_ROWS, TextColumn

_CHUNK_ROWS = 64 * BLOCK_ROWS


def read_compact(
    data: bytes, columns: Sequence[str], *, rows: int | None = None
) -> dict[str, NDArray[Any] | TextColumn]:
    """Columns by name, in row order. Lists are text columns of JSON arrays.

    Args:
        data: the Parquet bytes.
        columns: which ones.
        rows: how many rows the manifest promises.

    Raises:
        CorruptDataError: as :func:`dstream.format.tables.read_table`, or a number is NULL.
        FormatVersionError: see there.
    """
    with locked_connection() as (connection, (path,)):
        spool_table(connection, path, data, rows)
        with translated("read a table", CorruptDataError):
            select = ", ".join(map(quoted, columns))
            fault = text_fault(connection, path, select, len(data))
            if fault:
                raise CorruptDataError(f"table of {len(data)} bytes: {fault}")
            table = f"read_parquet({path_text(path)}, file_row_number=true)"
            kinds = connection.execute(f"DESCRIBE SELECT {select} FROM {table}").fetchall()
            numbers = [str(name) for name, kind, *_ in kinds if kind in NUMBERS]
            texts = {
                str(name): quoted(name) if kind == "VARCHAR" else _json(name)
                for name, kind, *_ in kinds
                if kind not in NUMBERS
            }
            sizes = [
                f"CAST(coalesce(strlen({sql}), -1) AS INTEGER) AS {quoted(name)}"
                for name, sql in texts.items()
            ]
            query = f"SELECT {', '.join([*map(quoted, numbers), *sizes])} FROM {table}"
            found = connection.execute(query).fetchnumpy()
            joined = _joined(connection, table, list(texts.values()))
    compact: dict[str, NDArray[Any] | TextColumn] = {
        name: _narrow(without_nulls(name, found[name])) for name in numbers
    }
    for place, name in enumerate(texts):
        compact[name] = TextColumn(_chunks(found[name], [row[place] for row in joined]))
    return compact


def _json(name: str) -> str:
    return f"CAST(to_json({quoted(name)}) AS TEXT)"


def _joined(
    connection: duckdb.DuckDBPyConnection, table: str, texts: Sequence[str]
) -> list[tuple[str | None, ...]]:
    """Each column's texts without gaps, some thousand rows at a time.

    Joined by DuckDB: a Python object for every row would cost more time than all else. It joins
    in the order in which it reads, which is that of the rows in one thread, but it promises that
    only where it sorts, and sorting takes three times as long. So the order is looked at.
    """
    if not texts:
        return []
    for order in ("", " ORDER BY file_row_number"):
        joins = ", ".join(f"string_agg({sql}, ''{order})" for sql in texts)
        numbers = f"list(file_row_number{order})"
        chunks = connection.execute(
            f"SELECT {numbers} = list_sort({numbers}), {joins} FROM {table} "
            f"GROUP BY file_row_number // {_CHUNK_ROWS} ORDER BY min(file_row_number)"
        ).fetchall()
        if all(in_order for in_order, *_ in chunks):
            break
    return [tuple(columns) for _, *columns in chunks]


def _chunks(
    sizes: NDArray[np.int32], texts: Sequence[str | None]
) -> Iterator[tuple[NDArray[np.int32], bytes]]:
    for number, text in enumerate(texts):
        start = number * _CHUNK_ROWS
        chunk = np.asarray(sizes[start : start + _CHUNK_ROWS], dtype=np.int32)
        yield chunk, (text or "").encode()


def _narrow(column: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in the smallest type that holds them all."""
    if column.dtype.kind != "i" or not len(column):
        return column
    low, high = (np.min_scalar_type(int(value)) for value in (column.min(), column.max()))
    return column.astype(np.promote_types(low, high))
