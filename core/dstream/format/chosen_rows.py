"""Which samples of a part a loader shows: by stream, split and a filter, found in one query.

The filter sees the columns of the sample table and facts of the stream and the file that a sample
shows. Only the columns that it names are read. Not for forked workers: see ``format.duck``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dstream.errors import CorruptDataError, InvalidInputError
from dstream.format.duck import locked_connection, path_text, quoted, translated
from dstream.format.schema import SCHEMAS, Table
from dstream.format.tables import Columns, spool_table, without_nulls
from dstream.format.where import Where

MAX_WHERE_S = 60.0
"""Longest that a filter may take on one part."""

_INTERRUPT_AGAIN_S = 0.02

_SAMPLE_FACTS = ("key", "group", "split")
_STREAM_FACTS = (
    "track_id", "container", "codec", "profile", "width", "height", "rotation_deg", "mirrored",
    "sar_num", "sar_den", "pix_fmt", "color_range", "color_space", "color_primaries", "color_trc",
    "frame_count", "vfr", "keyframes", "longest_gop_bytes", "longest_gop_frames",
    "clock_offset_s", "access", "full_pass",
)  # fmt: skip
_FILE_FACTS = ("name", "size_bytes", "source_uri")
PICTURE_COLUMNS = (
    "width", "height", "rotation_deg", "mirrored", "sar_num", "sar_den", "pix_fmt",
)  # fmt: skip
"""What decides the form of decoded pictures."""

_COMPUTED = {
    "duration_s": "((s.last_pts - s.first_pts) * t.time_base_num / t.time_base_den)",
    "fps": "(t.rate_num / t.rate_den)",
}
"""Seconds of the sample's span, and average frames a second."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table's bytes, and the rows that the manifest promises."""

    data: bytes
    rows: int
    key: str = "table"
    """What messages call it."""

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors of reading the table name it."""
        try:
            yield
        except CorruptDataError as error:
            raise CorruptDataError(f"{self.key}: {error}", key=self.key) from error


@dataclass(frozen=True, slots=True)
class Choice:
    """What is shown of a data set."""

    stream: str | None = None
    """The stream of this name; a sample's first without."""
    split: str | None = None
    where: Where | None = None

    @property
    def facts(self) -> dict[str, str]:
        """What was asked for, as text by name."""
        where = None if self.where is None else self.where.text
        asked = {"stream": self.stream, "split": self.split, "where": where}
        return {name: text for name, text in asked.items() if text is not None}

    def __str__(self) -> str:
        return "with " + " and ".join(f"{name}={text!r}" for name, text in self.facts.items())


ALL = Choice()


@dataclass(frozen=True, slots=True, eq=False)
class ChosenRows:
    """The chosen samples of a part, N of them, in the order of the table."""

    row: NDArray[np.int32]
    """Row in the sample table, ascending."""
    stream: NDArray[np.int32]
    """Row in the part's streams of the stream that is shown."""
    start_pts: NDArray[np.int64]
    end_pts: NDArray[np.int64]
    duration_s: NDArray[np.float64]
    rate: NDArray[np.float64]
    """Frames a second of the stream, on average."""
    kinds: tuple[tuple[Any, ...], ...]
    """The kinds of picture there are, as ``PICTURE_COLUMNS``."""
    kind: NDArray[np.int32]
    """Which of them each sample has; of length 1 where there is one kind."""
    has_side: bool
    """Some sample has side files."""
    columns: frozenset[str]
    """What a filter could name in this part."""


def choose_rows(
    samples: StoredTable,
    streams: StoredTable,
    files: Callable[[], StoredTable],
    choice: Choice,
) -> ChosenRows:
    """The samples of a part that a choice shows.

    Args:
        samples, streams: the part's tables.
        files: gives the table of files, where the filter asks for it.
        choice: what is shown. A column that its filter names and this part lacks is NULL; the
            caller asks :attr:`ChosenRows.columns` whether any part has it.

    Raises:
        CorruptDataError, FormatVersionError: see :func:`dstream.format.tables.read_table`; or a
            sample without a stream, or with one that is not there.
        InvalidInputError: the filter is no truth value, fails on some row, or takes too long.
    """
    with locked_connection(3) as (connection, (sample_path, stream_path, file_path)):
        _spool(connection, sample_path, samples)
        _spool(connection, stream_path, streams)
        labels = _labels(connection, sample_path)
        scope = _scope(labels)
        used: frozenset[str] = frozenset()
        condition, joins = "true", ""
        if choice.where is not None:
            used = choice.where.columns
            condition = choice.where.sql({name: scope.get(name, "NULL") for name in used})
        facts = {scope.get(name, "") for name in used}
        if any(fact.startswith(_JOINED) for fact in facts):
            joins = f" LEFT JOIN {_table(stream_path)} t ON t.file_row_number = s.stream"
        if any(fact.startswith("f.") for fact in facts):
            _spool(connection, file_path, files())
            joins += f" LEFT JOIN {_table(file_path)} f ON f.file_row_number = t.file"
        named = [label for label in labels if scope[f"sample.{label.lower()}"] in facts]
        source = f"({_spans(sample_path, choice, named)}) s{joins}"
        values = [text for text in (choice.stream, choice.split) if text is not None]
        with _translated(connection, choice.where):
            if choice.where is not None and used <= scope.keys():
                query = f"SELECT {condition} FROM {source}"
                _check_truth(connection, choice.where, query, values)
            found = _sorted(
                connection.execute(
                    "SELECT s.row, s.stream, s.first_pts, s.last_pts, s.side_count "
                    f"FROM {source} WHERE ({condition})",
                    values,
                ).fetchnumpy()
            )
        with streams.named():
            clocks, kinds, kind = _stream_facts(connection, stream_path)
    with samples.named():
        _check_streams(found["stream"], streams.rows)
    row, stream = (np.asarray(found[name], dtype=np.int32) for name in ("row", "stream"))
    start_pts, end_pts = (
        np.asarray(found[name], dtype=np.int64) for name in ("first_pts", "last_pts")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        tick_s = clocks["time_base_num"] / clocks["time_base_den"]
        rate = clocks["rate_num"] / clocks["rate_den"]
    return ChosenRows(
        row=row,
        stream=stream,
        start_pts=start_pts,
        end_pts=end_pts,
        duration_s=(end_pts - start_pts) * tick_s[stream],
        rate=rate[stream],
        kinds=kinds,
        kind=kind if len(kind) == 1 else kind[stream],
        has_side=bool(np.any(np.asarray(found["side_count"]) > 0)),
        columns=frozenset(scope),
    )


def _spool(connection: duckdb.DuckDBPyConnection, path: Path, table: StoredTable) -> None:
    with table.named():
        spool_table(connection, path, table.data, table.rows)


def _check_streams(stream: NDArray[Any], streams: int) -> None:
    if isinstance(stream, np.ma.MaskedArray) and np.ma.getmaskarray(stream).any():
        raise CorruptDataError("a sample has no stream")
    if len(stream) and not 0 <= int(stream.min()) <= int(stream.max()) < streams:
        raise CorruptDataError("a sample names a stream that is not there")


def _stream_facts(
    connection: duckdb.DuckDBPyConnection, path: Path
) -> tuple[Columns, tuple[tuple[Any, ...], ...], NDArray[np.int32]]:
    """Clocks of all streams, the kinds of their pictures, and which of these each has."""
    with translated("read a table", CorruptDataError):
        clocks = connection.execute(
            f"SELECT time_base_num, time_base_den, rate_num, rate_den FROM {_table(path)}"
        ).fetchnumpy()
        pictures = ", ".join(PICTURE_COLUMNS)
        distinct = f"SELECT DISTINCT {pictures} FROM {_table(path)} ORDER BY ALL"
        clocks = {name: without_nulls(name, column) for name, column in clocks.items()}
        kinds = tuple(connection.execute(distinct).fetchall())
        if any(value is None for kind in kinds for value in kind):
            raise CorruptDataError(f"NULL in one of the columns {pictures}")
        if len(kinds) <= 1:
            return clocks, kinds, np.zeros(1, dtype=np.int32)
        kind = np.zeros(len(clocks["rate_num"]), dtype=np.int32)
        grouped = connection.execute(
            f"SELECT list(file_row_number) AS rows FROM {_table(path)} GROUP BY {pictures} "
            f"ORDER BY {pictures}"
        ).fetchnumpy()["rows"]
        for number, rows in enumerate(grouped):
            kind[np.asarray(rows, dtype=np.int64)] = number
    return clocks, kinds, kind


_JOINED = ("t.", "f.", "(")
"""How the SQL of a fact begins that is not in the sample table."""


def describe_samples(samples: StoredTable) -> tuple[dict[str, int], dict[str, str]]:
    """What can be chosen by: samples of each split, and the type of each label column.

    Raises:
        CorruptDataError, FormatVersionError: see :func:`dstream.format.tables.read_table`.
    """
    with locked_connection() as (connection, (path,)), samples.named():
        spool_table(connection, path, samples.data, samples.rows)
        labels = _labels(connection, path)
        with translated("read a table", CorruptDataError):
            splits = connection.execute(
                f"SELECT split, count(*) FROM {_table(path)} GROUP BY split ORDER BY split"
            ).fetchall()
    return {str(split): int(count) for split, count in splits}, labels


def _labels(connection: duckdb.DuckDBPyConnection, path: Path) -> dict[str, str]:
    """Names and types of the label columns of a sample table."""
    with translated("read a table", CorruptDataError):
        columns = connection.execute(
            f"DESCRIBE SELECT * FROM read_parquet({path_text(path)})"
        ).fetchall()
    known = {column.name for column in SCHEMAS[Table.SAMPLES]}
    return {
        str(name): str(kind)
        for name, kind, *_ in columns
        if name not in known and kind in _LABEL_TYPES
    }


_LABEL_TYPES = ("VARCHAR", "BIGINT", "INTEGER", "DOUBLE", "BOOLEAN")


def _scope(labels: Iterable[str]) -> dict[str, str]:
    """What a filter may name -> SQL. A name that two tables have needs the table's before it."""
    tables = {
        "sample": {name: f"s.{quoted(name)}" for name in _SAMPLE_FACTS}
        | {label.lower(): f"s.{quoted(_LABEL + label)}" for label in labels},
        "stream": {name: f"t.{name}" for name in _STREAM_FACTS} | _COMPUTED,
        "file": {name: f"f.{name}" for name in _FILE_FACTS},
    }
    scope: dict[str, str] = {}
    for table, columns in tables.items():
        for name, sql in columns.items():
            scope[f"{table}.{name}"] = sql
            if sum(name in others for others in tables.values()) == 1:
                scope[name] = sql
    return scope


_LABEL = "label "
"""Put before the names of labels, which may be any."""


def _table(path: Path) -> str:
    return f"read_parquet({path_text(path)}, file_row_number=true)"


def _spans(path: Path, choice: Choice, labels: list[str]) -> str:
    """The samples of the choice but for its filter, each with the stream that is shown.

    Name and split, where they are given, are parameters in this order.
    """
    place = "1" if choice.stream is None else "list_position(names, ?)"
    named = "".join(f", {quoted(label)} AS {quoted(_LABEL + label)}" for label in labels)
    aliases = "".join(f", {quoted(_LABEL + label)}" for label in labels)
    split = "" if choice.split is None else " AND split = ?"
    return (
        'SELECT row, "key", "group", split, streams[place] AS stream, start_pts[place] AS '
        f"first_pts, end_pts[place] AS last_pts, len(side) AS side_count{aliases} FROM (SELECT "
        'file_row_number AS row, "key", "group", split, streams, start_pts, end_pts, side, '
        f"{place} AS place{named} FROM {_table(path)}) WHERE place > 0{split}"
    )


def _sorted(found: Columns) -> Columns:
    """Rows in the order of the table, whatever a join made of it."""
    row = found["row"]
    if len(row) < 2 or bool(np.all(row[1:] > row[:-1])):
        return found
    order = np.argsort(row)
    return {name: column[order] for name, column in found.items()}


def _check_truth(
    connection: duckdb.DuckDBPyConnection, where: Where, query: str, values: list[str]
) -> None:
    kind = connection.execute(f"DESCRIBE {query}", values).fetchall()[0][1]
    if kind != "BOOLEAN":
        raise InvalidInputError(
            f"where={where.text!r:.200} gives {kind}, not true or false; compare it with something"
        )


@contextmanager
def _translated(connection: duckdb.DuckDBPyConnection, where: Where | None) -> Iterator[None]:
    """DuckDB's errors as ours; with a filter they are its own, and its time is limited."""
    if where is None:
        with translated("read a table", CorruptDataError):
            yield
        return
    done = threading.Event()
    watch = threading.Thread(target=_interrupt, args=(connection, done), daemon=True)
    watch.start()
    try:
        yield
    except duckdb.InterruptException as error:
        raise InvalidInputError(
            f"where={where.text!r:.200} took longer than {MAX_WHERE_S:g} s on one part"
        ) from error
    except duckdb.Error as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInputError(
            f"where={where.text!r:.200} cannot be evaluated: {reason}"
        ) from error
    finally:
        done.set()
        watch.join()


def _interrupt(connection: duckdb.DuckDBPyConnection, done: threading.Event) -> None:
    """Stop what runs on a connection after a time, and whatever it runs next."""
    wait_s = MAX_WHERE_S
    while not done.wait(wait_s):
        connection.interrupt()
        wait_s = _INTERRUPT_AGAIN_S
