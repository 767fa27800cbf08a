"""Damaged, cut, mislabelled and hostile files: a MediaError with the right reason, or an index."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstream.errors import MediaError, MediaReason
from dstream.format.index import Access, VideoIndex
from dstream.media.demux import demux_segments
from dstream.media.index import index_video
from dstream.media.reader import BytesReader
from made_video import make_video

KINDS = {
    "mp4": "libx264",
    "mp4-moov-end": "libx264",
    "mp4-fragmented": "libx264",
    "mp4-fragmented-sidx": "libx264",
    "mkv": "libx264",
    "mkv-no-cues": "libx264",
    "webm": "libvpx-vp9",
    "flv": "libx264",
    "avi": "mpeg4",
    "mpegts": "libx264",
    "mpegps": "mpeg2video",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("hostile")
    return {
        name: make_video(
            folder / name, container=name, codec=codec, frames=40, gop=10, audio=name != "webm"
        ).read_bytes()
        for name, codec in KINDS.items()
    }


def _reason(data: bytes, **options: int) -> MediaReason:
    with pytest.raises(MediaError) as caught:
        index_video(BytesReader(data, "hostile"), **options)  # type: ignore[arg-type]
    return caught.value.reason


def _check_usable(index: VideoIndex, data: bytes) -> None:
    gops = index.gops
    assert len(gops) > 0
    assert (gops.offset_bytes >= 0).all()
    assert (gops.offset_bytes + gops.size_bytes <= len(data)).all()
    assert (gops.size_bytes > 0).all()
    if index.packets is not None and index.access is Access.PACKETS:
        table = index.packets
        assert (table.offset_bytes + table.size_bytes <= len(data)).all()
        assert np.all(table.duration > 0)
    assert index.track.end_pts > index.track.start_pts
    if index.access is Access.SEGMENTS:
        start = int(gops.offset_bytes[0])
        first = data[start : start + int(gops.size_bytes[0])]
        try:
            demux_segments(index, 0, [first])
        except MediaError:
            pass  # a damaged GOP is found out when it is read


def _try(data: bytes, *, need_packets: bool = False) -> None:
    try:
        found = index_video(BytesReader(data, "hostile"), need_packets=need_packets)
    except MediaError:
        return
    for index in found:
        _check_usable(index, data)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1), need_packets=st.booleans())
def test_any_truncation(
    files: dict[str, bytes], name: str, share: float, need_packets: bool
) -> None:
    data = files[name]
    _try(data[: int(share * len(data))], need_packets=need_packets)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])),
        min_size=1,
        max_size=20,
    ),
    only_head=st.booleans(),
)
def test_any_changed_bytes(
    files: dict[str, bytes], name: str, changes: list[tuple[float, int]], only_head: bool
) -> None:
    data = bytearray(files[name])
    reach = min(len(data), 2000) if only_head else len(data)
    for share, value in changes:
        data[int(share * reach)] = value
    _try(bytes(data))


@settings(max_examples=60)
@given(
    head=st.sampled_from(
        [
            b"\0\0\0\x18ftypmp42",
            b"\0\0\0\x08moov",
            bytes.fromhex("1a45dfa3a34286810142f7810142f281"),
            b"FLV\1\5\0\0\0\x09\0\0\0\0",
            b"RIFF\xff\xff\xff\x7fAVI LIST",
            b"\0\0\1\xba\x44",
            b"\x47" + bytes(187) + b"\x47" + bytes(187) + b"\x47",
            b"",
        ]
    ),
    rest=st.binary(max_size=600),
)
def test_any_noise_behind_a_known_start(head: bytes, rest: bytes) -> None:
    _try(head + rest)


def test_reasons() -> None:
    assert _reason(b"") is MediaReason.EMPTY
    assert _reason(b"just some text, no video at all\n" * 100) is MediaReason.NOT_MEDIA
    playlist = b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
    assert _reason(playlist) is MediaReason.NOT_MEDIA
    assert _reason(b"ffconcat version 1.0\nfile /etc/passwd\n") is MediaReason.NOT_MEDIA


def test_raw_streams_have_no_times(tmp_path: Path) -> None:
    path = make_video(tmp_path / "v", container="mpegts", frames=30)
    with av.open(str(path)) as container:
        raw = b"".join(bytes(p) for p in container.demux(container.streams.video[0]) if p.size)
    assert _reason(raw) is MediaReason.TIMESTAMPS


def test_cut_before_the_first_frame_is_truncated(files: dict[str, bytes]) -> None:
    data = files["mp4"]
    mdat = data.find(b"mdat")
    assert _reason(data[: mdat + 20]) is MediaReason.TRUNCATED
    assert _reason(files["mp4-moov-end"][:5000]) is MediaReason.TRUNCATED
    assert _reason(data[: data.find(b"moov") + 50]) is MediaReason.TRUNCATED


def test_cut_in_the_middle_keeps_what_is_there(files: dict[str, bytes]) -> None:
    for name in ("mp4", "mp4-fragmented", "mkv", "mkv-no-cues", "flv", "mpegts"):
        data = files[name]
        (whole,) = index_video(BytesReader(data), need_packets=True)
        (part,) = index_video(BytesReader(data[: len(data) * 6 // 10]), need_packets=True)
        assert whole.track.frame_count == 40
        assert part.track.frame_count is not None
        assert 10 <= part.track.frame_count < 40


def test_header_without_fragments_has_no_frames(files: dict[str, bytes]) -> None:
    data = files["mp4-fragmented"]
    assert _reason(data[: data.find(b"moof") - 4]) is MediaReason.NO_FRAMES


def test_a_moov_larger_than_the_file_is_refused() -> None:
    ftyp = struct.pack(">I4s4sI", 16, b"ftyp", b"isom", 0)
    huge = struct.pack(">I4sQ", 1, b"moov", 10 << 30)
    reader = BytesReader(ftyp + huge + bytes(1000))
    with pytest.raises(MediaError) as caught:
        index_video(reader)
    assert caught.value.reason is MediaReason.TRUNCATED
    assert reader.bytes_read <= reader.size_bytes


def test_encrypted_tracks_are_refused(files: dict[str, bytes]) -> None:
    mp4 = files["mp4"].replace(b"avc1", b"encv", 2)
    assert _reason(mp4) is MediaReason.ENCRYPTED


def test_fragments_with_sample_encryption_are_refused(files: dict[str, bytes]) -> None:
    """The sample entry may call itself clear: what a fragment says counts too."""
    data = files["mp4-fragmented"]
    at = data.find(b"tfdt")
    assert at > 0
    assert _reason(data[:at] + b"senc" + data[at + 4 :]) is MediaReason.ENCRYPTED


def test_scrambled_transport_streams_are_refused(files: dict[str, bytes]) -> None:
    data = bytearray(files["mpegts"])
    for at in range(0, len(data), 188):
        pid = (data[at + 1] & 0x1F) << 8 | data[at + 2]
        if pid == 256 and at > 60 * 188:
            data[at + 3] |= 0x80
    assert _reason(bytes(data)) is MediaReason.ENCRYPTED


def test_audio_alone_is_no_video(tmp_path: Path) -> None:
    for name in ("mp4", "matroska", "flv", "mpegts", "wav", "mp3"):
        path = tmp_path / name
        with av.open(str(path), "w", format=name) as output:
            codec = {"wav": "pcm_s16le", "mp3": "libmp3lame"}.get(name, "aac")
            stream: Any = output.add_stream(codec, rate=44_100)
            for i in range(40):
                frame = av.AudioFrame.from_ndarray(
                    np.zeros((1, 1152 * 2), np.int16), format="s16", layout="stereo"
                )
                frame.sample_rate, frame.pts = 44_100, i * 1152
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        assert _reason(path.read_bytes()) is MediaReason.NO_VIDEO_TRACK


def test_a_changed_configuration_is_refused(tmp_path: Path) -> None:
    """FLV may bring a new decoder configuration at any time; ours is set up once."""
    small = make_video(tmp_path / "a", container="flv", frames=20).read_bytes()
    large = make_video(tmp_path / "b", container="flv", frames=20, size=(256, 192)).read_bytes()
    assert _reason(small + large[13:]) is MediaReason.UNSUPPORTED_CODEC
