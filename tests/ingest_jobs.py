"""Ingests whose every crash point is tried, and what must hold whenever one of them died."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from catalog_audit import audit
from catalog_made import counted_ids
from cut_store import Crash, Cut, CutStore
from dstream.catalog import Catalog
from dstream.format import tables
from dstream.ingest import IngestResult, Layout, Share, commit, finish_ingest
from dstream.measure import Meter
from dstream.store.base import Store
from ingest_made import Content, Place, check_bytes, content, some_videos
from lifecycle_made import AT_ONCE, data_keys

FILES = {**some_videos(5), "v003.txt": b"beside it", "bad.mp4": b"no video"}
BASE = ["v000.mp4", "v001.mp4"]
ALL = [f"v{number:03d}.mp4" for number in range(5)]


@dataclass(frozen=True)
class Job:
    """An ingest that can be run again."""

    name: str
    """``fresh`` is made by it, ``clips`` has a first generation with :data:`BASE`."""
    layout: Layout = Layout.PACKED
    replace: bool = False
    resumed: bool = False
    """An earlier run was killed when it had journalled something."""
    shares: int = 0
    """Jobs that do a part each, before one commits them all."""

    def run(self, repository: Store, source: Store, client: str = "") -> IngestResult:
        """Ingest the source; all requests to one store in one fixed order.

        Args:
            repository: prepared.
            source: holds :data:`FILES`.
            client: whose identifiers are the same each time.
        """
        here = at(repository, source, client)
        settings: dict[str, Any] = {
            "layout": self.layout,
            "replace": self.replace,
            "shard_bytes": 4_000,
            "group_files": 2,
            "workers": 1,
            "decode_check": False,
        }
        if not self.shares:
            return here.ingest(self.name, **settings)
        for index in range(1, self.shares + 1):
            share = Share(index, self.shares)
            here.ingest(self.name, share=share, session_key="night", **settings)
        return finish_ingest(here.catalog, "night")


JOBS = {
    "packed": Job("fresh"),
    "in-place": Job("fresh", Layout.IN_PLACE),
    "append": Job("clips"),
    "append-in-place": Job("clips", Layout.IN_PLACE),
    "replace": Job("clips", replace=True),
    "resumed": Job("fresh", resumed=True),
    "shares": Job("fresh", shares=2),
}


def at(repository: Store, source: Store, client: str = "") -> Place:
    """The two stores as a place to ingest at."""
    new_id = counted_ids(client) if client else None
    return Place(repository, source, Catalog.open(repository, new_id=new_id), Meter())


def prepare(repository: Store, source: Store, job: Job) -> None:
    """A dataset whose only generation is pinned and promoted; half an ingest, where asked for."""
    Catalog.create(repository)
    here = at(repository, source, "base")
    here.ingest("clips", include=("v000*", "v001*"), workers=1)
    here.catalog.promote("clips@v1", "prod")
    here.catalog.pin(["clips"], pin_id="held")
    number = 0
    while job.resumed and not here.objects(".entry"):
        number += 1
        with suppress(Crash):
            job.run(CutStore(repository, number, Cut.AFTER), source, f"half-{number}")


def check_promises(repository: Store, source: Store) -> dict[str, Content]:
    """What holds at every moment, whoever died where; returns the generations by their labels."""
    audit(repository)
    here = at(repository, source)
    token = next(p.token for p in here.catalog.pins() if p.pin_id == "held")
    held = content(Catalog.open_at(repository, token), "clips")
    assert held.keys == BASE
    check_bytes(here, held, FILES)
    assert content(here.catalog, "clips@prod").keys == BASE
    found = {}
    for name in here.catalog.names():
        for generation in here.catalog.generations(name):
            rows = content(here.catalog, generation)
            left_out = {row["name"] for row in rows.quarantine} - {"bad.mp4"}
            whole = set(BASE if generation.label == "clips@v1" else ALL)
            assert set(rows.keys) | left_out == whole, generation.label
            check_bytes(here, rows, FILES)
            found[generation.label] = rows
    return found


def outcome(repository: Store, job: Job) -> list[list[dict[str, Any]]]:
    """What the job's newest generation holds, but for where its bytes lie."""
    rows = content(Catalog.open(repository), job.name)
    place = {"object", "offset_bytes", "index_object", "index_offset_bytes"}
    tables = (rows.files, rows.streams, rows.samples, rows.quarantine)
    return [
        [{name: cell for name, cell in row.items() if name not in place} for row in table]
        for table in tables
    ]


def check_swept(repository: Store, source: Store) -> None:
    """Collection leaves what generations name, and nothing else of any ingest."""
    catalog = Catalog.open(repository)
    for _ in range(2):  # a fence is below the entry that raises it
        catalog.gc(AT_ONCE)
    named = set()
    for rows in check_promises(repository, source).values():
        named |= {row["object"] for row in rows.files if row["store"] < 0}
        named |= {row["index_object"] for row in rows.streams}
        for part in rows.manifest.parts:
            tables = (part.files, part.streams, part.samples, part.quarantine)
            named |= {table.key for table in tables if table is not None}
    assert data_keys(repository) == named
    assert not list(repository.list("_ds/ses/"))


def tables_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of runs have the same few tables: each is written and read by DuckDB once."""
    monkeypatch.setattr(tables, "_read", lambda *asked: dict(_READ(*asked)))
    monkeypatch.setattr(commit, "write_table", lambda *asked: _WRITTEN(pickle.dumps(asked)))


_READ = cache(tables._read)
_WRITTEN = cache(lambda asked: tables.write_table(*pickle.loads(asked)))
