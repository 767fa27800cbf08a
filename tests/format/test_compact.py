"""Columns that are kept in memory: equal to those that are read at once, in less of it."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstream.errors import CorruptDataError
from dstream.format.compact import read_compact
from dstream.format.tables import read_table, write_table
from dstream.format.text_column import BLOCK_ROWS, TextColumn

NAMES = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(max_examples=40)
@given(st.lists(st.lists(st.one_of(st.none(), NAMES), max_size=5), max_size=4), st.integers(1, 3))
def test_a_text_column_gives_back_every_text(chunks: list[list[str | None]], repeat: int) -> None:
    full = [(chunk * BLOCK_ROWS)[: BLOCK_ROWS * repeat] for chunk in chunks[:-1] if chunk]
    full += chunks[-1:]
    parts = []
    for chunk in full:
        encoded = [None if text is None else text.encode() for text in chunk]
        sizes = np.array([-1 if text is None else len(text) for text in encoded], dtype=np.int32)
        parts.append((sizes, b"".join(text for text in encoded if text is not None)))
    expected = [text for chunk in full for text in chunk]
    column = pickle.loads(pickle.dumps(TextColumn(parts)))
    assert list(column) == expected
    assert [column[row] for row in range(len(column))] == expected
    with pytest.raises(IndexError):
        column[len(expected)]


def files(rows: int, **columns: list[Any]) -> bytes:
    text = {"object": "o", "source_uri": "s", "etag": "e", "role": "video", "name": "n"}
    numbers = ("store", "offset_bytes", "size_bytes")
    return write_table(
        "files",
        {name: [value] * rows for name, value in text.items()}
        | {name: np.zeros(rows, dtype=np.int64) for name in numbers}
        | {"checksum": [None] * rows, "version": [None] * rows, **columns},
    )


def test_a_long_table_comes_back_in_its_order() -> None:
    rows = 40_000
    data = files(
        rows,
        name=[f"d\u00e9j\u00e0/{i * 7919 % rows}" for i in range(rows)],
        version=[None if i % 3 else "" if i % 2 else str(i) for i in range(rows)],
        size_bytes=list(range(rows)),
        offset_bytes=[(-1) ** i << 40 for i in range(rows)],
    )
    names = ("name", "version", "store", "size_bytes", "offset_bytes")
    compact, plain = read_compact(data, names, rows=rows), read_table(data, names)
    for name in names:
        assert list(compact[name]) == plain[name].tolist()
    assert [compact[name].dtype.itemsize for name in names[2:]] == [1, 2, 8]  # type: ignore[union-attr]
    assert isinstance(compact["name"], TextColumn)
    assert compact["name"].size_bytes < rows * 12


def test_an_empty_table_has_empty_columns() -> None:
    found = read_compact(files(0), ("name", "size_bytes"))
    assert [len(column) for column in found.values()] == [0, 0]


def test_lists_become_texts_and_missing_numbers_are_damage() -> None:
    sample: dict[str, list[Any]] = {
        "key": ["a", "b"], "group": ["g"] * 2, "split": ["s"] * 2, "streams": [[1], [2]],
        "names": [["v"]] * 2, "start_pts": [[0]] * 2, "end_pts": [[9]] * 2,
        "side": [[3, 4], []], "side_suffixes": [[".\"x", ".é"], []], "count": [1, None],
    }  # fmt: skip
    data = write_table("samples", sample)
    found = read_compact(data, ("side", "side_suffixes"))
    assert [json.loads(str(text)) for text in found["side"]] == sample["side"]
    assert [json.loads(str(text)) for text in found["side_suffixes"]] == sample["side_suffixes"]
    with pytest.raises(CorruptDataError, match="'count' has NULLs"):
        read_compact(data, ("key", "count"))
