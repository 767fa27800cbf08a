"""The conversion to Annex B against FFmpeg's own bitstream filters, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import pytest
from av.bitstream import BitStreamFilterContext
from hypothesis import given, settings
from hypothesis import strategies as st

from dstream.errors import MediaError, MediaReason
from dstream.media.annexb import annexb_of, nal_units
from made_video import make_video
from media_outcomes import videos

X264 = "threads=1:sliced-threads=0"
X265 = "pools=1:frame-threads=1:log-level=none"
VIDEOS: dict[str, dict[str, Any]] = {
    "h264": {},
    "h264-slices": {"options": {"x264-params": f"{X264}:slices=4"}},
    "h264-repeated-sets": {"options": {"x264-params": f"{X264}:repeat-headers=1"}},
    "h264-open-gop": {"options": {"x264-params": f"{X264}:bframes=3:open-gop=1:aud=1"}},
    "h264-refresh": {"options": {"x264-params": f"{X264}:bframes=0:intra-refresh=1"}},
    "h264-mkv": {"container": "mkv"},
    "h264-ts": {"container": "mpegts"},
    "hevc": {"codec": "libx265"},
    "hevc-repeated-sets": {
        "codec": "libx265",
        "options": {"x265-params": f"{X265}:repeat-headers=1:aud=1:open-gop=1:bframes=3"},
    },
    "hevc-mkv": {"codec": "libx265", "container": "mkv"},
    "hevc-ts": {"codec": "libx265", "container": "mpegts"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("annexb")


@contextmanager
def h264_or_hevc(path: Path) -> Iterator[tuple[Any, str, BitStreamFilterContext] | None]:
    """The file, its codec and FFmpeg's filter; None where it has no such track."""
    with av.open(str(path)) as opened:
        tracks = [s for s in opened.streams.video if s.codec_context.name in ("h264", "hevc")]
        if not tracks:
            yield None
            return
        codec = tracks[0].codec_context.name
        yield opened, codec, BitStreamFilterContext(f"{codec}_mp4toannexb", tracks[0])


def compared(path: Path, limit: int = 1 << 30) -> int:
    """Packets that were converted like FFmpeg's filter converts them, or refused like there."""
    count = 0
    with h264_or_hevc(path) as found:
        if found is None:
            return 0
        opened, codec, theirs = found
        track = theirs_track(opened, codec)
        ours = annexb_of(codec, bytes(track.codec_context.extradata or b""))
        for packet in opened.demux(track):
            if not packet.size or count == limit:
                break
            data = bytes(packet)
            try:
                expected = b"".join(bytes(out) for out in theirs.filter(packet))
            except av.FFmpegError:
                with pytest.raises(MediaError):
                    ours.convert(data)
                break
            assert ours.convert(data) == expected, f"{path}, packet {count}"
            count += 1
    return count


def theirs_track(opened: Any, codec: str) -> Any:
    return next(s for s in opened.streams.video if s.codec_context.name == codec)


@pytest.mark.parametrize("name", VIDEOS)
def test_made_videos_are_converted_like_ffmpeg_does(folder: Path, name: str) -> None:
    path = make_video(folder / name, **{"frames": 40, "gop": 10, **VIDEOS[name]})
    assert compared(path) == 40


@pytest.mark.media
def test_real_videos_are_converted_like_ffmpeg_does(media_dir: Path) -> None:
    counts = []
    for path in videos(media_dir):
        try:
            counts.append(compared(path, limit=400))
        except (av.FFmpegError, OSError):
            continue  # no media
    assert sum(count > 0 for count in counts) > 20


UNITS = {"h264": (1, 5, 6, 7, 8, 9, 12), "hevc": (1, 19, 21, 32, 33, 34, 35, 39)}


@pytest.fixture(scope="module")
def tracks(folder: Path) -> Iterator[dict[str, Any]]:
    """A track of each codec, for its configuration."""
    opened = []
    found = {}
    for codec in UNITS:
        path = make_video(folder / f"{codec}-fuzz", frames=10, gop=10, **VIDEOS[codec])
        opened.append(av.open(str(path)))
        found[codec] = opened[-1].streams.video[0]
    yield found
    for container in opened:
        container.close()


@pytest.mark.parametrize("codec", UNITS)
def test_any_sequence_of_units_is_converted_like_ffmpeg_does(
    tracks: dict[str, Any], codec: str
) -> None:
    track = tracks[codec]
    packet = st.lists(
        st.tuples(st.sampled_from(UNITS[codec]), st.binary(min_size=1, max_size=5), st.booleans()),
        min_size=1,
        max_size=6,
    )

    @settings(max_examples=150)
    @given(st.lists(packet, min_size=1, max_size=5), st.integers(0, 3))
    def check(packets: list[list[tuple[int, bytes, bool]]], cut: int) -> None:
        theirs = BitStreamFilterContext(f"{codec}_mp4toannexb", track)
        ours = annexb_of(codec, bytes(track.codec_context.extradata))
        for number, units in enumerate(packets):
            data = b"".join(prefixed(codec, *unit) for unit in units)
            if number == len(packets) - 1 and cut:
                data = data[:-cut]
            given_packet = av.Packet(len(data))
            given_packet.update(data)
            try:
                expected = b"".join(bytes(out) for out in theirs.filter(given_packet))
            except av.FFmpegError:
                with pytest.raises(MediaError):
                    ours.convert(data)
                return
            assert ours.convert(data) == expected

    check()


def prefixed(codec: str, kind: int, payload: bytes, is_first_slice: bool) -> bytes:
    """A unit behind its length; of H.264 slices the first bit says whether it begins a picture."""
    head = bytes([0x60 | kind]) if codec == "h264" else bytes([kind << 1, 1])
    body = bytes([payload[0] & 0x7F | is_first_slice << 7]) + payload[1:]
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


AVCC = bytes.fromhex("0164001fffe1 0004 67640020 01 0002 68ee")
HVCC = bytes(21) + bytes.fromhex("03 01 a1 0001 0003 420102")


@pytest.mark.parametrize(
    ("codec", "extradata"),
    [
        ("h264", AVCC[:6]),  # shorter than any avcC
        ("h264", AVCC[:12]),  # ends before the number of picture parameter sets
        ("h264", AVCC[:-1]),  # the last set is cut
        ("h264", AVCC[:6] + b"\xff\xff" + AVCC[8:]),  # a length beyond the record
        ("hevc", HVCC[:24]),  # ends within an array's head
        ("hevc", HVCC[:-1]),
        ("hevc", HVCC[:23] + b"\x01" + HVCC[24:]),  # a slice among the parameter sets
        ("hevc", HVCC[:26] + b"\0\0" + HVCC[28:]),  # a set without bytes
    ],
)
def test_damaged_configurations_are_refused(codec: str, extradata: bytes) -> None:
    annexb_of(codec, AVCC if codec == "h264" else HVCC)
    with pytest.raises(MediaError) as refusal:
        annexb_of(codec, extradata)
    assert refusal.value.reason is MediaReason.DAMAGED


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@given(data=st.binary(max_size=40))
def test_hostile_packets_are_converted_or_refused(codec: str, data: bytes) -> None:
    converter = annexb_of(codec, AVCC if codec == "h264" else HVCC)
    try:
        converted = converter.convert(data)
    except MediaError:
        return
    assert len(converted) <= 2 * len(data) + 2 * len(converter.header) + 4


def test_the_header_holds_the_parameter_sets() -> None:
    assert [bytes(u) for u in nal_units(annexb_of("h264", AVCC).header)] == [
        bytes.fromhex("67640020"),
        bytes.fromhex("68ee"),
    ]
