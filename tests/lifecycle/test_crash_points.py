"""Death before and after every request, and every answer lost: publish, promote, pin, gc.

After each: only whole generations are visible, what was acknowledged is there, pinned and aliased
bytes can be read, and running it again succeeds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from catalog_made import open_catalog
from cut_store import Crash, Cut, CutStore
from dstream.catalog import compaction
from dstream.clock import FakeClock
from dstream.errors import DstreamError
from dstream.store.memory import MemoryStore
from lifecycle_jobs import JOBS, Job, check_collect, check_promises, collect, prepare


@pytest.fixture(autouse=True)
def small_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalog shards are written every few commits, so that their requests are cut as well."""
    monkeypatch.setattr(compaction, "MAX_TAIL", 4)
    monkeypatch.setattr("dstream.catalog.commit.MAX_TAIL", 4)


def count_requests(job: Job) -> int:
    memory = MemoryStore(clock=FakeClock())
    prepare(memory)
    store = CutStore(memory)
    job.run(open_catalog(store, "counting"))
    job.check(open_catalog(memory, "reader"))
    return store.requests


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("name", JOBS)
def test_every_request_may_be_the_last(
    name: str, cut: Cut, record_property: Callable[[str, object], None]
) -> None:
    job = JOBS[name]
    count = count_requests(job)
    assert count >= 2
    for at in range(1, count + 1):
        memory = MemoryStore(clock=FakeClock())
        prepare(memory)
        acknowledged = False
        try:
            job.run(open_catalog(CutStore(memory, at, cut), "first"))
            acknowledged = True
        except Crash:
            assert cut is not Cut.LOST
        except DstreamError:
            assert cut is Cut.LOST
        check_promises(memory)
        if acknowledged:
            job.check(open_catalog(memory, "reader"))
        job.run(open_catalog(memory, "second"))
        check_promises(memory)
        job.check(open_catalog(memory, "reader"))
    record_property("points", count)
    print(f"{name}: {count} points, {cut.value}: 0 violations")


def test_two_deaths_of_one_collection() -> None:
    """A second collection may die on the way as well, anywhere."""
    count = count_requests(JOBS["gc"])
    for first in range(2, count + 1, 5):
        for second in range(1, count + 1, 4):
            memory = MemoryStore(clock=FakeClock())
            prepare(memory)
            for at, client in ((first, "first"), (second, "second")):
                try:
                    collect(open_catalog(CutStore(memory, at, Cut.AFTER), client))
                except Crash:
                    continue
            check_promises(memory)
            collect(open_catalog(memory, "third"))
            check_collect(open_catalog(memory, "reader"))
