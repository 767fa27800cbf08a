"""Random clips of videos made on the spot, bit for bit against a decode of the whole file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from dstream.format.index import VideoIndex
from dstream.measure.counters import Meter
from dstream.media.clip import ClipPlan, ClipRequest, NeedMoreData, plan_clip
from dstream.media.codec import DecodeTally, decode_packets, open_decoder
from dstream.media.decode import ClipDecoder, DecodedClip, packets_of
from dstream.media.pixels import PixelSettings
from made_video import make_video, read_frame_number
from plain_index import plain_index
from sequential import all_frames, array_hash, planes, sequential, upright_rgb

X264 = "threads=1:sliced-threads=0"
VIDEOS: dict[str, dict[str, Any]] = {
    "h264-no-b": {"b_frames": 0},
    "h264-b3": {"b_frames": 3},
    "h264-pyramid": {"options": {"x264-params": f"{X264}:bframes=8:b-pyramid=normal:ref=4"}},
    "h264-open-gop": {"options": {"x264-params": f"{X264}:bframes=3:open-gop=1"}},
    "h264-intra-refresh": {
        "b_frames": 0,
        "options": {"x264-params": f"{X264}:intra-refresh=1:keyint=12"},
    },
    "h264-interlaced": {"options": {"x264-params": f"{X264}:interlaced=1"}},
    "h264-10-bit": {"pix_fmt": "yuv420p10le"},
    "h264-4:4:4": {"pix_fmt": "yuv444p"},
    "h264-vfr": {"vfr": True},
    "h264-turned": {"rotation_deg": 90},
    "h264-fragmented": {"container": "mp4-fragmented"},
    "hevc-open-gop": {"codec": "libx265", "b_frames": 3},
    "hevc-10-bit": {"codec": "libx265", "pix_fmt": "yuv420p10le"},
    "vp9": {"codec": "libvpx-vp9", "options": {"lag-in-frames": "16", "auto-alt-ref": "1"}},
    "av1": {"codec": "libsvtav1"},
    "mpeg4-b": {"codec": "mpeg4"},
    "mpeg2-b": {"codec": "mpeg2video", "container": "mov"},
    "mjpeg": {"codec": "mjpeg", "pix_fmt": "yuvj420p", "container": "mov"},
    "prores": {"codec": "prores_ks", "pix_fmt": "yuv422p10le", "container": "mov"},
    "ffv1": {"codec": "ffv1", "container": "avi"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


def made(folder: Path, name: str) -> Path:
    path = folder / name.replace(":", "")
    if not path.exists():
        make_video(path, **{"frames": 60, "gop": 10, **VIDEOS[name]})
    return path


def fetch(path: Path, plan: ClipPlan) -> list[bytes]:
    data = path.read_bytes()
    return [data[e.offset_bytes : e.offset_bytes + e.size_bytes] for e in plan.extents]


def decode(path: Path, decoder: ClipDecoder, index: VideoIndex, plan: ClipPlan) -> DecodedClip:
    while True:
        try:
            return decoder.decode(index, plan, fetch(path, plan))
        except NeedMoreData as need:
            plan = need.plan


def random_requests(index: VideoIndex, count: int, frames: int = 6) -> list[ClipRequest]:
    rng = np.random.default_rng(7)
    track = index.track
    kinds: list[dict[str, Any]] = [{"stride": 1}, {"stride": 2}, {"stride": 4}, {"fps": 10.0}]
    return [
        ClipRequest(
            start_s=rng.uniform(0, track.duration_s),
            frames=frames,
            start_pts=track.start_pts,
            end_pts=track.end_pts,
            **kinds[i % len(kinds)],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("name", VIDEOS)
def test_clips_equal_a_decode_of_the_whole_file(folder: Path, name: str) -> None:
    path = made(folder, name)
    index = plain_index(path)
    whole = sequential(path, 0, upright_rgb)
    assert len(whole.hashes) == 60
    number = {pts: i for i, pts in enumerate(whole.pts)}
    decoder = ClipDecoder(PixelSettings(), Meter())
    for request in random_requests(index, 24):
        clip = decode(path, decoder, index, plan_clip(index, request))
        numbers = [number[pts] for pts in clip.pts.tolist()]
        assert clip.frame_index is not None
        assert clip.frame_index.tolist() == numbers
        assert [array_hash(frame) for frame in clip.video] == [whole.hashes[n] for n in numbers]


@pytest.mark.parametrize("name", sorted(set(VIDEOS) - {"h264-intra-refresh"}))
def test_planes_of_single_frames_equal_a_decode_of_the_whole_file(folder: Path, name: str) -> None:
    path = made(folder, name)
    index = plain_index(path)
    whole = {f.pts: [array_hash(p) for p in planes(f)] for f in all_frames(path, 0)}
    for request in random_requests(index, 8, frames=1):
        plan: ClipPlan | None = plan_clip(index, request)
        assert plan is not None
        assert plan.target_pts is not None
        (target,) = plan.target_pts.tolist()
        found = decoded_planes(path, index, plan, target)
        assert found == whole[target]


def decoded_planes(path: Path, index: VideoIndex, plan: ClipPlan, target: int) -> list[int]:
    packets, _ = packets_of(index, plan, fetch(path, plan))
    frames = decode_packets(
        open_decoder(index.track), index.track, packets, {target}, DecodeTally()
    )
    return next(
        ([array_hash(p) for p in planes(frame)] for frame in list(frames) if frame.pts == target),
        [],
    )


def test_the_frames_are_those_that_were_drawn(folder: Path) -> None:
    path = made(folder, "h264-open-gop")
    index = plain_index(path)
    request = ClipRequest(
        start_s=0.5,
        frames=5,
        stride=3,
        start_pts=index.track.start_pts,
        end_pts=index.track.end_pts,
    )
    clip = decode(path, ClipDecoder(PixelSettings(), Meter()), index, plan_clip(index, request))
    drawn = [read_frame_number(frame.mean(axis=0)) for frame in clip.video]
    assert drawn == [15, 18, 21, 24, 27]
    assert clip.pts_s.tolist() == pytest.approx([n / 30 for n in drawn])


def test_every_frame_of_intra_refresh_is_exact(folder: Path) -> None:
    """Also where the encoder's frame counter (4 bits) wraps at a keyframe: at frame 48."""
    path = made(folder, "h264-intra-refresh")
    index = plain_index(path)
    assert index.gops.key_pts.tolist() == [0, 6144, 12288, 18432, 24576]
    whole = sequential(path, 0, upright_rgb)
    meter = Meter()
    decoder = ClipDecoder(PixelSettings(), meter)
    for number in range(60):
        request = ClipRequest(
            start_s=number / 30, frames=1, stride=1, start_pts=0, end_pts=index.track.end_pts
        )
        clip = decode(path, decoder, index, plan_clip(index, request))
        assert array_hash(clip.video[0]) == whole.hashes[number]
    assert meter.snapshot().event("fallback") == {"earlier-gop": 12 + 2 * 36}


def test_unreferenced_lead_in_is_skipped_and_counted(folder: Path) -> None:
    path = made(folder, "h264-b3")
    index = plain_index(path)
    meter = Meter()
    request = ClipRequest(
        start_s=19 / 30, frames=1, stride=1, start_pts=0, end_pts=index.track.end_pts
    )
    decoder = ClipDecoder(PixelSettings(), meter)
    clip = decode(path, decoder, index, plan_clip(index, request))
    sums = meter.snapshot().sums
    assert clip.frames_skipped > 0
    assert clip.frames_decoded + clip.frames_skipped <= 10
    assert sums["frames.decoded"] == clip.frames_decoded
    assert sums["frames.skipped"] == clip.frames_skipped
    assert sums["frames.delivered"] == 1
    assert sums["bytes.unverified"] > 0
    assert {"seconds.decode", "seconds.convert"} <= sums.keys()


def test_edit_lists_hide_frames_that_are_still_decoded(folder: Path, tmp_path: Path) -> None:
    """Copy packets from the middle of a GOP on: mp4 keeps the lead-in behind an edit list."""
    path = tmp_path / "cut.mp4"
    with av.open(str(made(folder, "h264-b3"))) as source, av.open(str(path), "w") as output:
        stream = source.streams.video[0]
        copy = output.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.pts is None or packet.dts is None or packet.time_base is None:
                continue
            shift = round(4 / 30 / packet.time_base)
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
            packet.stream = copy
            output.mux(packet)
    index = plain_index(path)
    assert index.packets is not None
    assert len(index.packets) == 60
    assert index.track.frame_count is not None
    assert index.track.frame_count < 60
    whole = sequential(path, 0, upright_rgb)
    assert len(whole.pts) == index.track.frame_count
    decoder = ClipDecoder(PixelSettings(), Meter())
    for request in [*random_requests(index, 8), random_requests(index, 1, frames=50)[0]]:
        clip = decode(path, decoder, index, plan_clip(index, request))
        assert clip.frame_index is not None
        expected = [whole.hashes[i] for i in clip.frame_index.tolist()]
        assert [array_hash(frame) for frame in clip.video] == expected


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_an_encoder_makes_no_thread_of_the_tests_real_time(tmp_path: Path) -> None:
    before = os.sched_getscheduler(0)
    make_video(tmp_path / "v.mp4", codec="libsvtav1", frames=2)
    assert os.sched_getscheduler(0) == before == os.SCHED_OTHER
