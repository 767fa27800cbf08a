"""What catalog calls cost, counted where requests leave the process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from catalog_made import create_catalog, manifest, open_catalog
from dstream.catalog import Catalog, Generation
from dstream.clock import FakeClock
from dstream.measure import Meter, Purpose
from dstream.store.memory import MemoryStore
from dstream.store.metered import Metered
from dstream.store.opening import open_store
from s3_services import S3Place

Cost = dict[tuple[str, str, str], int]


class Bench:
    """A repository with one data set, and a meter on one client."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        creator = create_catalog(self.memory, "creator")
        creator.publish_dataset("d", manifest("a"), session=creator.begin_session())
        self.meter = Meter()
        self.store = Metered(self.memory, self.meter, FakeClock())

    def cost(self, work: Callable[[], object]) -> Cost:
        before = self.meter.snapshot()
        work()
        requests = self.meter.snapshot().minus(before).requests
        return {(k.verb, str(k.purpose), k.outcome): v.count for k, v in requests.items()}

    def open(self) -> Catalog:
        return open_catalog(self.store, "client")

    def rival_publishes(self, times: int = 1) -> None:
        rival = open_catalog(self.memory, f"rival-{times}")
        for _ in range(times):
            rival.publish(rival.begin_session(), "other", "checkpoint", b"x")


@pytest.fixture
def bench() -> Bench:
    return Bench()


LIST = ("list", "log", "ok")
ROOT = ("get", "log", "ok")
NO_ROOT = ("get", "log", "not-found")
MANIFEST = ("get", "table", "ok")
PUT_MANIFEST = ("put", "table", "ok")
PUT_ROOT = ("put-if-absent", "log", "ok")
LOST_ROOT = ("put-if-absent", "log", "already-exists")


def test_opening_a_data_set_cold(bench: Bench) -> None:
    def work() -> Generation:
        catalog = bench.open()
        entry = catalog.resolve("d@latest")
        catalog.dataset(entry)
        return entry

    assert bench.cost(work) == {LIST: 1, ROOT: 1, MANIFEST: 1}


def test_reading_the_head_warm(bench: Bench) -> None:
    catalog = bench.open()
    catalog.head()
    assert bench.cost(catalog.head) == {NO_ROOT: 1}
    bench.rival_publishes()
    assert bench.cost(catalog.head) == {ROOT: 1, NO_ROOT: 1}


def test_reading_the_head_after_many_commits(bench: Bench) -> None:
    catalog = bench.open()
    catalog.head()
    bench.rival_publishes(30)
    assert bench.cost(catalog.head) == {ROOT: 5, LIST: 1}


def test_publishing_warm(bench: Bench) -> None:
    catalog = bench.open()
    session = catalog.begin_session()
    for _ in range(2):
        cost = bench.cost(lambda: catalog.publish(session, "run", "checkpoint", b"x"))
        assert cost == {PUT_MANIFEST: 1, PUT_ROOT: 1}


def test_appending(bench: Bench) -> None:
    catalog = bench.open()
    session = catalog.begin_session()

    def work() -> Generation:
        return catalog.publish_dataset("d", manifest("b"), session=session)

    assert bench.cost(work) == {MANIFEST: 1, PUT_MANIFEST: 1, PUT_ROOT: 1}
    assert bench.cost(work) == {PUT_MANIFEST: 1, PUT_ROOT: 1}


def test_moving_an_alias_warm(bench: Bench) -> None:
    catalog = bench.open()
    catalog.head()
    assert bench.cost(lambda: catalog.move_alias("d", "prod", 1)) == {PUT_ROOT: 1}


def test_losing_one_race(bench: Bench) -> None:
    catalog = bench.open()
    session = catalog.begin_session()
    bench.rival_publishes()
    cost = bench.cost(lambda: catalog.publish(session, "run", "checkpoint", b"x"))
    assert cost == {PUT_MANIFEST: 1, LOST_ROOT: 1, ROOT: 1, PUT_ROOT: 1}


def test_coming_back_long_after(bench: Bench) -> None:
    catalog = bench.open()
    session = catalog.begin_session()
    bench.rival_publishes(50)
    cost = bench.cost(lambda: catalog.publish(session, "run", "checkpoint", b"x"))
    assert cost[LOST_ROOT] == 2
    assert cost[LIST] == 1
    assert cost[ROOT] <= 8


def test_sessions(bench: Bench) -> None:
    catalog = bench.open()
    assert bench.cost(catalog.begin_session) == {}
    assert bench.cost(catalog.begin_session) == {NO_ROOT: 1}


@pytest.mark.rgw
def test_the_same_on_a_real_server(rgw_bucket: S3Place) -> None:
    meter = Meter()

    def verbs(work: Callable[[], object]) -> dict[str, int]:
        before = meter.snapshot()
        work()
        found: dict[str, int] = {}
        for key, totals in meter.snapshot().minus(before).requests.items():
            found[key.verb] = found.get(key.verb, 0) + totals.count
        return found

    with closing(open_store(rgw_bucket.url, options=rgw_bucket.options, meter=meter)) as store:
        creator = create_catalog(store, "creator")
        session = creator.begin_session()
        publish = verbs(lambda: creator.publish_dataset("d", manifest("a"), session=session))
        assert publish == {"put": 1, "put-if-absent": 1}

        def read() -> None:
            catalog = open_catalog(store, "reader")
            catalog.dataset(catalog.resolve("d@latest"))

        assert verbs(read) == {"list": 1, "get": 2}


def test_only_the_log_is_counted_as_the_log(bench: Bench) -> None:
    catalog = bench.open()
    catalog.dataset(catalog.resolve("d"))
    assert bench.meter.snapshot().total(purpose=Purpose.OTHER).count == 0
