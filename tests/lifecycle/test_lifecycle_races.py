"""Processes publish and promote one name while collection runs in a loop and a reader reads.

``DSTREAM_RACE_COUNT`` sets how often each of eight publishes: 10 by default, on Ceph 4. The full
proof is 50.
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

import pytest

from catalog_audit import audit
from dstream.catalog import Catalog
from dstream.store.opening import open_store
from lifecycle_made import AT_ONCE, data_keys
from lifecycle_workers import (
    collect_always,
    collect_until,
    publish_always,
    publish_and_promote,
    read_always,
)
from s3_services import S3Place

FORK = multiprocessing.get_context("fork")
"""A process that imports everything anew takes longer to start than its whole race."""
COUNT = int(os.environ.get("DSTREAM_RACE_COUNT", "0"))
PATIENCE_S = 120
"""Not what it takes, but when a test says that it never ends."""


def race(url: str, workers: int, count: int) -> None:
    with closing(open_store(url)) as store:
        Catalog.create(store)
        stop, swept = FORK.Event(), FORK.Event()
        ends: list[Connection] = []
        processes = []
        for worker in range(workers):
            receiver, sender = FORK.Pipe(duplex=False)
            processes.append(
                FORK.Process(target=publish_and_promote, args=(url, worker, count, swept, sender))
            )
            processes[-1].start()
            sender.close()
            ends.append(receiver)
        watchers = []
        for work, events in ((collect_always, (stop, swept)), (read_always, (stop,))):
            receiver, sender = FORK.Pipe(duplex=False)
            processes.append(FORK.Process(target=work, args=(url, *events, sender)))
            processes[-1].start()
            sender.close()
            watchers.append(receiver)
        said = gather(ends)
        stop.set()
        collected, read = (end.recv() for end in watchers)
        for end in watchers:
            end.close()
        for process in processes:
            process.join()
            assert process.exitcode == 0
            process.close()
        assert collected[0] == "ok"
        assert read[0] == "ok"
        assert collected[2] >= 1, "what is read was published while others were deleted"
        assert read[1] >= 1
        for worker in range(workers):
            ended = [s[2] for s in said if s[1] == worker and s[0] in ("published", "refused")]
            assert ended == list(range(len(ended)))
            assert len(ended) >= count
        check(store, said)
        told = {kind: sum(s[0] == kind for s in said) for kind in {s[0] for s in said}}
        print(
            f"{url}: {told}, {collected[1]} collections swept {collected[2]}, {read[1]} reads: "
            "0 violations"
        )


def gather(ends: list[Connection]) -> list[tuple[str, int, int, object]]:
    said = []
    left = list(ends)
    while left:
        for ready in wait(left):
            end = next(end for end in left if end is ready)
            try:
                said.append(end.recv())
            except EOFError:
                left.remove(end)
                end.close()
    return said


def check(store: object, said: list[tuple[str, int, int, object]]) -> None:
    report = audit(store)  # type: ignore[arg-type]
    operations = [op for root in report.roots for op in root["ops"]]
    in_log = sorted(op["version"] for op in operations if op["op"] == "publish")
    acknowledged = sorted(int(str(s[3])) for s in said if s[0] == "published")
    assert in_log == acknowledged, "each acknowledged publish is there once, each failed one never"
    moves = sorted(op["version"] for op in operations if op["op"] == "move_alias")
    assert moves == sorted(int(str(s[3])) for s in said if s[0] == "promoted")
    catalog = Catalog.open(store)  # type: ignore[arg-type]
    assert catalog.verify(deep=True).is_whole
    catalog.gc(replace(AT_ONCE, keep_last=3))
    assert catalog.verify(deep=True).is_whole
    live = list(catalog.generations("run"))
    assert len(data_keys(catalog.store)) == 2 * len(live)


def test_eight_processes_on_a_folder(tmp_path: Path) -> None:
    race(str(tmp_path / "repo"), workers=8, count=COUNT or 10)


@pytest.mark.rgw
def test_eight_processes_on_ceph(rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in rgw_bucket.environment.items():
        monkeypatch.setenv(name, value)
    race(f"{rgw_bucket.url}/repo", workers=8, count=COUNT or 4)


def starving(url: str, writers: int, wanted: int) -> None:
    """Collection gets on beside writers that never pause, and so does each of them."""
    with closing(open_store(url)) as store:
        Catalog.create(store)
    stop = FORK.Event()
    ends: list[Connection] = []
    processes = []
    for number in range(1 + writers):
        receiver, sender = FORK.Pipe(duplex=False)
        processes.append(
            FORK.Process(target=publish_always, args=(url, number, stop, sender))
            if number
            else FORK.Process(target=collect_until, args=(url, wanted, sender))
        )
        processes[-1].start()
        sender.close()
        ends.append(receiver)
    collected = ends[0].recv() if ends[0].poll(PATIENCE_S) else None
    stop.set()
    if collected is None:
        processes[0].terminate()
    published = [end.recv() for end in ends[1:]]
    for process in processes:
        process.join()
        process.close()
    print(f"{url}: collected {collected} beside {published} publishes")
    assert collected is not None, f"collection starved: not {wanted} swept in {PATIENCE_S} s"
    assert min(published) >= 1


def test_collection_beside_eight_writers_on_a_folder(tmp_path: Path) -> None:
    starving(str(tmp_path / "repo"), writers=8, wanted=20)


@pytest.mark.rgw
def test_collection_beside_eight_writers_on_ceph(
    rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in rgw_bucket.environment.items():
        monkeypatch.setenv(name, value)
    starving(f"{rgw_bucket.url}/repo", writers=8, wanted=20)
