from __future__ import annotations

import dataclasses
import struct
from fractions import Fraction

import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dstream.errors import CorruptDataError, FormatVersionError
from dstream.format import columns, index_codec
from dstream.format.index import (
    Access,
    GopTable,
    IndexCost,
    PacketTable,
    VideoIndex,
    VideoTrack,
)

TRACK = VideoTrack(
    container="mp4",
    track_id=0,
    codec="h264",
    profile="High",
    extradata=b"\x01d\x00\x1f",
    width=1280,
    height=720,
    rotation_deg=90,
    mirrored=False,
    sar=Fraction(4, 3),
    pix_fmt="yuv420p",
    color_range=1,
    color_space=1,
    color_primaries=1,
    color_trc=1,
    time_base=Fraction(1, 12800),
    start_pts=0,
    end_pts=5400 * 512,
    rate=Fraction(25),
    frame_count=5400,
    vfr=False,
    reorder_depth=2,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


def regular_packets(count: int, gop: int, *, audio: bool) -> PacketTable:
    """A table as x264 with three B-frames in mp4 gives."""
    generator = np.random.default_rng(7)
    order = np.array([0, 4, 2, 1, 3])
    dts = np.arange(count, dtype=np.int64) * 512
    display = np.arange(count)
    for start in range(1, count - 4, 4):
        display[start : start + 4] = start - 1 + order[1:]
    size = generator.lognormal(8.3, 0.6, count).astype(np.int64)
    flags = np.zeros(count, np.uint8)
    flags[::gop] = 1
    size[::gop] *= 12
    gaps = generator.integers(300, 400, count) * (np.arange(count) % 2) if audio else 0
    offset = 48 + np.cumsum(size + gaps) - size
    return PacketTable(offset, size, display * 512 + 1024, dts, np.full(count, 512), flags)


def gops_of(packets: PacketTable, *, checksums: bool) -> GopTable:
    first = np.flatnonzero(packets.flags & 1).astype(np.int64)
    stop = np.append(first[1:], len(packets))
    end = packets.offset_bytes[stop - 1] + packets.size_bytes[stop - 1]
    payload = np.array(
        [packets.size_bytes[a:b].sum() for a, b in zip(first, stop, strict=True)], dtype=np.int64
    )
    checksum = np.random.default_rng(1).integers(0, 2**64, len(first), np.uint64)
    return GopTable(
        packets.offset_bytes[first],
        end - packets.offset_bytes[first],
        packets.pts[first],
        first,
        payload,
        checksum if checksums else None,
    )


def video(packets: PacketTable | None, gops: GopTable) -> VideoIndex:
    access = Access.PACKETS if packets is not None else Access.SEGMENTS
    header = b"" if packets is not None else b"\x1a\x45\xdf\xa3" * 10
    return VideoIndex(
        TRACK, access, gops, packets, header, 85_400_000, IndexCost(200_000, 2, False)
    )


def assert_same(left: VideoIndex, right: VideoIndex) -> None:
    for name in ("track", "access", "header", "size_bytes", "cost"):
        assert getattr(left, name) == getattr(right, name)
    for table in ("packets", "gops"):
        ours, theirs = getattr(left, table), getattr(right, table)
        assert (ours is None) == (theirs is None)
        if ours is None:
            continue
        for field in dataclasses.fields(ours):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            assert (a is None) == (b is None), field.name
            if a is not None:
                np.testing.assert_array_equal(a, b, field.name)
                assert a.dtype == b.dtype


@st.composite
def odd_indexes(draw: st.DrawFn) -> VideoIndex:
    def column(size: int) -> NDArray[np.int64]:
        return draw(hnp.arrays(np.int64, size))

    count = draw(st.integers(0, 30))
    packets = None
    if draw(st.booleans()):
        flags = draw(hnp.arrays(np.uint8, count))
        packets = PacketTable(
            column(count), column(count), column(count), column(count), column(count), flags
        )
    groups = draw(st.integers(0, 12))
    first = draw(hnp.arrays(np.int64, groups, elements=st.integers(-2, 40)))
    checksum = draw(st.none() | hnp.arrays(np.uint64, groups))
    gops = GopTable(column(groups), column(groups), column(groups), first, column(groups), checksum)
    track = dataclasses.replace(
        TRACK,
        extradata=draw(st.binary(max_size=40)),
        profile=draw(st.none() | st.text(max_size=5)),
        frame_count=draw(st.none() | st.integers(0, 2**40)),
        vfr=draw(st.none() | st.booleans()),
        start_pts=draw(INT64),
        end_pts=draw(INT64),
        rate=Fraction(draw(st.integers(0, 2**31)), draw(st.integers(1, 2**31))),
    )
    return dataclasses.replace(
        video(packets, gops), track=track, header=draw(st.binary(max_size=50))
    )


@given(hnp.arrays(np.int64, st.integers(0, 60)))
def test_a_column_of_any_numbers_comes_back(values: NDArray[np.int64]) -> None:
    packed = columns.pack(values)
    np.testing.assert_array_equal(columns.unpack(packed.spec(), memoryview(packed.planes)), values)


@given(INT64, INT64, st.integers(0, 100))
def test_a_regular_column_costs_no_bytes(first: int, step: int, count: int) -> None:
    with np.errstate(over="ignore"):
        values = np.int64(first) + np.arange(count, dtype=np.int64) * np.int64(step)
    packed = columns.pack(values)
    assert packed.planes == b""
    np.testing.assert_array_equal(columns.unpack(packed.spec(), memoryview(b"")), values)


@settings(max_examples=150)
@given(odd_indexes())
def test_any_index_comes_back(index: VideoIndex) -> None:
    entry = index_codec.encode_index_entry(index)
    assert_same(index_codec.decode_index_entry(entry), index)
    assert index_codec.encode_index_entry(index) == entry


def test_a_group_is_read_whole_or_entry_by_entry() -> None:
    packets = regular_packets(500, 30, audio=False)
    indexes = [
        video(packets, gops_of(packets, checksums=True)),
        video(None, gops_of(packets, checksums=False)),
    ]
    data, spans = index_codec.encode_index_group(indexes)
    assert spans[-1][0] + spans[-1][1] == len(data)
    for index, (offset, size), whole in zip(
        indexes, spans, index_codec.decode_index_group(data), strict=True
    ):
        assert_same(index_codec.decode_index_entry(data[offset : offset + size]), index)
        assert_same(whole, index)
    assert index_codec.decode_index_group(index_codec.encode_index_group([])[0]) == []


@pytest.mark.parametrize(("audio", "limit"), [(False, 2.2), (True, 3.7)])
def test_a_packet_costs_few_bytes(audio: bool, limit: float) -> None:
    packets = regular_packets(20_000, 250, audio=audio)
    entry = index_codec.encode_index_entry(video(packets, gops_of(packets, checksums=False)))
    assert len(entry) / len(packets) < limit


def test_a_gop_a_packet_adds_nothing_but_checksums() -> None:
    packets = regular_packets(5_000, 1, audio=False)
    plain = index_codec.encode_index_entry(video(packets, gops_of(packets, checksums=False)))
    checked = index_codec.encode_index_entry(video(packets, gops_of(packets, checksums=True)))
    assert len(plain) / len(packets) < 2.5
    assert 7.9 < (len(checked) - len(plain)) / len(packets) < 8.2


@settings(max_examples=200)
@given(st.data())
def test_damage_is_an_error_or_does_no_harm(data: st.DataObject) -> None:
    packets = regular_packets(40, 10, audio=False)
    sound = index_codec.encode_index_entry(video(packets, gops_of(packets, checksums=True)))
    entry = bytearray(sound)
    at = data.draw(st.integers(0, len(entry) - 1))
    if data.draw(st.booleans()):
        entry[at] ^= data.draw(st.integers(1, 255))
    else:
        del entry[at:]
    try:
        found = index_codec.decode_index_entry(bytes(entry))
    except (CorruptDataError, FormatVersionError):
        return
    # Some bytes may differ and mean the same: the version it was written in, a lower minimum, and
    # unused bits of zstd's frame, whose content the checksum is of.
    assert index_codec.encode_index_entry(found) == sound


def test_a_newer_format_is_refused_and_named() -> None:
    packets = regular_packets(20, 5, audio=False)
    entry = bytearray(
        index_codec.encode_index_entry(video(None, gops_of(packets, checksums=False)))
    )
    entry[4:8] = (9).to_bytes(2, "little") + (9).to_bytes(2, "little")
    with pytest.raises(FormatVersionError, match="format 9"):
        index_codec.decode_index_entry(bytes(entry))


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(CorruptDataError, match="impossible"):
        columns.unpack(
            {"rows": 2**40, "order": 0, "seeds": [], "width": 0, "fill": 0}, memoryview(b"")
        )


@pytest.mark.parametrize("text", [b"[" + b"[]," * 400_000 + b"0]", b"[" * 500_000])
def test_a_description_can_exhaust_neither_memory_nor_stack(text: bytes) -> None:
    raw = len(text).to_bytes(4, "little") + text
    frame = zstandard.ZstdCompressor().compress(raw)
    digest = xxhash.xxh3_64_intdigest(raw)
    head = struct.pack("<4sHHQQQ", b"DSIE", 1, 1, len(raw), digest, len(frame))
    with pytest.raises(CorruptDataError, match="description"):
        index_codec.decode_index_entry(head + frame)
