"""Commits a second with one writer and with eight, the longest that one of them waited for one,
and the time of a pin as the catalog grows.

    python bench/commit_rates.py /tmp/bench-repo
    AWS_ENDPOINT_URL=http://127.0.0.1:9302 python bench/commit_rates.py s3://bucket/prefix

A commit here is a publish of a manifest of 100 bytes: two writes. Each figure has a repository of
its own below the URL, which is left behind.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
import uuid
from dataclasses import replace

from dstream.catalog import Catalog, Generation
from dstream.catalog.compaction import compact
from dstream.catalog.edits import with_entries
from dstream.catalog.log import LogReader
from dstream.clock import SystemClock
from dstream.format.refs import ObjectRef
from dstream.format.root import Artifact, encode_root, log_key, sha256_hex
from dstream.measure import Meter
from dstream.store.base import Store
from dstream.store.opening import open_store

SIZES = (1, 1_000, 100_000)
SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--pins", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    base = f"{given.url.rstrip('/')}/{uuid.uuid4().hex[:8]}"
    figures: dict[str, float] = {}
    for writers in (1, 8):
        rate, longest_s = commits(f"{base}/w{writers}", writers, given.seconds)
        figures[f"commits_per_s_{writers}_writers"] = rate
        figures[f"longest_commit_s_{writers}_writers"] = longest_s
    for size in SIZES if given.pins else ():
        figures[f"pin_ms_{size}_generations"] = pin_ms(f"{base}/g{size}", size, given.pins)
    if given.json:
        json.dump(figures, sys.stdout)
        return
    for name, value in figures.items():
        print(f"{name:32} {value:10.2f}")


def commits(url: str, writers: int, seconds: float) -> tuple[float, float]:
    """Commits a second of all writers together, from the first one's start to the last one's end;
    and the longest that one commit took, seconds."""
    Catalog.create(open_store(url))
    ready = SPAWN.Barrier(writers + 1)
    counts = SPAWN.Queue()
    processes = [
        SPAWN.Process(target=write, args=(url, seconds, ready, counts)) for _ in range(writers)
    ]
    for process in processes:
        process.start()
    ready.wait()
    begun_s = time.monotonic()
    said = [counts.get() for _ in processes]
    took_s = time.monotonic() - begun_s
    for process in processes:
        process.join()
    return sum(done for done, _ in said) / took_s, max(longest_s for _, longest_s in said)


def write(url: str, seconds: float, ready: object, counts: object) -> None:
    """Publish until the time is up; puts the number of commits and the longest one's seconds."""
    catalog = Catalog.open(open_store(url))
    session = catalog.begin_session()
    ready.wait()  # type: ignore[attr-defined]
    until_s = time.monotonic() + seconds
    done, longest_s = 0, 0.0
    while (begun_s := time.monotonic()) < until_s:
        catalog.publish(session, f"run-{done % 4}", "checkpoint", b"x" * 100)
        done += 1
        longest_s = max(longest_s, time.monotonic() - begun_s)
    counts.put((done, longest_s))  # type: ignore[attr-defined]


def pin_ms(url: str, generations: int, pins: int) -> float:
    """Median time of a pin of everything, with the newest root in memory."""
    store = open_store(url)
    fill(store, generations)
    catalog = Catalog.open(store)
    catalog.head()
    times = []
    for number in range(pins):
        begun_s = time.monotonic()
        catalog.pin(pin_id=f"p{number}")
        times.append(time.monotonic() - begun_s)
    return statistics.median(times) * 1000


def fill(store: Store, count: int) -> None:
    """A repository as ``count`` publishes leave it, written at once."""
    Catalog.create(store)
    log = LogReader(store, SystemClock(), Meter())
    head = log.refresh()
    entries, artifacts = [], {}
    for number in range(min(100, count)):
        name, rows = f"run-{number:02d}", count // min(100, count)
        for version in range(1, rows + 1):
            ref = ObjectRef("_ds/man/x", 100, sha256_hex(f"{name}{version}".encode()))
            entries.append(Generation(name, version, "checkpoint", ref, 1, "s", 0, 1e9))
        artifacts[name] = Artifact("checkpoint", rows + 1)
    root = replace(
        with_entries(head.root, entries),
        seq=1,
        prev_sha256=head.sha256,
        txn_id=uuid.uuid4().hex,
        artifacts=artifacts,
        aliases={name: {"latest": row.next_version - 1} for name, row in artifacts.items()},
    )
    root = compact(root, 1, log.shards.write, whole=True)
    store.put_if_absent(log_key(1), encode_root(root))


if __name__ == "__main__":
    main()
