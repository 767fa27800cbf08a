"""Random 16-frame clips of local 720p files: dstream beside torchcodec, decord and PyAV.

    python bench/speed_cpu.py VIDEOS [--only h264-gop250] [--sizes full,256] [--json OUT]

All contenders have two cores and take turns, so that ratios hold while the machine's speed
drifts. Each is timed in its steady state: the clips after the first few, from a stream that does
not end; each clip counts by the frames from its keyframe to its end. dstream's frames are compared
bit by bit with a decode of the whole file before that.
torchcodec and decord must be importable (``make bench`` sees to it); one that is not is named.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

import dstream
from bench_repo import NAME, ingest_in_place
from bench_videos import RATE, linked, make_bench_video
from dstream.loader import Batch, Clips
from dstream.loader.partitions import GROUP_PARTITIONS
from local_peers import (
    CORES,
    FRAMES,
    Contender,
    Place,
    decord_contenders,
    pyav_contenders,
    torchcodec_contenders,
)

PER_GOP = 8
_ROUND_CLIPS = GROUP_PARTITIONS * PER_GOP
SMALL = (256, 456)
"""(height, width): the shorter side at 256, the longer one even."""


@dataclass(frozen=True)
class Video:
    """One kind of file, and how far ahead of its best peer dstream must be there."""

    name: str
    gop: int
    codec: str
    b_frames: int
    target_full: float
    target_small: float
    target_per_gop: float | None = None


VIDEOS = (
    Video("h264-gop250", 250, "libx264", 3, 1.35, 1.6, 5.0),
    Video("h264-gop30", 30, "libx264", 3, 1.2, 1.5),
    Video("hevc-gop250", 250, "libx265", 3, 1.35, 1.6),
    Video("h264-gop250-no-b", 250, "libx264", 0, 1.0, 1.0),
)
TARGET_OVER_OPENING = 1.5
"""Against peers that open the file for each clip."""


class Ours:
    """The loader over an artifact; every turn goes on with a seed of its own."""

    def __init__(self, repo: dstream.Repo, size: tuple[int, int] | None, **more: Any) -> None:
        self._repo, self._size, self._more, self._turn = repo, size, more, 0

    def clips(self) -> Clips:
        self._turn += 1
        return self._repo.clips(NAME, frames=FRAMES, stride=1, seed=self._turn, resize=self._size)

    def batches(self) -> Generator[Batch]:
        clips = self.clips()
        with clips.loader(1, workers=CORES, epochs=None, **self._more) as loader:
            yield from loader

    def stream(self, places: Iterator[Place]) -> Generator[object]:
        return self.batches()


def our_contenders(
    repo: dstream.Repo, video: Video, size: tuple[int, int] | None
) -> list[Contender]:
    found = [Contender("dstream", Ours(repo, size).stream, "ours")]
    if video.target_per_gop is not None:
        several = Ours(repo, size, clips_per_gop=PER_GOP)
        found.append(Contender(f"dstream, clips_per_gop={PER_GOP}", several.stream, "several"))
    return found


def contenders(
    repo: dstream.Repo, video: Video, size: tuple[int, int] | None
) -> tuple[list[Contender], dict[str, str]]:
    """All that can run, and why the others cannot."""
    found, missing = our_contenders(repo, video, size), dict[str, str]()
    for name, make in (
        ("torchcodec", torchcodec_contenders),
        ("decord", decord_contenders),
        ("PyAV", pyav_contenders),
    ):
        try:
            found += make(size)
        except (ImportError, OSError, RuntimeError) as error:
            missing[name] = str(error).splitlines()[0]
    return found, missing


def check_exact(ours: Ours, folder: Path, clips: int) -> int:
    """Compare clips, at full size, with a decode of the file from its start; returns how many."""
    wanted: dict[Path, dict[int, NDArray[np.uint8]]] = {}
    stream = ours.batches()
    for _ in range(clips):
        batch = next(stream)
        first = round(float(batch.pts_s[0, 0]) * RATE)
        pictures = np.asarray(batch.video[0])
        # A key is a file's name, with or without what follows the dot.
        path = (folder / batch.keys[0]).with_suffix(".mp4")
        frames = wanted.setdefault(path, {})
        frames |= {first + i: pictures[i] for i in range(FRAMES)}
    stream.close()
    for path, frames in wanted.items():
        left = dict(frames)
        with av.open(str(path)) as container:
            for number, frame in enumerate(container.decode(video=0)):
                got = left.pop(number, None)
                if got is not None and not np.array_equal(
                    got.transpose(1, 2, 0), frame.to_ndarray(format="rgb24")
                ):
                    raise SystemExit(f"{path}: frame {number} is not what a whole decode gives")
                if not left:
                    break
    return clips


def draw_places(paths: list[Path], frames: int, seed: int) -> Iterator[Place]:
    generator = np.random.default_rng(seed)
    while True:
        path = paths[int(generator.integers(len(paths)))]
        yield Place(path, int(generator.integers(0, frames - FRAMES)))


class Drawn(Iterator[Place]):
    """The places of a turn, remembered."""

    def __init__(self, places: Iterator[Place]) -> None:
        self._places = places
        self.frames: list[int] = []

    def __next__(self) -> Place:
        place = next(self._places)
        self.frames.append(place.frame)
        return place


@dataclass(frozen=True)
class Turn:
    """How long a contender is asked for clips."""

    warm: int
    """Clips that are not counted."""
    clips: int
    limit_s: float
    at_once: int = 1
    """Clips are counted in whole rounds of so many."""

    def rate(self, stream: Iterator[object], drawn: Drawn, gop: int) -> float:
        """Clips a second, each counted by its share of an average clip's frames.

        A clip in the middle of a GOP takes the frames from the keyframe on. A turn is short, so
        some draw later clips than others, and would seem slower.
        """
        for _ in range(self.warm):
            next(stream)
        began_s, starts = time.perf_counter(), list[int]()
        while len(starts) < self.clips and time.perf_counter() - began_s < self.limit_s:
            for _ in range(self.at_once):
                item = next(stream)
                at = self.warm + len(starts)  # all but dstream give the clips in order
                starts.append(
                    round(float(item.pts_s[0, 0]) * RATE)
                    if isinstance(item, Batch)
                    else drawn.frames[at]
                )
        took_s = time.perf_counter() - began_s
        if self.at_once > 1:  # one decode gives several of them
            return len(starts) / took_s
        frames = sum(start % gop + FRAMES for start in starts)
        return frames / ((gop - 1) / 2 + FRAMES) / took_s


def take_turns(
    entries: list[Contender], paths: list[Path], video: Video, arguments: argparse.Namespace
) -> None:
    """The first round opens files and starts workers, and is not counted."""
    frames = arguments.seconds * RATE
    for round_number in range(-1, arguments.rounds):
        counted = round_number >= 0
        for entry in entries:
            drawn = Drawn(draw_places(paths, frames, seed=100 + round_number))
            stream = entry.stream(drawn)
            turn = Turn(4, arguments.clips if counted else 2, arguments.limit_s)
            if entry.kind == "several" and counted:
                # Whole rounds of the eight groups that are under way at a time: most of their
                # clips come at once, after a while in which none does.
                turn = Turn(_ROUND_CLIPS, 2 * _ROUND_CLIPS, arguments.limit_s, _ROUND_CLIPS)
            rate = turn.rate(stream, drawn, video.gop)
            stream.close()
            if counted:
                entry.rates.append(rate)
                print(f"  round {round_number}: {entry.name}: {rate:.2f}", file=sys.stderr)


def prepare(folder: Path, video: Video, seconds: int, copies: int) -> list[Path]:
    original = make_bench_video(
        folder / f"{video.name}-{seconds}s.mp4",
        duration_s=seconds,
        gop=video.gop,
        codec=video.codec,
        b_frames=video.b_frames,
    )
    return linked(original, folder / f"{video.name}-{seconds}s", copies)


def verdicts(entries: list[Contender], video: Video, small: bool) -> list[dict[str, Any]]:
    """Each promised ratio, with what came out."""
    best = {
        kind: max((e for e in entries if e.kind == kind), key=lambda e: e.rate, default=None)
        for kind in ("ours", "several", "kept", "opened")
    }
    ours, peers = best["ours"], [e for e in (best["kept"], best["opened"]) if e is not None]
    if ours is None or not peers:
        return []
    peer = max(peers, key=lambda e: e.rate)
    asked = [(ours, peer, video.target_small if small else video.target_full)]
    if best["opened"] is not None:
        asked.append((ours, best["opened"], TARGET_OVER_OPENING))
    if best["several"] is not None and video.target_per_gop is not None:
        asked.append((best["several"], peer, video.target_per_gop))
    return [
        {
            "ours": mine.name,
            "peer": other.name,
            "ratio": round(statistics.median(by_round(mine, other)), 2),
            "ratio_by_round": [round(ratio, 2) for ratio in by_round(mine, other)],
            "target": target,
        }
        for mine, other, target in asked
    ]


def by_round(mine: Contender, other: Contender) -> list[float]:
    return [a / b for a, b in zip(mine.rates, other.rates, strict=True)]


def print_result(result: dict[str, Any]) -> None:
    print(f"\n{result['video']}, {result['size']}: {result['exact_clips']} clips bit-exact")
    for row in result["rows"]:
        print(f"  {row['name']:54} {row['clips_per_s']:7.2f} clips/s")
    for name, reason in result["missing"].items():
        print(f"  {name:54} skipped: {reason}")
    for line in result["verdicts"]:
        met = "met" if line["ratio"] >= line["target"] else "MISSED"
        pair = f"{line['ours']} / {line['peer']}"
        print(f"  {pair}: {line['ratio']:.2f} (target {line['target']}: {met})")


def measure(
    video: Video, sizes: list[str], repo_folder: Path, arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    paths = prepare(arguments.videos, video, arguments.seconds, arguments.copies)
    ingest_in_place(str(repo_folder), str(paths[0].parent))
    with dstream.open(repo_folder) as repo:
        exact = check_exact(Ours(repo, None), paths[0].parent, arguments.exact_clips)
        for size in sizes:
            shape = None if size == "full" else SMALL
            entries, missing = contenders(repo, video, shape)
            take_turns(entries, paths, video, arguments)
            rows = [
                {
                    "name": entry.name,
                    "kind": entry.kind,
                    "clips_per_s": round(entry.rate, 2),
                    "clips_per_s_by_round": [round(rate, 2) for rate in entry.rates],
                }
                for entry in entries
            ]
            yield {
                "video": video.name,
                "size": size,
                "exact_clips": exact,
                "rows": rows,
                "missing": missing,
                "verdicts": verdicts(entries, video, small=shape is not None),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("videos", type=Path, help="folder for the videos; made where they lack")
    parser.add_argument("--only", help="names of videos, by commas", default="")
    parser.add_argument("--sizes", help="full, 256, or both", default="full,256")
    parser.add_argument("--seconds", type=int, default=200, help="length of each video")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--clips", type=int, default=24, help="in a turn")
    parser.add_argument("--limit-s", type=float, default=4.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exact-clips", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    only = arguments.only.split(",") if arguments.only else [video.name for video in VIDEOS]
    results = []
    for video in (video for video in VIDEOS if video.name in only):
        with tempfile.TemporaryDirectory() as scratch:
            for result in measure(video, arguments.sizes.split(","), Path(scratch), arguments):
                print_result(result)
                results.append(result)
    if arguments.json:
        arguments.json.write_text(json.dumps({"frames": FRAMES, "runs": results}, indent=1))


if __name__ == "__main__":
    main()
