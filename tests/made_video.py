"""Small videos made on the spot, the same bytes for the same arguments.

Every frame shows its own number (16 blocks, one a bit, in the top rows), so that a test can tell
which frame it was given even after lossy coding: see :func:`read_frame_number`.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

# name -> (libav's muxer, its options)
CONTAINERS: dict[str, tuple[str, dict[str, str]]] = {
    "mp4": ("mp4", {"movflags": "faststart"}),
    "mp4-moov-end": ("mp4", {}),
    "mov": ("mov", {}),
    "mp4-fragmented": (  # no sidx, no mfra
        "mp4",
        {"movflags": "frag_keyframe+empty_moov+default_base_moof+skip_trailer"},
    ),
    "mp4-fragmented-mfra": ("mp4", {"movflags": "frag_keyframe+empty_moov+default_base_moof"}),
    "mp4-fragmented-sidx": (
        "mp4",
        {"movflags": "frag_keyframe+empty_moov+default_base_moof+global_sidx+skip_trailer"},
    ),
    "mp4-fragmented-dash": ("mp4", {"movflags": "frag_keyframe+dash+delay_moov+skip_trailer"}),
    "mkv": ("matroska", {}),
    "mkv-cues-front": ("matroska", {"cues_to_front": "1"}),
    "mkv-no-cues": ("matroska", {"live": "1"}),
    "webm": ("webm", {}),
    "webm-no-cues": ("webm", {"live": "1"}),
    "mpegts": ("mpegts", {}),
    "m2ts": ("mpegts", {"mpegts_m2ts_mode": "1"}),
    "flv": ("flv", {}),
    "avi": ("avi", {}),
    "mpegps": ("vob", {}),
}

_FIXED_OPTIONS = {
    "libx264": {"x264-params": "sliced-threads=0:threads=1:force-cfr=0", "preset": "veryfast"},
    "libx265": {"x265-params": "pools=1:frame-threads=1:log-level=none", "preset": "ultrafast"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "threads": "1"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8", "threads": "1"},
    "libsvtav1": {"preset": "12", "svtav1-params": "lp=1"},
}
_BIT_BLOCKS = 16


def frame_image(number: int, size: tuple[int, int], seed: int = 0) -> NDArray[np.uint8]:
    """The luma and chroma of frame ``number`` as planar I420, shape (height * 3 // 2, width)."""
    width, height = size
    generator = np.random.default_rng((seed, number))
    rows = np.arange(height, dtype=np.int32)[:, None]
    columns = np.arange(width, dtype=np.int32)[None, :]
    luma = ((rows * 2 + columns + 5 * number + 31 * seed) % 160 + 40).astype(np.uint8)
    top, left = generator.integers(0, [max(1, height - 16), max(1, width - 16)])
    luma[top : top + 16, left : left + 16] = generator.integers(30, 220)
    block = width // _BIT_BLOCKS
    strip = max(8, height // 8)
    for bit in range(_BIT_BLOCKS):
        luma[:strip, bit * block : (bit + 1) * block] = 220 if number >> bit & 1 else 30
    image = np.full((height * 3 // 2, width), 128, dtype=np.uint8)
    image[:height] = luma
    image[height : height + height // 4] = (100 + 3 * number) % 200 + 20
    return image


def read_frame_number(luma: NDArray[np.uint8]) -> int:
    """The number that :func:`frame_image` drew, from a decoded luma plane (height, width)."""
    height, width = luma.shape
    block = width // _BIT_BLOCKS
    strip = max(8, height // 8)
    number = 0
    for bit in range(_BIT_BLOCKS):
        middle = luma[2 : strip - 2, bit * block + 1 : (bit + 1) * block - 1]
        number |= int(middle.mean() > 125) << bit
    return number


def make_video(
    path: Path,
    *,
    codec: str = "libx264",
    frames: int = 120,
    size: tuple[int, int] = (128, 96),
    rate: int = 30,
    gop: int = 30,
    b_frames: int = 2,
    container: str = "mp4",
    options: Mapping[str, str] | None = None,
    vfr: bool = False,
    audio: bool = False,
    seed: int = 0,
    pix_fmt: str = "yuv420p",
    rotation_deg: int = 0,
    container_options: Mapping[str, str] | None = None,
) -> Path:
    """Encode a video and return ``path``.

    Args:
        path: where to write; its suffix does not matter.
        codec: libav's encoder name.
        frames: how many.
        size: (width, height), both even, width at least 64.
        rate: frames per second; with ``vfr`` the average is somewhat lower.
        gop: frames from one keyframe to the next.
        b_frames: consecutive B-frames, for encoders that have them.
        container: a key of ``CONTAINERS``.
        options: encoder options, added last.
        vfr: uneven frame durations, from ``seed``.
        audio: interleave an AAC (Opus in webm) track.
        seed: another seed, other pictures.
        pix_fmt: what the encoder gets.
        rotation_deg: clockwise turn written into the mp4 track header: 0, 90, 180 or 270.
        container_options: muxer options, added last.
    """
    muxer, muxer_options = CONTAINERS[container]
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        _scheduling_kept(),
        av.open(
            str(path),
            "w",
            format=muxer,
            container_options={"fflags": "+bitexact", **muxer_options, **(container_options or {})},
        ) as output,
    ):
        video: Any = output.add_stream(codec, rate=rate)
        video.width, video.height = size
        video.pix_fmt = pix_fmt
        context = video.codec_context
        context.time_base = Fraction(1, 90_000 if vfr else rate)
        context.gop_size = gop
        context.thread_count = 1
        context.options = {**_encoder_options(codec, gop, b_frames), **(options or {})}
        sound: Any = None
        if audio:
            sound = output.add_stream(
                "libopus" if muxer == "webm" else "mp2" if muxer == "vob" else "aac", rate=48_000
            )
        _write_frames(output, video, sound, frames, size, rate, pix_fmt, vfr, seed)
    if rotation_deg:
        _write_rotation(path, rotation_deg)
    return path


def frame_times(frames: int, rate: int, vfr: bool, seed: int = 0) -> list[int]:
    """Presentation times that :func:`make_video` gives: 1/rate s ticks, or 1/90000 s if vfr."""
    if not vfr:
        return list(range(frames))
    generator = np.random.default_rng((seed, 77))
    nominal = 90_000 // rate
    steps = generator.integers(nominal // 3, nominal * 2, size=frames)
    return [int(t) for t in np.concatenate([[0], np.cumsum(steps)[:-1]])]


@contextmanager
def _scheduling_kept() -> Iterator[None]:
    """SVT-AV1, as root, leaves the thread that opens it at SCHED_FIFO 99.

    Each process started afterwards would inherit that, and starve the servers of the tests.
    """
    if sys.platform != "linux":
        yield
        return
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameter)


def _encoder_options(codec: str, gop: int, b_frames: int) -> dict[str, str]:
    options = dict(_FIXED_OPTIONS.get(codec, {}))
    options["g"] = str(gop)
    if codec == "libx264":
        options |= {"bf": str(b_frames), "keyint_min": str(gop), "sc_threshold": "0"}
        options["flags"] = "+bitexact"
    elif codec == "libx265":
        options["x265-params"] += f":bframes={b_frames}:keyint={gop}:min-keyint={gop}:scenecut=0"
    elif codec in ("mpeg4", "mpeg2video"):
        options["bf"] = str(b_frames)
    return options


def _write_frames(
    output: Any,
    video: Any,
    sound: Any,
    frames: int,
    size: tuple[int, int],
    rate: int,
    pix_fmt: str,
    vfr: bool,
    seed: int,
) -> None:
    time_base = Fraction(1, 90_000 if vfr else rate)
    sample = 0
    for number, pts in enumerate(frame_times(frames, rate, vfr, seed)):
        frame = av.VideoFrame.from_ndarray(frame_image(number, size, seed), format="yuv420p")
        if pix_fmt != "yuv420p":
            frame = frame.reformat(format=pix_fmt)
        frame.pts, frame.time_base = pts, time_base
        output.mux(video.encode(frame))
        while sound is not None and sample / 48_000 < float(pts * time_base):
            output.mux(sound.encode(_tone(sample, sound)))
            sample += 1024
    output.mux(video.encode(None))
    if sound is not None:
        output.mux(sound.encode(None))


def _tone(start_sample: int, sound: Any) -> av.AudioFrame:
    t = (np.arange(1024) + start_sample) / 48_000
    wave = (np.sin(2 * np.pi * 440 * t) * 8000).astype(np.int16)
    frame = av.AudioFrame.from_ndarray(np.stack([wave, wave], 1).reshape(1, -1), "s16", "stereo")
    frame.sample_rate, frame.pts, frame.time_base = 48_000, start_sample, Fraction(1, 48_000)
    resampled = av.AudioResampler(sound.format, sound.layout, 48_000).resample(frame)
    return resampled[0]


def _write_rotation(path: Path, rotation_deg: int) -> None:
    """Set the matrix of every video track header (ISO/IEC 14496-12 8.3.2) in place."""
    cos, sin = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[rotation_deg]
    data = bytearray(path.read_bytes())
    position = data.find(b"tkhd")
    while position >= 0:
        matrix_at = position + 4 + (52 if data[position + 4] == 1 else 40)
        width = struct.unpack_from(">I", data, matrix_at + 36)[0]
        if width:  # audio tracks have none
            one = 0x10000
            struct.pack_into(
                ">9i", data, matrix_at, cos * one, sin * one, 0, -sin * one, cos * one, 0, 0, 0,
                1 << 30,
            )  # fmt: skip
        position = data.find(b"tkhd", position + 4)
    path.write_bytes(bytes(data))
