"""Readers give exactly the bytes asked for, or say why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.errors import InvalidInputError, NotFoundError, ShortReadError, SourceChangedError
from dstream.media.reader import BytesReader, FileReader, StoreReader
from dstream.media.virtual import ReaderFile, VirtualFile
from dstream.media.window import Window
from dstream.store.opening import open_store

DATA = bytes(range(256)) * 4


def test_file_reader_reads_a_slice_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"head" + DATA + b"tail")
    with FileReader(path, offset_bytes=4, size_bytes=len(DATA)) as reader:
        assert reader.size_bytes == len(DATA)
        assert reader.read(10, 20) == DATA[10:20]
        assert reader.read(5, 5) == b""
        assert (reader.runs, reader.bytes_read) == (1, 10)
        with pytest.raises(InvalidInputError):
            reader.read(0, len(DATA) + 1)


def test_file_reader_notices_a_missing_and_a_shortened_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        FileReader(tmp_path / "absent")
    path = tmp_path / "cut"
    path.write_bytes(DATA)
    with FileReader(path) as reader:
        path.write_bytes(DATA[:100])
        with pytest.raises(ShortReadError):
            reader.read(50, 150)


def test_store_reader_insists_on_the_listed_object() -> None:
    store = open_store("memory://readers")
    info = store.put("video", DATA)
    reader = StoreReader(store, info)
    assert reader.read(3, 9) == DATA[3:9]
    assert reader.runs == 1
    store.put("video", DATA[::-1] + b"x")
    with pytest.raises(SourceChangedError):
        reader.read(3, 9)


ranges = st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA) + 50)), max_size=12)


@given(ranges)
def test_window_gives_the_same_bytes_and_fetches_none_twice(
    wanted: list[tuple[int, int]],
) -> None:
    reader = BytesReader(DATA)
    window = Window(reader)
    for start, stop in wanted:
        assert window.get(start, stop) == DATA[start:stop]
    for start, stop in wanted:
        runs = reader.runs
        window.get(start, stop)
        assert reader.runs == runs


@given(ranges, st.integers(1, 300))
def test_files_of_readers_equal_the_bytes(wanted: list[tuple[int, int]], chunk: int) -> None:
    file = ReaderFile(Window(BytesReader(DATA)), chunk_bytes=chunk, kept=2)
    for start, stop in wanted:
        assert file.get(start, stop) == DATA[start:stop]
        file.seek(start)
        assert DATA[start:stop].startswith(file.read(max(0, stop - start)))


@given(ranges)
def test_virtual_file_has_zeros_between_its_spans(wanted: list[tuple[int, int]]) -> None:
    expected = bytearray(len(DATA))
    spans = []
    for at in (3, 100, 700):
        spans.append((at, DATA[at : at + 50]))
        expected[at : at + 50] = DATA[at : at + 50]
    file = VirtualFile(len(DATA), spans)
    for start, stop in wanted:
        file.seek(start)
        assert file.read(max(0, stop - start)) == bytes(expected[start:stop])
