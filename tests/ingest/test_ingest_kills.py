"""The same crash points with real processes and SIGKILL, on a folder and on Ceph RGW.

On a folder after each request, which is before the next one as well. On Ceph at some requests;
``DSTREAM_KILLS=all`` takes each.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cut_store import Cut, CutStore, kill_self
from dstream.store.opening import open_store
from ingest_jobs import (
    FILES,
    JOBS,
    Job,
    check_promises,
    check_swept,
    outcome,
    prepare,
    tables_once,
)
from ingest_made import fill
from s3_services import S3Place

ALL_ON_CEPH = os.environ.get("DSTREAM_KILLS") == "all"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    tables_once(monkeypatch)


def killed(job: Job, repository: str, source: Path, at: int, cut: Cut) -> bool:
    """Run the job in a process that dies at a request; False when it ended before that."""
    child = os.fork()
    if child == 0:
        try:
            store = CutStore(open_store(repository), at, cut, kill_self)
            job.run(store, open_store(source), "first")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check_point(job: Job, repository: str, source: Path, expected: object) -> None:
    with closing(open_store(repository)) as store, closing(open_store(source)) as videos:
        check_promises(store, videos)
        job.run(store, videos, "second")
        check_promises(store, videos)
        assert outcome(store, job) == expected
        check_swept(store, videos)


def count_requests(job: Job, repository: str, source: Path) -> tuple[int, object]:
    with closing(open_store(repository)) as store, closing(open_store(source)) as videos:
        counting = CutStore(store)
        job.run(counting, videos, "first")
        return counting.requests, outcome(store, job)


@pytest.mark.parametrize("name", ["packed", "in-place", "append"])
def test_killed_on_a_folder(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    job = JOBS[name]
    source = fill(tmp_path / "source", FILES)
    prepared, folder = tmp_path / "prepared", tmp_path / "point"
    prepare(open_store(prepared), open_store(source), job)
    shutil.copytree(prepared, folder)
    count, expected = count_requests(job, str(folder), source)
    points = each_request(count)
    for at, cut in points:
        shutil.rmtree(folder)
        shutil.copytree(prepared, folder)
        assert killed(job, str(folder), source, at, cut)
        check_point(job, str(folder), source, expected)
    record_property("points", len(points))
    record_property("violations", 0)
    print(f"ingest {name} on a folder: {len(points)} kills: 0 violations")


def each_request(count: int) -> list[tuple[int, Cut]]:
    return [(1, Cut.BEFORE), *((at, Cut.AFTER) for at in range(1, count + 1))]


@pytest.mark.rgw
@pytest.mark.parametrize("name", ["in-place", "append"])
def test_killed_on_ceph(
    rgw_bucket: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable, value in rgw_bucket.environment.items():
        monkeypatch.setenv(variable, value)
    job = JOBS[name]
    source = fill(tmp_path / "source", FILES)
    url = f"{rgw_bucket.url}/count"
    with closing(open_store(url)) as store, closing(open_store(source)) as videos:
        prepare(store, videos, job)
    count, expected = count_requests(job, url, source)
    some = [(round(0.5 * count), Cut.AFTER), (count - 1, Cut.AFTER), (count, Cut.AFTER)]
    points = each_request(count) if ALL_ON_CEPH else some
    for at, cut in points:
        url = f"{rgw_bucket.url}/{cut}-{at}"
        with closing(open_store(url)) as store, closing(open_store(source)) as videos:
            prepare(store, videos, job)
        assert killed(job, url, source, at, cut)
        check_point(job, url, source, expected)
    print(f"ingest {name} on Ceph: {len(points)} kills: 0 violations")
