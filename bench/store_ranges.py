"""Ranged reads of one S3 object: dstream's reader against boto3's ``get_object``.

Prints MB/s, reads/s and CPU per read for two sizes of range. CPU is this process's alone.

    python bench/store_ranges.py --endpoint-url http://127.0.0.1:9002 --bucket some-bucket
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from dstream.store.opening import StoreOptions, open_store

KEY = "bench/store_ranges.bin"
OBJECT_BYTES = 128 * 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint-url")
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    client = boto3.client(
        "s3",
        endpoint_url=given.endpoint_url,
        config=Config(
            max_pool_connections=given.threads,
            s3={"addressing_style": "path" if given.endpoint_url else "auto"},
        ),
    )
    store = open_store(
        f"s3://{given.bucket}", options=StoreOptions(endpoint_url=given.endpoint_url)
    )
    prepare(client, given.bucket, store)

    def by_dstream(start: int, stop: int) -> int:
        return len(store.get(KEY, start, stop).data)

    def by_boto3(start: int, stop: int) -> int:
        answer = client.get_object(Bucket=given.bucket, Key=KEY, Range=f"bytes={start}-{stop - 1}")
        return len(answer["Body"].read())

    rows = []
    for size in (1_000_000, 64 * 1024):
        for _ in range(given.rounds):  # alternating, so that both see the same machine
            for name, read in (("dstream", by_dstream), ("boto3", by_boto3)):
                rows.append({"reader": name, "range_bytes": size, **measure(read, size, given)})
    store.delete_many([(KEY, None)])
    store.close()
    client.close()
    if given.json:
        json.dump({"threads": given.threads, "rows": rows}, sys.stdout, indent=2)
        print()
        return
    print(f"{'reader':10} {'range':>9} {'MB/s':>8} {'reads/s':>8} {'ms CPU/read':>12}")
    for row in rows:
        print(
            f"{row['reader']:10} {row['range_bytes']:>9} {row['mb_s']:>8.0f} "
            f"{row['reads_s']:>8.0f} {row['cpu_ms_per_read']:>12.2f}"
        )


def prepare(client: Any, bucket: str, store: Any) -> None:
    try:
        client.head_bucket(Bucket=bucket)
    except ClientError:
        client.create_bucket(Bucket=bucket)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        path.write_bytes(os.urandom(1 << 20) * (OBJECT_BYTES >> 20))
        store.upload(KEY, path)


def measure(
    read: Callable[[int, int], int], size: int, given: argparse.Namespace
) -> dict[str, float]:
    read(0, size)
    until_s = time.perf_counter() + given.seconds

    def work(seed: int) -> tuple[int, int]:
        choice = random.Random(seed)
        count = total = 0
        while time.perf_counter() < until_s:
            start = choice.randrange(OBJECT_BYTES - size)
            total += read(start, start + size)
            count += 1
        return count, total

    began_s, cpu_s = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(given.threads) as pool:
        done = list(pool.map(work, range(given.threads)))
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    count = sum(part[0] for part in done)
    return {
        "mb_s": sum(part[1] for part in done) / wall_s / 1e6,
        "reads_s": count / wall_s,
        "cpu_ms_per_read": cpu_s / count * 1000,
    }


if __name__ == "__main__":
    main()
