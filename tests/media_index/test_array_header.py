"""Headers of arrays that lie, as tables and at random: one kind of error, nothing run."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.errors import CorruptDataError, MediaError
from dstream.media import array_header
from dstream.media.array_header import PREFIX_BYTES, header_bytes, stored_arrays
from dstream.media.arrays import copy_rows, index_arrays
from dstream.media.clip import gop_extent
from dstream.media.reader import BytesReader
from dstream.media.row_form import RowForm, row_form

GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
BF16 = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}


def npy(header: str, data: bytes = bytes(24), version: int = 1) -> bytes:
    text = header.encode()
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes((version, 0)) + length + text + data


def tensors(header: Any, data: bytes = bytes(12)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def arrays_of(data: bytes) -> list[array_header.StoredArray]:
    return stored_arrays(data[: header_bytes(data[:PREFIX_BYTES], len(data))], len(data))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
def test_what_numpy_writes_is_read(version: tuple[int, int], shape: tuple[int, ...]) -> None:
    target = io.BytesIO()
    np.lib.format.write_array(target, np.zeros(shape, ">i2"), version=version)
    (found,) = arrays_of(target.getvalue())
    assert found.form == RowForm("int16", shape, big_endian=True)
    assert found.offset_bytes == len(target.getvalue()) - 2 * int(np.prod(shape))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy(GOOD.replace("'<f4'", "'|O'"), b""), "unpickle"),
        (npy(GOOD.replace("'<f4'", "[('a', '<f4')]")), "one array for each field"),
        (npy(GOOD.replace("'<f4'", "'|V2'")), "bfloat16 and float8 as safetensors"),
        (npy(GOOD.replace("'<f4'", "'<U3'")), "no plain number"),
        (npy(GOOD.replace("'<f4'", "'<f16'")), "no plain number"),
        (npy(GOOD.replace("False", "True")), "Fortran order"),
        (npy(GOOD.replace("False", "__import__('os')")), "cannot be read at"),
        (npy(GOOD.replace("(2, 3)", "(2, -3)")), "cannot be read at"),
        (npy(GOOD.replace("(2, 3)", "(2 3,)")), "cannot be read at"),
        (npy(GOOD.replace("(2, 3)", "(2,, 3)")), "cannot be read at"),
        (npy(GOOD.replace("(2, 3)", "(99999999999999999999, 0)")), "cannot be used"),
        (npy(GOOD.replace("(2, 3)", "(999999999999999, 999999999999999)")), "more elements"),
        (npy(GOOD.replace("'shape': (2, 3), ", "")), "no usable 'shape'"),
        (npy(GOOD[:-1] + "'descr': '<f4'}"), "cannot be read at"),
        (npy(GOOD, bytes(23)), "promises"),
        (npy(GOOD, bytes(25)), "1 bytes are left over"),
        (npy(GOOD, version=4), "version 04"),
        (npy(GOOD)[:9], "version"),
        (b"\x93NUMPY\2\0" + b"\xff\xff\xff\x7f" + bytes(99), "the limit is 10000"),
        (npy(GOOD)[:30], "of a file of 30"),
        (b"PK\3\4" + bytes(99), "begins like neither"),
        (tensors({"a": BF16, "b": BF16}), "one after another"),
        (tensors({"a": {**BF16, "data_offsets": [1, 13]}}, bytes(13)), "one after another"),
        (tensors({"a": {**BF16, "data_offsets": [0, 11]}}), "takes 12 bytes"),
        (tensors({"a": {**BF16, "data_offsets": [0, True]}}), "takes 12 bytes"),
        (tensors({"a": {**BF16, "data_offsets": [0, "x"]}}), "takes 12 bytes"),
        (tensors({"a": {**BF16, "dtype": "F4"}}), "known are"),
        (tensors({"a": {**BF16, "shape": [2.0, 3]}}), "cannot be used"),
        (tensors({"a": {**BF16, "shape": [1] * 65}}), "cannot be used"),
        (tensors({"a\n": BF16}), "name cannot be used"),
        (tensors({"a": 1}), "not described"),
        (tensors(b'{"a": 1, "a": 2}'), "stands twice"),
        (tensors(b'{"a":' * 100_000), "no JSON that can be used"),
        (tensors(b"{\xff}"), "no JSON that can be used"),
        (tensors({"a": BF16}, bytes(11)), "promises"),
        (tensors({f"t{n}": BF16 for n in range(1025)}), "the limit is 1024"),
        ((1 << 40).to_bytes(8, "little") + b"{" + bytes(99), "the limit is"),
    ],
)  # fmt: skip
def test_hostile_headers_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        arrays_of(data)


@given(st.data())
def test_any_damage_is_a_media_error_or_an_index_inside_the_file(data: st.DataObject) -> None:
    whole = data.draw(
        st.sampled_from([npy(GOOD), tensors({"a": BF16, "__metadata__": {"k": "v"}})])
    )
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        indexes = index_arrays(BytesReader(bytes(damaged)))
    except MediaError:
        return
    for index in indexes:
        assert index.packets is not None
        stops = index.packets.offset_bytes + index.packets.size_bytes
        assert 0 < stops.max() <= len(whole)


@given(
    st.sampled_from(["bool", "uint16", "float64", "bfloat16", "float8_e5m2"]),
    st.lists(st.integers(0, 10**9), max_size=5),
    st.booleans(),
)
def test_a_rows_form_is_read_back_from_its_text(dtype: str, shape: list[int], big: bool) -> None:
    form = RowForm(dtype, tuple(shape), big)
    assert row_form(str(form)) == form


@pytest.mark.parametrize("text", ["float128[2]", "x[2]", "[2]", "float32[-1]", "float32[2", "a]"])
def test_unknown_forms_are_refused_or_are_pixel_formats(text: str) -> None:
    if text.endswith("]"):
        with pytest.raises(MediaError, match="unknown form"):
            row_form(text)
    else:
        assert row_form(text) is None


@given(st.sets(st.integers(0, 39), min_size=1), st.integers(1, 3000))
def test_any_rows_are_copied_out_of_their_blocks(chosen: set[int], row: int) -> None:
    target, array = io.BytesIO(), np.arange(40 * row, dtype=">u4").reshape(40, row)
    np.save(target, array)
    data = target.getvalue()
    (index,) = index_arrays(BytesReader(data))
    extents = [gop_extent(index.gops, gop) for gop in range(len(index.gops))]
    blocks = [data[e.offset_bytes : e.offset_bytes + e.size_bytes] for e in extents]
    pts = np.array(sorted(chosen))
    out = np.zeros((len(pts), row), np.uint32)
    copy_rows(index, extents, blocks, pts, out)
    np.testing.assert_array_equal(out, array[pts])
    with pytest.raises(CorruptDataError, match="no rows of"):
        copy_rows(index, extents, [block + b"x" for block in blocks], pts, out)
    with pytest.raises(CorruptDataError, match="in none of the blocks"):
        copy_rows(index, extents, blocks, np.append(pts, 40), np.zeros((len(pts) + 1, row), "u4"))


@pytest.mark.parametrize(("row", "rows_a_block"), [(4, 1024), (4000, 2), (4096, 1), (9000, 1)])
def test_rows_share_a_block_until_it_is_full(row: int, rows_a_block: int) -> None:
    target = io.BytesIO()
    np.save(target, np.zeros((3000, row), np.uint8))
    (index,) = index_arrays(BytesReader(target.getvalue()))
    assert int(index.gops.first_packet[1]) == rows_a_block
    assert int(index.gops.size_bytes.sum()) == 3000 * row
