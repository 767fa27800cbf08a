"""A bad week at full scale: 5% 503, 2% resets, 1% cut bodies, 1% stalls of 10 s, 1% wrong bytes.

    AWS_ENDPOINT_URL=http://127.0.0.1:9002 python bench/bad_week.py VIDEOS --bucket some-bucket

The same epoch of a packed data set twice, without and with the mishaps: the hashes of all batches
must be equal, and the loader's counts those of the server in between. Exit code 1 where not.

    AWS_ENDPOINT_URL=... python bench/bad_week.py VIDEOS --bucket some-bucket --outage-s 600

Instead of mishaps the server resets every connection for ten minutes, in the middle of the epoch.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import dstream
from bench_repo import NAME
from bench_videos import make_bench_video
from dstream.measure import Meter, Snapshot
from dstream.store.opening import StoreOptions, open_store

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from s3_bad_week import BadWeek
from s3_stub import Answerer, Reply, Request, Stub, forward_to, stub_server

STALL_S = 10.0
READS_BEFORE_OUTAGE = 20
RETRIES_S = 30.0
"""An outage is one when retries were in vain for up to so long, and ends with the next of them."""


def epoch(repo: str, endpoint_url: str, resize: int) -> tuple[str, Snapshot, float]:
    """Hash of all batches, what was counted, and seconds."""
    meter, digest = Meter(), hashlib.sha256()
    began_s = time.perf_counter()
    options = StoreOptions(endpoint_url=endpoint_url)
    with dstream.open(repo, options=options, meter=meter) as opened:
        clips = opened.clips(NAME, frames=16, resize=resize, array="numpy")
        with clips.loader(4) as loader:
            for batch in loader:
                digest.update(np.ascontiguousarray(np.asarray(batch.video)).tobytes())
    return digest.hexdigest(), meter.snapshot(), time.perf_counter() - began_s


class Outage:
    """Answers some reads, resets every connection for a while, and answers again."""

    def __init__(self, inner: Answerer, lasts_s: float) -> None:
        self._inner, self._lasts_s = inner, lasts_s
        self._lock = threading.Lock()
        self._reads, self._until_s = 0, 0.0
        self.resets = 0

    def __call__(self, request: Request) -> Reply:
        with self._lock:
            self._reads += 1
            if self._reads == READS_BEFORE_OUTAGE:
                self._until_s = time.monotonic() + self._lasts_s
            if time.monotonic() < self._until_s:
                self.resets += 1
                return Reply(reset=True)
        return self._inner(request)


@contextmanager
def packed(given: argparse.Namespace) -> Iterator[str]:
    """A repository with a packed data set of the videos; deleted afterwards."""
    folder = given.folder / f"bad-week-{given.seconds}s"
    for number in range(given.videos):
        make_bench_video(folder / f"{number}.mp4", duration_s=given.seconds, gop=30)
    repo = f"s3://{given.bucket}/bad-week-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", "dstream_cli"]
    for verb in (
        ["init", repo],
        ["ingest", str(folder), "--name", NAME, "--repo", repo],
    ):
        subprocess.run([*command, *verb, "--json"], check=True, stdout=subprocess.DEVNULL)
    try:
        yield repo
    finally:
        store = open_store(repo)
        store.delete_many([(info.key, info.version) for info in store.list()])
        store.close()


def mishaps(front: Stub, repo: str, right: Answerer, given: argparse.Namespace) -> tuple[str, bool]:
    """Hash of an epoch in a bad week, and whether each mishap was counted."""
    front.answer = week = BadWeek(
        right,
        seed=given.seed,
        stall_s=STALL_S,
        has_checksum=lambda request: request.path.endswith(".tar"),
    )
    got, counts, bad_s = epoch(repo, front.endpoint_url, given.resize)
    counted = counts.event("retry") | {"wrong": counts.event("refetch").get("checksum", 0)}
    happened = {**dict.fromkeys(counted, 0), **week.happened}
    print(f"{week.reads} reads, {bad_s:.1f} s")
    print(f"happened {dict(sorted(happened.items()))}")
    print(f"counted  {dict(sorted(counted.items()))}")
    return got, counted == happened


def outage(front: Stub, repo: str, right: Answerer, given: argparse.Namespace) -> tuple[str, bool]:
    """Hash of an epoch with an outage, and whether it was counted as one of about its length."""
    front.answer = down = Outage(right, given.outage_s)
    got, counts, took_s = epoch(repo, front.endpoint_url, given.resize)
    times = sum(counts.event("outage").values())
    waited_s = counts.sums.get("seconds.outage", 0.0)
    print(f"{down.resets} connections reset, {took_s:.1f} s")
    print(f"counted  {times} outage of {waited_s:.1f} s")
    return got, times == 1 and given.outage_s - RETRIES_S < waited_s < given.outage_s + RETRIES_S


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--seconds", type=int, default=120, help="length of each video")
    parser.add_argument("--videos", type=int, default=4)
    parser.add_argument("--resize", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outage-s", type=float, help="an outage so long instead of mishaps")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    right = forward_to(os.environ["AWS_ENDPOINT_URL"])
    with packed(given) as repo, stub_server() as front:
        front.answer = right
        expected, _, calm_s = epoch(repo, front.endpoint_url, given.resize)
        print(f"calm: {calm_s:.1f} s")
        trouble = outage if given.outage_s else mishaps
        got, is_counted = trouble(front, repo, right, given)
    print(f"batches {'equal' if got == expected else 'DIFFER'}")
    return 0 if got == expected and is_counted else 1


if __name__ == "__main__":
    sys.exit(main())
