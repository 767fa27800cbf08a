"""Publish and fetch against s3transfer alone, on one S3 server, in turns.

    AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... AWS_ENDPOINT_URL=http://127.0.0.1:9000 \\
        python bench/checkpoint_copy.py s3://bucket/bench --gb 2

The same files go up and down by dstream (SHA-256 of every byte, one commit, one rename) and by
s3transfer with the settings of ``aws s3 cp`` (10 requests at a time, 8 MiB parts, and no check of
the whole). One of each in turn, so that a slow moment of the machine hits both; the ratio is of
the medians. Objects are deleted after each turn, and the peak of this process's memory is told.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from s3transfer.manager import TransferConfig, TransferManager

from dstream.catalog import Catalog
from dstream.checkpoint import fetch, publish
from dstream.store.opening import open_store

BLOCK = 1 << 20


def make_files(folder: Path, size_bytes: int, files: int) -> None:
    """Large files of random bytes, with twenty small ones beside them."""
    for number in range(files):
        with (folder / f"shard-{number}.bin").open("wb") as file:
            for _ in range(size_bytes // files // BLOCK):
                file.write(os.urandom(BLOCK))
    for number in range(20):
        (folder / f"small-{number}.json").write_bytes(os.urandom(50_000))


def client(checksums: str = "when_required") -> Any:
    return boto3.client(
        "s3",
        config=Config(
            max_pool_connections=20,
            request_checksum_calculation=checksums,
            response_checksum_validation=checksums,
            s3={"addressing_style": "path"},
        ),
    )


def plain_upload(s3: Any, bucket: str, prefix: str, folder: Path) -> None:
    with TransferManager(s3, TransferConfig()) as manager:
        waiting = [
            manager.upload(str(path), bucket, f"{prefix}/{path.name}")
            for path in sorted(folder.iterdir())
        ]
        for future in waiting:
            future.result()


def plain_download(s3: Any, bucket: str, prefix: str, names: list[str], folder: Path) -> None:
    folder.mkdir()
    with TransferManager(s3, TransferConfig()) as manager:
        waiting = [
            manager.download(bucket, f"{prefix}/{name}", str(folder / name)) for name in names
        ]
        for future in waiting:
            future.result()


def delete_below(s3: Any, bucket: str, prefix: str) -> None:
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for entry in page.get("Contents", ()):
            s3.delete_object(Bucket=bucket, Key=entry["Key"])


def timed(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def one_turn(
    url: str, source: Path, scratch: Path, turn: int, sync: bool, checksums: str
) -> dict[str, float]:
    """Seconds of each of the four copies."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    prefix = f"{prefix or 'bench'}-{turn}"
    s3, store = client(checksums), open_store(f"s3://{bucket}/{prefix}/repo")
    catalog = Catalog.create(store)
    names = [path.name for path in sorted(source.iterdir())]
    ours, theirs = scratch / "ours", scratch / "theirs"
    copies: dict[str, Callable[[], object]] = {
        "publish": lambda: publish(catalog, source, "run"),
        "upload": lambda: plain_upload(s3, bucket, f"{prefix}/plain", source),
        "fetch": lambda: fetch(catalog, "run", ours, sync=sync),
        "download": lambda: plain_download(s3, bucket, f"{prefix}/plain", names, theirs),
    }
    order = ["publish", "upload", "fetch", "download"]
    if turn % 2:
        order = ["upload", "publish", "download", "fetch"]
    seconds = {name: timed(copies[name]) for name in order}
    shutil.rmtree(ours)
    shutil.rmtree(theirs)
    delete_below(s3, bucket, prefix)
    store.close()
    s3.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--no-sync", action="store_true", help="fetch without fsync, as theirs")
    parser.add_argument("--scratch", default=None, help="folder for the files")
    parser.add_argument(
        "--their-checksums", action="store_true", help="let s3transfer send CRC32, boto's default"
    )
    given = parser.parse_args()
    checksums = "when_supported" if given.their_checksums else "when_required"
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        source = Path(folder) / "source"
        source.mkdir()
        make_files(source, int(given.gb * 1e9), given.files)
        size_bytes = sum(path.stat().st_size for path in source.iterdir())
        rows = [
            one_turn(given.url, source, Path(folder), turn, not given.no_sync, checksums)
            for turn in range(given.turns)
        ]
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    for name, seconds in medians.items():
        print(f"{name:9} {seconds:7.2f} s  {size_bytes / seconds / 1e6:7.0f} MB/s")
    ratios = {
        "publish": medians["upload"] / medians["publish"],
        "fetch": medians["download"] / medians["fetch"],
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} of s3transfer alone")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory {peak / 1e6:.0f} MB for {size_bytes / 1e6:.0f} MB of files")
    print(json.dumps({"bytes": size_bytes, "turns": rows, "ratios": ratios, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
