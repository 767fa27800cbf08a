"""The same crash points with real processes and SIGKILL, on a folder and on Ceph RGW.

On a folder at each request, and within requests at each change of the folder. On Ceph at some
requests; ``DSTREAM_KILLS=all`` takes each.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cut_store import Cut, CutStore, kill_at_change, kill_self
from dstream.catalog import Catalog, CommitSettings
from dstream.store.base import Store
from dstream.store.memory import MemoryStore
from dstream.store.opening import open_store
from lifecycle_jobs import JOBS, Job, check_promises, prepare
from s3_services import S3Place

QUICK = CommitSettings(author="victim")
ALL_ON_CEPH = os.environ.get("DSTREAM_KILLS") == "all"


def before(store: Store, at: int) -> Store:
    return CutStore(store, at, Cut.BEFORE, kill_self)


def after(store: Store, at: int) -> Store:
    return CutStore(store, at, Cut.AFTER, kill_self)


def within(store: Store, at: int) -> Store:
    kill_at_change(at)
    return store


def killed(url: str, job: Job, at: int, way: Callable[[Store, int], Store]) -> bool:
    """Run the job in a process that dies at some moment; False when it ended before that."""
    child = os.fork()
    if child == 0:
        try:
            job.run(Catalog.open(way(open_store(url), at), settings=QUICK))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check_point(store: Store, job: Job) -> None:
    check_promises(store)
    job.run(Catalog.open(store))
    check_promises(store)
    job.check(Catalog.open(store))


def count_requests(job: Job) -> int:
    memory = MemoryStore()
    prepare(memory)
    counting = CutStore(memory)
    job.run(Catalog.open(counting))
    return counting.requests


@pytest.mark.parametrize("way", [before, after, within], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", JOBS)
def test_on_a_folder(
    tmp_path: Path,
    name: str,
    way: Callable[[Store, int], Store],
    record_property: Callable[[str, object], None],
) -> None:
    job = JOBS[name]
    prepared, folder = tmp_path / "prepared", tmp_path / "point"
    prepare(open_store(str(prepared)))
    points = 0
    for at in itertools.count(1):
        shutil.copytree(prepared, folder)
        died = killed(str(folder), job, at, way)
        check_point(open_store(str(folder)), job)
        shutil.rmtree(folder)
        if not died:
            break
        points += 1
    assert points >= 2 if way is within else points == count_requests(job)
    record_property("points", points)
    print(f"{name} on a folder: {points} kills {way.__name__}: 0 violations")


def some_or_all(name: str) -> list[tuple[int, Cut]]:
    """About the last request, which writes the log; or each. After one is before the next."""
    count = count_requests(JOBS[name])
    if not ALL_ON_CEPH:
        return [(count // 2 if name == "gc" else count - 1, Cut.AFTER), (count, Cut.AFTER)]
    return [(1, Cut.BEFORE), *((at, Cut.AFTER) for at in range(1, count + 1))]


@pytest.mark.rgw
@pytest.mark.parametrize("name", JOBS)
def test_on_ceph(
    rgw_bucket: S3Place,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    record_property: Callable[[str, object], None],
) -> None:
    for variable, value in rgw_bucket.environment.items():
        monkeypatch.setenv(variable, value)
    points = some_or_all(name)
    for at, cut in points:
        url = f"{rgw_bucket.url}/{cut}-{at}"
        with closing(open_store(url)) as store:
            prepare(store)
            assert killed(url, JOBS[name], at, before if cut is Cut.BEFORE else after)
            check_point(store, JOBS[name])
    record_property("points", len(points))
    print(f"{name} on Ceph: {len(points)} kills: 0 violations")
