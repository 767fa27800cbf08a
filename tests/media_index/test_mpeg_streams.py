"""Transport and program streams: clocks that wrap, streams of keyframes, unusual starts."""

from __future__ import annotations

from pathlib import Path

import av
import pytest

from dstream.format.index import Access, VideoIndex
from dstream.media.index import index_video
from dstream.media.reader import BytesReader
from dstream.media.sniff import sniff, transport_header, transport_layout
from dstream.media.ts_demux import CLOCK_WRAP, RawPacket, align
from made_video import make_video
from whole_demux import demuxed, gop_bytes, reference_packets, table_rows


def _check(path: Path) -> VideoIndex:
    data = path.read_bytes()
    (index,) = index_video(BytesReader(data, "stream"))
    reference = reference_packets(path, index.track.track_id)
    assert index.access is Access.SEGMENTS
    assert table_rows(index) == [(p.size, p.pts, p.is_key) for p in reference]
    parts = gop_bytes(index, data)
    assert demuxed(index, 0, parts) == reference
    for gop, part in enumerate(parts):
        first = int(index.gops.first_packet[gop])
        alone = demuxed(index, gop, [part])
        assert alone == reference[first : first + len(alone)]
    return index


def _shift(source: Path, target: Path, offset: int) -> None:
    options = {"mpegts_copyts": "1", "muxdelay": "0"}
    with (
        av.open(str(source)) as origin,
        av.open(str(target), "w", format="mpegts", container_options=options) as output,
    ):
        stream = origin.streams.video[0]
        copy = output.add_stream_from_template(stream)
        for packet in origin.demux(stream):
            if packet.size and packet.pts is not None and packet.dts is not None:
                packet.pts += offset
                packet.dts += offset
                packet.stream = copy
                output.mux(packet)


def test_a_clock_that_wraps_in_the_middle(tmp_path: Path) -> None:
    plain = make_video(tmp_path / "plain", container="mpegts", frames=90, gop=15)
    path = tmp_path / "wrapped"
    _shift(plain, path, CLOCK_WRAP - 150_000)
    index = _check(path)
    assert index.track.frame_count == 90
    assert index.track.duration_s == pytest.approx(3.0, abs=0.01)


def test_nothing_but_keyframes(tmp_path: Path) -> None:
    path = make_video(tmp_path / "v", container="mpegts", frames=60, gop=1, b_frames=0)
    index = _check(path)
    assert 1 < len(index.gops) < 10  # short GOPs are read together


@pytest.mark.parametrize("lead", [1, 100, 187])
def test_a_stream_that_starts_inside_a_packet(tmp_path: Path, lead: int) -> None:
    path = make_video(tmp_path / "v", container="mpegts", frames=60, gop=15)
    data = path.read_bytes()
    assert transport_layout(data) == (0, 188)
    path.write_bytes(b"\xff" * lead + data)
    assert transport_layout(path.read_bytes()) == (lead, 188)
    index = _check(path)
    assert len(index.header) % 188 == 0


def test_a_stream_that_starts_before_its_keyframe(tmp_path: Path) -> None:
    """A recording: the first frames have no keyframe, they are never shown."""
    path = make_video(tmp_path / "v", container="mpegts", frames=60, gop=20, b_frames=0)
    data = path.read_bytes()
    header = transport_header(data)
    (whole,) = index_video(BytesReader(data))
    table = whole.packets
    assert table is not None
    cut = header + data[int(table.offset_bytes[5]) :]
    (index,) = index_video(BytesReader(cut))
    assert index.track.frame_count == 40
    assert int(index.gops.first_packet[0]) in (0, 15)


def test_headers_of_packets_of_192_bytes(tmp_path: Path) -> None:
    data = make_video(tmp_path / "v", container="m2ts", frames=10).read_bytes()
    assert sniff(data) == "mpegts"
    assert transport_layout(data) == (4, 192)
    assert len(transport_header(data)) % 192 == 0


def test_alignment_prefers_the_right_time() -> None:
    def run(*pairs: tuple[int, int]) -> list[RawPacket]:
        return [RawPacket(bytes(size), pts) for size, pts in pairs]

    stream = run((5, 1), (7, 2), (5, 9), (7, 10))
    assert align([stream], [5, 7], [9, 10]) == stream[2:]
    assert align([stream], [5, 7], [9 + CLOCK_WRAP, 10]) == stream[2:]
    assert align([stream], [5, 7], [77, 78]) == stream[:2]
    assert align([stream], [5, 8], [9, 10]) is None
    assert align([], [5], [1]) is None
