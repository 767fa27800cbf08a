"""Indexes of every container that the encoder side can make, against libav's whole demux."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from dstream.format.index import Access, VideoIndex
from dstream.media.index import index_video
from dstream.media.reader import BytesReader
from made_video import make_video
from whole_demux import demuxed, gop_bytes, reference_packets, table_rows


@dataclass(frozen=True)
class Case:
    container: str
    codec: str = "libx264"
    b_frames: int = 2
    vfr: bool = False
    audio: bool = True
    access: Access = Access.PACKETS
    has_table: bool = True
    """Without being asked for one."""

    @property
    def name(self) -> str:
        return f"{self.container}-{self.codec}{'-vfr' if self.vfr else ''}"


CASES = [
    Case("mp4"),
    Case("mp4", vfr=True),
    Case("mp4", codec="libx265"),
    Case("mp4", codec="mpeg4"),
    Case("mp4", codec="mpeg2video"),
    Case("mp4", codec="libsvtav1", audio=False),
    Case("mp4", codec="libvpx-vp9", audio=False),
    Case("mp4-moov-end"),
    Case("mov"),
    Case("mp4-fragmented"),
    Case("mp4-fragmented-dash"),
    Case("mp4-fragmented-sidx", access=Access.SEGMENTS, has_table=False),
    Case("mp4-fragmented-mfra", access=Access.SEGMENTS, has_table=False),
    Case("mp4-fragmented-sidx", codec="libx265", access=Access.SEGMENTS, has_table=False),
    Case("mkv", access=Access.SEGMENTS, has_table=False),
    Case("mkv", codec="libx265", access=Access.SEGMENTS, has_table=False),
    Case("mkv", codec="libsvtav1", access=Access.SEGMENTS, has_table=False),
    Case("mkv", vfr=True, access=Access.SEGMENTS, has_table=False),
    Case("mkv-cues-front", audio=False, access=Access.SEGMENTS, has_table=False),
    Case("mkv-no-cues"),
    Case("webm", codec="libvpx-vp9", access=Access.SEGMENTS, has_table=False),
    Case("webm", codec="libvpx", access=Access.SEGMENTS, has_table=False),
    Case("webm-no-cues", codec="libvpx-vp9"),
    Case("flv"),
    Case("avi", codec="mpeg4"),
    Case("avi", codec="mjpeg", audio=False),
    Case("mpegts", access=Access.SEGMENTS),
    Case("mpegts", codec="libx265", access=Access.SEGMENTS),
    Case("mpegts", codec="mpeg2video", access=Access.SEGMENTS),
    Case("m2ts", access=Access.SEGMENTS),
    Case("mpegps", codec="mpeg2video", access=Access.SEGMENTS),
]


def _make(folder: Path, case: Case) -> Path:
    options = {"libx264": {"crf": "4"}, "libx265": {"crf": "4"}, "libsvtav1": {"crf": "10"}}
    return make_video(
        folder / "video",
        codec=case.codec,
        container=case.container,
        frames=150,
        size=(320, 240),
        b_frames=case.b_frames,
        vfr=case.vfr,
        audio=case.audio,
        pix_fmt="yuvj420p" if case.codec == "mjpeg" else "yuv420p",
        options=options.get(case.codec, {"b": "5M"}),
    )


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, Path, bytes]:
    path = _make(tmp_path_factory.mktemp("made"), request.param)
    return request.param, path, path.read_bytes()


def _index(data: bytes, **options: bool) -> VideoIndex:
    found = index_video(BytesReader(data, "made"), **options)
    assert len(found) == 1
    return found[0]


def test_packet_table_equals_a_whole_demux(made: tuple[Case, Path, bytes]) -> None:
    _, path, data = made
    index = _index(data, need_packets=True)
    reference = reference_packets(path, index.track.track_id)
    assert table_rows(index) == [(p.size, p.pts, p.is_key) for p in reference]
    assert index.track.frame_count == 150
    if index.access is Access.PACKETS:
        table = index.packets
        assert table is not None
        for i, packet in enumerate(reference):
            start = int(table.offset_bytes[i])
            assert data[start : start + packet.size] == packet.data


def test_access_is_as_the_container_allows(made: tuple[Case, Path, bytes]) -> None:
    case, _, data = made
    index = _index(data)
    assert index.access is case.access
    assert (index.packets is not None) is case.has_table
    assert index.track.frame_count == (150 if case.has_table else None)


def test_every_gop_gives_the_packets_of_a_whole_demux(made: tuple[Case, Path, bytes]) -> None:
    _, path, data = made
    index = _index(data)
    if index.access is not Access.SEGMENTS:
        return
    reference = reference_packets(path, index.track.track_id)
    parts = gop_bytes(index, data)
    assert demuxed(index, 0, parts) == reference
    place = 0
    for gop, part in enumerate(parts):
        alone = demuxed(index, gop, [part])
        assert alone[0].is_key
        assert alone[0].pts == index.gops.key_pts[gop]
        assert alone == reference[place : place + len(alone)]
        place += len(alone)
    assert place == len(reference)
    if len(parts) > 2:
        middle = demuxed(index, 1, parts[1:3])
        first = reference.index(middle[0])
        assert middle == reference[first : first + len(middle)]


def test_span_and_rate(made: tuple[Case, Path, bytes]) -> None:
    case, path, data = made
    table_track = _index(data, need_packets=True).track
    shown = [p.pts for p in reference_packets(path, table_track.track_id) if p.pts is not None]
    for track in (table_track, _index(data).track):
        assert track.start_pts == min(shown)
        assert max(shown) < track.end_pts
        # The header of a file without a packet table tells only where the longest track ends.
        assert track.duration_s == pytest.approx(table_track.duration_s, abs=0.08)
        if not case.vfr:
            assert float(track.rate) == pytest.approx(30, rel=0.002)
    assert table_track.vfr is case.vfr


def test_reorder_depth_is_enough(made: tuple[Case, Path, bytes]) -> None:
    _, _, data = made
    exact = _index(data, need_packets=True).track.reorder_depth
    assert _index(data).track.reorder_depth >= exact
