"""Death before and after every request of an ingest, and every answer lost.

After each: only whole generations are visible, what was acknowledged is there, pinned and promoted
bytes can be read, running it again gives the same clips, and collection sweeps what was left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from cut_store import Crash, Cut, CutStore
from dstream.clock import FakeClock
from dstream.errors import DstreamError
from dstream.store.base import Store
from dstream.store.memory import MemoryStore
from ingest_jobs import (
    ALL,
    FILES,
    JOBS,
    Job,
    check_promises,
    check_swept,
    outcome,
    prepare,
    tables_once,
)


@cache
def source() -> MemoryStore:
    """The videos: never written to, so that one serves all."""
    memory = MemoryStore()
    for name, data in FILES.items():
        memory.put(name, data)
    return memory


@cache
def prepared(name: str) -> MemoryStore:
    memory = MemoryStore(clock=FakeClock())
    prepare(memory, source(), JOBS[name])
    return memory


def copied(store: Store) -> MemoryStore:
    memory = MemoryStore(clock=FakeClock())
    for info in store.list():
        memory.put(info.key, store.get(info.key).data)
    return memory


@cache
def undisturbed(name: str) -> tuple[int, int, object]:
    """Requests to the repository and to the source, and what the job makes."""
    memory = copied(prepared(name))
    counting, reading = CutStore(memory), CutStore(source())
    JOBS[name].run(counting, reading, "alone")
    assert check_promises(memory, source())
    return counting.requests, reading.requests, outcome(memory, JOBS[name])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    tables_once(monkeypatch)


def cut_run(job: Job, repository: Store, videos: Store, cut: Cut) -> bool:
    """Run the job; whether it was acknowledged."""
    try:
        job.run(repository, videos, "first")
    except Crash:
        assert cut is not Cut.LOST
        return False
    except DstreamError:
        assert cut is Cut.LOST
        return False
    return True


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("name", JOBS)
def test_every_request_of_an_ingest_may_be_the_last(
    name: str, cut: Cut, record_property: Callable[[str, object], None]
) -> None:
    job = JOBS[name]
    count, _, expected = undisturbed(name)
    assert count >= 12
    for at in range(1, count + 1):
        memory = copied(prepared(name))
        acknowledged = cut_run(job, CutStore(memory, at, cut), source(), cut)
        check_promises(memory, source())
        if acknowledged:
            assert outcome(memory, job) == expected
        if at % 2:  # collection has given the upload up before it is run again
            check_swept(memory, source())
        job.run(memory, source(), "second")
        found = check_promises(memory, source())
        assert outcome(memory, job) == expected
        made = [label for label in found if label.startswith(f"{job.name}@")]
        assert len(made) == (2 if job.name == "clips" else 1), "it was published once"
        if not at % 2:  # what the rerun did not take up
            check_swept(memory, source())
    record_property("points", count)
    record_property("violations", 0)
    print(f"ingest {name}: {count} points, {cut}: 0 violations")


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("name", ["packed", "in-place", "append"])
def test_every_read_of_the_source_may_be_the_last(
    name: str, cut: Cut, record_property: Callable[[str, object], None]
) -> None:
    """A read that fails may leave its file out, by name; the next run takes it."""
    job = JOBS[name]
    _, count, expected = undisturbed(name)
    for at in range(1, count + 1):
        memory = copied(prepared(name))
        cut_run(job, memory, CutStore(source(), at, cut), cut)
        check_promises(memory, source())
        job.run(memory, source(), "second")
        check_promises(memory, source())
        if cut is not Cut.LOST:
            assert outcome(memory, job) == expected
        check_swept(memory, source())
        keys = {row["key"] for row in outcome(memory, job)[2]}
        assert keys == set(ALL)
    record_property("points", count)
    record_property("violations", 0)
    print(f"ingest {name}, source: {count} points, {cut}: 0 violations")
