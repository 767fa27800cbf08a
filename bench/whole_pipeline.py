"""The whole pipeline against each of its stages alone, on the same clips and threads.

    python bench/whole_pipeline.py VIDEOS                  local files
    AWS_ENDPOINT_URL=... python bench/whole_pipeline.py VIDEOS --source s3://bucket/videos

The figure is whole / slowest stage, the median over interleaved rounds; the target is 0.9. Takes
about two minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import dstream
from bench_repo import NAME, ingest_in_place
from bench_videos import linked, make_bench_video
from dstream.loader.reader import ClipReader, PlannedClip
from dstream.media.decode import ClipDecoder
from spread import spread


def in_threads(threads: int, work: Callable[[int], None]) -> float:
    """Seconds until all threads have done their share; each gets its number."""
    began_s = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return time.perf_counter() - began_s


def fetch_alone(reader: ClipReader, planned: Sequence[PlannedClip], threads: int) -> float:
    def work(first: int) -> None:
        for clip in planned[first::threads]:
            reader.fetch(clip)

    return len(planned) / in_threads(threads, work)


def decode_alone(
    reader: ClipReader, planned: Sequence[PlannedClip], data: Sequence[list[bytes]], threads: int
) -> float:
    def work(first: int) -> None:
        decoder = ClipDecoder(reader.settings.pixels, reader.meter)
        out: np.ndarray[Any, Any] | None = None
        for clip, pieces in zip(planned[first::threads], data[first::threads], strict=True):
            out = reader.decode(decoder, clip, pieces, out).decoded.video

    return len(planned) / in_threads(threads, work)


def whole(clips: dstream.Clips, given: argparse.Namespace) -> float:
    with clips.loader(given.batch_size, epochs=None, workers=given.workers) as loader:
        next(loader)
        began_s = time.perf_counter()
        for _ in range(given.clips // given.batch_size):
            next(loader)
        clips_taken: int = given.clips // given.batch_size * given.batch_size
        return clips_taken / (time.perf_counter() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", default="", help="of the videos, instead of the folder")
    parser.add_argument("--seconds", type=int, default=20, help="length of each video")
    parser.add_argument("--videos", type=int, default=2)
    parser.add_argument("--gop", type=int, default=30)
    parser.add_argument("--resize", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clips", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    folder = given.folder / f"whole-gop{given.gop}-{given.seconds}s"
    original = folder.with_suffix(".mp4")
    make_bench_video(original, duration_s=given.seconds, gop=given.gop)
    linked(original, folder, given.videos)
    rates: dict[str, list[float]] = {"fetch": [], "decode": [], "whole": []}
    with tempfile.TemporaryDirectory() as repo:
        ingest_in_place(repo, given.source or str(folder))
        with dstream.open(repo) as opened:
            clips = opened.clips(NAME, frames=16, resize=given.resize, array="numpy")
            loader = clips.loader(given.batch_size)
            reader, order = loader._reader, loader.order
            planned = [reader.plan(order.draw(position)) for position in range(given.clips)]
            data = [reader.fetch(clip) for clip in planned]
            for _ in range(given.rounds):
                rates["fetch"].append(fetch_alone(reader, planned, 16))
                rates["decode"].append(decode_alone(reader, planned, data, given.workers))
                rates["whole"].append(whole(clips, given))
    shares = [w / min(f, d) for f, d, w in zip(*rates.values(), strict=True)]
    row: dict[str, Any] = {
        "whole_of_slowest_stage": statistics.median(shares),
        **{f"{name}_clips_per_s": statistics.median(got) for name, got in rates.items()},
    }
    if given.json:
        print(json.dumps(row, indent=2))
        return
    told = ", ".join(f"{name} {spread(got, '.1f')}" for name, got in rates.items())
    print(f"{told} clips/s: {spread(shares)} of the slowest stage (target >= 0.9)")


if __name__ == "__main__":
    main()
