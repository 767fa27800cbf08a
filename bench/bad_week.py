"""A bad week at full scale: 5% 503, 2% resets, 1% cut bodies, 1% stalls of 10 s, 1% wrong bytes.

    AWS_ENDPOINT_URL=http://127.0.0.1:9002 python bench/bad_week.py VIDEOS --bucket some-bucket

The same epoch of a packed data set twice, without and with the mishaps: the hashes of all batches
must be equal, and the loader's counts those of the server in between. Exit code 1 where not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np

import dstream
from bench_repo import NAME
from bench_videos import make_bench_video
from dstream.measure import Meter, Snapshot
from dstream.store.opening import StoreOptions, open_store

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from s3_bad_week import BadWeek
from s3_stub import forward_to, stub_server

STALL_S = 10.0


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--seconds", type=int, default=120, help="length of each video")
    parser.add_argument("--videos", type=int, default=4)
    parser.add_argument("--resize", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    endpoint_url = os.environ["AWS_ENDPOINT_URL"]
    folder = given.folder / f"bad-week-{given.seconds}s"
    for number in range(given.videos):
        make_bench_video(folder / f"{number}.mp4", duration_s=given.seconds, gop=30)
    repo = f"s3://{given.bucket}/bad-week-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", "dstream_cli"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([*command, "init", repo, "--json"], **quiet)  # type: ignore[call-overload]
    ingest = ["ingest", str(folder), "--name", NAME, "--repo", repo, "--json"]
    subprocess.run([*command, *ingest], **quiet)  # type: ignore[call-overload]
    try:
        with stub_server() as front:
            front.answer = right = forward_to(endpoint_url)
            expected, _, calm_s = epoch(repo, front.endpoint_url, given.resize)
            week = BadWeek(
                right,
                seed=given.seed,
                stall_s=STALL_S,
                has_checksum=lambda request: request.path.endswith(".tar"),
            )
            front.answer = week
            got, counts, bad_s = epoch(repo, front.endpoint_url, given.resize)
    finally:
        store = open_store(repo)
        store.delete_many([(info.key, info.version) for info in store.list()])
        store.close()
    counted = counts.event("retry") | {"wrong": counts.event("refetch").get("checksum", 0)}
    happened = {**dict.fromkeys(counted, 0), **week.happened}
    print(f"{week.reads} reads, {bad_s:.1f} s (calm: {calm_s:.1f} s)")
    print(f"happened {dict(sorted(happened.items()))}")
    print(f"counted  {dict(sorted(counted.items()))}")
    print(f"batches {'equal' if got == expected else 'DIFFER'}")
    return 0 if got == expected and counted == happened else 1


if __name__ == "__main__":
    sys.exit(main())
