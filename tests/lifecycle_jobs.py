"""Jobs whose every crash point is tried, and what must hold whenever one of them died."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from catalog_audit import audit
from catalog_made import create_catalog, open_catalog
from dstream.catalog import Catalog
from dstream.store.base import Store
from lifecycle_made import AT_ONCE, data_keys, file_refs, publish_files, read_files, upload

CLEAR_ALL = replace(AT_ONCE, log_age_s=0, key_age_s=0)


def prepare(store: Store) -> None:
    """Generations that share objects, one pinned, one promoted, one retired; and garbage."""
    catalog = create_catalog(store, "creator")
    lost = catalog.begin_session()
    upload(store, lost, {"orphan": "nobody names this"})
    store.put("_ds/ses/dead/session.json", _session_doc("dead", 0))
    store.put("_ds/ses/dead/0-of-1/1.entry", b"x")
    v1 = publish_files(catalog, "run", {"weights": "one", "tokenizer": "same"})
    shared = file_refs(catalog, v1)["tokenizer"]
    publish_files(catalog, "run", {"weights": "two", "tokenizer": shared}, parent=1)
    catalog.pin(["run"], pin_id="held")
    publish_files(catalog, "run", {"weights": "three", "tokenizer": shared}, parent=2)
    publish_files(catalog, "other", {"weights": "other"})
    publish_files(catalog, "run", {"weights": "four", "tokenizer": shared}, parent=3)
    catalog.promote("run@v2", "prod")
    catalog.retire("run@v1", "run@v3")
    catalog.pin(["run"], pin_id="late")


def _session_doc(session: str, base_seq: int) -> bytes:
    return json.dumps(
        {"v": 1, "min_reader": 1, "session_id": session, "base_seq": base_seq}
    ).encode()


@dataclass(frozen=True)
class Job:
    """Something that can be run again, and what must be there afterwards."""

    run: Callable[[Catalog], object]
    check: Callable[[Catalog], None]


def publish(catalog: Catalog) -> None:
    session = catalog.begin_session()
    publish_files(catalog, "run", {"weights": "five"}, key="job-5", promote="best", session=session)


def check_publish(catalog: Catalog) -> None:
    assert [g.version for g in catalog.generations("run")] == [2, 4, 5]
    assert read_files(catalog, catalog.resolve("run@best")) == {"weights": "five"}
    assert catalog.resolve("run@latest").version == 5


def check_promote(catalog: Catalog) -> None:
    assert catalog.resolve("run@prod").version == 4
    assert catalog.resolve("run@latest").version == 4


def pin(catalog: Catalog) -> None:
    catalog.pin(pin_id="mine", owner="me")


def check_pin(catalog: Catalog) -> None:
    (mine,) = [pinned for pinned in catalog.pins() if pinned.pin_id == "mine"]
    frozen = Catalog.open_at(catalog.store, mine.token)
    assert [g.version for g in frozen.generations("run")] == [2, 4]


def collect(catalog: Catalog) -> None:
    catalog.gc(CLEAR_ALL)


def check_collect(catalog: Catalog) -> None:
    """v1 is pinned by ``held``, v3 by nobody; the orphan and the journal are of a dead session."""
    labels = {entry.label for entry in catalog.head().all_records()}
    assert labels == {"run@v1", "run@v2", "run@v4", "other@v1"}
    texts = {catalog.store.get(key).data.decode() for key in data_keys(catalog.store)}
    assert texts == {"one", "same", "two", "four", "other"}
    assert not list(catalog.store.list("_ds/ses/"))
    held = Catalog.open_at(
        catalog.store, next(p.token for p in catalog.pins() if p.pin_id == "held")
    )
    assert read_files(held, held.resolve("run@v1")) == {"weights": "one", "tokenizer": "same"}
    assert catalog.verify(deep=True).is_whole


JOBS = {
    "publish": Job(publish, check_publish),
    "promote": Job(lambda c: c.promote("run@v4", "prod", expect=None), check_promote),
    "pin": Job(pin, check_pin),
    "gc": Job(collect, check_collect),
}


def check_promises(memory: Store) -> None:
    """What holds at every moment, whoever died where."""
    report = audit(memory)
    live = {label for label, entry in report.live().items()}
    assert {("run", 2), ("run", 4), ("other", 1)} <= live
    reader = open_catalog(memory, "checker")
    assert read_files(reader, reader.resolve("run@v2")) == {"weights": "two", "tokenizer": "same"}
    token = next(p.token for p in reader.pins() if p.pin_id == "held")
    held = Catalog.open_at(memory, token)
    assert read_files(held, held.resolve("run@v1")) == {"weights": "one", "tokenizer": "same"}
