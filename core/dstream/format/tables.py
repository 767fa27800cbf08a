"""Parquet tables of a dataset generation, written and read by DuckDB.

Columns are numpy arrays. Text is an object array of str (None for NULL), a list column an
object array of numpy arrays, and a numeric column that holds NULLs a masked array. DuckDB runs
in a locked connection that may touch one temporary file and nothing else, a file without a name:
it cannot outlive this process. Not for forked workers: DuckDB does not survive a fork.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dstream.errors import (
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    StorageError,
)
from dstream.format import schema
from dstream.format.schema import SCHEMAS, Column, Table

Columns = dict[str, NDArray[Any]]

ROW_GROUP_ROWS = 102_400
"""Rows a Parquet row group; a multiple of DuckDB's vector of 2,048."""

MAX_TABLE_ROWS = 1 << 22
"""Most rows of one table; a part that grows longer is split before."""

MAX_TABLE_VALUES = 1 << 25
"""Most values of one column, the items of its lists counted."""

_MEMORY_LIMIT = "2GiB"
_PARQUET_MAGIC = b"PAR1"
_INT_LIMITS = {"INTEGER": 2**31, "BIGINT": 2**63}


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
    declared = _declared(kind, columns)
    rows = _row_count(kind, columns)
    arrays = {str(i): _as_array(c, columns[c.name]) for i, c in enumerate(declared)}
    select = ", ".join(
        f'CAST("{i}" AS {column.type}) AS {_quoted(column.name)}'
        for i, column in enumerate(declared)
    )
    with _connection() as (connection, path):
        source = "(SELECT * FROM incoming)"
        if rows == 0:  # an empty object array has no type to cast from
            nulls = ", ".join(f'NULL AS "{i}"' for i in range(len(declared)))
            source = f"(SELECT {nulls} LIMIT 0)"
        else:
            connection.register("incoming", arrays)
        with _translated(f"write the {kind} table", InvalidInputError):
            connection.execute(
                f"COPY (SELECT {select} FROM {source}) TO {_text(path)} (FORMAT parquet, "
                f"COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS}, USE_TMP_FILE false, "
                "KV_METADATA {"
                f"'dstream.table': '{kind}', 'dstream.version': '{schema.VERSION}', "
                f"'dstream.min_reader': '{schema.MIN_READER}'}})"
            )
            fault = _size_fault(connection, path, rows)
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
    chosen = "*" if columns is None else ", ".join(_quoted(name) for name in columns)
    return _read(data, chosen, rows)


@dataclass(frozen=True, slots=True, eq=False)
class SampleRows:
    """The sample table as the loader plans with it: the first stream of every sample, N rows."""

    key: NDArray[np.object_]
    group: NDArray[np.object_]
    split: NDArray[np.object_]
    stream: NDArray[np.int32]
    """Row in the part's streams of each sample's first stream."""
    start_pts: NDArray[np.int64]
    end_pts: NDArray[np.int64]
    stream_count: NDArray[np.int64]
    """How many streams each sample has."""

    def __len__(self) -> int:
        return len(self.key)


def read_samples_flat(data: bytes, *, rows: int | None = None) -> SampleRows:
    """The first stream of every sample, without the lists: fast for millions of rows.

    Raises:
        CorruptDataError: as :func:`read_table`, or a sample without a stream.
        FormatVersionError: see :func:`read_table`, for ``rows`` too.
    """
    found = _read(
        data,
        '"key", "group", split, streams[1] AS stream, start_pts[1] AS first_pts, '
        "end_pts[1] AS last_pts, len(streams) AS stream_count",
        rows,
    )
    for name in ("stream", "first_pts", "last_pts"):
        if isinstance(found[name], np.ma.MaskedArray):
            raise CorruptDataError("sample table: a sample has no stream")
    return SampleRows(
        key=found["key"],
        group=found["group"],
        split=found["split"],
        stream=found["stream"].astype(np.int32, copy=False),
        start_pts=found["first_pts"].astype(np.int64, copy=False),
        end_pts=found["last_pts"].astype(np.int64, copy=False),
        stream_count=found["stream_count"].astype(np.int64, copy=False),
    )


def _read(data: bytes, select: str, rows: int | None) -> Columns:
    if data[:4] != _PARQUET_MAGIC or data[-4:] != _PARQUET_MAGIC:
        raise CorruptDataError(
            f"table: {len(data)} bytes that are no Parquet file (its magic is missing)"
        )
    with _connection() as (connection, path):
        path.write_bytes(data)
        with _translated("read a table", CorruptDataError):
            pairs = connection.execute(
                f"SELECT key, value FROM parquet_kv_metadata({_text(path)})"
            ).fetchall()
            _check_version({bytes(key): bytes(value) for key, value in pairs})
            fault = _size_fault(connection, path, rows)
            if fault:
                raise CorruptDataError(f"table of {len(data)} bytes: {fault}")
            found = connection.execute(
                f"SELECT {select} FROM read_parquet({_text(path)})"
            ).fetchnumpy()
    return {name: _plain(column) for name, column in found.items()}


def _size_fault(connection: duckdb.DuckDBPyConnection, path: Path, rows: int | None) -> str | None:
    """What is wrong with the sizes in a table's footer; no row is read.

    DuckDB reads by the counts of the row groups, which need not add up to the file's count.
    """
    stated, least, most, values = connection.execute(
        f"SELECT (SELECT num_rows FROM parquet_file_metadata({_text(path)})), "
        "coalesce(min(grouped), 0), coalesce(max(grouped), 0), coalesce(max(stored), 0) FROM "
        "(SELECT sum(row_group_num_rows) AS grouped, sum(num_values) AS stored "
        f"FROM parquet_metadata({_text(path)}) GROUP BY column_id)"
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


def _declared(kind: Table, columns: Mapping[str, Any]) -> tuple[Column, ...]:
    """The schema's columns, then the labels of a sample table in order of name."""
    known = SCHEMAS[kind]
    names = {column.name for column in known}
    missing = sorted(names - set(columns))
    extra = sorted(set(columns) - names)
    if missing or (extra and kind is not Table.SAMPLES):
        raise InvalidInputError(
            f"{kind} table: missing columns {missing}, unknown columns {extra}", table=str(kind)
        )
    folded = {name.lower() for name in names}
    for name in extra:
        if name.lower() in folded:
            raise InvalidInputError(
                f"label {name!r} clashes with another column (case does not count): rename it",
                label=name,
            )
        folded.add(name.lower())
    return known + tuple(_label_column(name, columns[name]) for name in extra)


def _label_column(name: str, values: Sequence[Any] | NDArray[Any]) -> Column:
    kinds = {_label_type(name, value) for value in _items(values) if value is not None}
    if kinds == {"BIGINT", "DOUBLE"}:
        kinds = {"DOUBLE"}
    if len(kinds) > 1:
        raise InvalidInputError(
            f"label {name!r} mixes {sorted(kinds)}: give it one type in all samples", label=name
        )
    return Column(name, kinds.pop() if kinds else "VARCHAR", "label", nullable=True)


def _label_type(name: str, value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "BOOLEAN"
    if isinstance(value, int | np.integer):
        return "BIGINT"
    if isinstance(value, float | np.floating):
        return "DOUBLE"
    if isinstance(value, str):
        return "VARCHAR"
    raise InvalidInputError(
        f"label {name!r} holds a {type(value).__name__}; text, numbers and truth values can be "
        "stored",
        label=name,
    )


def _row_count(kind: Table, columns: Mapping[str, Any]) -> int:
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        raise InvalidInputError(f"{kind} table: columns differ in length: {sorted(lengths)}")
    return lengths.pop()


def _items(values: Sequence[Any] | NDArray[Any]) -> Iterator[Any]:
    """Values one by one, None where a masked array hides one."""
    if isinstance(values, np.ma.MaskedArray):
        return iter(values.tolist())
    return iter(values)


def _as_array(column: Column, values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """What DuckDB is handed: a numeric array as it is, all else as an object array."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
        if column.type in _INT_LIMITS and values.dtype.kind != "i":
            raise InvalidInputError(f"column {column.name}: {values.dtype} is no signed integer")
        return values
    items = np.empty(len(values), dtype=object)
    for row, value in enumerate(_items(values)):
        items[row] = _checked(column, value)
    return items


def _checked(column: Column, value: Any) -> Any:
    if value is None:
        if not column.nullable:
            raise InvalidInputError(f"column {column.name}: NULL is not allowed")
        return None
    if column.is_list:
        base = Column(column.name, column.type[:-2], column.doc)
        return [_checked(base, item) for item in value]
    limit = _INT_LIMITS.get(column.type)
    if limit is not None:
        number = int(value)
        if not -limit <= number < limit:
            raise InvalidInputError(f"column {column.name}: {number} is out of range")
        return number
    if column.type == "VARCHAR":
        return _storable_text(column.name, value)
    return bool(value) if column.type == "BOOLEAN" else float(value)


def _storable_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"column {name}: {type(value).__name__} is no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"column {name}: {value!r:.80} is no valid Unicode") from error
    return value


@contextmanager
def _temporary_file() -> Iterator[Path]:
    """A file for one table. It has no name where the system lets an open file be opened again."""
    with tempfile.TemporaryFile(buffering=0) as nameless:
        path = Path(f"/proc/self/fd/{nameless.fileno()}")
        if path.exists():
            yield path
            return
    with tempfile.TemporaryDirectory(prefix="dstream-table-") as folder:
        yield Path(folder) / "table.parquet"


@contextmanager
def _connection() -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """A locked DuckDB that may touch one temporary file, gone afterwards."""
    with _disk_trouble(), _temporary_file() as path:
        connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,
                "memory_limit": _MEMORY_LIMIT,
                "temp_directory": "",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
            },
        )
        try:
            # Look at every row of an object array before its type is chosen.
            connection.execute("SET GLOBAL pandas_analyze_sample = 1000000000")
            connection.execute("SET enable_progress_bar = false")
            connection.execute(f"SET allowed_paths = [{_text(path)}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield connection, path
        finally:
            connection.close()


@contextmanager
def _disk_trouble() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"a temporary file failed ({error.strerror or error}); free space in the folder of "
            "temporary files, or choose another by TMPDIR",
            errno=error.errno,
        ) from error


@contextmanager
def _translated(
    action: str, error_class: type[CorruptDataError] | type[InvalidInputError]
) -> Iterator[None]:
    """DuckDB's errors as ours: of the environment, or of the data."""
    try:
        yield
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        if error_class is CorruptDataError and "parquet" in str(error).lower():
            raise CorruptDataError(f"cannot {action}: {error}") from error
        raise StorageError(
            f"cannot {action}: {error}; it needs a temporary file, and TMPDIR says where"
        ) from error
    except duckdb.Error as error:
        raise error_class(f"cannot {action}: {error}") from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
