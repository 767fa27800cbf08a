from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstream.errors import (
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    StorageError,
)
from dstream.format import schema, tables
from dstream.format.schema import SCHEMAS, Column, Table

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "VARCHAR": TEXT,
    "INTEGER": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE": st.floats(allow_nan=False),
    "BOOLEAN": st.booleans(),
}


def values_of(column: Column) -> st.SearchStrategy[Any]:
    value = SCALARS[column.type.removesuffix("[]")]
    if column.is_list:
        return st.lists(value, max_size=3)
    return st.none() | value if column.nullable else value


@st.composite
def any_table(draw: st.DrawFn) -> tuple[Table, dict[str, list[Any]]]:
    kind = draw(st.sampled_from(list(Table)))
    rows = draw(st.integers(0, 6))
    columns = {
        column.name: draw(st.lists(values_of(column), min_size=rows, max_size=rows))
        for column in SCHEMAS[kind]
    }
    if kind is Table.SAMPLES:
        for name in draw(st.sets(st.sampled_from(["motion", "it's", 'a "b"', "ünï", "{x}"]))):
            value = st.none() | SCALARS[draw(st.sampled_from(["VARCHAR", "DOUBLE", "BOOLEAN"]))]
            columns[name] = draw(st.lists(value, min_size=rows, max_size=rows))
    return kind, columns


def plain(column: Any) -> list[Any]:
    return [item.tolist() if isinstance(item, np.ndarray) else item for item in column.tolist()]


@settings(max_examples=60)
@given(any_table())
def test_any_table_comes_back(case: tuple[Table, dict[str, list[Any]]]) -> None:
    kind, columns = case
    data = tables.write_table(kind, columns)
    assert tables.write_table(kind, columns) == data
    found = tables.read_table(data)
    assert {name: plain(column) for name, column in found.items()} == columns


def samples(rows: int) -> dict[str, Any]:
    return {
        "key": [f"dir/{i}.mp4" for i in range(rows)],
        "group": ["dir"] * rows,
        "split": ["train"] * rows,
        "streams": [[i, 0] for i in range(rows)],
        "names": [["video", "wrist"]] * rows,
        "start_pts": [[5, 0]] * rows,
        "end_pts": [[i * 1000, 9] for i in range(rows)],
        "side": [[]] * rows,
        "side_suffixes": [[]] * rows,
        "motion": np.linspace(0, 1, rows),
    }


def test_numbers_with_nulls_come_back_masked_and_without_as_plain_arrays() -> None:
    columns = samples(3) | {"motion": [0.5, None, 1.0], "count": [1, 2, 3]}
    found = tables.read_table(tables.write_table("samples", columns), ["motion", "count"])
    assert list(found) == ["motion", "count"]
    assert found["motion"].tolist() == [0.5, None, 1.0]
    assert isinstance(found["motion"], np.ma.MaskedArray)
    assert type(found["count"]) is np.ndarray
    assert found["count"].dtype == np.int64


def test_it_is_plain_parquet_with_its_version_stated(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    path.write_bytes(tables.write_table("samples", samples(10)))
    with duckdb.connect() as connection:
        rows = connection.execute(
            f"SELECT count(*), max(motion) FROM '{path}' WHERE \"group\" = 'dir'"
        ).fetchall()
        described = connection.execute(f"DESCRIBE SELECT * FROM '{path}'").fetchall()
        metadata = connection.execute(
            f"SELECT key, value FROM parquet_kv_metadata('{path}')"
        ).fetchall()
    assert rows == [(10, 1.0)]
    declared = {column.name: column.type for column in SCHEMAS[Table.SAMPLES]}
    assert {name: kind for name, kind, *_ in described} == declared | {"motion": "DOUBLE"}
    assert (b"dstream.version", b"1") in metadata


def test_other_libraries_read_it(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "samples.parquet"
    path.write_bytes(tables.write_table("samples", samples(10)))
    table = parquet.read_table(path)
    assert table.column("streams").to_pylist()[3] == [3, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": [None, "b"]}, "NULL"),
        ({"key": ["only one"]}, "length"),
        ({"key": ["a", "\ud800"]}, "Unicode"),
        ({"streams": [[2**31], []]}, "out of range"),
        ({"label": [1, "one"]}, "mixes"),
        ({"label": [1, object()]}, "object"),
        ({"KEY": [1, 2]}, "clashes"),
    ],
)
def test_unstorable_columns_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        tables.write_table("samples", samples(2) | change)


def test_unknown_and_missing_columns_are_named() -> None:
    with pytest.raises(InvalidInputError, match="source_uri"):
        tables.write_table("quarantine", {"name": [], "surprise": []})


def test_a_missing_column_and_foreign_bytes_are_damage(tmp_path: Path) -> None:
    data = tables.write_table("samples", samples(2))
    with pytest.raises(CorruptDataError, match="nothing_like_it"):
        tables.read_table(data, ["nothing_like_it"])
    for broken in (b"", b"PAR1" + bytes(50) + b"PAR1", data[:-20] + data[-8:], data[:100]):
        with pytest.raises(CorruptDataError):
            tables.read_table(broken)
    foreign = tmp_path / "foreign.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 1 AS key) TO '{foreign}'")
    with pytest.raises(CorruptDataError, match="not written by dstream"):
        tables.read_table(foreign.read_bytes())


def test_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIN_READER", 7)
    data = tables.write_table("samples", samples(2))
    monkeypatch.undo()
    with pytest.raises(FormatVersionError, match="7"):
        tables.read_table(data)


def test_columns_of_a_later_version_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    later = (*SCHEMAS[Table.QUARANTINE], Column("when", "DOUBLE", "new"))
    monkeypatch.setitem(SCHEMAS, Table.QUARANTINE, later)
    row = {c.name: ["x"] if c.type == "VARCHAR" else [1] for c in later}
    data = tables.write_table("quarantine", row)
    monkeypatch.undo()
    assert tables.read_table(data)["when"].tolist() == [1.0]


KILLED = """
import os, signal
from dstream.format import duck

with duck.locked_connection() as (connection, (path,)):
    connection.execute(f"COPY (SELECT 1) TO '{path}' (FORMAT parquet, USE_TMP_FILE false)")
    assert path.read_bytes()[:4] == b"PAR1"
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_killed_process_leaves_no_temporary_file(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, check=False, timeout=60, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert os.listdir(tmp_path) == []


QUARANTINE_ROWS: dict[str, list[Any]] = {
    "name": ["a"], "source_uri": ["s"], "size_bytes": [1], "etag": ["e"], "reason": ["empty"],
    "detail": ["d"],
}  # fmt: skip


def test_tables_without_proc_take_a_named_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tables.write_table("quarantine", QUARANTINE_ROWS)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert tables.write_table("quarantine", QUARANTINE_ROWS) == expected
    assert tables.read_table(expected)["name"].tolist() == ["a"]
    assert os.listdir(tmp_path) == []


def test_a_disk_that_takes_no_temporary_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match="TMPDIR"):
        tables.write_table("quarantine", QUARANTINE_ROWS)
