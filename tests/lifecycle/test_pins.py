"""What pins keep, how long, and which roots can be pinned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalog_audit import audit
from catalog_made import create_catalog
from dstream.catalog import Catalog, GcSettings
from dstream.clock import FakeClock
from dstream.errors import ConflictError, CorruptDataError, InvalidInputError, NotFoundError
from dstream.store.memory import MemoryStore
from lifecycle_made import AT_ONCE, DAY_S, four_runs, labels, publish_files


@pytest.fixture
def server() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory(server: FakeClock) -> MemoryStore:
    return MemoryStore(clock=server)


@pytest.fixture
def catalog(memory: MemoryStore) -> Catalog:
    return four_runs(memory)


def test_a_scoped_pin_keeps_its_names_only(catalog: Catalog) -> None:
    for number in range(3):
        publish_files(catalog, "other", {"weights": f"other {number}"})
    catalog.pin(["run"], pin_id="p")
    assert len(catalog.gc(replace(AT_ONCE, keep_last=1)).condemned) == 2
    assert labels(catalog) == [1, 2, 3, 4]
    with pytest.raises(NotFoundError, match="cannot be pinned"):
        catalog.pin(["none"])


def test_pins_expire_by_the_stores_clock(catalog: Catalog, server: FakeClock) -> None:
    catalog.pin(pin_id="p", ttl_s=DAY_S)
    catalog.retire("run@v1")
    server.sleep(DAY_S / 2)
    catalog.renew("p")
    server.sleep(DAY_S * 0.9)
    assert not catalog.gc(AT_ONCE).condemned
    server.sleep(DAY_S * 0.2)
    report = catalog.gc(AT_ONCE)
    assert (report.expired_pins, report.swept) == (["p"], ["run@v1"])
    with pytest.raises(ConflictError, match="its time ran out or it was given up") as lost:
        catalog.renew("p")
    assert lost.value.facts["reason"] == "pin-lost"
    with pytest.raises(ConflictError, match="there is no pin 'never'; if there was one"):
        catalog.renew("never")


def test_pins_tell_what_they_alone_keep(catalog: Catalog) -> None:
    catalog.pin(pin_id="a")
    assert [(p.bytes_alone, p.generations) for p in catalog.pins(with_bytes=True)] == [(0, ())]
    catalog.retire("run@v1")
    (alone,) = catalog.pins(with_bytes=True)
    assert alone.generations == ("run@v1",)
    manifest = alone_bytes = catalog.head().record("run", 1)
    assert alone_bytes is not None
    assert manifest is not None
    assert alone.bytes_alone == len("text 1") + manifest.manifest.size_bytes
    catalog.pin(pin_id="b", seq=alone.pin.seq)
    assert [p.bytes_alone for p in catalog.pins(with_bytes=True)] == [0, 0]


def test_pinning_the_same_again_is_one_pin(catalog: Catalog) -> None:
    first = catalog.pin(["run"], pin_id="p", owner="me")
    assert catalog.pin(["run"], pin_id="p", owner="me").token == first.token
    with pytest.raises(ConflictError, match="stands for something else"):
        catalog.pin(pin_id="p")
    with pytest.raises(InvalidInputError):
        catalog.pin(pin_id="../p")
    with pytest.raises(InvalidInputError):
        catalog.pin([], pin_id="q")


def test_a_repeat_that_asks_for_another_time_or_owner_is_refused(
    catalog: Catalog, server: FakeClock
) -> None:
    first = catalog.pin(pin_id="p", owner="me", ttl_s=3600)
    server.sleep(1800)
    head = catalog.head().seq
    for same in (
        catalog.pin(pin_id="p", owner="me", ttl_s=3600.0),
        catalog.pin(pin_id="p", ttl_s=3600),
        catalog.pin(pin_id="p"),
    ):
        assert (same.token, same.pin) == (first.token, first.pin)
    with pytest.raises(ConflictError, match=r"3600 s, not 7776000 s.*dstream renew p") as no:
        catalog.pin(pin_id="p", ttl_s=90 * DAY_S)
    assert no.value.facts["reason"] == "pin-exists"
    with pytest.raises(ConflictError, match=r"of owner 'me', not 'you'.*dstream renew p"):
        catalog.pin(pin_id="p", owner="you", ttl_s=3600)
    assert catalog.head().seq == head, "nothing was written"
    catalog.renew("p", 90 * DAY_S)
    assert catalog.pin(pin_id="p", ttl_s=90 * DAY_S).token == first.token
    catalog.pin(pin_id="ever")
    with pytest.raises(ConflictError, match="lasts for ever, not 60 s"):
        catalog.pin(pin_id="ever", ttl_s=60)


def test_reading_what_was_collected_tells_so(catalog: Catalog) -> None:
    token = catalog.pin(["run"], pin_id="p").token
    frozen = Catalog.open_at(catalog.store, token)
    generation = frozen.resolve("run@v1")
    by_number = Catalog.open_at(catalog.store, catalog.head().seq)
    catalog.retire("run@v1")
    catalog.unpin("p")
    assert catalog.gc(AT_ONCE).swept == ["run@v1"]
    for reader, why in (
        (frozen, "pin 'p' is gone: it expired or was given up"),
        (Catalog.open_at(catalog.store, token), "pin 'p' is gone"),
        (by_number, "no pin keeps root"),
        (catalog, "longer ago than the grace"),
    ):
        with pytest.raises(NotFoundError, match=rf"run@v1 was collected.*{why}") as gone:
            reader.manifest_bytes(generation)
        assert gone.value.facts["version"] == 1
    catalog.pin(["run"], pin_id="p")
    with pytest.raises(NotFoundError, match="pin 'p' does not keep it"):
        frozen.manifest_bytes(generation)


def test_a_manifest_that_is_gone_though_it_is_kept_is_not_called_collected(
    catalog: Catalog,
) -> None:
    generation = catalog.resolve("run@v2")
    catalog.store.delete_many([(generation.manifest.key, None)])
    with pytest.raises(CorruptDataError, match=r"run@v2 is kept.* gone .*dstream verify") as gone:
        catalog.manifest_bytes(generation)
    assert "collected" not in str(gone.value)


def test_what_exists_is_listed_without_gaps(catalog: Catalog) -> None:
    catalog.retire("run@v2")
    with pytest.raises(NotFoundError, match="run has 3 generations, v1, v3, v4, and"):
        catalog.resolve("run@v2")
    for number in range(5, 8):
        publish_files(catalog, "run", {"weights": f"text {number}"})
    with pytest.raises(NotFoundError, match="run has 6 generations, v1, v3 to v7, and"):
        catalog.resolve("run@v2")
    catalog.retire("run@v1", *(f"run@v{number}" for number in range(3, 7)))
    with pytest.raises(NotFoundError, match="run has 1 generation, v7, and"):
        catalog.resolve("run@v2")


def test_an_old_root_can_be_pinned_until_something_of_it_is_given_up(catalog: Catalog) -> None:
    before = catalog.head().seq
    assert catalog.pin(seq=before).pin.seq == before
    catalog.retire("run@v1")
    for pinned in catalog.pins():
        catalog.unpin(pinned.pin_id)
    catalog.gc(GcSettings())
    with pytest.raises(ConflictError) as refused:
        catalog.pin(seq=before)
    assert refused.value.facts["reason"] == "snapshot-expired"


def test_old_roots_are_cleared_but_for_pinned_ones(catalog: Catalog, server: FakeClock) -> None:
    token = catalog.pin(pin_id="p").token
    pinned = catalog.head().seq
    publish_files(catalog, "run", {"weights": "text 5"})
    server.sleep(101 * DAY_S)
    publish_files(catalog, "run", {"weights": "text 6"})
    server.sleep(DAY_S)
    catalog.gc()
    with pytest.raises(NotFoundError, match="cleared"):
        catalog.at(2)
    assert [g.version for g in Catalog.open_at(catalog.store, token).generations("run")] == [
        1, 2, 3, 4,
    ]  # fmt: skip
    assert catalog.log(None)[-1].ops == ({"op": "cleared"},)
    assert catalog.verify().is_whole
    catalog.unpin("p")
    catalog.gc()
    with pytest.raises(NotFoundError, match="pin expired or was given up"):
        Catalog.open_at(catalog.store, token)
    with pytest.raises(NotFoundError):
        catalog.at(pinned)


def test_an_old_root_cannot_be_pinned_once_its_catalog_shards_may_go(
    memory: MemoryStore, server: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dstream.catalog.commit.MAX_TAIL", 2)
    monkeypatch.setattr("dstream.catalog.compaction.MAX_TAIL", 2)
    catalog = create_catalog(memory, "creator")
    for number in range(6):
        publish_files(catalog, "run", {"weights": f"{number}"})
    old = catalog.head().seq
    server.sleep(3 * DAY_S)
    for number in range(6):
        publish_files(catalog, "run", {"weights": f"more {number}"})
    server.sleep(2 * DAY_S)
    assert catalog.pin(pin_id="p", seq=old - 2).pin.seq == old - 2
    assert catalog.gc().deleted["catalog-shard"] > 0
    frozen = Catalog.open_at(memory, catalog.pins()[0].token)
    assert [g.version for g in frozen.generations("run")] == list(range(1, old - 1))
    with pytest.raises(ConflictError):
        catalog.pin(pin_id="q", seq=old - 3)
    audit(memory)
