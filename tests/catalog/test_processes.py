"""Real processes race for one log: each acknowledged commit is there once, in one order."""

from __future__ import annotations

import multiprocessing
import random
import sys
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from catalog_audit import Audit, audit
from catalog_made import part_keys
from catalog_workers import append_many, part_name, publish_many
from dstream.catalog import Catalog
from dstream.store.base import Store
from dstream.store.opening import open_store
from s3_services import S3Place

Ack = tuple[int, int, str, int, int, int]
SPAWN = multiprocessing.get_context("spawn")


def race(
    work: Callable[[str, int, int, Connection], None],
    url: str,
    workers: int,
    count: int,
    kill_after: dict[int, int] | None = None,
) -> list[Ack]:
    """Run processes and gather what they had acknowledged.

    ``kill_after``: worker -> acknowledgements after which it gets a SIGKILL, wherever it is; until
    then it goes on, however long that takes to come.
    """
    processes: dict[Connection, tuple[int, SpawnProcess]] = {}
    killed = dict(kill_after or {})
    for worker in range(workers):
        receiver, sender = SPAWN.Pipe(duplex=False)
        todo = sys.maxsize if worker in killed else count
        process = SPAWN.Process(target=work, args=(url, worker, todo, sender))
        process.start()
        sender.close()
        processes[receiver] = (worker, process)
    acks: list[Ack] = []
    open_ends = dict(processes)
    while open_ends:
        for ready in wait(list(open_ends)):
            end = next(end for end in open_ends if end is ready)
            worker, process = open_ends[end]
            try:
                acks.append(end.recv())
            except EOFError:
                del open_ends[end]
                continue
            if worker in killed and sum(ack[0] == worker for ack in acks) >= killed[worker]:
                process.kill()
                del killed[worker]
    for end, (worker, process) in processes.items():
        process.join()
        end.close()
        expected = -9 if worker in (kill_after or {}) else 0
        assert process.exitcode == expected
        process.close()
    return acks


def check(store: Store, acks: list[Ack], *, exactly: bool = True) -> Audit:
    """Every acknowledgement is in the log once, where and as it was told."""
    report = audit(store)
    published = {(name, version): seq for name, version, seq in report.published()}
    for _, _, name, version, seq, before in acks:
        assert published[name, version] == seq
        assert before < seq, "a commit must come after what its writer had seen"
    assert len({seq for *_, seq, _ in acks}) == len(acks)
    if exactly:
        assert len(published) == len(acks)
    for worker in {ack[0] for ack in acks}:
        seqs = [seq for w, *_, seq, _ in acks if w == worker]
        assert seqs == sorted(seqs)
    return report


def check_parts(store: Store, acks: list[Ack]) -> None:
    """No append is lost, none is there twice."""
    check(store, acks)
    catalog = Catalog.open(store)
    parts = part_keys(catalog.dataset(catalog.resolve("d")))
    assert sorted(parts) == sorted(part_name(worker, number) for worker, number, *_ in acks)


def test_eight_processes_publish_into_one_folder(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path))) as store:
        Catalog.create(store)
        acks = race(publish_many, str(tmp_path), workers=8, count=25)
        assert len(acks) == 200
        report = check(store, acks)
        assert report.head["artifacts"]["shared"]["next_version"] == 8 * 13 + 1
        assert report.head["aliases"]["shared"]["latest"] == 8 * 13


def test_four_processes_append_to_one_data_set(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path))) as store:
        Catalog.create(store)
        acks = race(append_many, str(tmp_path), workers=4, count=6)
        check_parts(store, acks)


@pytest.mark.parametrize("seed", range(3))
def test_killed_processes_leave_whole_commits_or_none(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    kill_after = {worker: rng.randint(1, 8) for worker in range(3)}
    with closing(open_store(str(tmp_path))) as store:
        Catalog.create(store)
        acks = race(publish_many, str(tmp_path), workers=4, count=200, kill_after=kill_after)
        report = check(store, acks, exactly=False)
        # At most one commit of each killed process can be in the log without an answer.
        assert len(report.published()) - len(acks) <= len(kill_after)
        catalog = Catalog.open(store)
        assert catalog.publish(catalog.begin_session(), "after", "checkpoint", b"x").version == 1
        audit(store)


@pytest.mark.rgw
def test_processes_publish_through_ceph(
    rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in rgw_bucket.environment.items():
        monkeypatch.setenv(name, value)
    url = f"{rgw_bucket.url}/repo"
    with closing(open_store(url)) as store:
        Catalog.create(store)
        acks = race(publish_many, url, workers=4, count=10)
        assert len(acks) == 40
        check(store, acks)


@pytest.mark.rgw
def test_processes_append_through_ceph(
    rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in rgw_bucket.environment.items():
        monkeypatch.setenv(name, value)
    with closing(open_store(rgw_bucket.url)) as store:
        Catalog.create(store)
        acks = race(append_many, rgw_bucket.url, workers=3, count=5)
        check_parts(store, acks)
