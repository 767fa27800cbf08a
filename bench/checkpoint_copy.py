"""Publish and fetch against s3transfer alone, on one S3 server, in turns.

    AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... AWS_ENDPOINT_URL=http://127.0.0.1:9000 \\
        python bench/checkpoint_copy.py s3://bucket/bench --gb 0.5 2

The same files go up and down by dstream (SHA-256 of every byte, one commit, one rename) and by
s3transfer with the settings of ``aws s3 cp`` (10 requests at a time, 8 MiB parts):

* ``s3transfer``: no checksums at all;
* ``s3transfer crc``: boto3's defaults, a CRC of each part sent, and compared where a server
  answers with one (ranged reads get none);
* ``s3transfer fsync``: the first, and then the files made durable, as fetch does by default.

Every copy runs in a process of its own, whose start is not counted and whose peak memory is told.
All take turns, each round in another order, and a ratio is the median over rounds of (its time
/ our time), so that a slow moment of the machine hits both. Downloads of all read the objects of
one published generation. With several sizes the peaks show whether memory is constant.

Servers free deleted bytes late; ``--after-upload`` names a command that makes them do it, such as
``radosgw-admin -c ceph.conf gc process --include-all``. It is not timed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from s3transfer.manager import TransferConfig, TransferManager

from dstream.catalog import Catalog
from dstream.checkpoint import fetch, publish
from dstream.checkpoint.repository import checkpoint_of
from dstream.store.opening import open_store

BLOCK = 1 << 20
UP = ("publish", "s3transfer", "s3transfer crc")
DOWN = ("fetch", "fetch --no-sync", "s3transfer", "s3transfer crc", "s3transfer fsync")


@dataclass(frozen=True)
class Cost:
    """Of one copy in a process of its own."""

    seconds: float
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Copier:
    """Where the copies go; sent to the processes that make them."""

    bucket: str
    prefix: str
    folder: Path

    def up(self, how: str) -> Cost:
        if how == "publish":
            catalog = Catalog.create(self._store())
            return measured(lambda: publish(catalog, self.folder, "run"))
        s3 = client(how)

        def send() -> None:
            with TransferManager(s3, TransferConfig()) as manager:
                waiting = [
                    manager.upload(str(path), self.bucket, f"{self.prefix}/{path.name}")
                    for path in sorted(self.folder.iterdir())
                ]
                for future in waiting:
                    future.result()

        return measured(send)

    def down(self, how: str) -> Cost:
        catalog = Catalog.open(self._store())
        if how.startswith("fetch"):
            sync = how == "fetch"
            return measured(lambda: fetch(catalog, "run", self.folder, sync=sync))
        s3, manifest = client(how), checkpoint_of(catalog, catalog.resolve("run"))

        def receive() -> None:
            self.folder.mkdir()
            with TransferManager(s3, TransferConfig()) as manager:
                waiting = [
                    manager.download(
                        self.bucket,
                        f"{self.prefix}/repo/{file.object.key}",
                        str(self.folder / file.path),
                    )
                    for file in manifest.files
                ]
                for future in waiting:
                    future.result()
            if how == "s3transfer fsync":
                for path in self.folder.iterdir():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())

        return measured(receive)

    def delete(self) -> None:
        s3 = client("s3transfer")
        pages = s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{self.prefix}/"
        )
        for page in pages:
            for entry in page.get("Contents", ()):
                s3.delete_object(Bucket=self.bucket, Key=entry["Key"])

    def _store(self) -> Any:
        return open_store(f"s3://{self.bucket}/{self.prefix}/repo")


def client(how: str) -> Any:
    checksums = "when_supported" if how == "s3transfer crc" else "when_required"
    return boto3.client(
        "s3",
        config=Config(
            max_pool_connections=20,
            request_checksum_calculation=checksums,
            response_checksum_validation=checksums,
            s3={"addressing_style": "path"},
        ),
    )


def measured(work: Any) -> Cost:
    before, began_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    work()
    seconds, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, cpu_s, after.ru_maxrss * 1024)


def make_files(folder: Path, size_bytes: int, files: int) -> None:
    """Large files of random bytes, with twenty small ones beside them."""
    for number in range(files):
        with (folder / f"shard-{number}.bin").open("wb") as file:
            for _ in range(size_bytes // files // BLOCK):
                file.write(os.urandom(BLOCK))
    for number in range(20):
        (folder / f"small-{number}.json").write_bytes(os.urandom(50_000))


def in_turns(names: tuple[str, ...], rounds: int, one: Any) -> dict[str, list[Cost]]:
    """Costs of every copy in every round; each round begins with another copy."""
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        order = names[first:] + names[:first]
        for name in order if number // len(names) % 2 == 0 else order[::-1]:
            costs[name].append(one(name))
    return costs


def alone(work: Any, *given: Any) -> Any:
    """Its result, from a process that does nothing else."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(work, *given).result()


def compare(
    bucket: str, prefix: str, scratch: Path, size_bytes: int, given: argparse.Namespace
) -> dict[str, dict[str, list[Cost]]]:
    source, dest = scratch / "source", scratch / "dest"
    source.mkdir()
    make_files(source, size_bytes, given.files)
    up, down = Copier(bucket, prefix, source), Copier(bucket, prefix, dest)

    def cleared() -> None:
        up.delete()
        if given.after_upload:
            subprocess.run(shlex.split(given.after_upload), check=True, capture_output=True)

    def sent(how: str) -> Cost:
        cost: Cost = alone(up.up, how)
        cleared()
        return cost

    def received(how: str) -> Cost:
        cost: Cost = alone(down.down, how)
        shutil.rmtree(dest)
        os.sync()  # the next one shall not wait for these
        return cost

    uploads = in_turns(UP, given.rounds, sent)
    alone(up.up, "publish")
    shutil.rmtree(source)
    downloads = in_turns(DOWN, given.rounds, received)
    cleared()
    return {"publish": uploads, "fetch": downloads}


def show(ours: str, costs: dict[str, list[Cost]], size_bytes: int) -> None:
    print(f"{ours}, {size_bytes / 1e9:.1f} GB, load {os.getloadavg()[0]:.1f}")
    print(f"{'':18} {'median':>8} {'':>10} {'CPU':>7} {'peak':>8}  {'ours is':>8}")
    for name, turns in costs.items():
        seconds = statistics.median(turn.seconds for turn in turns)
        ratio = statistics.median(
            theirs.seconds / our.seconds for theirs, our in zip(turns, costs[ours], strict=True)
        )
        print(
            f"{name:18} {seconds:6.2f} s {size_bytes / seconds / 1e6:5.0f} MB/s"
            f" {statistics.median(turn.cpu_s for turn in turns):5.2f} s"
            f" {max(turn.peak_bytes for turn in turns) / 1e6:5.0f} MB"
            + ("" if name == ours else f"  {ratio:6.2f} x")
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--gb", type=float, nargs="+", default=[0.5, 2.0])
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", default=None, help="folder for the files")
    parser.add_argument("--after-upload", default="", help="command after each deletion")
    given = parser.parse_args()
    bucket, _, prefix = given.url.removeprefix("s3://").partition("/")
    told = []
    for number, gb in enumerate(given.gb):
        with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
            size_bytes = int(gb * 1e9)
            found = compare(
                bucket, f"{prefix or 'bench'}-{number}", Path(folder), size_bytes, given
            )
        for ours, costs in found.items():
            show(ours, costs, size_bytes)
            rows = {name: [asdict(turn) for turn in turns] for name, turns in costs.items()}
            told.append({"copy": ours, "bytes": size_bytes, "turns": rows})
    print(json.dumps(told))


if __name__ == "__main__":
    main()
