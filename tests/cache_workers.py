"""Processes that share one cache: run as ``python -m cache_workers ROLE DIR ...``."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dstream.cache.cache import ExtentCache
from dstream.cache.lifetimes import Uses
from dstream.cache.record import ByteRange, ObjectIdentity, Record
from dstream.cache.segment import OpenSegment
from dstream.measure import Meter

OBJECT_EXTENTS = 64
EXTENT_BYTES = 40_000


def extent(key: str, tag: str, place: int, size_bytes: int = EXTENT_BYTES) -> bytes:
    """The bytes that the "store" has: a function of what they are, so anyone can check them."""
    seed = hashlib.sha256(f"{key} {tag} {place}".encode()).digest()
    return (seed * (size_bytes // len(seed) + 1))[:size_bytes]


def identity(key: str = "video", tag: str = "1") -> ObjectIdentity:
    return ObjectIdentity("s3://bucket/raw", key, tag)


class Reader:
    """Reads extents of made objects through a cache and checks every byte."""

    def __init__(
        self,
        directory: str | Path,
        budget_bytes: int | None,
        *,
        label: str = "made",
        size_bytes: int = EXTENT_BYTES,
    ) -> None:
        self.meter = Meter()
        self.size_bytes = size_bytes
        self.cache = ExtentCache(directory, budget_bytes, label=label, meter=self.meter)
        self.fetched: list[int] = []

    def read(
        self,
        *places: int,
        key: str = "video",
        tag: str = "1",
        fresh: bool = False,
        uses: Uses | None = None,
    ) -> None:
        size = self.size_bytes
        ranges = [ByteRange(place * size, (place + 1) * size) for place in places]

        def fetch(missing: Sequence[int]) -> list[bytes]:
            self.fetched += [places[i] for i in missing]
            return [extent(key, tag, places[i], size) for i in missing]

        told = None if uses is None else [uses for _ in places]
        got = self.cache.read(identity(key, tag), ranges, fetch, fresh=fresh, uses=told)
        assert got == [extent(key, tag, place, size) for place in places], "wrong bytes"

    def count(self, name: str) -> int:
        return int(self.meter.snapshot().sums.get(name, 0))

    def events(self, name: str) -> dict[str, int]:
        return self.meter.snapshot().event(name)


def used_bytes(directory: str | Path) -> int:
    found = 0
    for path in Path(directory).rglob("*"):
        with suppress(FileNotFoundError):  # it was evicted meanwhile
            found += path.stat().st_size if path.is_file() else 0
    return found


def told(reader: Reader) -> None:
    """Print the counters of a reader for the test that started this process."""
    snapshot = reader.meter.snapshot()
    events = {name: snapshot.event(f"cache-{name}") for name in ("off", "rot", "refused")}
    print(json.dumps({"sums": dict(snapshot.sums), **events}))


def many_reads(directory: str, budget: str, seed: str, rounds: str) -> None:
    """Read random extents of a few objects in two versions."""
    reader = Reader(directory, int(budget))
    generator = random.Random(seed)
    for _ in range(int(rounds)):
        places = sorted(generator.sample(range(OBJECT_EXTENTS), 3))
        reader.read(*places, key=f"video{generator.randrange(4)}", tag=str(generator.randrange(2)))
    told(reader)


def read_all(directory: str, budget: str, file_limit: str = "0") -> None:
    """Read every extent of one object twice, perhaps with a limit of file sizes."""
    if int(file_limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_limit), int(file_limit)))
    reader = Reader(directory, int(budget) or None)
    for _ in range(2):
        for place in range(OBJECT_EXTENTS):
            reader.read(place)
    told(reader)


def read_all_as_nobody(directory: str, budget: str) -> None:
    """The same without the right to write."""
    os.setgid(65534)
    os.setuid(65534)
    read_all(directory, budget)


def hold_lock(directory: str) -> None:
    """Take the lock of the directory, say so, and never let go."""
    with (Path(directory) / "lock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print("held", flush=True)
        signal.pause()


def die_while_writing(directory: str, budget: str, after: str) -> None:
    """Die by SIGKILL when half of the ``after``-th extent's bytes are on the disk."""
    left = int(after)
    write = os.pwritev

    def half_then_die(descriptor: int, pieces: Any, place: int) -> int:
        nonlocal left
        left -= len(pieces) == 2  # a record with its extent
        if left or len(pieces) == 1:
            return write(descriptor, pieces, place)
        whole = b"".join(pieces)
        os.pwrite(descriptor, whole[: len(whole) // 2], place)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    setattr(os, "pwritev", half_then_die)  # noqa: B010
    reader = Reader(directory, int(budget))
    for place in range(OBJECT_EXTENTS):
        reader.read(place)


def die_while_copying(directory: str, budget: str, extents: str, after: str) -> None:
    """Follow a plan, and die when the ``after``-th extent of segments that go was read."""
    left = int(after)
    extent_at = OpenSegment.extent_at

    def read_then_die(segment: OpenSegment, place: int) -> tuple[Record, bytes]:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return extent_at(segment, place)

    setattr(OpenSegment, "extent_at", read_then_die)  # noqa: B010
    reader, generator = Reader(directory, int(budget)), random.Random(0)
    epochs = [generator.sample(range(int(extents)), int(extents)) for _ in range(40)]
    order = [extent for epoch in epochs for extent in epoch]
    for place, extent in enumerate(order):
        later = [p for p in range(place + 1, min(len(order), place + 2000)) if order[p] == extent]
        reader.read(extent, uses=Uses("plan", place, 1, partial(list, later)))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
