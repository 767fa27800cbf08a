"""One test for each class of bug that such systems were reported to have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from catalog_audit import audit
from catalog_faults import Fault, ScriptedStore
from catalog_made import SETTINGS, counted_ids, create_catalog, open_catalog
from cut_store import Crash, Cut, CutStore
from dstream.catalog import Catalog, GcSettings, PublishOptions
from dstream.clock import FakeClock
from dstream.errors import ConflictError, CorruptDataError, NotFoundError, OutcomeUnknownError
from dstream.format.root import log_key
from dstream.store.memory import MemoryStore
from lifecycle_made import AT_ONCE, DAY_S, data_keys, file_refs, publish_files, read_files, upload

TEN_YEARS_S = 10 * 365 * 86400.0


@pytest.fixture
def server() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory(server: FakeClock) -> MemoryStore:
    made = MemoryStore(clock=server)
    create_catalog(made, "creator")
    return made


@pytest.fixture
def faulty(memory: MemoryStore) -> ScriptedStore:
    return ScriptedStore(memory)


def published(memory: MemoryStore) -> list[tuple[str, int]]:
    return [(name, version) for name, version, _ in audit(memory).published()]


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.FAIL_AFTER, Fault.THROTTLED_AFTER])
def test_lost_answer(faulty: ScriptedStore, memory: MemoryStore, fault: Fault) -> None:
    """The commit landed, its answer did not: not a conflict, not twice, nothing cleaned up."""
    catalog = open_catalog(faulty)
    faulty.faults.append(fault)
    entry = publish_files(catalog, "run", {"weights": "x"})
    assert published(memory) == [("run", entry.version)]
    assert read_files(catalog, entry) == {"weights": "x"}


def test_own_412(faulty: ScriptedStore, memory: MemoryStore) -> None:
    """A hidden resend is refused by our own success."""
    catalog = open_catalog(faulty)
    faulty.faults.append(Fault.OWN_EXISTS)
    publish_files(catalog, "run", {"weights": "x"})
    assert published(memory) == [("run", 1)]


def test_409_storm(faulty: ScriptedStore, memory: MemoryStore) -> None:
    """Nobody holds a slot that answers 409: the same bytes go to the same slot again."""
    catalog = open_catalog(faulty)
    faulty.faults.extend([Fault.BUSY] * 20)
    publish_files(catalog, "run", {"weights": "x"})
    assert published(memory) == [("run", 1)]
    assert len({key for key, _ in faulty.log_puts}) == 1


def test_stale_writer_after_clean_up(memory: MemoryStore, server: FakeClock) -> None:
    """A writer that slept through the clearing of old roots cannot write into the past."""
    sleeper = open_catalog(memory, "sleeper")
    sleeper.head()
    awake = open_catalog(memory, "awake")
    for number in range(6):
        publish_files(awake, "run", {"weights": f"{number}"})
        server.sleep(60 * DAY_S)
    awake.gc(replace(AT_ONCE, log_age_s=DAY_S))
    with pytest.raises(NotFoundError, match="cleared"):
        awake.at(1)
    sleeper.promote("run@v1", "old")
    assert audit(memory).head["aliases"]["run"]["old"] == 1
    assert len(published(memory)) == 6 - sum("tombstone" in r for r in audit(memory).roots[1:])


def test_collection_against_a_reader(memory: MemoryStore, server: FakeClock) -> None:
    """A reader that opened before has the whole grace; one with a pin has as long as it likes."""
    catalog = open_catalog(memory)
    old = publish_files(catalog, "run", {"weights": "old"})
    publish_files(catalog, "run", {"weights": "new"})
    token = catalog.pin(pin_id="reader").token
    collect = GcSettings(keep_last=1)
    catalog.gc(collect)
    server.sleep(30 * DAY_S)
    catalog.gc(collect)
    held = Catalog.open_at(memory, token)
    assert read_files(held, held.resolve("run@v1")) == {"weights": "old"}
    catalog.unpin("reader")
    catalog.gc(collect)
    assert read_files(catalog, old) == {"weights": "old"}, "the grace has only begun"
    server.sleep(2 * DAY_S)
    catalog.gc(collect)
    with pytest.raises(NotFoundError):
        read_files(catalog, old)


def test_collection_against_a_pin(memory: MemoryStore) -> None:
    """The pin lands between collection's reading and its commit: it is seen."""
    stalled = ScriptedStore(memory)
    collector, pinner = open_catalog(stalled, "collector"), open_catalog(memory, "pinner")
    publish_files(pinner, "run", {"weights": "old"})
    publish_files(pinner, "run", {"weights": "new"})
    stalled.before_log_put.append(lambda: pinner.pin(pin_id="just in time"[:4]))
    collector.gc(replace(AT_ONCE, keep_last=1))
    assert {version for _, version in audit(memory).live()} == {1, 2}
    assert collector.verify(deep=True).is_whole


def test_collection_against_an_upload(memory: MemoryStore) -> None:
    """Bytes whose commit is still to come are no garbage, though nothing names them yet."""
    catalog = open_catalog(memory)
    publish_files(catalog, "run", {"weights": "x"})
    session = catalog.begin_session()
    manifest = upload(memory, session, {"weights": "in flight"})
    open_catalog(memory, "other").gc(AT_ONCE)
    entry = catalog.publish(session, "run", "checkpoint", manifest)
    assert read_files(catalog, entry) == {"weights": "in flight"}


def test_collection_against_a_tag(memory: MemoryStore) -> None:
    """An alias that is set while collection is about to commit keeps its generation."""
    stalled = ScriptedStore(memory)
    collector, tagger = open_catalog(stalled, "collector"), open_catalog(memory, "tagger")
    publish_files(tagger, "run", {"weights": "old"})
    publish_files(tagger, "run", {"weights": "new"})
    tagger.retire("run@v1")
    stalled.before_log_put.append(lambda: tagger.promote("run@v1", "prod"))
    collector.gc(AT_ONCE)
    assert read_files(tagger, tagger.resolve("run@prod")) == {"weights": "old"}
    # And the other way round: what is condemned can be named no more.
    publish_files(tagger, "run", {"weights": "newer"})
    tagger.retire("run@v2")
    collector.gc(GcSettings())
    with pytest.raises(ConflictError, match="being deleted"):
        tagger.promote("run@v2", "prod")


def test_half_written_checkpoint(memory: MemoryStore) -> None:
    """A writer that dies between two files leaves nothing that can be seen."""
    files = {f"shard-{number}": f"text {number}" for number in range(4)}
    for at in range(1, 12):
        try:
            publish_files(open_catalog(CutStore(memory, at, Cut.AFTER), f"w{at}"), "run", files)
        except Crash:
            continue
    reader = open_catalog(memory, "reader")
    for generation in reader.generations("run"):
        assert read_files(reader, generation) == files


def test_latest_moved_early(memory: MemoryStore) -> None:
    """``latest`` moves in the commit itself, never before, and never back to a lower step."""
    catalog = open_catalog(memory)
    session = catalog.begin_session()
    first = upload(memory, session, {"weights": "10"})
    catalog.publish(session, "run", "checkpoint", first, PublishOptions(step=10))
    second = upload(memory, session, {"weights": "20"})
    assert catalog.resolve("run").step == 10, "the next one is stored, and not yet committed"
    catalog.publish(session, "run", "checkpoint", second, PublishOptions(step=20))
    late = upload(memory, session, {"weights": "15"})
    catalog.publish(session, "run", "checkpoint", late, PublishOptions(step=15))
    assert catalog.resolve("run").step == 20


def test_contention_starvation(memory: MemoryStore) -> None:
    """A writer that loses twenty races in a row gets its turn, and loses nothing of its upload."""
    store = ScriptedStore(memory)
    slow, fast = open_catalog(store, "slow"), open_catalog(memory, "fast")
    for _ in range(20):
        store.before_log_put.append(lambda: fast.pin())
    entry = publish_files(slow, "run", {"weights": "x"})
    assert entry.seq == 21
    assert len(data_keys(memory)) == 1
    assert len([info for info in memory.list("_ds/man/")]) == 1


@pytest.mark.parametrize("off_s", [-TEN_YEARS_S, TEN_YEARS_S])
def test_clock_skew(memory: MemoryStore, server: FakeClock, off_s: float) -> None:
    """A client that is ten years off pins, publishes and collects as any other."""

    def skewed(name: str) -> Catalog:
        return Catalog.open(
            memory,
            FakeClock(server.now_s() + off_s),
            np.random.default_rng(1),
            new_id=counted_ids(name),
            settings=SETTINGS,
        )

    off, right = skewed("off"), open_catalog(memory, "right")
    publish_files(off, "run", {"weights": "1"})
    publish_files(right, "run", {"weights": "2"})
    off.pin(pin_id="off", ttl_s=DAY_S)
    right.pin(pin_id="right", ttl_s=DAY_S)
    session = right.begin_session()
    manifest = upload(memory, session, {"weights": "3"})
    assert right.gc(GcSettings(keep_within_s=DAY_S)).expired_pins == []
    report = off.gc(GcSettings(keep_last=1))
    assert (report.condemned, report.deleted, report.expired_pins) == ([], {}, [])
    assert off.gc(GcSettings(keep_within_s=DAY_S)).condemned == []
    assert right.publish(session, "run", "checkpoint", manifest).version == 3
    server.sleep(2 * DAY_S)
    assert off.gc(GcSettings(keep_last=1)).expired_pins == ["off", "right"]
    assert right.verify(deep=True).is_whole


def test_delete_marker(memory: MemoryStore) -> None:
    """A deleted log key opens its slot again (in a versioned bucket by a marker): it is noticed."""
    catalog = open_catalog(memory)
    for number in range(3):
        publish_files(catalog, "run", {"weights": f"{number}"})
    memory.delete_many([(log_key(2), None)])
    report = open_catalog(memory, "verifier").verify()
    assert [damage.where for damage in report.damages] == ["log number 2"]
    with pytest.raises(CorruptDataError, match="missing"):
        open_catalog(memory, "reader").log(None)


def test_clean_up_on_unknown_outcome(faulty: ScriptedStore, memory: MemoryStore) -> None:
    """Nothing of an upload is deleted while its commit may still land; then it is settled."""
    catalog = open_catalog(faulty)
    faulty.faults.extend([Fault.LATE] + [Fault.LOST_BEFORE] * 500)
    with pytest.raises(OutcomeUnknownError) as unknown:
        publish_files(catalog, "run", {"weights": "x"})
    faulty.faults.clear()
    faulty.deliver()
    assert catalog.resolve_txn(str(unknown.value.facts["txn_id"]), 1)
    assert read_files(catalog, catalog.resolve("run")) == {"weights": "x"}


def test_objects_shared_with_a_collected_generation(memory: MemoryStore) -> None:
    """Unchanged files are named again, and stay when the one that stored them is collected."""
    catalog = open_catalog(memory)
    first = publish_files(catalog, "run", {"tokenizer": "same", "weights": "1"})
    shared = file_refs(catalog, first)["tokenizer"]
    publish_files(catalog, "run", {"tokenizer": shared, "weights": "2"}, parent=1)
    publish_files(catalog, "other", {"x": "y"})
    for _ in range(3):
        catalog.gc(replace(AT_ONCE, keep_last=1))
    assert read_files(catalog, catalog.resolve("run")) == {"tokenizer": "same", "weights": "2"}


def test_sharing_with_what_is_being_deleted(memory: MemoryStore) -> None:
    """The base went while the upload ran: the commit is refused, not left without its bytes."""
    catalog = open_catalog(memory)
    first = publish_files(catalog, "run", {"tokenizer": "same"})
    shared = file_refs(catalog, first)["tokenizer"]
    session = catalog.begin_session()
    manifest = upload(memory, session, {"tokenizer": shared, "weights": "2"})
    other = open_catalog(memory, "other")
    publish_files(other, "run", {"weights": "rival"})
    other.gc(GcSettings(keep_last=1, grace_s=0))
    with pytest.raises(ConflictError) as refused:
        catalog.publish(session, "run", "checkpoint", manifest, PublishOptions(parent=1))
    assert refused.value.facts["reason"] == "parent"


def test_stale_writer_whose_catalog_shards_are_gone(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its remembered root names shards that collection deleted: it goes on with the newest."""
    monkeypatch.setattr("dstream.catalog.commit.MAX_TAIL", 2)
    monkeypatch.setattr("dstream.catalog.compaction.MAX_TAIL", 2)
    awake = open_catalog(memory, "awake")
    for number in range(6):
        publish_files(awake, "run", {"weights": f"{number}"})
    sleepers = [open_catalog(memory, f"sleeper-{number}") for number in range(3)]
    for sleeper in sleepers:
        sleeper.head()
    for _ in range(2):
        publish_files(awake, "run", {"weights": "more"})
        awake.gc(replace(AT_ONCE, keep_last=1))
    publish_files(sleepers[0], "run", {"weights": "of a sleeper"}, session=awake.begin_session())
    sleepers[1].promote("run@latest", "prod")
    assert sleepers[2].resolve("run@prod").label == "run@v9"
    assert awake.verify(deep=True).is_whole


def test_a_refusal_by_an_old_root(faulty: ScriptedStore, memory: MemoryStore) -> None:
    """A listing that lags names a root that is newer than the known one, and not the newest."""
    sleeper = open_catalog(faulty, "sleeper")
    sleeper.head()
    awake = open_catalog(memory, "awake")
    for number in range(8):
        publish_files(awake, "run", {"weights": f"{number}"})
    faulty.unlisted = 2
    sleeper.retire("run@v6")  # which is the latest by the root that the listing names
    with pytest.raises(NotFoundError):
        awake.resolve("run@v6")
