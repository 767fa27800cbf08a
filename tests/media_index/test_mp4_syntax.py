"""Boxes of mp4 files, taken apart without libav."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.media.index import index_video
from dstream.media.mp4_boxes import children, filled, orientation, parse_header, track_headers
from dstream.media.mp4_fragments import parse_sidx, parse_tfra
from dstream.media.packet_rows import decode_times, reorder_depth
from dstream.media.reader import BytesReader
from made_video import make_video


def _sidx(entries: list[tuple[int, int, int]], *, time: int = 0, first_offset: int = 0) -> bytes:
    head = struct.pack(">IIIQQHH", 1 << 24, 1, 1000, time, first_offset, 0, len(entries))
    return head + b"".join(struct.pack(">III", *entry) for entry in entries)


SAP = 0x90000000


def test_segments_without_a_sync_sample_join_the_one_before() -> None:
    parsed = parse_sidx(
        _sidx([(100, 10, SAP), (50, 10, 0), (70, 10, SAP | 3)], time=5, first_offset=8), 1000
    )
    assert parsed is not None
    track_id, units = parsed
    assert track_id == 1
    assert units.start.tolist() == [1008, 1158]
    assert units.stop.tolist() == [1158, 1228]
    assert units.time.tolist() == [5, 28]
    assert units.end_time == 35


def test_unusable_segment_indexes_are_left_alone() -> None:
    assert parse_sidx(_sidx([(100, 10, 0)]), 0) is None  # starts anywhere
    assert parse_sidx(_sidx([(100 | 1 << 31, 10, SAP)]), 0) is None  # an index of indexes
    assert parse_sidx(_sidx([]), 0) is None
    assert parse_sidx(_sidx([(100, 10, SAP)])[:-1], 0) is None


@given(st.binary(max_size=200))
def test_any_bytes_as_tables(data: bytes) -> None:
    for parsed in (parse_sidx(data, 100), parse_tfra(data, 10**6)):
        if parsed is not None:
            assert (parsed[1].stop > parsed[1].start).all()
    assert isinstance(track_headers(data), list)
    position = 0
    for box in children(data, 0, len(data)):
        assert box.start == position
        position = box.stop


def test_random_access_tables() -> None:
    def tfra(entries: list[tuple[int, int]]) -> bytes:
        head = struct.pack(">IIII", 0, 7, 0, len(entries))
        return head + b"".join(struct.pack(">IIBBB", t, o, 1, 1, 1) for t, o in entries)

    parsed = parse_tfra(tfra([(0, 500), (40, 500), (90, 900)]), 2000)
    assert parsed is not None
    assert parsed[0] == 7
    assert parsed[1].start.tolist() == [500, 900]
    assert parsed[1].stop.tolist() == [900, 2000]
    assert parsed[1].time.tolist() == [0, 90]
    assert parse_tfra(tfra([(0, 2500)]), 2000) is None


@given(st.lists(st.integers(8, 100), max_size=6))
def test_gaps_are_walked_over(sizes: list[int]) -> None:
    spans, position = [], 0
    for size in sizes:
        spans.append((position, struct.pack(">I4s", size, b"moof") + bytes(size - 8)))
        position += size + 50
    total = position + (6 << 30)
    boxes = []
    known = dict(filled(spans, total))
    at = 0
    while at < total:
        box = parse_header(known[at][:16], at, total)
        assert box is not None
        boxes.append(box.kind)
        at = box.stop
    assert at == total
    assert boxes.count(b"moof") == len(sizes)


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_rotation_equals_libavs(tmp_path: Path, turn: int) -> None:
    path = make_video(tmp_path / "v", frames=5, rotation_deg=turn)
    (index,) = index_video(BytesReader(path.read_bytes()))
    with av.open(str(path)) as container:
        told = next(container.decode(video=0)).rotation
    assert index.track.rotation_deg == -told % 360 == turn
    assert index.track.display_size == ((96, 128) if turn in (0, 180) else (128, 96))


@given(st.sampled_from([0, 90, 180, 270]), st.booleans(), st.integers(1, 1 << 16))
def test_orientation_undoes_itself(turn: int, mirrored: bool, scale: int) -> None:
    cos, sin = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}[turn]
    flip = -1 if mirrored else 1
    matrix = (flip * cos * scale, flip * sin * scale, -sin * scale, cos * scale)
    assert orientation(*matrix) == (turn, mirrored)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=40, unique=True))
def test_reorder_depth_and_decode_times(times: list[int]) -> None:
    pts = np.array(times, np.int64)
    brute = max(sum(other > own for other in times[:i]) for i, own in enumerate(times))
    assert reorder_depth(pts) == brute
    dts = decode_times(pts)
    assert (np.diff(dts) >= 0).all()
    assert (dts <= pts).all()


def test_two_video_tracks_are_both_found_the_larger_first(tmp_path: Path) -> None:
    path = tmp_path / "two.mp4"
    with av.open(str(path), "w") as output:
        streams = []
        for width, height in ((64, 48), (128, 96)):
            stream = output.add_stream("libx264", rate=25)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            streams.append(stream)
        for i in range(20):
            for stream in streams:
                frame = av.VideoFrame(stream.width, stream.height, "yuv420p")
                for plane in frame.planes:
                    plane.update(bytes([i * 9 % 250]) * plane.buffer_size)
                frame.pts = i
                output.mux(stream.encode(frame))
        for stream in streams:
            output.mux(stream.encode(None))
    found = index_video(BytesReader(path.read_bytes()))
    assert [(i.track.width, i.track.track_id) for i in found] == [(128, 1), (64, 0)]
    assert all(i.track.frame_count == 20 for i in found)
