"""Small roots, manifests and catalogs for tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from dstream.catalog import Catalog, CommitSettings, Session
from dstream.clock import FakeClock
from dstream.format.manifest import Manifest, Part, RecipeRef, TableRef, Totals
from dstream.format.refs import ObjectRef
from dstream.format.root import Root
from dstream.measure import Meter
from dstream.store.base import Store

SETTINGS = CommitSettings(author="tester")
SESSION = Session("s" * 32, 0)


def counted_ids(start: str) -> Callable[[], str]:
    """Identifiers in a row: ``a-000001`` ..."""
    numbers = itertools.count(1)
    return lambda: f"{start}-{next(numbers):06d}"


def empty_root(**fields: object) -> Root:
    values: dict[str, object] = {
        "seq": 0,
        "prev_sha256": "",
        "txn_id": "t0",
        "time_hint_s": 0.0,
        "by": "tester",
    }
    values.update(fields)
    return Root(**values)  # type: ignore[arg-type]


def ref(key: str = "m") -> ObjectRef:
    return ObjectRef(key, 1, "0" * 64)


def manifest(*keys: str, recipe: str = "video") -> Manifest:
    """A manifest with one part a key."""

    def part(key: str) -> Part:
        table = TableRef(key, 1, "0" * 64, 1)
        return Part(table, table, table, None, "packed", 0)

    totals = Totals(files=len(keys), samples=len(keys))
    return Manifest(RecipeRef(recipe), ("s3://raw",), tuple(map(part, keys)), totals, "test")


def part_keys(value: Manifest) -> list[str]:
    return [part.files.key for part in value.parts]


def open_catalog(
    store: Store, client: str = "a", meter: Meter | None = None, clock: FakeClock | None = None
) -> Catalog:
    return Catalog.open(
        store,
        clock or FakeClock(),
        np.random.default_rng(1),
        new_id=counted_ids(client),
        meter=meter,
        settings=SETTINGS,
    )


def create_catalog(store: Store, client: str = "a", meter: Meter | None = None) -> Catalog:
    return Catalog.create(
        store,
        FakeClock(),
        np.random.default_rng(1),
        new_id=counted_ids(client),
        meter=meter,
        settings=SETTINGS,
    )
