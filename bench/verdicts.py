"""Is the verdict of `dstream bench` right? Runs whose cause is known, and what its advice gains.

    AWS_ENDPOINT_URL=http://... python bench/verdicts.py FOLDER --bucket some-bucket
    python bench/verdicts.py FOLDER --only disk,gops,threads,consumer,queue

Each set-up is made for real: delay, a narrow link and 503s by the measuring proxy before the S3
server, a slow disk by pacing what the cache reads, the others by settings. The bench names a cause
and promises a gain; its advice is followed and the bench run again. Each rate is the median of
--rounds runs, which take turns. About six minutes; videos are made once and kept in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench_repo import NAME, ingest_in_place
from bench_videos import make_bench_video
from dstream.cache.segment import read_extent
from dstream.clock import SystemClock
from dstream.diagnose.bench.document import BenchDocument, Cause, Verdict
from dstream.diagnose.proxy import MeasuringProxy, user_upstream
from dstream.diagnose.shaping import Fault, FaultKind, Pacer, Shape
from dstream.store.opening import open_store

DISK_BYTES_PER_S = "DSTREAM_BENCH_DISK_BYTES_PER_S"
QUICK = {"--frames": "4", "--sampling": "keyframe", "--resize": "128x128"}
"""Clips that are cheap to decode: fetching is what counts."""


@dataclass(frozen=True)
class Setup:
    """One run: which data, through what, with which options."""

    cause: Cause
    options: Mapping[str, str] = field(default_factory=dict)
    repo: str = "local"
    shape: Shape | None = None
    """Of the proxy before the server."""
    disk_bytes_per_s: float | None = None

    def following(self, verdict: Verdict) -> Setup:
        """The set-up after somebody did what the verdict says."""
        value = verdict.new_value or ""
        if verdict.cause is Cause.BANDWIDTH and self.shape is not None:
            width = float(value.split()[0]) * 1e6
            return replace(self, shape=replace(self.shape, bytes_per_s=width))
        if verdict.cause is Cause.THROTTLING and self.shape is not None:
            return replace(self, shape=replace(self.shape, faults=()))
        if verdict.setting == "cache":
            kept = {k: v for k, v in self.options.items() if not k.startswith("--cache")}
            return replace(self, options=kept)
        if verdict.setting is None:
            return self
        option = "--" + verdict.setting.replace("_", "-")
        return replace(self, options={**self.options, option: value})


def set_ups(cache: str) -> dict[str, Setup]:
    cached = {**QUICK, "--cache": cache, "--cache-bytes": "1GB"}
    busy = Fault(FaultKind.SLOW_DOWN, 0.5)
    return {
        "delay": Setup(Cause.DELAY, {**QUICK, "--fetchers": "2"}, "s3", Shape(delay_s=0.1)),
        "bandwidth": Setup(Cause.BANDWIDTH, QUICK, "s3", Shape(bytes_per_s=2e6)),
        "throttling": Setup(Cause.THROTTLING, QUICK, "s3", Shape(delay_s=0.02, faults=(busy,))),
        "disk": Setup(Cause.DISK, cached, disk_bytes_per_s=1e6),
        "gops": Setup(Cause.LONG_GOPS, {"--frames": "8", "--resize": "128x128"}, "long"),
        "threads": Setup(Cause.DECODE_THREADS, {"--resize": "128x128", "--workers": "1"}, "large"),
        "consumer": Setup(Cause.CONSUMER, {**QUICK, "--step-ms": "400"}),
        "queue": Setup(
            Cause.QUEUE,
            {"--resize": "128x128", "--batch-size": "1", "--prefetch": "1"},
            "large",
        ),
    }


@contextmanager
def environment(setup: Setup) -> Iterator[dict[str, str]]:
    """What the bench runs in: behind a proxy where the set-up has one."""
    base = {name: value for name, value in os.environ.items() if name != "DSTREAM_CACHE"}
    if setup.disk_bytes_per_s is not None:
        base[DISK_BYTES_PER_S] = str(setup.disk_bytes_per_s)
    if setup.shape is None:
        yield base
        return
    with MeasuringProxy(user_upstream(), setup.shape).serving() as proxy:
        yield proxy.environment(base)


def bench(setup: Setup, repo: str, seconds: float) -> BenchDocument:
    options = [part for pair in setup.options.items() for part in pair]
    command = [sys.executable, __file__, "--as-dstream", "bench", NAME, "--repo", repo, "--json"]
    with environment(setup) as environ:
        ran = subprocess.run(
            [*command, "--seconds", str(seconds), *options],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return BenchDocument.parse(ran.stdout)


def as_dstream(arguments: list[str]) -> None:
    """Run the command line, on a disk that is as slow as the environment says."""
    from dstream_cli.main import main as command_line

    sys.argv = ["dstream", *arguments]
    width = os.environ.get(DISK_BYTES_PER_S)
    if width is None:
        command_line()
        return
    link = Pacer(float(width), SystemClock())

    def slow(*given: Any) -> bytes:
        data = read_extent(*given)
        link.pass_through(len(data))
        return data

    with patch("dstream.cache.cache.read_extent", slow):
        command_line()


def rate(documents: list[BenchDocument]) -> float:
    return statistics.median(document.whole.clips_per_second for document in documents)


def measure(name: str, setup: Setup, repo: str, given: argparse.Namespace) -> dict[str, Any]:
    if "--cache" in setup.options:  # fill it, at full speed
        bench(replace(setup, disk_bytes_per_s=None), repo, given.seconds)
    before = [bench(setup, repo, given.seconds)]
    verdict = before[0].verdict
    better = setup.following(verdict)
    after = [bench(better, repo, given.seconds)]
    for _ in range(given.rounds - 1):
        before.append(bench(setup, repo, given.seconds))
        after.append(bench(better, repo, given.seconds))
    gain = rate(after) / rate(before)
    return {
        "name": name,
        "expected_cause": setup.cause,
        "causes": [document.verdict.cause for document in before],
        "sentence": verdict.sentence,
        "clips_per_s": rate(before),
        "promised_gain": verdict.expected_gain,
        "actual_gain": gain,
        "actual_over_promised": gain / verdict.expected_gain,
        "explained_share": min(document.whole.explained_share for document in before + after),
    }


@contextmanager
def in_bucket(bucket: str, video: Path) -> Iterator[str]:
    """The URL of a folder of a bucket that holds the video while this lasts."""
    url = f"s3://{bucket}/verdicts"
    store = open_store(url)
    store.upload(video.name, video)
    try:
        yield url
    finally:
        store.delete_many([(video.name, None)])
        store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bucket", default="", help="without, those that need a server are left")
    parser.add_argument("--only", default="", help="names of set-ups, with commas")
    parser.add_argument("--seconds", type=float, default=10, help="of each run")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    made: dict[str, Any] = {"duration_s": 60, "bit_rate": 1_000_000, "size": (480, 270)}
    short = make_bench_video(given.folder / "verdicts-gop30" / "0.mp4", gop=30, **made)
    long = make_bench_video(given.folder / "verdicts-gop250" / "0.mp4", gop=250, **made)
    large = make_bench_video(given.folder / "verdicts-720p" / "0.mp4", duration_s=20, gop=30)
    with (
        tempfile.TemporaryDirectory() as work,
        in_bucket(given.bucket, short) if given.bucket else nullcontext("") as source,
    ):
        repos = {name: f"{work}/{name}" for name in ("local", "long", "large", "s3")}
        for name, video in (("local", short), ("long", long), ("large", large)):
            ingest_in_place(repos[name], str(video.parent))
        if source:
            ingest_in_place(repos["s3"], source)
        rows = []
        for name, setup in set_ups(f"{work}/cache").items():
            wanted = name in given.only.split(",") if given.only else True
            if wanted and (source or setup.repo != "s3"):
                row = measure(name, setup, repos[setup.repo], given)
                rows.append(row)
                if not given.json:
                    tell(row)
    if given.json:
        print(json.dumps(rows, indent=2))


def tell(row: Mapping[str, Any]) -> None:
    is_right = all(cause == row["expected_cause"] for cause in row["causes"])
    print(
        f"{row['name']}: {'right' if is_right else 'WRONG, expected ' + str(row['expected_cause'])}"
        f"; {row['clips_per_s']:.3g} clips/s, promised {row['promised_gain']:.2f}x, actual "
        f"{row['actual_gain']:.2f}x, ratio {row['actual_over_promised']:.2f} (target 0.67 to 1.5); "
        f"{row['explained_share']:.1%} of the time explained\n  {row['sentence']}",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-dstream"]:
        as_dstream(sys.argv[2:])
    else:
        main()
