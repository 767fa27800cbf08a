"""Videos for the benchmarks: 720p, textured and moving, at a stated bitrate. Made once, kept.

python bench/bench_videos.py FOLDER [--seconds 200]
"""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

WIDTH, HEIGHT, RATE = 1280, 720, 30


def make_bench_video(
    path: Path,
    *,
    duration_s: int,
    gop: int,
    b_frames: int = 3,
    codec: str = "libx264",
    bit_rate: int = 5_000_000,
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> Path:
    """Encode one video to ``path`` unless it is there; a half-written one never is."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part.mp4")
    with av.open(str(unfinished), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream(codec, rate=RATE)
        if not isinstance(stream, av.VideoStream):
            raise SystemExit(f"{codec} is no video encoder")
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = bit_rate
        stream.gop_size = gop
        stream.codec_context.max_b_frames = b_frames
        stream.codec_context.thread_count = 2
        stream.options = {"preset": "veryfast"}
        if codec == "libx264":
            stream.options |= {"x264-params": f"keyint={gop}:min-keyint={gop}:scenecut=0:slices=1"}
        else:
            stream.options |= {"x265-params": f"keyint={gop}:min-keyint={gop}:log-level=none"}
        for number in range(duration_s * RATE):
            frame = av.VideoFrame.from_ndarray(_picture(number), format="yuv420p")
            frame = frame.reformat(*size)
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    unfinished.rename(path)
    return path


def linked(original: Path, folder: Path, copies: int) -> list[Path]:
    """So many names for one video in a folder: encoding each would take longer than measuring."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.mp4" for number in range(copies)]
    for path in paths:
        if not path.exists():
            path.hardlink_to(original)
    return paths


def _texture() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """uint8 [1440, 2560] of smooth blobs with fine grain, the same on every machine."""
    generator = np.random.default_rng(7)
    coarse = generator.integers(0, 256, (45, 80)).astype(np.float32)
    smooth = np.kron(coarse, np.ones((32, 32), np.float32))
    for axis in (0, 1):
        smooth = np.mean([np.roll(smooth, shift, axis) for shift in range(-12, 13)], axis=0)
    grain = generator.normal(0, 9, smooth.shape)
    return np.clip(smooth + grain, 16, 235).astype(np.uint8)


_TEXTURE = _texture()


def _picture(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """One yuv420p frame, uint8 [1080, 1280]: a slow pan with a faster moving square."""
    top, left = (number * 2) % 700, (number * 3) % 1200
    luma = _TEXTURE[top : top + HEIGHT, left : left + WIDTH].copy()
    x, y = (number * 11) % (WIDTH - 160), (number * 7) % (HEIGHT - 160)
    luma[y : y + 160, x : x + 160] = _TEXTURE[x : x + 160, y : y + 160]
    chroma = _TEXTURE[left // 4 : left // 4 + HEIGHT // 2, top : top + WIDTH]
    return np.concatenate([luma, (chroma // 3 + 85).astype(np.uint8)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=int, default=200)
    arguments = parser.parse_args()
    for gop in (30, 250):
        name = f"h264-gop{gop}-{arguments.seconds}s.mp4"
        path = make_bench_video(arguments.folder / name, duration_s=arguments.seconds, gop=gop)
        rate = path.stat().st_size * 8 / arguments.seconds / 1e6
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB  {rate:.2f} Mbit/s")


if __name__ == "__main__":
    main()
