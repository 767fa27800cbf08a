"""What collection keeps, deletes, waits for and refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from catalog_audit import audit
from catalog_made import open_catalog
from cut_store import CutStore
from dstream.catalog import Catalog, GcSettings
from dstream.catalog.ages import LogAges
from dstream.clock import FakeClock
from dstream.errors import ConflictError, CorruptDataError, NotFoundError
from dstream.format.refs import ObjectRef
from dstream.format.root import log_key, sha256_hex
from dstream.measure import Purpose
from dstream.store.local import LocalStore
from dstream.store.memory import MemoryStore
from lifecycle_made import (
    AT_ONCE,
    DAY_S,
    data_keys,
    file_refs,
    four_runs,
    labels,
    publish_files,
    read_files,
    upload,
)


@pytest.fixture
def server() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory(server: FakeClock) -> MemoryStore:
    return MemoryStore(clock=server)


@pytest.fixture
def catalog(memory: MemoryStore) -> Catalog:
    return four_runs(memory)


def test_publishing_supersedes_nothing(catalog: Catalog) -> None:
    report = catalog.gc(AT_ONCE)
    assert not report.condemned
    assert not report.deleted
    assert labels(catalog) == [1, 2, 3, 4]
    assert report.kept == {"live": 3, "is @latest": 1}


def test_keep_last(catalog: Catalog) -> None:
    catalog.promote("run@v1", "prod")
    report = catalog.gc(replace(AT_ONCE, keep_last=2))
    assert [item.name for item in report.condemned] == ["run@v2"]
    assert labels(catalog) == [1, 3, 4]
    assert len(data_keys(catalog.store)) == 3


def test_keep_within_goes_by_the_stores_clock(catalog: Catalog, server: FakeClock) -> None:
    server.sleep(40 * DAY_S)
    publish_files(catalog, "run", {"weights": "text 5"})
    server.sleep(DAY_S)
    publish_files(catalog, "run", {"weights": "text 6"})
    within = GcSettings(keep_within_s=30 * DAY_S, grace_s=0)
    assert len(catalog.gc(within).condemned) == 4
    assert labels(catalog) == [5, 6]


def test_either_retention_keeps(catalog: Catalog, server: FakeClock) -> None:
    server.sleep(40 * DAY_S)
    publish_files(catalog, "run", {"weights": "text 5"})
    catalog.gc(GcSettings(keep_last=3, keep_within_s=30 * DAY_S, grace_s=0))
    assert labels(catalog) == [3, 4, 5]


def test_bytes_go_only_after_the_grace(catalog: Catalog, server: FakeClock) -> None:
    catalog.retire("run@v1")
    first = catalog.gc()
    assert [item.name for item in first.condemned] == ["run@v1"]
    assert (first.waiting, first.swept) == (1, [])
    assert len(data_keys(catalog.store)) == 4
    with pytest.raises(ConflictError, match="being deleted"):
        catalog.promote("run@v1", "prod")
    server.sleep(DAY_S - 60)
    assert catalog.gc().swept == []
    server.sleep(120)
    second = catalog.gc()
    assert second.swept == ["run@v1"]
    assert len(data_keys(catalog.store)) == 3
    audit(catalog.store)


def test_a_retired_generation_comes_back_until_it_is_condemned(catalog: Catalog) -> None:
    catalog.retire("run@v1")
    with pytest.raises(NotFoundError):
        catalog.resolve("run@v1")
    catalog.promote("run@v1", "prod")
    assert read_files(catalog, catalog.resolve("run@v1")) == {"weights": "text 1"}
    assert not catalog.gc(AT_ONCE).condemned


def test_what_an_alias_names_cannot_be_retired(catalog: Catalog) -> None:
    with pytest.raises(ConflictError, match="dstream alias --remove run@latest"):
        catalog.retire("run@v4")
    catalog.remove_alias("run", "latest", expect=4)
    catalog.retire("run@v4")
    assert labels(catalog) == [1, 2, 3]


def test_shared_objects_stay_while_one_generation_names_them(catalog: Catalog) -> None:
    shared = file_refs(catalog, catalog.resolve("run@v4"))["weights"]
    publish_files(catalog, "run", {"weights": "text 5", "old": shared}, parent=4)
    catalog.retire("run@v4")
    assert catalog.gc(AT_ONCE).swept == ["run@v4"]
    assert read_files(catalog, catalog.resolve("run")) == {"weights": "text 5", "old": "text 4"}
    # The session of v4 has no generation any more, and its object is no orphan either.
    assert not catalog.gc(AT_ONCE).deleted
    assert catalog.verify(deep=True).is_whole


def test_a_publisher_paused_past_the_fence_is_told_and_swept(
    catalog: Catalog, server: FakeClock
) -> None:
    session = catalog.begin_session()
    upload(catalog.store, session, {"weights": "begun long ago"})
    publish_files(catalog, "run", {"weights": "text 5"})
    server.sleep(8 * DAY_S)
    publish_files(catalog, "run", {"weights": "text 6"})
    report = catalog.gc()
    assert report.deleted["orphan"] == 1
    with pytest.raises(ConflictError, match="begin a new session and upload again") as fenced:
        publish_files(catalog, "run", {"weights": "begun long ago"}, session=session)
    assert fenced.value.facts["reason"] == "fenced"
    # What the late publisher has stored again goes with the next collection.
    assert catalog.gc().deleted["orphan"] == 1
    assert labels(catalog) == [1, 2, 3, 4, 5, 6]
    texts = {catalog.store.get(key).data for key in data_keys(catalog.store)}
    assert b"begun long ago" not in texts


def test_uploads_in_progress_are_left_alone(catalog: Catalog, server: FakeClock) -> None:
    session = catalog.begin_session()
    server.sleep(6 * DAY_S)
    assert not catalog.gc().deleted
    publish_files(catalog, "run", {"weights": "slow"}, session=session)
    assert catalog.verify(deep=True).is_whole


def test_a_shared_session_whose_generation_was_collected_is_over(catalog: Catalog) -> None:
    """A journal could still name the objects that went with the generation."""
    session = catalog.begin_session("night")
    first = publish_files(catalog, "night", {"weights": "same"}, session=session)
    publish_files(catalog, "night", {"weights": "other"})
    catalog.retire(first.label)
    catalog.gc(GcSettings(grace_s=0))
    with pytest.raises(ConflictError) as fenced:
        publish_files(catalog, "night", {"weights": "more"}, session=session)
    assert fenced.value.facts["reason"] == "fenced"
    with pytest.raises(ConflictError):
        catalog.begin_session("night")


def test_a_dry_run_changes_nothing_and_says_everything(catalog: Catalog, server: FakeClock) -> None:
    lost = catalog.begin_session()
    upload(catalog.store, lost, {"orphan": "nobody names this"})
    publish_files(catalog, "run", {"weights": "text 5"})
    catalog.retire("run@v1")
    before = {info.key: info.etag for info in catalog.store.list()}
    wanted = replace(AT_ONCE, keep_last=3)
    told = catalog.gc(replace(wanted, dry_run=True))
    assert {info.key: info.etag for info in catalog.store.list()} == before
    done = catalog.gc(wanted)
    assert (told.swept, told.deleted, told.deleted_bytes) == (
        done.swept, done.deleted, done.deleted_bytes,
    )  # fmt: skip
    assert told.items == [replace(i, reason=told.items[n].reason) for n, i in enumerate(done.items)]
    assert [item.reason for item in told.condemned] == ["retired at 6", "beyond retention"]


class LockedStore(CutStore):
    """Some objects are locked: their deletion is refused."""

    locked = "weights"

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        wanted = list(keys)
        free = [(key, version) for key, version in wanted if self.locked not in key]
        refused = {k: "AccessDenied: object is locked" for k, _ in wanted if self.locked in k}
        return {**self.inner.delete_many(free), **refused}


def test_a_locked_object_stops_nothing_else(catalog: Catalog, memory: MemoryStore) -> None:
    publish_files(catalog, "other", {"free": "x", "weights": "locked"})
    publish_files(catalog, "other", {"free": "y"})
    catalog.retire("other@v1", "run@v1")
    report = open_catalog(LockedStore(memory), "locked").gc(AT_ONCE)
    assert len(report.failed) == 2
    assert report.deleted == {"object": 1}
    assert report.swept == []
    again = open_catalog(memory, "unlocked").gc(AT_ONCE)
    assert again.swept == ["other@v1", "run@v1"]
    assert not again.failed


def test_two_collections_at_once(catalog: Catalog, memory: MemoryStore) -> None:
    """The second runs from beginning to end between any two requests of the first."""
    catalog.retire("run@v1", "run@v2")

    class Interrupted(CutStore):
        def _request(self, call, *, conditional=False):  # type: ignore[no-untyped-def]
            self.requests += 1
            if self.requests == self.at:
                open_catalog(memory, f"second-{self.at}").gc(AT_ONCE)
            return call()

    for at in range(1, 30):
        publish_files(catalog, "run", {"weights": f"again {at}"})
        versions = labels(catalog)
        catalog.retire(f"run@v{versions[0]}")
        first = open_catalog(Interrupted(memory, at), f"first-{at}")
        first.gc(AT_ONCE)
        audit(memory)
        catalog.gc(AT_ONCE)
        assert len(data_keys(memory)) == len(labels(catalog))


def test_nothing_is_deleted_while_a_kept_generation_cannot_be_read(
    catalog: Catalog, memory: MemoryStore
) -> None:
    catalog.retire("run@v1")
    key = catalog.resolve("run@v2").manifest.key
    held = memory.get(key).data
    memory.put(key, b"damaged")
    before = data_keys(memory)
    with pytest.raises(CorruptDataError, match=r"run@v2 is to be kept.*nothing was deleted"):
        catalog.gc(AT_ONCE)
    assert data_keys(memory) == before
    memory.put(key, held)
    assert catalog.gc(AT_ONCE).swept == ["run@v1"]


def test_idempotency_keys_are_remembered_for_ninety_days(
    catalog: Catalog, server: FakeClock
) -> None:
    publish_files(catalog, "run", {"weights": "keyed"}, key="k")
    publish_files(catalog, "run", {"weights": "text 6"})
    server.sleep(80 * DAY_S)
    catalog.gc()
    assert publish_files(catalog, "run", {"weights": "keyed"}, key="k").version == 5
    server.sleep(20 * DAY_S)
    publish_files(catalog, "run", {"weights": "now"})
    catalog.gc()
    assert publish_files(catalog, "run", {"weights": "keyed"}, key="k").version == 8


def test_temporary_files_of_dead_writers_go(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    catalog = Catalog.create(store)
    publish_files(catalog, "run", {"weights": "x"})
    (tmp_path / "data" / ".dstream-tmp.dead").write_bytes(b"half")
    assert catalog.gc().deleted["upload"] == 0
    assert catalog.gc(GcSettings(session_grace_s=0)).deleted["upload"] == 1
    assert not list(tmp_path.rglob(".dstream-tmp.*"))


def test_ages_are_found_with_few_requests(server: FakeClock) -> None:
    memory = MemoryStore(clock=server)
    for seq in range(3_000):
        memory.put(log_key(seq), b"")
        server.sleep(60)
    counting = CutStore(memory)
    ages = LogAges(counting, 2_999, server.now_s())
    assert ages.newest_older_than(10 * 60) == 2_990
    assert counting.requests <= 14
    assert ages.newest_older_than(2_500 * 60) == 500
    assert counting.requests <= 30
    assert ages.newest_older_than(1e9) is None
    assert ages.newest_older_than(0) == 2_999


def test_an_unreadable_condemned_generation_is_forgotten(
    catalog: Catalog, memory: MemoryStore
) -> None:
    catalog.retire("run@v1")
    record = catalog.head().record("run", 1)
    assert record is not None
    memory.put(record.manifest.key, b"damaged")
    report = catalog.gc(AT_ONCE)
    assert report.swept == ["run@v1"]
    assert len(data_keys(memory)) == 3, "its bytes are orphans of a fenced session"


def test_a_collector_that_stalls_deletes_nothing_newer(
    catalog: Catalog, memory: MemoryStore
) -> None:
    """It stops before its deletes; meanwhile others publish, pin and collect; then it goes on."""
    catalog.retire("run@v1")
    settings = replace(AT_ONCE, keep_last=2)
    count = CutStore(memory)
    open_catalog(count, "dry").gc(replace(settings, dry_run=True))

    class Stalled(CutStore):
        def delete_many(
            self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
        ) -> dict[str, str]:
            wanted = list(keys)
            other = open_catalog(memory, f"other-{len(memory_keys())}")
            publish_files(other, "run", {"weights": f"while it slept {len(memory_keys())}"})
            other.pin()
            other.gc(settings)
            return self.inner.delete_many(wanted)

    def memory_keys() -> list[str]:
        return [info.key for info in memory.list()]

    open_catalog(Stalled(memory), "stalled").gc(settings)
    report = audit(memory)
    assert len(report.live()) >= 2
    assert catalog.verify(deep=True).is_whole


@pytest.mark.parametrize("key", ["_ds/log/18446744073709551615.r", "_ds/format.json", "other/x"])
def test_a_manifest_that_names_what_is_no_upload_deletes_nothing_of_it(
    catalog: Catalog, memory: MemoryStore, key: str
) -> None:
    if key == "other/x":
        memory.put(key, b"a stranger's")
    data = memory.get(key).data
    forged = ObjectRef(key, len(data), sha256_hex(data))
    publish_files(catalog, "run", {"weights": "text 5", "forged": forged})
    publish_files(catalog, "run", {"weights": "text 6"})
    catalog.retire("run@v5")
    assert catalog.gc(AT_ONCE).swept == ["run@v5"]
    assert memory.get(key).data == data
