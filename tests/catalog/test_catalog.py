from __future__ import annotations

import json
import pickle
import threading
from dataclasses import replace

import pytest

from catalog_audit import audit
from catalog_faults import Fault, ScriptedStore
from catalog_made import create_catalog, manifest, open_catalog, part_keys
from dstream.catalog import Catalog, CommitSettings, PublishOptions, Session
from dstream.errors import (
    ConflictError,
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsafeStoreError,
)
from dstream.format.repository import FORMAT_KEY
from dstream.format.root import FORMAT_VERSION, encode_root, log_key
from dstream.measure import Purpose
from dstream.store.base import Capabilities, ObjectInfo
from dstream.store.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def catalog(store: MemoryStore) -> Catalog:
    return create_catalog(store)


def keys(store: MemoryStore) -> set[str]:
    return {info.key for info in store.list()}


def test_create_then_open(store: MemoryStore, catalog: Catalog) -> None:
    assert catalog.head().seq == 0
    assert open_catalog(store).names() == []
    assert {FORMAT_KEY, log_key(0)} <= keys(store)
    assert json.loads(store.get(FORMAT_KEY).data)["min_reader"] == FORMAT_VERSION


def test_create_twice(store: MemoryStore, catalog: Catalog) -> None:
    with pytest.raises(ConflictError, match="already"):
        create_catalog(store, "b")
    before = keys(store)
    assert Catalog.create(store, exist_ok=True).head().seq == 0
    assert keys(store) == before


def test_create_completes_an_interrupted_creation(store: MemoryStore) -> None:
    create_catalog(store)
    store.delete_many([(log_key(0), None)])
    with pytest.raises(NotFoundError, match="dstream init"):
        open_catalog(store)
    assert create_catalog(store, "b").head().txn_id.startswith("b-")


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.OWN_EXISTS, Fault.LOST_BEFORE])
def test_create_through_lost_answers(store: MemoryStore, fault: Fault) -> None:
    faulty = ScriptedStore(store)
    faulty.faults.append(fault)
    assert create_catalog(faulty).head().seq == 0
    audit(store)


def test_two_creations_at_once(store: MemoryStore) -> None:
    faulty = ScriptedStore(store)
    faulty.before_log_put.append(lambda: create_catalog(store, "rival"))
    with pytest.raises(ConflictError, match="already"):
        create_catalog(faulty, "late")
    assert audit(store).head["txn_id"].startswith("rival-")


class OverwritingStore(MemoryStore):
    """Ignores the condition, as some real servers do."""

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        return self.put(key, data, purpose=purpose)


def test_create_refuses_a_store_that_ignores_conditions() -> None:
    store = OverwritingStore()
    with pytest.raises(UnsafeStoreError):
        create_catalog(store)
    assert not any(key.startswith("_ds/log/") for key in keys(store))


def test_open_what_is_no_repository(store: MemoryStore) -> None:
    store.put("a/video.mp4", b"x")
    with pytest.raises(NotFoundError, match=r"not a dstream repository.*dstream init memory://"):
        open_catalog(store)
    assert keys(store) == {"a/video.mp4"}


def test_open_a_newer_repository(store: MemoryStore, catalog: Catalog) -> None:
    newer = replace(catalog.head(), v=3, min_reader=3)
    store.put(log_key(0), encode_root(newer))
    with pytest.raises(FormatVersionError, match="upgrade"):
        open_catalog(store)


def test_open_a_newer_repository_of_another_layout(store: MemoryStore) -> None:
    store.put(FORMAT_KEY, b'{"v": 9, "min_reader": 9, "min_writer": 9}')
    with pytest.raises(FormatVersionError):
        open_catalog(store)
    with pytest.raises(FormatVersionError):
        create_catalog(store)


def test_newer_writer_may_be_read_but_not_continued(store: MemoryStore, catalog: Catalog) -> None:
    store.put(log_key(0), encode_root(replace(catalog.head(), v=3, min_writer=3)))
    reader = open_catalog(store)
    assert reader.names() == []
    with pytest.raises(FormatVersionError, match="reading works"):
        reader.publish(reader.begin_session(), "a", "dataset", b"x")


def test_publish_and_resolve(catalog: Catalog) -> None:
    session = catalog.begin_session()
    for step in (10, 20):
        options = PublishOptions(step=step, attrs={"loss": 1 / step}, message=f"step {step}")
        catalog.publish(session, "team/run", "checkpoint", b"m%d" % step, options)
    catalog.move_alias("team/run", "best", 1)
    for reference, version in {"": 2, "@latest": 2, "@newest": 2, "@v1": 1, "@best": 1}.items():
        entry = catalog.resolve("team/run" + reference)
        assert entry.version == version
        assert catalog.manifest_bytes(entry) == b"m%d" % (10 * version)
    assert catalog.resolve("team/run").attrs == {"loss": 0.05}
    assert catalog.names() == ["team/run"]
    assert [entry.version for entry in catalog.generations("team/run")] == [1, 2]
    assert catalog.aliases("team/run") == {"latest": 2, "best": 1}
    with pytest.raises(InvalidInputError, match="expected a dataset"):
        catalog.dataset(catalog.resolve("team/run"))


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("team/rum", "did you mean team/run"),
        ("xyz", "list them with: dstream ls"),
        ("team/run@v2", "1 generation.*v1.*latest"),
        ("team/run@prod", "aliases latest"),
    ],
)
def test_unknown_references_are_helped(catalog: Catalog, reference: str, said: str) -> None:
    catalog.publish(catalog.begin_session(), "team/run", "checkpoint", b"x")
    with pytest.raises(NotFoundError, match=said):
        catalog.resolve(reference)


def test_bare_name_without_latest(catalog: Catalog) -> None:
    options = PublishOptions(move_latest=False)
    catalog.publish(catalog.begin_session(), "run", "checkpoint", b"x", options)
    with pytest.raises(NotFoundError, match="no alias"):
        catalog.resolve("run")
    assert catalog.resolve("run@newest").version == 1


def test_empty_repository_says_so(catalog: Catalog) -> None:
    with pytest.raises(NotFoundError, match="empty"):
        catalog.resolve("a")
    with pytest.raises(NotFoundError):
        catalog.generations("a")


def test_refused_publish_leaves_no_objects(store: MemoryStore, catalog: Catalog) -> None:
    session = catalog.begin_session()
    catalog.publish(session, "run", "checkpoint", b"x")
    before = keys(store)
    with pytest.raises(InvalidInputError):
        catalog.publish(session, "a@b", "checkpoint", b"x")
    with pytest.raises(ConflictError):
        catalog.publish(session, "run", "dataset", b"x")
    with pytest.raises(InvalidInputError, match="JSON"):
        catalog.publish(
            session, "run", "checkpoint", b"x", PublishOptions(attrs={"x": float("nan")})
        )
    with pytest.raises(InvalidInputError, match="limit"):
        catalog.publish(
            session, "run", "checkpoint", b"x", PublishOptions(attrs={"x": "y" * 20_000})
        )
    assert keys(store) == before


def test_idempotency_key(store: MemoryStore, catalog: Catalog) -> None:
    session = catalog.begin_session()
    options = PublishOptions(idempotency_key="job-7")
    first = catalog.publish(session, "run", "checkpoint", b"x", options)
    before = keys(store)
    other = open_catalog(store, "rerun")
    assert other.publish(other.begin_session(), "run", "checkpoint", b"x", options) == first
    with pytest.raises(ConflictError, match="other content"):
        other.publish(session, "run", "checkpoint", b"y", options)
    assert keys(store) == before


def test_content_hash_given_by_the_caller_stands_for_the_content(catalog: Catalog) -> None:
    session = catalog.begin_session()
    options = PublishOptions(idempotency_key="k", content_sha256="c")
    first = catalog.publish(session, "run", "checkpoint", b"x", options)
    assert catalog.publish(session, "run", "checkpoint", b"other names", options) == first


def test_sessions(store: MemoryStore, catalog: Catalog) -> None:
    session = catalog.begin_session()
    assert session.data_prefix == f"data/{0:016d}/{session.session_id}/"
    assert catalog.begin_session() != session
    shared = catalog.begin_session("job-1")
    catalog.publish(session, "run", "checkpoint", b"x")
    assert open_catalog(store, "b").begin_session("job-1") == shared
    assert open_catalog(store, "b").begin_session().base_seq == 1
    assert pickle.loads(pickle.dumps(shared)) == shared
    with pytest.raises(InvalidInputError):
        catalog.begin_session("../x")


def test_session_recorded_by_a_rival_at_the_same_time(store: MemoryStore, catalog: Catalog) -> None:
    rival = open_catalog(store, "rival")

    class Racing(ScriptedStore):
        def put_if_absent(
            self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG
        ) -> ObjectInfo:
            if "/ses/" in key:
                won.append(rival.begin_session("k"))
            return super().put_if_absent(key, data, purpose=purpose)

    won: list[Session] = []
    assert open_catalog(Racing(store), "late").begin_session("k") == won[0]


def test_fenced_session_key_says_to_use_another(store: MemoryStore, catalog: Catalog) -> None:
    catalog.begin_session("k")
    store.put(log_key(0), encode_root(replace(catalog.head(), upload_floor=1)))
    with pytest.raises(ConflictError, match="fenced"):
        open_catalog(store, "b").begin_session("k")


def test_log(catalog: Catalog) -> None:
    session = catalog.begin_session()
    catalog.publish(session, "run", "checkpoint", b"x")
    catalog.move_alias("run", "prod", 1)
    entries = catalog.log()
    assert [[op["op"] for op in entry.ops] for entry in entries] == [
        ["move_alias"],
        ["publish"],
        ["create"],
    ]
    assert {entry.by for entry in entries} == {"tester"}
    assert [entry.seq for entry in catalog.log(2)] == [2, 1]
    assert catalog.log(0) == []


def test_log_with_a_hole(store: MemoryStore, catalog: Catalog) -> None:
    session = catalog.begin_session()
    for _ in range(3):
        catalog.publish(session, "run", "checkpoint", b"x")
    store.delete_many([(log_key(1), None)])
    with pytest.raises(CorruptDataError, match="number 1 is missing"):
        catalog.log(None)


def test_at(catalog: Catalog) -> None:
    session = catalog.begin_session()
    for _ in range(2):
        catalog.publish(session, "run", "checkpoint", b"x")
    assert catalog.resolve("run", root=catalog.at(1)).version == 1
    with pytest.raises(NotFoundError, match="does not exist"):
        catalog.at(9)


def test_damaged_manifest(store: MemoryStore, catalog: Catalog) -> None:
    entry = catalog.publish(catalog.begin_session(), "run", "checkpoint", b"x")
    store.put(entry.manifest.key, b"y")
    with pytest.raises(CorruptDataError, match="the catalog says"):
        catalog.manifest_bytes(entry)
    store.delete_many([(entry.manifest.key, None)])
    with pytest.raises(CorruptDataError, match="is kept, and something that it needs is gone"):
        catalog.manifest_bytes(entry)


def test_reading_never_writes(store: MemoryStore, catalog: Catalog) -> None:
    catalog.publish_dataset("d", manifest("a"), session=catalog.begin_session())

    class ReadOnly(ScriptedStore):
        def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
            raise AssertionError(f"wrote {key}")

        def put_if_absent(
            self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG
        ) -> ObjectInfo:
            raise AssertionError(f"wrote {key}")

    reader = open_catalog(ReadOnly(store))
    assert part_keys(reader.dataset(reader.resolve("d"))) == ["a"]
    assert reader.names() == ["d"]
    assert len(reader.log()) == 2
    reader.begin_session()


def test_threads_of_one_process(store: MemoryStore) -> None:
    create_catalog(store)
    catalog = Catalog.open(store, settings=CommitSettings(author="threads"))
    seqs: list[int] = []

    def work(name: str) -> None:
        for number in range(20):
            session = catalog.begin_session()
            seqs.append(catalog.publish(session, name, "checkpoint", b"%d" % number).seq)

    threads = [threading.Thread(target=work, args=(f"run-{n % 2}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(1, 81))
    assert len(audit(store).live()) == 80


class UnorderedStore(MemoryStore):
    """Lists in no order, like S3 Express."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(conditional_put=True, ordered_list=False)


def test_store_without_ordered_listing() -> None:
    store = UnorderedStore()
    catalog = create_catalog(store)
    session = catalog.begin_session()
    for _ in range(12):
        catalog.publish(session, "run", "checkpoint", b"x")
    assert json.loads(store.get("_ds/hint").data) == {"seq": 12}
    for hint in (b'{"seq": 12}', b'{"seq": 9}', b'{"seq": 2}', b'{"seq": 99}', b"junk", b"[]"):
        store.put("_ds/hint", hint)
        assert open_catalog(store, "b").head().seq == 12
    store.delete_many([("_ds/hint", None)])
    assert open_catalog(store, "c").head().seq == 12


def test_failing_hint_does_not_fail_the_commit() -> None:
    class NoHint(UnorderedStore):
        def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
            if key == "_ds/hint":
                raise StorageError("no")
            return super().put(key, data, purpose=purpose)

    catalog = create_catalog(NoHint())
    assert catalog.publish(catalog.begin_session(), "run", "checkpoint", b"x").version == 1


def test_stale_listing_never_unsees(store: MemoryStore, catalog: Catalog) -> None:
    for _ in range(8):
        catalog.publish(catalog.begin_session(), "run", "checkpoint", b"x")
    old = open_catalog(store, "old")
    for _ in range(8):
        catalog.publish(catalog.begin_session(), "run", "checkpoint", b"x")

    lagging = store.list

    def list_without_newest(*args: object, **kwargs: object) -> object:
        return iter([info for info in lagging("_ds/log/") if info.key >= log_key(3)])

    store.list = list_without_newest  # type: ignore[method-assign, assignment]
    assert old.head().seq == 8
    first = old.head().seq
    assert first >= 8
    assert old.publish(old.begin_session(), "run", "checkpoint", b"y").version == 17
