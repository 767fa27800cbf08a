from __future__ import annotations

from dataclasses import replace

import pytest

from catalog_audit import audit
from catalog_faults import Fault, ScriptedStore
from catalog_made import create_catalog, manifest, open_catalog, part_keys
from dstream.catalog import Catalog, Generation, PublishOptions
from dstream.errors import ConflictError, InvalidInputError, NotFoundError
from dstream.format.manifest import Manifest, merge_manifests
from dstream.store.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    create_catalog(store, "creator")
    return store


@pytest.fixture
def catalog(store: MemoryStore) -> Catalog:
    return open_catalog(store)


def append(catalog: Catalog, *keys: str, name: str = "d") -> Generation:
    return catalog.publish_dataset(name, manifest(*keys), session=catalog.begin_session())


def parts(catalog: Catalog, reference: str = "d") -> list[str]:
    return part_keys(catalog.dataset(catalog.resolve(reference)))


def test_append_adds_parts_and_keeps_the_old_generation(catalog: Catalog) -> None:
    append(catalog, "a")
    entry = append(catalog, "b", "c")
    assert entry.parent == 1
    assert parts(catalog) == ["a", "b", "c"]
    assert parts(catalog, "d@v1") == ["a"]
    assert catalog.dataset(entry).totals.samples == 3


def test_replace_publishes_the_new_parts_alone(catalog: Catalog) -> None:
    append(catalog, "a")
    session = catalog.begin_session()
    entry = catalog.publish_dataset("d", manifest("b"), session=session, mode="replace")
    assert entry.parent is None
    assert parts(catalog) == ["b"]


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.LOST_AFTER, Fault.LATE, Fault.BUSY])
def test_append_rebases_over_a_rivals_append(store: MemoryStore, fault: Fault) -> None:
    faulty = ScriptedStore(store)
    mine, rival = open_catalog(faulty), open_catalog(store, "rival")
    append(mine, "a")
    faulty.before_log_put.append(lambda: append(rival, "r"))
    faulty.faults.extend([Fault.BUSY, fault])
    entry = append(mine, "m")
    faulty.deliver()
    assert (entry.version, entry.parent) == (3, 2)
    assert parts(mine) == ["a", "r", "m"]
    audit(store)


def test_first_append_rebases_over_a_rivals_first(store: MemoryStore) -> None:
    faulty = ScriptedStore(store)
    mine, rival = open_catalog(faulty), open_catalog(store, "rival")
    faulty.before_log_put.append(lambda: append(rival, "r"))
    append(mine, "m")
    assert parts(mine) == ["r", "m"]


def test_rivals_on_another_name_cost_no_new_manifest(store: MemoryStore) -> None:
    faulty = ScriptedStore(store)
    mine, rival = open_catalog(faulty), open_catalog(store, "rival")
    append(mine, "a")
    faulty.before_log_put.extend([lambda: append(rival, "r", name="other")] * 3)
    append(mine, "m")
    manifests = [info.key for info in store.list("_ds/man/")]
    assert len(manifests) == 2 + 3


def test_append_goes_on_from_latest_after_a_rollback(catalog: Catalog) -> None:
    append(catalog, "good")
    append(catalog, "bad")
    catalog.move_alias("d", "latest", 1)
    entry = append(catalog, "next")
    assert (entry.version, entry.parent) == (3, 1)
    assert parts(catalog) == ["good", "next"]


def test_append_onto_a_named_generation(catalog: Catalog) -> None:
    append(catalog, "a")
    append(catalog, "b")
    session = catalog.begin_session()
    entry = catalog.publish_dataset("d", manifest("c"), session=session, onto="v1")
    assert entry.parent == 1
    assert parts(catalog, "d@newest") == ["a", "c"]
    with pytest.raises(NotFoundError):
        catalog.publish_dataset("d", manifest("c"), session=session, onto="prod")
    with pytest.raises(InvalidInputError):
        catalog.publish_dataset("d", manifest("c"), session=session, mode="replace", onto="v1")
    with pytest.raises(InvalidInputError):
        catalog.publish_dataset("d", manifest("c"), session=session, mode="merge")  # type: ignore[arg-type]


def test_append_without_latest_goes_on_from_the_newest(catalog: Catalog) -> None:
    session = catalog.begin_session()
    options = PublishOptions(move_latest=False)
    for key in ("a", "b"):
        catalog.publish_dataset("d", manifest(key), session=session, options=options)
    assert parts(catalog, "d@newest") == ["a", "b"]


def drop_known(base: Manifest, new: Manifest) -> Manifest:
    """As ingest does it: a key that the base holds already is not added again."""
    known = set(part_keys(base))
    fresh = tuple(part for part in new.parts if part.files.key not in known)
    if any(part.files.key.startswith("changed") for part in fresh):
        raise ConflictError("the same sample key has other content", key="changed")
    return merge_manifests(base, replace(new, parts=fresh))


def test_reconcile_is_asked_about_a_rivals_parts_too(store: MemoryStore) -> None:
    faulty = ScriptedStore(store)
    mine, rival = open_catalog(faulty), open_catalog(store, "rival")
    append(mine, "a")
    faulty.before_log_put.append(lambda: append(rival, "b"))
    session = mine.begin_session()
    entry = mine.publish_dataset("d", manifest("b", "c"), session=session, reconcile=drop_known)
    assert part_keys(mine.dataset(entry)) == ["a", "b", "c"]


def test_reconcile_conflict_publishes_nothing(store: MemoryStore) -> None:
    catalog = open_catalog(store)
    append(catalog, "a")
    with pytest.raises(ConflictError, match="other content"):
        catalog.publish_dataset(
            "d", manifest("changed"), session=catalog.begin_session(), reconcile=drop_known
        )
    assert len(audit(store).live()) == 1


def test_append_of_nothing_new_is_the_generation_that_is_there(store: MemoryStore) -> None:
    catalog = open_catalog(store)
    first = append(catalog, "a")
    session = catalog.begin_session()
    again = catalog.publish_dataset("d", manifest("a"), session=session, reconcile=drop_known)
    assert again == first
    assert len(audit(store).roots) == 2


def test_idempotent_append_is_not_merged_twice(store: MemoryStore) -> None:
    catalog = open_catalog(store)
    session = catalog.begin_session("job")
    for client in (catalog, open_catalog(store, "rerun")):
        client.publish_dataset(
            "d", manifest("a"), session=session, idempotency_key="job", message="night"
        )
    assert parts(catalog) == ["a"]
    assert catalog.resolve("d").message == "night"
    with pytest.raises(ConflictError, match="other content"):
        catalog.publish_dataset("d", manifest("b"), session=session, idempotency_key="job")
    with pytest.raises(ConflictError, match="other content"):
        catalog.publish_dataset(
            "d", manifest("a"), session=session, idempotency_key="job", mode="replace"
        )


def test_other_recipe_conflicts(catalog: Catalog) -> None:
    append(catalog, "a")
    with pytest.raises(ConflictError, match="recipe"):
        catalog.publish_dataset(
            "d", manifest("b", recipe="gameplay"), session=catalog.begin_session()
        )


def test_append_to_a_checkpoint_conflicts(catalog: Catalog) -> None:
    catalog.publish(catalog.begin_session(), "d", "checkpoint", b"not a manifest")
    with pytest.raises(ConflictError, match="is a checkpoint"):
        append(catalog, "a")
