"""The process dies just before or just after each request of a publish, for every request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from catalog_audit import audit
from catalog_faults import ScriptedStore
from catalog_made import create_catalog, manifest, open_catalog, part_keys
from dstream.catalog import Catalog, Generation
from dstream.measure import Purpose
from dstream.store.base import Blob, ObjectInfo, Store
from dstream.store.memory import MemoryStore


class Crash(BaseException):
    """Stands for SIGKILL: nothing of the library may catch it."""


class CrashingStore(ScriptedStore):
    """Dies at request number ``at``, before it is sent or after it was carried out."""

    def __init__(self, inner: Store, at: int, *, after: bool) -> None:
        super().__init__(inner)
        self.at, self.after = at, after
        self.requests = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        self.requests += 1
        if self.requests == self.at and not self.after:
            raise Crash
        try:
            yield
        finally:
            # Also where the answer is an error: the process dies before it can act on it.
            if self.requests == self.at and self.after:
                raise Crash

    def get(
        self,
        key: str,
        start_byte: int = 0,
        stop_byte: int | None = None,
        *,
        expect_etag: str | None = None,
        version: str | None = None,
        purpose: Purpose = Purpose.OTHER,
    ) -> Blob:
        with self.request():
            return super().get(key, start_byte, stop_byte, purpose=purpose)

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        with self.request():
            return super().put(key, data, purpose=purpose)

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        with self.request():
            return super().put_if_absent(key, data, purpose=purpose)


def job(catalog: Catalog) -> Generation:
    """A keyed append, as a job that can be started again."""
    session = catalog.begin_session("night")
    return catalog.publish_dataset("d", manifest("new"), session=session, idempotency_key="night")


def prepared() -> MemoryStore:
    memory = MemoryStore()
    catalog = create_catalog(memory, "creator")
    catalog.publish_dataset("d", manifest("old"), session=catalog.begin_session())
    return memory


def request_count() -> int:
    store = CrashingStore(prepared(), 0, after=False)
    job(open_catalog(store))
    return store.requests


@pytest.mark.parametrize("after", [False, True])
def test_a_job_that_dies_anywhere_can_be_started_again(after: bool) -> None:
    count = request_count()
    assert count >= 5
    for at in range(1, count + 1):
        memory = prepared()
        with pytest.raises(Crash):
            job(open_catalog(CrashingStore(memory, at, after=after), "first"))
        assert len(audit(memory).live()) in (1, 2), "half a generation is visible"
        entry = job(open_catalog(memory, "second"))
        assert entry.version == 2
        assert len(audit(memory).live()) == 2
        reader = open_catalog(memory, "reader")
        assert part_keys(reader.dataset(reader.resolve("d"))) == ["old", "new"]


@pytest.mark.parametrize("after", [False, True])
def test_a_creation_that_dies_anywhere_can_be_started_again(after: bool) -> None:
    store = CrashingStore(MemoryStore(), 0, after=False)
    create_catalog(store)
    for at in range(1, store.requests + 1):
        memory = MemoryStore()
        with pytest.raises(Crash):
            create_catalog(CrashingStore(memory, at, after=after), "first")
        catalog = Catalog.create(memory, exist_ok=True)
        assert catalog.head().seq == 0
        audit(memory)
