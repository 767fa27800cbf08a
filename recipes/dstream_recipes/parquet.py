"""Rows of a Parquet file from outside, read by a DuckDB that may touch nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb

from dstream_recipes.columns import bad_side_file

MAX_CELLS = 50_000_000
"""Rows times columns: a few bytes of Parquet can stand for any number of equal rows."""


def parquet_rows(name: str, data: bytes) -> tuple[list[str], list[tuple[object, ...]]]:
    """Column names, and every row as Python values, in file order.

    Raises:
        MediaError: ``bad-side-file`` when it is no Parquet file, or too large a table.
    """
    with tempfile.TemporaryDirectory(prefix="dstream-side-") as folder:
        path = Path(folder) / "table.parquet"
        path.write_bytes(data)
        # One thread: no pool to start for each small file, and none to be lost by a fork.
        with duckdb.connect(config={"threads": 1}) as connection:
            try:
                return _read(connection, name, path)
            except duckdb.Error as error:
                first_line = str(error).splitlines()[0]
                text = first_line.replace(str(path), name)
                raise bad_side_file(name, f"not a readable Parquet file: {text}") from error


def _read(
    connection: duckdb.DuckDBPyConnection, name: str, path: Path
) -> tuple[list[str], list[tuple[object, ...]]]:
    connection.execute("SET allowed_paths = [$path]".replace("$path", _quoted(str(path))))
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    source = f"read_parquet({_quoted(str(path))})"
    titles = [row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]
    counted = connection.execute(f"SELECT count(*) FROM {source}").fetchone()
    rows = int(counted[0]) if counted else 0
    if rows * len(titles) > MAX_CELLS:
        raise bad_side_file(
            name, f"{rows} rows of {len(titles)} columns, at most {MAX_CELLS} cells are read"
        )
    return titles, connection.execute(f"SELECT * FROM {source}").fetchall()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
