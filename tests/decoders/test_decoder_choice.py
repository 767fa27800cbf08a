"""What NVDEC is given: a table, and what parameter sets say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext

from decoder_runs import Video
from dstream.media.decoders.choice import Capabilities, Coding, Limits, refusal
from dstream.media.decoders.nvdec_backend import feed_of
from dstream.media.parameter_sets import is_progressive, parameter_sets, starts_at_corner
from made_video import make_video

HD = Limits(48, 4096, 16, 4096, 65536)
UHD = Limits(144, 8192, 144, 8192, 262144)
# NVIDIA's application note of NVDEC (Video Codec SDK 13.0): Hopper has neither AV1 nor High 10.
HOPPER = Capabilities(
    7,
    {("h264", 8): HD, ("hevc", 8): UHD, ("hevc", 10): UHD, ("hevc", 12): UHD, ("vp9", 8): UHD},
)
BLACKWELL = Capabilities(4, {**HOPPER.formats, ("h264", 10): HD, ("av1", 8): UHD, ("av1", 10): UHD})


@pytest.mark.parametrize(
    ("coding", "device", "expected"),
    [
        (Coding("h264", "yuv420p", 1920, 1080), HOPPER, None),
        (Coding("h264", "yuvj420p", 1920, 1080), HOPPER, None),
        (Coding("hevc", "yuv420p10le", 3840, 2160), HOPPER, None),
        (Coding("hevc", "yuv420p12le", 3840, 2160), HOPPER, None),
        (Coding("av1", "yuv420p", 1920, 1080), HOPPER, "nvdec_no_av1"),
        (Coding("av1", "yuv420p10le", 1920, 1080), HOPPER, "nvdec_no_av1"),
        (Coding("av1", "yuv420p10le", 1920, 1080), BLACKWELL, None),
        (Coding("h264", "yuv420p10le", 1920, 1080), HOPPER, "nvdec_no_h264_high10"),
        (Coding("h264", "yuv420p10le", 1920, 1080), BLACKWELL, None),
        (Coding("h264", "yuv422p", 1920, 1080), BLACKWELL, "nvdec_no_h264_high422"),
        (Coding("h264", "yuv444p", 1920, 1080), BLACKWELL, "nvdec_no_h264_high444"),
        (Coding("hevc", "yuv444p", 1920, 1080), BLACKWELL, "nvdec_no_hevc_yuv444p"),
        (Coding("vp9", "yuv420p10le", 1920, 1080), HOPPER, "nvdec_no_vp9_yuv420p10le"),
        (Coding("prores", "yuv422p10le", 1920, 1080), BLACKWELL, "nvdec_no_prores"),
        (Coding("mpeg2video", "yuv420p", 720, 576), BLACKWELL, "nvdec_no_mpeg2video"),
        (Coding("h264", "yuv420p", 1920, 1080, is_interlaced=True), HOPPER, "nvdec_interlaced"),
        (Coding("hevc", "yuv420p", 64, 64, starts_at_corner=False), HOPPER, "nvdec_cropped"),
        (Coding("h264", "yuv420p", 64, 64, is_constant=False), HOPPER, "nvdec_changes"),
        (Coding("h264", "yuv420p", 1919, 1080), HOPPER, "nvdec_odd_size"),
        (Coding("h264", "yuv420p", 32, 32), HOPPER, "nvdec_too_small"),
        (Coding("h264", "yuv420p", 4098, 1080), HOPPER, "nvdec_too_large"),
        (Coding("hevc", "yuv420p", 7680, 4320), HOPPER, None),
        # Within both sides' limits, and too many macroblocks: what broke vLLM's decoders.
        (Coding("h264", "yuv420p", 4096, 4096), HOPPER, None),
        (
            Coding("h264", "yuv420p", 4096, 4096),
            Capabilities(7, {("h264", 8): replace(HD, max_macroblocks=36864)}),
            "nvdec_too_large",
        ),
        (Coding("h264", "yuv420p", 1920, 1080), Capabilities(0, {}), "nvdec_no_h264"),
    ],
)
def test_choice(coding: Coding, device: Capabilities, expected: str | None) -> None:
    assert refusal(coding, device) == expected


X264 = "threads=1:sliced-threads=0"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"pix_fmt": "yuv444p"}, True),
        ({"pix_fmt": "yuv420p10le"}, True),
        ({"options": {"x264-params": f"{X264}:cqm=jvt"}}, True),
        ({"options": {"x264-params": f"{X264}:interlaced=1"}}, False),
        ({"codec": "libx265"}, True),
    ],
)
def test_fields_are_told_from_frames(
    tmp_path: Path, options: dict[str, Any], expected: bool
) -> None:
    run = Video(tmp_path / "v", **{"frames": 10, "gop": 10, **options}).run()
    feed = feed_of(run)
    sets = parameter_sets(run.track.codec, feed.packets[0])
    assert len(sets) == (3 if run.track.codec == "hevc" else 2)
    assert is_progressive(run.track.codec, sets) is expected
    assert feed.coding.is_interlaced is not expected


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize(
    ("cropped", "expected"), [("", True), ("right=4:bottom=2", True), ("left=2", False)]
)
def test_a_picture_that_begins_inside_the_coded_one_is_told(
    tmp_path: Path, codec: str, cropped: str, expected: bool
) -> None:
    path = make_video(tmp_path / "v", codec=codec, frames=2, container="mpegts")
    name = {"libx264": "h264", "libx265": "hevc"}[codec]
    options = ":".join(f"crop_{side}" for side in cropped.split(":") if side)
    with av.open(str(path)) as opened:
        track = opened.streams.video[0]
        rewritten = BitStreamFilterContext(f"{name}_metadata={options}".rstrip("="), track)
        packet = next(opened.demux(track))
        stream = b"".join(bytes(out) for out in rewritten.filter(packet))
    assert starts_at_corner(name, parameter_sets(name, stream)) is expected


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libvpx-vp9", "libsvtav1"])
def test_a_picture_size_that_changes_within_a_run_is_told(tmp_path: Path, codec: str) -> None:
    made = {"codec": codec, "frames": 20, "gop": 10}
    if codec in ("libx264", "libx265"):
        made["container"] = "mpegts"  # has parameter sets in the stream
    small, large = (
        Video(tmp_path / f"{size}", size=size, **made).run(frames=20)
        for size in ((128, 96), (160, 96))
    )
    assert feed_of(small).coding.is_constant
    joined = replace(small, packets=[*small.packets, *large.packets])
    assert not feed_of(joined).coding.is_constant


@pytest.mark.parametrize("codec", ["h264", "vp9"])
def test_packets_without_anything_to_feed_do_not_end_the_stream(tmp_path: Path, codec: str) -> None:
    encoder = {"h264": "libx264", "vp9": "libvpx-vp9"}[codec]
    run = Video(tmp_path / "v", codec=encoder, frames=10, gop=10).run(frames=10)
    packets = list(run.packets)
    nothing = bytes(4) if codec == "h264" else b""
    packets[4] = replace(packets[4], data=nothing)
    feed = feed_of(replace(run, packets=packets))
    assert all(feed.packets)
    assert feed.pts == tuple(p.pts for p in (*packets[:4], *packets[5:]))


def test_unreadable_parameter_sets_are_not_trusted() -> None:
    rng = np.random.default_rng(5)
    for size in range(1, 40):
        is_progressive("h264", [b"\x67" + rng.bytes(size)])
        starts_at_corner("hevc", [b"\x42\x01" + rng.bytes(size)])
    assert not starts_at_corner("hevc", [])
    assert not starts_at_corner("hevc", [b"\x42\x01" + bytes(12)])
    assert not is_progressive("h264", [])
    assert not is_progressive("h264", [b"\x67"])
    assert not is_progressive("h264", [b"\x67" + b"\xff" * 3])
    assert not is_progressive("h264", [b"\x67\x42\x00\x0a" + bytes(40)])
    assert not is_progressive("hevc", [b"\x42\x01\x01"])


def test_interlaced_hevc_is_told() -> None:
    head = b"\x42\x01\x01\x01\x60\x00\x00\x03\x00"  # with a byte that keeps a start code out
    assert is_progressive("hevc", [head + b"\x90\x00"])
    assert not is_progressive("hevc", [head + b"\x40\x00"])
