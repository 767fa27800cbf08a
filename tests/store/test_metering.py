"""The counters tell the truth: they equal what a recording server between saw."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstream.errors import AlreadyExistsError, NotFoundError, UnsafeStoreError
from dstream.measure import Meter, Purpose
from dstream.store.base import ObjectInfo, Store
from dstream.store.faulty import FaultyStore
from dstream.store.memory import MemoryStore
from dstream.store.opening import StoreOptions, open_store
from dstream.store.probe import PROBE_PREFIX, probe_conditional_put
from s3_services import S3Place
from s3_stub import Reply, Request, Stub, forward_to, s3_error, stub_server

MIB = 1024 * 1024


@pytest.fixture
def stub(moto_bucket: S3Place) -> Iterator[Stub]:
    with stub_server() as stub:
        stub.answer = forward_to(moto_bucket.endpoint_url)
        yield stub


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def store(stub: Stub, moto_bucket: S3Place, meter: Meter) -> Iterator[Store]:
    options = StoreOptions(endpoint_url=stub.endpoint_url, part_bytes=5 * MIB)
    store = open_store(moto_bucket.url, options=options, meter=meter)
    yield store
    store.close()


def verb_of(request: Request) -> str:
    method, query = request.method, request.path.partition("?")[2]
    if method == "PUT":
        if "partNumber" in query:
            return "upload-part"
        return "put-if-absent" if "if-none-match" in request.headers else "put"
    if method == "POST":
        if "delete" in query:
            return "delete"
        return "create-upload" if query.startswith("uploads") else "complete-upload"
    if method == "GET":
        return "list" if "list-type" in query else "versioning" if "versioning" in query else "get"
    return {"HEAD": "head", "DELETE": "delete"}[method]


def test_counts_equal_the_requests_on_the_wire(
    store: Store, stub: Stub, meter: Meter, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(MIB) * 12)
    small = tmp_path / "small"
    small.write_bytes(b"small")
    store.put("a", b"12345")
    store.put_if_absent("b", b"1")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("b", b"1")
    store.upload("large", large)
    store.upload("small", small)
    store.get("large", 5, 1005, purpose=Purpose.DATA)
    store.get("large", purpose=Purpose.COPY)
    store.get("a", 5)
    store.get("a", 2, 2)
    with pytest.raises(NotFoundError):
        store.get("nope", 0, 3)
    assert len(list(store.list())) == 4
    assert len(list(store.list(limit=1))) == 1
    assert store.capabilities.versioned is False
    store.delete_many([("a", None), ("b", None)])
    counted = Counter({key.verb: 0 for key in meter.snapshot().requests})
    for key, totals in meter.snapshot().requests.items():
        counted[key.verb] += totals.count
    assert counted == Counter(verb_of(request) for request in stub.requests)
    assert counted["upload-part"] == 3
    snapshot = meter.snapshot()
    data = snapshot.total("get", Purpose.DATA)
    assert (data.count, data.bytes_requested, data.bytes_received) == (1, 1000, 1000)
    assert snapshot.total("get", Purpose.COPY).bytes_received == 12 * MIB
    assert snapshot.total("upload-part").bytes_requested == 12 * MIB
    assert snapshot.total("put-if-absent", outcome="already-exists").count == 1
    assert snapshot.total("get", outcome="not-found").count == 1


def test_a_failed_part_is_sent_again_alone(
    store: Store, stub: Stub, meter: Meter, moto_bucket: S3Place, tmp_path: Path
) -> None:
    forward = forward_to(moto_bucket.endpoint_url)
    failed: list[str] = []

    def answer(request: Request) -> Reply:
        if "partNumber=2" in request.path and not failed:
            failed.append(request.path)
            return s3_error(503, "SlowDown", Retry_After="0")
        return forward(request)

    stub.answer = answer
    large = tmp_path / "large"
    large.write_bytes(os.urandom(MIB) * 12)
    store.upload("large", large)
    assert store.get("large").data == large.read_bytes()
    assert meter.snapshot().event("retry") == {"throttled": 1}
    assert meter.snapshot().total("upload-part").count == 4
    assert meter.snapshot().total("create-upload").count == 1


def test_the_probe_refuses_a_server_that_ignores_the_condition(
    store: Store, stub: Stub, moto_bucket: S3Place
) -> None:
    probe_conditional_put(store)
    stub.answer = forward_to(moto_bucket.endpoint_url, without="if-none-match")
    with pytest.raises(UnsafeStoreError, match="let a second write"):
        probe_conditional_put(store)
    assert list(store.list(PROBE_PREFIX)) == []


def test_the_probe_refuses_a_server_that_ignores_ranges(
    store: Store, stub: Stub, moto_bucket: S3Place
) -> None:
    stub.answer = forward_to(moto_bucket.endpoint_url, without="range")
    with pytest.raises(UnsafeStoreError, match="ranged"):
        probe_conditional_put(store)
    assert list(store.list(PROBE_PREFIX)) == []


class Forgetful(FaultyStore):
    """Refuses the second write, having done it."""

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        existed = any(info.key == key for info in self.list(key))
        info = self.put(key, data)
        if existed:
            raise AlreadyExistsError("exists", key=key)
        return info


def test_the_probe_looks_at_the_bytes_too() -> None:
    store = Forgetful(MemoryStore())
    with pytest.raises(UnsafeStoreError, match="changed the bytes"):
        probe_conditional_put(store)


def test_a_pickled_meter_arrives_empty(meter: Meter) -> None:
    meter.event("retry", "x")
    copy: Meter = pickle.loads(pickle.dumps(meter))
    assert copy.snapshot().events == {}
    copy.event("retry", "y")


def test_listing_time_leaves_out_the_caller(tmp_path: Path) -> None:
    meter = Meter()
    store = open_store(tmp_path, meter=meter)
    store.put("a", b"")
    listing = store.list()
    next(listing)
    listing.close()  # type: ignore[attr-defined]
    assert meter.snapshot().total("list", Purpose.LISTING, "ok").count == 1
