"""How much of a round trip the loader hides: its rate at 0, 20 and 80 ms, against a real S3 server.

    AWS_ENDPOINT_URL=http://127.0.0.1:9002 python bench/hidden_wan.py VIDEOS --bucket some-bucket

Clips of videos left in place, through bench/delay_relay.py, interleaved; each ratio is the median
over the rounds of rate / rate at 0 ms of the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dstream
from bench_repo import NAME, ingest_in_place
from bench_videos import make_bench_video
from dstream.store.opening import StoreOptions, open_store
from spread import spread

TARGETS = {20.0: 0.95, 80.0: 0.90}


@contextmanager
def delayed(endpoint_url: str, rtt_ms: float) -> Iterator[str]:
    """The endpoint behind a relay with this round trip; 0 ms goes through a relay as well."""
    port = urlsplit(endpoint_url).port or 80
    relay = [str(Path(__file__).with_name("delay_relay.py")), str(port), "--rtt-ms", str(rtt_ms)]
    with subprocess.Popen([sys.executable, *relay], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def measure(repo: str, endpoint_url: str, given: argparse.Namespace) -> dict[str, Any]:
    options = StoreOptions(endpoint_url=endpoint_url)
    with dstream.open(repo, options=options) as opened:
        clips = opened.clips(NAME, frames=16, resize=given.resize)
        with clips.loader(given.batch_size, epochs=None, prefetch=given.prefetch) as loader:
            for _ in range(max(1, given.clips // 4 // given.batch_size)):
                next(loader)  # tables are read and the number of fetchers is found
            before = loader.report()
            for _ in range(given.clips // given.batch_size):
                next(loader)
            after = loader.report()
    clips_fetched = after.clips - before.clips
    return {
        "clips_per_s": clips_fetched / (after.wall_seconds - before.wall_seconds),
        "requests_per_clip": after.data_requests_per_clip,
        "bytes_to_gops": after.bytes_received / after.bytes_of_gops,
        "fetchers": after.fetchers,
        "bottleneck": after.bottleneck,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--seconds", type=int, default=60, help="length of each video")
    parser.add_argument("--videos", type=int, default=2)
    parser.add_argument("--gop", type=int, default=30)
    parser.add_argument("--resize", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    endpoint_url = os.environ["AWS_ENDPOINT_URL"]
    source = f"s3://{given.bucket}/hidden-wan"
    store = open_store(source)
    names = [f"{number}.mp4" for number in range(given.videos)]
    for name in names:
        path = given.folder / f"wan-gop{given.gop}-{given.seconds}s" / name
        store.upload(name, make_bench_video(path, duration_s=given.seconds, gop=given.gop))
    rounds: list[dict[float, dict[str, Any]]] = []
    try:
        with tempfile.TemporaryDirectory() as repo:
            ingest_in_place(repo, source)
            for _ in range(given.rounds):
                found = {}
                for rtt_ms in (0.0, *TARGETS):
                    with delayed(endpoint_url, rtt_ms) as url:
                        found[rtt_ms] = measure(repo, url, given)
                rounds.append(found)
    finally:
        store.delete_many([(name, None) for name in names])
        store.close()
    rows = [
        {
            "rtt_ms": rtt_ms,
            "of_rate_at_0_ms": [
                found[rtt_ms]["clips_per_s"] / found[0.0]["clips_per_s"] for found in rounds
            ],
            **{
                name: statistics.median(found[rtt_ms][name] for found in rounds)
                for name in ("clips_per_s", "requests_per_clip", "bytes_to_gops", "fetchers")
            },
            "bottleneck": rounds[-1][rtt_ms]["bottleneck"],
        }
        for rtt_ms in rounds[0]
    ]
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        target = TARGETS.get(row["rtt_ms"])
        print(
            f"{row['rtt_ms']:>3.0f} ms: {row['clips_per_s']:.1f} clips/s, "
            f"{spread(row['of_rate_at_0_ms'])} of the rate at 0 ms"
            + (f" (target >= {target})" if target else "")
            + f"; {row['requests_per_clip']:.2f} requests a clip, {row['bytes_to_gops']:.3f} of "
            f"the GOPs' bytes, {row['fetchers']:.0f} fetchers. {row['bottleneck']}"
        )


if __name__ == "__main__":
    main()
