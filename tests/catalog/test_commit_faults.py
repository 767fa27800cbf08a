"""Every way in which one commit can go wrong, by name; checked on the objects in the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from catalog_audit import audit
from catalog_faults import Fault, ScriptedStore
from catalog_made import SETTINGS, counted_ids, create_catalog, open_catalog
from dstream.catalog import Catalog, CommitSettings, Generation, PublishOptions
from dstream.clock import FakeClock
from dstream.errors import (
    ConflictError,
    CorruptDataError,
    FormatVersionError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
)
from dstream.format.root import Root, Tombstone, decode_root, encode_root, log_key, sha256_hex
from dstream.measure import Meter
from dstream.store.memory import MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    store = MemoryStore()
    create_catalog(store, "creator")
    return store


@pytest.fixture
def faulty(memory: MemoryStore) -> ScriptedStore:
    return ScriptedStore(memory)


def publish(catalog: Catalog, name: str = "run", key: str | None = None) -> Generation:
    session = catalog.begin_session()
    options = PublishOptions(idempotency_key=key)
    return catalog.publish(session, name, "checkpoint", b"manifest", options)


def rival(store: MemoryStore, client: str = "rival") -> Callable[[], Generation]:
    catalog = open_catalog(store, client)
    return lambda: publish(catalog)


@pytest.mark.parametrize(
    "faults",
    [
        (Fault.LOST_AFTER,),
        (Fault.FAIL_AFTER,),
        (Fault.THROTTLED_AFTER,),
        (Fault.OWN_EXISTS,),
        (Fault.LOST_BEFORE,),
        (Fault.FAIL_BEFORE,),
        (Fault.THROTTLED_BEFORE,),
        (Fault.BUSY,),
        (Fault.LATE,),
        (Fault.LOST_BEFORE, Fault.LOST_AFTER),
        (Fault.BUSY, Fault.BUSY, Fault.BUSY, Fault.OWN_EXISTS),
        (Fault.FAIL_BEFORE,) * 7 + (Fault.LOST_AFTER,),
        (Fault.LATE, Fault.LATE, Fault.LOST_BEFORE),
    ],
    ids=lambda faults: "+".join(fault.value for fault in faults),
)
def test_one_publish_through_any_trouble_commits_once(
    memory: MemoryStore, faulty: ScriptedStore, faults: tuple[Fault, ...]
) -> None:
    catalog = open_catalog(faulty)
    faulty.faults.extend(faults)
    entry = publish(catalog)
    faulty.deliver()
    assert audit(memory).published() == [("run", 1, 1)]
    assert catalog.resolve("run") == entry
    assert len({key for key, _ in faulty.log_puts}) == 1, "left its slot while undecided"
    assert len({data for _, data in faulty.log_puts}) == 1, "sent other bytes to the same slot"


def test_lost_answer_is_recognised_by_reading_back(faulty: ScriptedStore) -> None:
    meter = Meter()
    catalog = open_catalog(faulty, meter=meter)
    faulty.faults.append(Fault.LOST_AFTER)
    publish(catalog)
    assert meter.snapshot().event("commit") == {"found-own-after-unknown": 1}
    assert len(faulty.log_puts) == 1


def test_refusal_of_ones_own_success_is_a_success(faulty: ScriptedStore) -> None:
    meter = Meter()
    catalog = open_catalog(faulty, meter=meter)
    faulty.faults.append(Fault.OWN_EXISTS)
    assert publish(catalog).version == 1
    assert meter.snapshot().event("commit") == {"found-own-after-exists": 1}


def test_storm_of_409_is_waited_out_with_the_same_bytes(faulty: ScriptedStore) -> None:
    clock = FakeClock()
    catalog = open_catalog(faulty, clock=clock)
    faulty.faults.extend([Fault.BUSY] * 12)
    publish(catalog)
    assert len(faulty.log_puts) == 13
    assert len(set(faulty.log_puts)) == 1
    assert len(clock.slept_s) == 12 - SETTINGS.immediate_tries
    assert max(clock.slept_s) <= SETTINGS.max_wait_s


def test_409_while_a_rival_gets_the_slot(memory: MemoryStore, faulty: ScriptedStore) -> None:
    catalog = open_catalog(faulty)
    faulty.faults.append(Fault.BUSY)
    faulty.before_log_put.append(rival(memory))
    assert publish(catalog).version == 2
    assert audit(memory).published() == [("run", 1, 1), ("run", 2, 2)]


def test_rival_wins_and_ours_is_rebased(memory: MemoryStore, faulty: ScriptedStore) -> None:
    meter = Meter()
    catalog = open_catalog(faulty, meter=meter)
    faulty.before_log_put.append(rival(memory))
    entry = publish(catalog)
    assert (entry.version, entry.seq) == (2, 2)
    assert meter.snapshot().event("commit") == {"lost-race": 1}
    assert len(audit(memory).live()) == 2


def test_rivals_win_many_times(memory: MemoryStore, faulty: ScriptedStore) -> None:
    catalog = open_catalog(faulty)
    winner = rival(memory)
    faulty.before_log_put.extend([winner] * 12)
    assert publish(catalog).version == 13
    assert len(audit(memory).live()) == 13


def test_races_that_are_always_lost_end_in_a_definite_conflict(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    clock = FakeClock()
    catalog = open_catalog(faulty, clock=clock)
    session = catalog.begin_session()
    winner = rival(memory)

    def late_winner() -> None:
        clock.sleep(5)
        winner()

    faulty.before_log_put.extend([late_winner] * 300)
    with pytest.raises(ConflictError, match="nothing was committed") as caught:
        catalog.publish(session, "mine", "checkpoint", b"x")
    assert caught.value.facts["reason"] == "races"
    assert all(name == "run" for name, _, _ in audit(memory).published())


def test_rival_wins_after_an_unknown_outcome(memory: MemoryStore, faulty: ScriptedStore) -> None:
    catalog = open_catalog(faulty)
    winner = rival(memory)
    faulty.faults.append(Fault.LATE)
    # The first write is under way; the rival takes the slot before it is sent again.
    faulty.before_log_put.extend([lambda: None, winner])
    assert publish(catalog).version == 2
    faulty.deliver()
    assert len(audit(memory).live()) == 2


def unknown_publish(catalog: Catalog, faulty: ScriptedStore, landing: Fault) -> tuple[str, int]:
    faulty.faults.extend([landing] + [Fault.LOST_BEFORE] * 500)
    session = catalog.begin_session()
    faulty.failing_gets = 10_000 if landing is Fault.LOST_AFTER else 0
    with pytest.raises(OutcomeUnknownError, match="resolve_txn") as caught:
        catalog.publish(session, "run", "checkpoint", b"manifest")
    faulty.failing_gets = 0
    faulty.faults.clear()
    txn_id, slot = caught.value.facts["txn_id"], caught.value.facts["slot"]
    assert isinstance(txn_id, str)
    assert isinstance(slot, int)
    return txn_id, slot


def test_unknown_outcome_that_landed_resolves_to_committed(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    catalog = open_catalog(faulty)
    txn_id, slot = unknown_publish(catalog, faulty, Fault.LOST_AFTER)
    assert catalog.resolve_txn(txn_id, slot) is True
    assert audit(memory).published() == [("run", 1, 1)]


def test_unknown_outcome_that_is_on_its_way_is_shut_out(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    catalog = open_catalog(faulty)
    txn_id, slot = unknown_publish(catalog, faulty, Fault.LATE)
    assert catalog.resolve_txn(txn_id, slot) is False
    faulty.deliver()
    assert audit(memory).published() == []
    assert open_catalog(memory, "other").resolve_txn(txn_id, slot) is False
    assert publish(catalog).version == 1


def test_unknown_outcome_can_be_resolved_by_anyone_later(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    txn_id, slot = unknown_publish(open_catalog(faulty), faulty, Fault.LOST_BEFORE)
    rival(memory)()
    assert open_catalog(memory, "other").resolve_txn(txn_id, slot) is False


def test_unknown_outcome_keeps_staged_bytes(memory: MemoryStore, faulty: ScriptedStore) -> None:
    unknown_publish(open_catalog(faulty), faulty, Fault.LOST_BEFORE)
    assert len(list(memory.list("_ds/man/"))) == 1


def test_unknown_outcome_then_publishing_again_with_the_key(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    catalog = open_catalog(faulty)
    faulty.faults.extend([Fault.LATE] + [Fault.LOST_BEFORE] * 500)
    with pytest.raises(OutcomeUnknownError):
        publish(catalog, key="k")
    faulty.faults.clear()
    faulty.deliver()
    entry = publish(open_catalog(memory, "rerun"), key="k")
    assert audit(memory).published() == [("run", 1, 1)]
    assert entry.seq == 1


def test_resolving_while_a_rival_takes_the_slot(memory: MemoryStore, faulty: ScriptedStore) -> None:
    catalog = open_catalog(faulty)
    txn_id, slot = unknown_publish(catalog, faulty, Fault.LOST_BEFORE)
    faulty.before_log_put.append(rival(memory))
    assert catalog.resolve_txn(txn_id, slot) is False
    assert len(audit(memory).roots) == 2, "the slot was taken, no entry was needed"


def test_resolving_a_slot_that_cannot_be(memory: MemoryStore) -> None:
    with pytest.raises(ValueError, match="not the next of this log"):
        open_catalog(memory).resolve_txn("x", 7)


def test_denied_write_is_a_definite_failure(memory: MemoryStore, faulty: ScriptedStore) -> None:
    faulty.faults.append(Fault.DENIED)
    with pytest.raises(PermissionDeniedError):
        publish(open_catalog(faulty))
    assert audit(memory).published() == []


def test_denied_write_after_a_lost_answer_is_not_called_a_failure(faulty: ScriptedStore) -> None:
    faulty.faults.extend([Fault.LATE, Fault.DENIED])
    with pytest.raises(OutcomeUnknownError):
        publish(open_catalog(faulty))


def test_denied_write_after_a_lost_answer_that_landed(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    catalog = open_catalog(faulty)
    session = catalog.begin_session()
    faulty.faults.extend([Fault.LOST_AFTER, Fault.DENIED])
    faulty.failing_gets = 1
    assert catalog.publish(session, "run", "checkpoint", b"x").version == 1
    assert audit(memory).published() == [("run", 1, 1)]


def test_denied_write_after_an_unread_refusal_of_ones_own_success(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    catalog = open_catalog(faulty)
    session = catalog.begin_session()
    faulty.faults.extend([Fault.OWN_EXISTS, Fault.DENIED])
    faulty.failing_gets = 1
    assert catalog.publish(session, "run", "checkpoint", b"x").version == 1
    assert audit(memory).published() == [("run", 1, 1)]


def test_two_writers_that_share_an_id_source_are_told_apart_by_their_bytes(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    twin = open_catalog(memory, "twin")
    catalog = open_catalog(faulty, "twin")
    twin_session, session = twin.begin_session(), catalog.begin_session()
    faulty.before_log_put.append(lambda: twin.publish(twin_session, "x", "checkpoint", b"twin"))
    with pytest.raises(CorruptDataError, match="same transaction id"):
        catalog.publish(session, "y", "checkpoint", b"mine")


def test_stale_head_conflict_is_not_concluded_from_memory(memory: MemoryStore) -> None:
    old = open_catalog(memory, "old")
    publish(old)
    other = open_catalog(memory, "other")
    publish(other)
    publish(other)
    # ``old`` still remembers v1 only: the target and the expectation exist in the store.
    assert old.move_alias("run", "latest", 2, expect=3).version == 2


def test_stale_head_is_not_believed_for_doing_nothing(memory: MemoryStore) -> None:
    old = open_catalog(memory, "old")
    publish(old)
    publish(open_catalog(memory, "other"))
    assert old.resolve("run", root=old.at(1)).version == 1
    old.move_alias("run", "latest", 1)
    assert audit(memory).head["aliases"]["run"]["latest"] == 1


def fence(store: MemoryStore, floor: int) -> None:
    head = open_catalog(store, "gc").head()
    data = store.get(log_key(head.seq)).data
    root = replace(
        head, seq=head.seq + 1, prev_sha256=sha256_hex(data), txn_id="gc", upload_floor=floor
    )
    store.put_if_absent(log_key(root.seq), encode_root(replace(root, ops=())))


def test_fence_committed_during_the_upload_stops_the_publish(memory: MemoryStore) -> None:
    catalog = open_catalog(memory)
    session = catalog.begin_session()
    fence(memory, 1)
    with pytest.raises(ConflictError, match="fenced") as caught:
        catalog.publish(session, "run", "checkpoint", b"x")
    assert caught.value.facts["reason"] == "fenced"
    assert publish(catalog).version == 1


def test_fence_that_wins_the_race_for_the_slot(memory: MemoryStore, faulty: ScriptedStore) -> None:
    catalog = open_catalog(faulty)
    session = catalog.begin_session()
    faulty.before_log_put.append(lambda: fence(memory, 1))
    with pytest.raises(ConflictError, match="fenced"):
        catalog.publish(session, "run", "checkpoint", b"x")
    assert audit(memory).published() == []


def test_rival_of_a_newer_version_stops_the_commit(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    catalog = open_catalog(faulty)

    def upgrade() -> None:
        head = catalog.at(0)
        data = memory.get(log_key(0)).data
        newer = replace(head, seq=1, prev_sha256=sha256_hex(data), txn_id="n", min_reader=3, v=3)
        memory.put_if_absent(log_key(1), encode_root(newer))

    faulty.before_log_put.append(upgrade)
    with pytest.raises(FormatVersionError):
        publish(catalog)


def test_replaced_root_is_detected(memory: MemoryStore) -> None:
    catalog = open_catalog(memory)
    publish(catalog)
    publish(open_catalog(memory, "other"))
    root = decode_root(memory.get(log_key(2)).data, 2)
    assert isinstance(root, Root)
    memory.put(log_key(2), encode_root(replace(root, prev_sha256="0" * 64)))
    with pytest.raises(CorruptDataError, match="replaced or rolled back"):
        catalog.head()
    with pytest.raises(CorruptDataError, match="replaced or rolled back"):
        open_catalog(memory, "third").log(None)


def test_cleared_roots_do_not_stop_an_old_client(memory: MemoryStore) -> None:
    from zstandard import ZstdCompressor

    old = open_catalog(memory, "old")
    busy = open_catalog(memory, "busy")
    for _ in range(3):
        publish(busy)
    document = b'{"v": 1, "min_reader": 1, "txn_id": "busy-000002", "tombstone": 1}'
    for seq in (1, 2):
        memory.put(log_key(seq), ZstdCompressor().compress(document))
    assert decode_root(memory.get(log_key(1)).data, 1) == Tombstone("busy-000002")
    # Its next slot is taken by a cleared root: it finds the head by listing and goes on there.
    entry = old.publish(old.begin_session(), "run", "checkpoint", b"y")
    assert (entry.version, entry.seq) == (4, 4)
    assert [e.seq for e in busy.log(None)] == [4, 3, 2, 1, 0]
    with pytest.raises(NotFoundError, match="cleared"):
        busy.at(1)


def test_deleted_log_keys_are_noticed_after_a_long_pause(memory: MemoryStore) -> None:
    clock = FakeClock()
    paused = open_catalog(memory, "paused", clock=clock)
    session = paused.begin_session()
    busy = open_catalog(memory, "busy")
    for _ in range(3):
        publish(busy)
    memory.delete_many([(log_key(seq), None) for seq in (0, 1, 2)])
    clock.sleep(3600.0)
    with pytest.raises(CorruptDataError, match="lifecycle rule"):
        paused.publish(session, "run", "checkpoint", b"x")


def test_long_pause_with_a_whole_log_is_no_trouble(
    memory: MemoryStore, faulty: ScriptedStore
) -> None:
    clock = FakeClock()
    paused = open_catalog(faulty, "paused", clock=clock)
    session = paused.begin_session()
    clock.sleep(3600.0)
    publish(open_catalog(memory, "other"))
    clock.sleep(3600.0)
    assert paused.publish(session, "run", "checkpoint", b"x").version == 2


@pytest.mark.parametrize("years", [-10, 10])
def test_wrong_clock_changes_nothing(memory: MemoryStore, years: int) -> None:
    wrong = FakeClock(1_000_000_000.0 + years * 31_557_600.0)
    catalog = Catalog.open(
        memory, wrong, np.random.default_rng(0), new_id=counted_ids("w"), settings=SETTINGS
    )
    right = open_catalog(memory, "right")
    assert [publish(c).version for c in (right, catalog, right, catalog)] == [1, 2, 3, 4]
    assert right.resolve("run@latest").version == 4
    audit(memory)


def test_budget_bounds_an_endless_failure(faulty: ScriptedStore) -> None:
    clock = FakeClock()
    catalog = Catalog.open(
        faulty, clock, np.random.default_rng(0), settings=CommitSettings(slot_budget_s=10.0)
    )
    session = catalog.begin_session()
    began_s = clock.monotonic_s()
    faulty.faults.extend([Fault.FAIL_BEFORE] * 10_000)
    with pytest.raises(OutcomeUnknownError):
        catalog.publish(session, "run", "checkpoint", b"x")
    assert 10.0 <= clock.monotonic_s() - began_s <= 15.0
