"""Matroska files that our encoder never writes, built element by element; libav is the judge."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path

import av
import numpy as np
import pytest

from dstream.errors import MediaError, MediaReason
from dstream.format.index import Access, VideoIndex
from dstream.media.ebml import children, encode_element, parse_element
from dstream.media.index import index_video
from dstream.media.matroska_blocks import iter_frames
from dstream.media.matroska_cues import parse_cues
from dstream.media.matroska_tracks import CLUSTER, CUES, INFO, SEGMENT, TRACKS, parse_tracks
from dstream.media.reader import BytesReader
from made_video import make_video
from whole_demux import demuxed, gop_bytes, reference_packets, table_rows

OPEN_END = bytes.fromhex("01ffffffffffffff")


class Source:
    """A made file taken apart: head, header elements, frames."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        ebml = parse_element(data, 0, 0)
        assert ebml is not None
        segment = parse_element(data, ebml.stop, ebml.stop)
        assert segment is not None
        self.ebml = data[: ebml.stop]
        parts = {e.kind: data[e.body : e.stop] for e in children(data, segment.body, len(data))}
        self.info, self.tracks = parts[INFO], parts[TRACKS]
        (entry,) = [e for e in children(self.tracks, 0, len(self.tracks)) if e.kind == 0xAE]
        self.entry = self.tracks[entry.body : entry.stop]
        with av.open(str(path)) as container:
            self.frames = [
                (bytes(p), p.pts or 0, p.is_keyframe)
                for p in container.demux(container.streams.video[0])
                if p.size
            ]

    def write(
        self,
        path: Path,
        clusters: list[bytes],
        *,
        extra: bytes = b"",
        entry: bytes | None = None,
        cues: bytes = b"",
    ) -> bytes:
        """Write a file around clusters; ``extra`` goes into the track entry."""
        tracks = encode_element(TRACKS, encode_element(0xAE, (entry or self.entry) + extra))
        segment = encode_element(INFO, self.info) + tracks + cues + b"".join(clusters)
        data = self.ebml + encode_element(SEGMENT, segment)
        path.write_bytes(data)
        return data


def _uint(kind: int, value: int) -> bytes:
    return encode_element(kind, value.to_bytes(8, "big"))


def _block_head(pts: int, flags: int) -> bytes:
    return b"\x81" + pts.to_bytes(2, "big", signed=True) + bytes((flags,))


def _simple(data: bytes, pts: int, key: bool) -> bytes:
    return encode_element(0xA3, _block_head(pts, 0x80 * key) + data)


def _group(data: bytes, pts: int, key: bool) -> bytes:
    reference = b"" if key else encode_element(0xFB, b"\xff")
    alpha = encode_element(0x75A1, encode_element(0xA6, encode_element(0xA5, b"alpha" * 9)))
    block = encode_element(0xA1, _block_head(pts, 0) + data)
    return encode_element(0xA0, block + alpha + _uint(0x9B, 33) + reference)


def _cluster(time: int, blocks: list[bytes]) -> bytes:
    return encode_element(CLUSTER, _uint(0xE7, time) + b"".join(blocks))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("matroska")
    path = make_video(
        folder / "v", container="mkv", frames=60, gop=15, size=(320, 240), options={"crf": "5"}
    )
    return Source(path)


def _only(data: bytes, **options: bool) -> VideoIndex:
    (index,) = index_video(BytesReader(data, "built"), **options)
    return index


def _equals_reference(path: Path, index: VideoIndex) -> None:
    data = path.read_bytes()
    reference = reference_packets(path, index.track.track_id)
    if index.packets is not None:
        assert table_rows(index) == [(p.size, p.pts, p.is_key) for p in reference]
    if index.access is Access.SEGMENTS:
        assert demuxed(index, 0, gop_bytes(index, data)) == reference


def test_block_groups_voids_and_open_clusters(source: Source, tmp_path: Path) -> None:
    clusters = []
    for start in range(0, 60, 15):
        part = source.frames[start : start + 15]
        time = part[0][1]
        blocks = [_group(d, p - time, k) for d, p, k in part]
        body = _uint(0xE7, time) + encode_element(0xEC, bytes(40)) + b"".join(blocks)
        clusters.append(encode_element(CLUSTER, b"")[:4] + OPEN_END + body)
    path = tmp_path / "v"
    source.write(path, clusters)
    index = _only(path.read_bytes())
    assert index.access is Access.PACKETS
    assert len(index.gops) == 4
    _equals_reference(path, index)


@pytest.mark.parametrize("algorithm", ["strip", "zlib"])
def test_compressed_tracks(source: Source, tmp_path: Path, algorithm: str) -> None:
    prefix = b"\0\0"
    if algorithm == "strip":
        settings = _uint(0x4254, 3) + encode_element(0x4255, prefix)
        stored = [(d[2:], p, k) for d, p, k in source.frames]
        assert all(d.startswith(prefix) for d, _, _ in source.frames)
    else:
        settings = _uint(0x4254, 0)
        stored = [(zlib.compress(d), p, k) for d, p, k in source.frames]
    extra = encode_element(
        0x6D80, encode_element(0x6240, _uint(0x5033, 0) + encode_element(0x5034, settings))
    )
    clusters = [
        _cluster(part[0][1], [_simple(d, p - part[0][1], k) for d, p, k in part])
        for part in (stored[i : i + 15] for i in range(0, 60, 15))
    ]
    path = tmp_path / "v"
    source.write(path, clusters, extra=extra)
    index = _only(path.read_bytes())
    assert index.access is Access.SEGMENTS
    reference = reference_packets(path, 0)
    got = demuxed(index, 0, gop_bytes(index, path.read_bytes()))
    assert got == reference
    assert [p.data for p in got] == [d for d, _, _ in source.frames]


def test_encrypted_content_is_refused(source: Source, tmp_path: Path) -> None:
    extra = encode_element(
        0x6D80,
        encode_element(0x6240, _uint(0x5033, 1) + encode_element(0x5035, _uint(0x47E1, 5))),
    )
    data = source.write(tmp_path / "v", [_cluster(0, [])], extra=extra)
    with pytest.raises(MediaError) as caught:
        index_video(BytesReader(data))
    assert caught.value.reason is MediaReason.ENCRYPTED


def test_cues_into_the_middle_of_clusters(source: Source, tmp_path: Path) -> None:
    """Other muxers cut clusters by time: a GOP's end then stands in the next cued cluster."""
    frames, pad = source.frames, bytes(60_000)
    clusters: list[bytes] = []
    offset = 0
    head = encode_element(INFO, source.info) + encode_element(
        TRACKS, encode_element(0xAE, source.entry)
    )
    cuts = [0, 20, 40, 60]
    tables = []
    for start, stop in itertools.pairwise(cuts):
        time = min(p for _, p, _ in frames[start:stop])
        body = _uint(0xE7, time)
        for data, pts, key in frames[start:stop]:
            if key:
                tables.append((pts, offset, len(body)))
            body += _simple(data, pts - time, key) + encode_element(0xEC, pad[:10_000])
        clusters.append(encode_element(CLUSTER, body))
        offset += len(clusters[-1])

    def entry(base: int) -> bytes:
        return encode_element(
            CUES,
            b"".join(
                encode_element(
                    0xBB,
                    _uint(0xB3, t)
                    + encode_element(0xB7, _uint(0xF7, 1) + _uint(0xF1, base + o) + _uint(0xF0, r)),
                )
                for t, o, r in tables
            ),
        )

    base = len(head) + len(entry(0))
    path = tmp_path / "v"
    data = source.write(path, clusters, cues=entry(base))
    index = _only(data)
    assert index.packets is None
    assert index.access is Access.SEGMENTS
    assert len(index.gops) < 4  # cues in one cluster are one unit
    _equals_reference(path, index)
    parts = gop_bytes(index, data)
    seen = 0
    reference = reference_packets(path, 0)
    for gop, part in enumerate(parts):
        alone = demuxed(index, gop, [part])
        assert alone[0].pts == index.gops.key_pts[gop]
        first = reference.index(alone[0])
        assert first <= seen  # nothing lies between two units
        assert alone == reference[first : first + len(alone)]
        seen = first + len(alone)
    assert seen == len(reference)


def test_decode_timed_tracks_get_their_display_order(source: Source, tmp_path: Path) -> None:
    """Tracks made from AVI store decode times; frames come out in another order."""
    with av.open(str(make_video(tmp_path / "avi", container="avi", frames=40))) as container:
        stream = container.streams.video[0]
        frames = [(bytes(p), p.is_keyframe) for p in container.demux(stream) if p.size]
    bitmap = (
        (40).to_bytes(4, "little") + (128).to_bytes(4, "little") + (96).to_bytes(4, "little")
        + bytes((1, 0, 24, 0)) + b"H264" + bytes(20)
    )  # fmt: skip
    video = encode_element(0xE0, _uint(0xB0, 128) + _uint(0xBA, 96))
    entry = (
        _uint(0xD7, 1) + _uint(0x73C5, 1) + _uint(0x83, 1)
        + encode_element(0x86, b"V_MS/VFW/FOURCC") + encode_element(0x63A2, bitmap) + video
    )  # fmt: skip
    blocks = [_simple(d, i * 33, k) for i, (d, k) in enumerate(frames)]
    path = tmp_path / "v"
    data = source.write(path, [_cluster(0, blocks)], entry=entry)
    index = _only(data)
    table = index.packets
    assert table is not None
    order = np.argsort(table.pts)
    with av.open(str(tmp_path / "avi")) as container:
        stream = container.streams.video[0]
        packets = [p for p in container.demux(stream) if p.size]
        context = av.CodecContext.create("h264", "r")
        shown = []
        for i, packet in enumerate([*packets, None]):
            if packet is not None:
                packet.pts = packet.dts = i
            shown += [f.pts for f in context.decode(packet)]
    assert order.tolist() == shown
    assert order.tolist() != list(range(40))


def test_tracks_are_numbered_as_libav_does(source: Source) -> None:
    buttons = encode_element(0xAE, _uint(0xD7, 7) + _uint(0x83, 0x12) + encode_element(0x86, b"B"))
    tracks = buttons + encode_element(0xAE, source.entry)
    (entry,) = parse_tracks(tracks)
    assert (entry.number, entry.stream_index, entry.is_video) == (1, 0, True)


def test_laced_blocks() -> None:
    def frames(block: bytes) -> list[tuple[int, int, int]]:
        data = encode_element(CLUSTER, _uint(0xE7, 100) + encode_element(0xA3, block))
        get = lambda start, stop: data[start:stop]  # noqa: E731
        found = list(iter_frames(get, 0, len(data), frozenset((1,))))
        return [(f.size, f.pts, f.lace) for f in found]

    xiph = _block_head(5, 0x02) + bytes((2, 255, 1, 3)) + bytes(256 + 3 + 7)
    assert frames(xiph) == [(256, 105, 0), (3, 105, 1), (7, 105, 2)]
    fixed = _block_head(-5, 0x04) + bytes((3,)) + bytes(40)
    assert frames(fixed) == [(10, 95, i) for i in range(4)]
    ebml = _block_head(0, 0x06) + bytes((2, 0x88, 0xBE)) + bytes(8 + 7 + 4)
    assert frames(ebml) == [(8, 100, 0), (7, 100, 1), (4, 100, 2)]
    assert frames(_block_head(0, 0x06) + bytes((2, 0x90, 0xBE, 1))) == []


def test_cues_of_other_tracks_are_left_alone() -> None:
    def point(time: int, track: int, cluster: int) -> bytes:
        where = encode_element(0xB7, _uint(0xF7, track) + _uint(0xF1, cluster))
        return encode_element(0xBB, _uint(0xB3, time) + where)

    data = point(0, 1, 10) + point(5, 2, 20) + point(9, 1, 30)
    assert parse_cues(data, 1).tolist() == [[0, 10, -1], [9, 30, -1]]
    assert parse_cues(data[:-1], 1).tolist() == [[0, 10, -1]]
    assert parse_cues(b"", 1).shape == (0, 3)


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
@pytest.mark.parametrize("flip", [False, True])
def test_orientation_equals_libavs(tmp_path: Path, turn: int, flip: bool) -> None:
    path = tmp_path / "v.mkv"
    make_video(tmp_path / "plain", container="mkv", frames=5)
    with av.open(str(tmp_path / "plain")) as origin, av.open(str(path), "w") as output:
        stream = origin.streams.video[0]
        copy = output.add_stream_from_template(stream)
        copy.set_display_rotation(turn, hflip=flip)
        for packet in origin.demux(stream):
            if packet.size:
                packet.stream = copy
                output.mux(packet)
    with av.open(str(path)) as container:
        told = next(container.decode(video=0)).rotation
    track = _only(path.read_bytes()).track
    assert track.mirrored is flip
    if not flip:
        assert -told % 360 == track.rotation_deg
