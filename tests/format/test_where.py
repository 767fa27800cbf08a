"""Filters: what an expression may be, and that what is evaluated means what was written."""

import re
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstream.errors import InvalidInputError
from dstream.format import chosen_rows
from dstream.format.chosen_rows import Choice, StoredTable, choose_rows
from dstream.format.schema import SCHEMAS, Table
from dstream.format.tables import write_table
from dstream.format.where import FUNCTIONS, parse_where

ROWS = 60
LABELS: dict[str, list[Any]] = {
    "motion": [None if i % 7 == 0 else i / 100 for i in range(ROWS)],
    "count": list(range(-30, 30)),
    "place": [None if i % 5 == 0 else f"Room {i % 4}" for i in range(ROWS)],
    "good": [i % 3 == 0 for i in range(ROWS)],
}


def table(kind: Table, rows: int, **columns: list[Any]) -> StoredTable:
    values: dict[str, list[Any]] = {}
    for column in SCHEMAS[kind]:
        one = {"VARCHAR": "x", "DOUBLE": 1.0, "BOOLEAN": False}.get(column.type, 1)
        values[column.name] = [[]] * rows if column.is_list else [one] * rows
    return StoredTable(write_table(kind, values | columns), rows)


SAMPLES = table(
    Table.SAMPLES, ROWS,
    key=[f"dir/{i:02d}" for i in range(ROWS)], split=["t", "v"] * (ROWS // 2),
    streams=[[i // 2, 0] for i in range(ROWS)], names=[["front", "top"]] * ROWS,
    start_pts=[[0, 5]] * ROWS, end_pts=[[i * 10, 6] for i in range(ROWS)], **LABELS,
)  # fmt: skip
STREAMS = table(
    Table.STREAMS, ROWS // 2,
    width=[640 + 32 * i for i in range(ROWS // 2)], file=[ROWS // 2 - 1 - i for i in range(30)],
    time_base_den=[10] * 30, rate_num=[30] * 30, rate_den=[2] * 30,
)  # fmt: skip
FILES = table(Table.FILES, ROWS // 2, size_bytes=list(range(ROWS // 2)))


def chosen(where: str, **choice: Any) -> list[int]:
    picked = Choice(where=parse_where(where), **choice)
    return [int(row) for row in choose_rows(SAMPLES, STREAMS, lambda: FILES, picked).row]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("width >= 1280 and motion > 0.5", [i for i in range(51, 60) if i % 7]),
        ("duration_s < 3", [0, 1, 2]),
        ("fps = 15 and key = 'dir/07'", [7]),
        ("size_bytes < 2", [56, 57, 58, 59]),
        ("file.size_bytes < 1 or stream.width = 640", [0, 1, 58, 59]),
        ("KEY LIKE '%3' AND Good", [3, 33]),
        ("place IN ('Room 1', 'Room 2') AND count BETWEEN -28 AND -25", [2]),
        ("place IS NULL AND NOT good AND count > 10", [50, 55]),
        ("coalesce(motion, 9) > 8", [i for i in range(ROWS) if i % 7 == 0]),
        ("CASE WHEN good THEN count > 25 ELSE false END", [57]),
        ("regexp_matches(key, '/0[1-3]$')", [1, 2, 3]),
        ("md5(key) < '40'", None),
        ("try_cast(right(key, 2) AS int) % 20 = 5", [5, 25, 45]),
        ("motion > 0.58 -- and a remark", [59]),
        ("upper(place) = 'ROOM 3' and strpos(key, '1') > 0", [11, 19, 31, 51]),
    ],
)
def test_a_filter_chooses_rows_in_their_order(where: str, expected: list[int] | None) -> None:
    found = chosen(where)
    assert found == sorted(found)
    if expected is None:
        assert 0 < len(found) < ROWS // 2
    else:
        assert found == expected


def test_a_filter_joins_split_and_stream() -> None:
    assert chosen("count > 25", split="v") == [57, 59]
    assert chosen("duration_s < 0.2 and width = 640", stream="top") == list(range(ROWS))


def test_only_the_tables_that_a_filter_names_are_asked_for() -> None:
    def files() -> StoredTable:
        raise AssertionError("no fact of a file is named")

    picked = Choice(where=parse_where("width > 0"))
    assert len(choose_rows(SAMPLES, STREAMS, files, picked).row) == ROWS


HOSTILE = {
    "a subquery": ["(select 1) = 1", "exists (select 1)", "count in (select 1)"],
    "FROM": ["true from read_text('/etc/passwd')", "true from range(10)"],
    "WHERE": ["true where 1 = 1"],
    "DISTINCT, ORDER BY or LIMIT": ["distinct true", "true limit 1", "true order by 1"],
    "GROUP BY": ["true group by 1"],
    "HAVING": ["true having true"],
    "QUALIFY": ["true qualify true"],
    "a set operation": ["true union select false", "true except select 1"],
    "2 expressions": ["true, false"],
    "a name for the result": ["true as yes", "count = 0x1f"],
    "a window function": ["row_number() over () < 3", "sum(count) over (order by key) < 9"],
    "list_filter()": ["list_filter([1], lambda x: x > 0) is null"],
    "lambda": ["abs(lambda x: x) > 0"],
    "* or COLUMNS()": ["*", "columns('c.*') > 1"],
    "a parameter": ["count = ?", "count = $1"],
    "COLLATE": ["key collate nocase = 'a'"],
    "random()": ["random() < 0.5"],
    "nextval()": ["nextval('s') = 1"],
    "getenv()": ["getenv('HOME') = 'x'"],
    "read_text()": ["read_text('/etc/passwd') is null"],
    "repeat()": ["length(repeat('x', 1000000000)) > 1"],
    "lpad()": ["lpad(key, 2000000000, 'x') = 'x'"],
    "replace()": ["replace(replace(key, 'd', 'dddddd'), 'd', 'dddddd') = 'x'"],
    "range()": ["range(1000000000) is null"],
    "list_transform()": ["list_transform([1], x -> x) is null"],
    "now()": ["now() is null"],
    "count()": ["count(count) > 1"],
    "current_setting()": ["current_setting('threads') = '1'"],
    "a cast to date": ["date '2020-01-01' is null"],
    "a cast to list": ["count::int[] is null"],
    "a pattern that is no constant": ["regexp_matches(key, key)"],
    "this form of abs()": ["abs(x := 1) > 0", "system.main.abs(count) > 0"],
    "row()": ["(count, good) = (1, true)"],
    "array extract": ["key[1] = 'd'"],
}


@pytest.mark.parametrize(
    ("part", "where"), [(part, where) for part, texts in HOSTILE.items() for where in texts]
)
def test_a_hostile_filter_is_refused_by_the_name_of_its_part(part: str, where: str) -> None:
    with pytest.raises(InvalidInputError, match="where=") as caught:
        parse_where(where)
    assert f"{part}" in str(caught.value)


@pytest.mark.parametrize(
    "where",
    ["", "   ", "width >=", "width > 1; drop table t", "1) or (1", "select 1", "copy t to 'x'",
     "(" * 1500 + "true" + ")" * 1500, "not " * 900 + "true", "1" + "+1" * 1900 + " = 1",
     "x" * 5000, "'unfinished", "count = '\ud800'", "\0", "good = b'1'", "attach 'x'"],
    ids=range(16),
)  # fmt: skip
def test_what_is_no_expression_is_refused(where: str) -> None:
    with pytest.raises(InvalidInputError, match="where="):
        parse_where(where)


@pytest.mark.parametrize(
    ("where", "fault"),
    [
        ("count", "gives BIGINT, not true or false"),
        ("null", "not true or false"),
        ("count + 'x' > 1", "cannot be evaluated"),
        ("cast(key AS int) > 1", "cannot be evaluated: Conversion Error"),
        ("count * 9223372036854775807 > 1", "cannot be evaluated: Out of Range Error"),
        ("abs(key) > 1", "cannot be evaluated"),
        ("regexp_matches(key, '(')", "cannot be evaluated"),
    ],
)
def test_a_filter_that_fails_on_the_rows_says_why(where: str, fault: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(fault)) as caught:
        chosen(where)
    assert "LINE" not in str(caught.value)


def test_a_filter_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 20_000
    many = table(Table.SAMPLES, rows, streams=[[0]] * rows, start_pts=[[0]] * rows,
                 end_pts=[[1]] * rows, key=["k" * 40] * rows)  # fmt: skip
    monkeypatch.setattr(chosen_rows, "MAX_WHERE_S", 0.001)
    slow = " or ".join(f"regexp_matches(md5(key || '{i}'), '(a+b+)+z')" for i in range(60))
    with pytest.raises(InvalidInputError, match="took longer than"):
        choose_rows(many, STREAMS, lambda: FILES, Choice(where=parse_where(slow)))


numbers = st.sampled_from(["count", "motion", "width", "duration_s", "2", "-7", "0.25"])
texts = st.sampled_from(["key", "place", "split", "'Room 1'", "'it''s'", "''"])


def conditions() -> st.SearchStrategy[str]:
    compared = st.one_of(
        st.builds("{} {} {}".format, numbers, st.sampled_from(["<", ">=", "=", "<>"]), numbers),
        st.builds("{} {} {}".format, texts, st.sampled_from(["<", "=", "LIKE", "ILIKE"]), texts),
        st.builds("{} + {} * 2 > {}".format, numbers, numbers, numbers),
        st.builds("{} BETWEEN {} AND {}".format, numbers, numbers, numbers),
        st.builds("{} IN ({}, {})".format, texts, texts, texts),
        st.builds("{} IS NOT NULL".format, st.one_of(numbers, texts)),
        st.builds("starts_with(lower({}), {})".format, texts, texts),
        st.builds("length({}) > {}".format, texts, numbers),
        st.just("good"),
    )
    return st.recursive(
        compared,
        lambda inner: st.one_of(
            st.builds("NOT ({})".format, inner),
            st.builds("{} AND {}".format, inner, inner),
            st.builds("({} OR {})".format, inner, inner),
            st.builds("CASE WHEN {} THEN {} ELSE {} END".format, inner, inner, inner),
        ),
        max_leaves=6,
    )


@pytest.fixture(scope="module")
def plain_rows() -> Any:
    """The same rows as a table of DuckDB's own, for the text as it was written."""
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE plain (row INT, key TEXT, split TEXT, width INT, duration_s DOUBLE, "
            "motion DOUBLE, count BIGINT, place TEXT, good BOOL)"
        )
        for i in range(ROWS):
            labels = [LABELS[name][i] for name in ("motion", "count", "place", "good")]
            connection.execute(
                "INSERT INTO plain VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    i,
                    f"dir/{i:02d}",
                    ("train", "val")[i % 2],
                    640 + 32 * (i // 2),
                    float(i),
                    *labels,
                ],
            )
        yield connection


@settings(max_examples=30)
@given(conditions())
def test_what_is_evaluated_means_what_was_written(plain_rows: Any, where: str) -> None:
    query = f"SELECT row FROM plain WHERE {where} ORDER BY row"
    assert chosen(where) == [row for (row,) in plain_rows.execute(query).fetchall()]


def test_every_function_of_the_list_is_one_that_duckdb_calls_consistent() -> None:
    with duckdb.connect() as connection:
        known = {
            name: stability
            for name, stability in connection.execute(
                "SELECT function_name, stability FROM duckdb_functions() "
                "WHERE function_type = 'scalar'"
            ).fetchall()
        }
    rewritten = {"if", "position", "nullif"}  # by the parser, or macros of DuckDB's own
    assert {name for name in FUNCTIONS - rewritten if known.get(name) != "CONSISTENT"} == set()
