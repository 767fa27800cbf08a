"""Parquet tables of a dataset generation, written and read by DuckDB.

Columns are numpy arrays. Text is an object array of str (None for NULL), a list column an
object array of numpy arrays, and a numeric column that holds NULLs a masked array. Not for forked
workers: DuckDB does not survive a fork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dstream.errors import CorruptDataError, FormatVersionError, InvalidInputError
from dstream.format import schema
from dstream.format.duck import locked_connection, path_text, quoted, translated
from dstream.format.schema import Table
from dstream.format.table_input import as_array, declared_columns, row_count

Columns = dict[str, NDArray[Any]]

ROW_GROUP_ROWS = 102_400
"""Rows a Parquet row group; a multiple of DuckDB's vector of 2,048."""

MAX_TABLE_ROWS = 1 << 22
"""Most rows of one table; a part that grows longer is split before."""

MAX_TABLE_VALUES = 1 << 25
"""Most values of one column, the items of its lists counted."""

MAX_TEXT_BYTES = 1 << 30
"""Most bytes of text of one table: a text that all rows share is stored once, and read as often
as there are rows."""

_FREE_TEXT_BYTES = 1 << 26
_MAX_TEXT_RATIO = 1024
"""A table of more text than the free bytes has at most so many times its own bytes."""

_PARQUET_MAGIC = b"PAR1"


def write_table(kind: Table | str, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> bytes:
    """The Parquet bytes of a table; equal columns give equal bytes.

    Args:
        kind: which table.
        columns: one sequence of equal length for every column of the schema. The sample table
            takes further columns, its labels: text, whole numbers, numbers or truth values.

    Raises:
        InvalidInputError: a column is missing, unknown, of another length or type, or there are
            more rows or values than a reader takes.
        StorageError: the temporary file could not be written.
    """
    kind = Table(kind)
    declared = declared_columns(kind, columns)
    rows = row_count(kind, columns)
    arrays = {str(i): as_array(c, columns[c.name]) for i, c in enumerate(declared)}
    select = ", ".join(
        f'CAST("{i}" AS {column.type}) AS {quoted(column.name)}'
        for i, column in enumerate(declared)
    )
    with locked_connection() as (connection, (path,)):
        source = "(SELECT * FROM incoming)"
        if rows == 0:  # an empty object array has no type to cast from
            nulls = ", ".join(f'NULL AS "{i}"' for i in range(len(declared)))
            source = f"(SELECT {nulls} LIMIT 0)"
        else:
            connection.register("incoming", arrays)
        with translated(f"write the {kind} table", InvalidInputError):
            connection.execute(
                f"COPY (SELECT {select} FROM {source}) TO {path_text(path)} (FORMAT parquet, "
                f"COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS}, USE_TMP_FILE false, "
                "KV_METADATA {"
                f"'dstream.table': '{kind}', 'dstream.version': '{schema.VERSION}', "
                f"'dstream.min_reader': '{schema.MIN_READER}'}})"
            )
            fault = _size_fault(connection, path, rows) or text_fault(
                connection, path, "*", path.stat().st_size
            )
            if fault:
                raise InvalidInputError(f"{kind} table: {fault}; spread it over several parts")
        return path.read_bytes()


def read_table(
    data: bytes, columns: Sequence[str] | None = None, *, rows: int | None = None
) -> Columns:
    """Columns of a table in row order.

    Args:
        data: the Parquet bytes.
        columns: which ones; None for all, those unknown to this version included.
        rows: how many rows the manifest promises; None where nobody said.

    Raises:
        CorruptDataError: not Parquet, damaged, too large, without one of ``columns``, or of
            another number of rows, which is found before any row is read.
        FormatVersionError: a newer dstream wrote it and older readers must not read it.
    """
    chosen = "*" if columns is None else ", ".join(quoted(name) for name in columns)
    return _read(data, chosen, rows)


def without_nulls(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """A column as a plain array; CorruptDataError where it has NULLs."""
    plain = _plain(column)
    if isinstance(plain, np.ma.MaskedArray):
        raise CorruptDataError(f"table: column {name!r} has NULLs")
    return plain


def _read(data: bytes, select: str, rows: int | None) -> Columns:
    with locked_connection() as (connection, (path,)):
        spool_table(connection, path, data, rows)
        with translated("read a table", CorruptDataError):
            fault = text_fault(connection, path, select, len(data))
            if fault:
                raise CorruptDataError(f"table of {len(data)} bytes: {fault}")
            found = connection.execute(
                f"SELECT {select} FROM read_parquet({path_text(path)})"
            ).fetchnumpy()
    return {name: _plain(column) for name, column in found.items()}


def spool_table(
    connection: duckdb.DuckDBPyConnection, path: Path, data: bytes, rows: int | None
) -> None:
    """Write a table where the connection may read it, and check all that its footer says.

    Raises:
        CorruptDataError, FormatVersionError: see :func:`read_table`.
    """
    if data[:4] != _PARQUET_MAGIC or data[-4:] != _PARQUET_MAGIC:
        raise CorruptDataError(
            f"table: {len(data)} bytes that are no Parquet file (its magic is missing)"
        )
    path.write_bytes(data)
    with translated("read a table", CorruptDataError):
        pairs = connection.execute(
            f"SELECT key, value FROM parquet_kv_metadata({path_text(path)})"
        ).fetchall()
        _check_version({bytes(key): bytes(value) for key, value in pairs})
        fault = _size_fault(connection, path, rows)
    if fault:
        raise CorruptDataError(f"table of {len(data)} bytes: {fault}")


def _size_fault(connection: duckdb.DuckDBPyConnection, path: Path, rows: int | None) -> str | None:
    """What is wrong with the sizes in a table's footer; no row is read.

    DuckDB reads by the counts of the row groups, which need not add up to the file's count.
    """
    stated, least, most, values = connection.execute(
        f"SELECT (SELECT num_rows FROM parquet_file_metadata({path_text(path)})), "
        "coalesce(min(grouped), 0), coalesce(max(grouped), 0), coalesce(max(stored), 0) FROM "
        "(SELECT sum(row_group_num_rows) AS grouped, sum(num_values) AS stored "
        f"FROM parquet_metadata({path_text(path)}) GROUP BY column_id)"
    ).fetchall()[0]
    if not stated == least == most:
        return f"its footer says {stated} rows, its row groups {least} to {most}"
    if rows is not None and stated != rows:
        return f"it has {stated} rows, expected {rows}"
    if stated > MAX_TABLE_ROWS or values > MAX_TABLE_VALUES:
        return (
            f"{stated} rows and up to {values} values a column, the limits are "
            f"{MAX_TABLE_ROWS} and {MAX_TABLE_VALUES}"
        )
    return None


def text_fault(
    connection: duckdb.DuckDBPyConnection, path: Path, select: str, stored_bytes: int
) -> str | None:
    """What is wrong with how much text the selected columns hold; none of it is handed out.

    None where nothing is.
    """
    query = f"SELECT {select} FROM read_parquet({path_text(path)})"
    sums = [
        f"coalesce(sum({_TEXT_BYTES.get(kind, _OTHER_BYTES).format(quoted(name))}), 0)"
        for name, kind, *_ in connection.execute(f"DESCRIBE {query}").fetchall()
        if kind.removesuffix("[]") not in NUMBERS
    ]
    if not sums:
        return None
    row = connection.execute(f"SELECT {', '.join(sums)} FROM ({query})").fetchall()[0]
    text_bytes = sum(int(column_bytes) for column_bytes in row)
    limit = min(MAX_TEXT_BYTES, _FREE_TEXT_BYTES + _MAX_TEXT_RATIO * stored_bytes)
    if text_bytes > limit:
        return f"its columns hold {text_bytes} bytes of text, the limit is {limit}"
    return None


_TEXT_BYTES = {
    "VARCHAR": "strlen({})",
    "BLOB": "octet_length({})",
    "VARCHAR[]": "list_sum([strlen(item) FOR item IN {}])",
}
"""Bytes of one value by the type of its column."""

_OTHER_BYTES = "strlen(CAST({} AS VARCHAR))"
"""The same for types that no column has today."""

NUMBERS = {"INTEGER", "BIGINT", "DOUBLE", "BOOLEAN"}
"""Their values are bounded by their number."""


def _check_version(metadata: Mapping[bytes, bytes]) -> None:
    stated = metadata.get(b"dstream.min_reader", b"")
    if not stated.isdigit():
        raise CorruptDataError("table: Parquet, but not written by dstream (no format version)")
    if int(stated) > schema.VERSION:
        raise FormatVersionError(
            f"table: it needs a reader of table format {int(stated)}, this dstream reads up to "
            f"{schema.VERSION}: update it",
            min_reader=int(stated),
        )


def _plain(column: NDArray[Any]) -> NDArray[Any]:
    """Undo DuckDB's masks where an object array can say None itself."""
    if not isinstance(column, np.ma.MaskedArray):
        return column
    if not np.ma.getmaskarray(column).any():
        return column.data
    if column.dtype == np.dtype(object):
        values = column.data.copy()
        values[np.ma.getmaskarray(column)] = None
        return values
    return column
