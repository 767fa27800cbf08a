from __future__ import annotations

from contextlib import suppress
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from action_files import WRITERS, Table, as_csv, as_jsonl, as_parquet
from dstream.errors import MediaError, MediaReason
from dstream_recipes import side_table
from dstream_recipes.columns import SideTable
from dstream_recipes.side_table import parse_side_table

TABLE: Table = {
    "jump": [True, False, True],
    "slot": [1, 2, 3],
    "speed": [0.1, -2.5, 1e-3],
    "stick": [[0.5, 1.0], [0.0, -1.0], [0.25, 0.75]],
    "key": ["w", "", 'a,b "quoted" ü'],
}


@pytest.mark.parametrize("ending", WRITERS)
def test_every_format_gives_the_same_typed_columns(ending: str) -> None:
    table = parse_side_table(f"x{ending}", WRITERS[ending](TABLE))
    assert table.rows == 3
    assert list(table.columns) == list(TABLE)
    assert {name: (a.dtype.kind, a.shape) for name, a in table.columns.items()} == {
        "jump": ("b", (3,)),
        "slot": ("i", (3,)),
        "speed": ("f", (3,)),
        "stick": ("f", (3, 2)),
        "key": ("U", (3,)),
    }
    for name, cells in TABLE.items():
        assert table.columns[name].tolist() == list(cells)
    assert table.numeric_scalars() == ["jump", "slot", "speed"]


def test_tables_cannot_be_changed_because_they_are_shared() -> None:
    table = parse_side_table("x.jsonl", as_jsonl(TABLE))
    with pytest.raises(ValueError, match="read-only"):
        table.columns["slot"][0] = 9


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def test_tables_are_kept_by_their_bytes_and_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = side_table._parse

    def counted(name: str, data: bytes) -> SideTable:
        parsed.append(name)
        return parse(name, data)

    monkeypatch.setattr(side_table, "_parse", counted)
    kept = type(side_table._TABLES)(20_000, attrgetter("size_bytes"))
    monkeypatch.setattr(side_table, "_TABLES", kept)
    small = [(f"{n}.csv", b"a\n" + b"1\n" * n) for n in range(40)]
    for _ in range(3):
        for name, data in small:
            assert parse_side_table(name, data).rows == int(name.removesuffix(".csv"))
    assert len(parsed) == 40
    for n in range(40, 60):
        parse_side_table(f"{n}.csv", b"a\n" + b"1\n" * 300)
        assert kept.size_bytes <= 20_000
    parse_side_table(*small[0])
    assert len(parsed) == 61


@settings(max_examples=25)
@given(
    rows=st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), finite, st.booleans()), min_size=1, max_size=8
    )
)
def test_formats_agree_on_any_numbers(rows: list[tuple[int, float, bool]]) -> None:
    whole, real, truth = (list(column) for column in zip(*rows, strict=True))
    tables = [
        parse_side_table(f"x{ending}", write({"i": whole, "f": real, "b": truth}))
        for ending, write in WRITERS.items()
    ]
    for table in tables:
        assert table.columns["i"].tolist() == whole
        assert table.columns["b"].tolist() == truth
        np.testing.assert_array_equal(table.columns["f"].astype(float), np.array(real))


def test_gaps_in_numbers_become_nan_and_in_text_empty() -> None:
    lines = b'{"a": 1, "k": "x"}\n{"k": null}\n{"a": 3, "b": true}\n'
    table = parse_side_table("x.jsonl", lines)
    np.testing.assert_array_equal(table.columns["a"], [1, np.nan, 3])
    np.testing.assert_array_equal(table.columns["b"], [np.nan, np.nan, 1])
    assert table.columns["k"].tolist() == ["x", "", ""]
    same = parse_side_table("x.csv", b"a,k,b\n1,x,\n,,\n3,,true\n")
    np.testing.assert_array_equal(same.columns["a"], table.columns["a"])
    assert same.columns["k"].tolist() == table.columns["k"].tolist()


def test_nested_objects_become_dotted_columns() -> None:
    data = b'{"mouse": {"dx": 1, "dy": 2}, "keys": {"w": true}}\n'
    assert list(parse_side_table("x.jsonl", data).columns) == ["mouse.dx", "mouse.dy", "keys.w"]


def test_byte_order_marks_and_line_ends_of_other_systems_are_read() -> None:
    assert parse_side_table("x.csv", b"\xef\xbb\xbfa,b\r\n1,2\r\n").columns["a"].tolist() == [1]
    assert parse_side_table("x.jsonl", b'{"a": 1}\r\n\r\n{"a": 2}\r\n').rows == 2


BAD = [
    ("x.jsonl", b"{'a': 1}", "line 1 is not JSON"),
    ("x.jsonl", b'{"a": 1}\n[1]', "line 2 is a list, expected one object a line"),
    ("x.jsonl", b"[" * 100_000, "line 1 is not JSON"),
    ("x.jsonl", b'{"a": ' + b"9" * 5000 + b"}", "line 1 is not JSON"),
    ("x.jsonl", b'{"a": 9223372036854775808}', "column 'a', row 0: beyond 64 bits"),
    ("x.jsonl", b'{"a": [1, 2]}\n{"a": [1]}', "'a' is ragged: row 0 has 2 numbers, row 1 has 1"),
    ("x.jsonl", b'{"a": [1]}\n{}\n{"a": [1]}', "mixes kinds: row 0 is [1], row 1 is None"),
    ("x.jsonl", b'{"a": [[1]]}', "column 'a': lists may hold numbers only"),
    ("x.jsonl", b'{"a": 1}\n{"a": "up"}', "mixes kinds: row 0 is 1, row 1 is 'up'"),
    ("x.jsonl", b'{"a": null}\n{"a": 1}\n{"a": "up"}', "row 1 is 1, row 2 is 'up'"),
    ("x.jsonl", b'{"a.b": 1, "a": {"b": 2}}', "row 0 names column 'a.b' twice"),
    ("x.jsonl", b'{"a":' * 10 + b"1" + b"}" * 10, "nested deeper than 8"),
    ("x.jsonl", b'{"a": "' + b"x" * 5000 + b'"}', "5000 characters of text"),
    ("x.jsonl", b"\xff\xfe", "not UTF-8 text at byte 0"),
    ("x.csv", b"1,2\n3,4\n", "its first line must name the columns"),
    ("x.csv", b"a,a\n3,4\n", "column 'a' appears twice"),
    ("x.csv", b"a,b\n3\n", "row 0 has 1 cells, the header has 2"),
    ("x.csv", b'a\n"x', "is not CSV"),
    ("x.csv", b"a\n[1\n", "column 'a', row 0 is not a list"),
    ("x.csv", b"a\n" + b"x" * 200_000, "is not CSV: field larger than field limit"),
    ("x.parquet", b"PAR1 nonsense PAR1", "not a readable Parquet file"),
    ("x.parquet", b"", "not a readable Parquet file"),
    ("x.txt", b"", "expected one of .jsonl, .csv, .parquet"),
]


@pytest.mark.parametrize(("name", "data", "fault"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_bad_files_are_named_with_their_fault(name: str, data: bytes, fault: str) -> None:
    with pytest.raises(MediaError) as caught:
        parse_side_table(name, data)
    assert caught.value.reason == MediaReason.BAD_SIDE_FILE
    assert caught.value.message.startswith(f"{name}: ")
    assert fault in caught.value.message


@settings(max_examples=60)
@given(data=st.binary(max_size=200), ending=st.sampled_from([".jsonl", ".csv"]))
def test_no_bytes_do_more_than_be_refused(data: bytes, ending: str) -> None:
    with suppress(MediaError):
        parse_side_table(f"x{ending}", data)


def test_a_cut_parquet_file_is_refused() -> None:
    whole = as_parquet(TABLE)
    with pytest.raises(MediaError, match=r"x\.parquet: not a readable Parquet file"):
        parse_side_table("x.parquet", whole[: len(whole) // 2])


def test_too_many_columns_are_refused() -> None:
    with pytest.raises(MediaError, match="5000 columns"):
        parse_side_table("x.csv", as_csv({f"c{n}": [n] for n in range(5000)}))
