"""The same crash points with real processes and SIGKILL, on a folder and on Ceph RGW."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest

from cut_store import Cut, CutStore, kill_self
from dstream.catalog import Catalog, CommitSettings
from dstream.store.base import Store
from dstream.store.opening import open_store
from lifecycle_jobs import JOBS, Job, check_promises, prepare
from s3_services import S3Place

QUICK = CommitSettings(author="victim")


def killed(url: str, job: Job, at: int, cut: Cut) -> bool:
    """Run the job in a process that dies at a request; False when it ended before that."""
    child = os.fork()
    if child == 0:
        try:
            job.run(Catalog.open(CutStore(open_store(url), at, cut, kill_self), settings=QUICK))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check_point(store: Store, job: Job) -> None:
    check_promises(store)
    job.run(Catalog.open(store))
    check_promises(store)
    job.check(Catalog.open(store))


@pytest.mark.parametrize("name", JOBS)
def test_on_a_folder(tmp_path: Path, name: str) -> None:
    job = JOBS[name]
    prepared = tmp_path / "prepared"
    prepare(open_store(str(prepared)))
    step = 7 if name == "gc" else 1
    points = 0
    for cut in (Cut.BEFORE, Cut.AFTER):
        for at in range(1, 200, step):
            folder = tmp_path / "point"
            shutil.copytree(prepared, folder)
            died = killed(str(folder), job, at, cut)
            check_point(open_store(str(folder)), job)
            shutil.rmtree(folder)
            if not died:
                break
            points += 1
    assert points >= 4
    print(f"{name} on a folder: {points} kills: 0 violations")


@pytest.mark.rgw
@pytest.mark.parametrize(("name", "at"), [("publish", 4), ("promote", 3), ("gc", 4), ("gc", 15)])
def test_on_ceph(rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> None:
    for variable, value in rgw_bucket.environment.items():
        monkeypatch.setenv(variable, value)
    for cut in (Cut.BEFORE, Cut.AFTER):
        url = f"{rgw_bucket.url}/{name}-{cut.name.lower()}"
        with closing(open_store(url)) as store:
            prepare(store)
        assert killed(url, JOBS[name], at, cut)
        with closing(open_store(url)) as store:
            check_point(store, JOBS[name])
