"""The same table of actions as JSON Lines, CSV and Parquet bytes, for tests."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

Cell = bool | int | float | str | list[float] | list[int]
Table = Mapping[str, Sequence[Cell]]


def as_jsonl(table: Table) -> bytes:
    rows = zip(*table.values(), strict=True)
    lines = [json.dumps(dict(zip(table, row, strict=True))) for row in rows]
    return "".join(line + "\n" for line in lines).encode()


def as_csv(table: Table) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow([cell if isinstance(cell, str) else json.dumps(cell) for cell in row])
    return text.getvalue().encode()


def as_parquet(table: Table) -> bytes:
    with TemporaryDirectory() as folder, duckdb.connect() as connection:
        source, target = Path(folder) / "table.json", Path(folder) / "table.parquet"
        source.write_bytes(as_jsonl(table))
        types = ", ".join(f"'{name}': '{_sql_type(cells[0])}'" for name, cells in table.items())
        connection.execute(
            f"COPY (SELECT * FROM read_json('{source}', format='newline_delimited', "
            f"columns={{{types}}})) TO '{target}' (FORMAT parquet)"
        )
        return target.read_bytes()


def _sql_type(cell: Cell) -> str:
    if isinstance(cell, list):
        return f"{_sql_type(cell[0])}[]"
    if isinstance(cell, bool):
        return "BOOLEAN"
    return {int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}[type(cell)]


WRITERS: dict[str, Callable[[Table], bytes]] = {
    ".jsonl": as_jsonl,
    ".csv": as_csv,
    ".parquet": as_parquet,
}
