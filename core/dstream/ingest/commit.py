"""From finished groups to one generation: compact the rows into parts, then publish them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata

from dstream.catalog.catalog import Catalog
from dstream.catalog.publishing import PublishOptions
from dstream.catalog.sessions import Session
from dstream.errors import ConflictError, NotFoundError, StorageError
from dstream.format.manifest import (
    Manifest,
    ObjectCount,
    Part,
    TableRef,
    Totals,
    merge_manifests,
)
from dstream.format.root import Generation, sha256_hex
from dstream.format.schema import Table
from dstream.format.tables import write_table
from dstream.ingest.carry import Carried
from dstream.ingest.journal import TRANSIENT, Covered, Journal, PlanRecord, each_entry
from dstream.ingest.known import Identity, TakenKeys, load_known, same_content
from dstream.ingest.rows import PartRows, Row, UnitRows
from dstream.measure import Purpose
from dstream.store.base import Store

_GONE_TRIES = 3

MAX_PART_FILES = 250_000
"""A part is closed once it has so many files, so that its tables fit into memory."""

MAX_PART_SAMPLES = 1_000_000
"""The same of samples: a recipe may make many of one file."""


class JournalGoneError(StorageError):
    """Entries of the journal were deleted by somebody else."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A share's journal and which of its units are to be published."""

    journal: Journal
    covered: Mapping[str, Covered]
    wanted: frozenset[str]


@dataclass(frozen=True, slots=True)
class Built:
    """Parts whose tables are stored."""

    manifest: Manifest
    identities: dict[str, Identity]
    """Sample key -> the video file behind it."""
    stems: dict[str, str]
    """Sample key -> stem of its unit."""
    quarantine: list[Row]


class Builder:
    """Compacts journalled units into parts. Tables are named by content, written once."""

    def __init__(
        self,
        store: Store,
        session: Session,
        plan: PlanRecord,
        shares: Iterable[Finished],
        carried: Carried | None = None,
    ) -> None:
        self._store = store
        self._session = session
        self._plan = plan
        self._shares = tuple(shares)
        self._carried = carried
        self._written: set[str] = set()

    def build(self, exclude: frozenset[str] = frozenset()) -> Built:
        """Store the tables of all wanted units but those of ``exclude``.

        Raises:
            ConflictError: two videos make a sample of the same key.
            JournalGoneError: journal entries are gone.
        """
        draft = _Draft(self._plan)
        for units, shards, indexes in self._carried.parts() if self._carried else ():
            draft.add(units, shards, indexes)
            self._close_part(draft)
        left = [set(share.wanted - exclude) for share in self._shares]
        streams = map(_units, self._shares, left)
        # In the order of the listing whatever the division, so that clips are drawn alike.
        for unit, shards, indexes in heapq.merge(*streams, key=_place):
            draft.add([unit], shards, indexes)
            rows = draft.rows
            files = rows.rows(Table.FILES) + rows.rows(Table.QUARANTINE)
            if files >= MAX_PART_FILES or rows.rows(Table.SAMPLES) >= MAX_PART_SAMPLES:
                self._close_part(draft)
        missing = sum(map(len, left))
        if missing:
            raise JournalGoneError(f"{missing} finished units are gone", key=self._session.key)
        self._close_part(draft)
        manifest = Manifest(
            recipe=self._plan.recipe,
            sources=(self._plan.source,),
            parts=tuple(draft.parts),
            totals=draft.totals,
            tool=f"dstream {_version()}",
        )
        return Built(manifest, draft.identities, draft.stems, draft.quarantine)

    def _close_part(self, draft: _Draft) -> None:
        rows = draft.rows
        if not (rows.rows(Table.FILES) or rows.rows(Table.QUARANTINE)):
            return
        draft.parts.append(
            Part(
                files=self._table(rows, Table.FILES),
                streams=self._table(rows, Table.STREAMS),
                samples=self._table(rows, Table.SAMPLES),
                quarantine=(
                    self._table(rows, Table.QUARANTINE) if rows.rows(Table.QUARANTINE) else None
                ),
                layout=self._plan.layout,
                source=0,
                indexes=draft.indexes,
                shards=draft.shards,
            )
        )
        draft.rows, draft.indexes, draft.shards = PartRows(), ObjectCount(), ObjectCount()

    def _table(self, rows: PartRows, table: Table) -> TableRef:
        data = write_table(table, rows.columns(table))
        sha256 = sha256_hex(data)
        key = f"{self._session.data_prefix}{sha256[:32]}.parquet"
        if key not in self._written:
            self._store.put(key, data, purpose=Purpose.TABLE)
            self._written.add(key)
        return TableRef(key, len(data), sha256, rows.rows(table))


_Stored = tuple[UnitRows, ObjectCount, ObjectCount]
"""A unit, and what its journal entry counts: with the entry's first unit, then nothing."""


def _units(share: Finished, left: set[str]) -> Iterator[_Stored]:
    """The share's units in the order of their listing; each one's stem is taken from ``left``."""
    entries = {share.covered[stem].entry for stem in left if stem in share.covered}
    for key, entry in each_entry(share.journal, entries):
        shards, indexes = entry.shards, entry.indexes
        for unit in entry.units:
            if unit.stem in left and share.covered[unit.stem].entry == key:
                left.discard(unit.stem)
                yield unit, shards, indexes
                shards = indexes = ObjectCount()


def _place(stored: _Stored) -> bytes:
    """Where a unit stands in the listing: by its first video."""
    unit = stored[0]
    videos = [str(row["name"]) for row in unit.files if row["role"] == "video"]
    videos += [str(row["name"]) for row in unit.quarantine]
    return min(videos, default="").encode()


class _Draft:
    """What a build has collected."""

    def __init__(self, plan: PlanRecord) -> None:
        self.plan = plan
        self.rows = PartRows()
        self.parts: list[Part] = []
        self.indexes = ObjectCount()
        self.shards = ObjectCount()
        self.totals = Totals()
        self.identities: dict[str, Identity] = {}
        self.stems: dict[str, str] = {}
        self.quarantine: list[Row] = []

    def add(self, units: list[UnitRows], shards: ObjectCount, indexes: ObjectCount) -> None:
        for unit in units:
            self.rows.add(unit)
            self._learn(unit)
        self.shards = _plus(self.shards, shards)
        self.indexes = _plus(self.indexes, indexes)

    def _learn(self, unit: UnitRows) -> None:
        self.totals = self.totals.plus(
            Totals(
                files=len(unit.files),
                bytes=sum(row["size_bytes"] for row in unit.files),
                samples=len(unit.samples),
                streams=len(unit.streams),
                duration_s=sum(row["duration_s"] for row in unit.streams),
                quarantined=len(unit.quarantine),
            )
        )
        self.quarantine += unit.quarantine
        for row in unit.samples:
            key = row["key"]
            file = unit.files[unit.streams[row["streams"][0]]["file"]]
            if key in self.stems:
                raise ConflictError(
                    f"recipe {self.plan.recipe.name} gives the key {key!r:.200} to samples of two "
                    f"files: {self.identities[key][2]} and {file['source_uri']}; keys must be "
                    "unique in a dataset",
                    key=key,
                )
            self.stems[key] = unit.stem
            self.identities[key] = (
                file["checksum"],
                file["size_bytes"],
                file["source_uri"],
                file["etag"],
            )


class Append:
    """The catalog's callback: fits new parts onto whatever generation it finds."""

    def __init__(self, builder: Builder, built: Built, taken: TakenKeys) -> None:
        self._builder = builder
        self._taken = taken
        self._all = built
        self.built = built
        """What was fitted last: without samples that the base holds already."""

    def __call__(self, base: Manifest, new: Manifest) -> Manifest:
        """The base's parts and the new ones, less what the base holds already.

        Raises:
            ConflictError: the base holds a key with other content, or has another recipe.
        """
        clashes = self._taken.clashes(base, self._all.identities)
        others = [k for k, theirs in clashes if not same_content(self._all.identities[k], theirs)]
        if others:
            named = ", ".join(sorted(others)[:10])
            raise ConflictError(
                f"{len(others)} sample keys are in the dataset already, with other content: "
                f"{named}; ingest with replace, under another name, or give other keys",
                keys=tuple(sorted(others)[:1000]),
            )
        exclude = frozenset(self._all.stems[key] for key, _ in clashes)
        self.built = self._builder.build(exclude) if exclude else self._all
        return merge_manifests(base, self.built.manifest) if self.built.manifest.parts else base


@dataclass(frozen=True, slots=True)
class Base:
    """The generation that an append would add to."""

    generation: Generation
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a commit did."""

    plan: PlanRecord
    generation: Generation | None
    """Holds the data: new, or an earlier one when there was nothing to add. None when there is
    neither a stored file nor a generation to add to."""
    built: Built
    """What was published; empty when nothing was."""
    published: bool


def find_base(catalog: Catalog, name: str) -> Base | None:
    """What ``name`` means now, or None.

    Raises:
        InvalidInputError: it is no dataset.
    """
    root = catalog.head()
    for reference in (name, f"{name}@newest"):
        try:
            generation = catalog.resolve(reference, root)
        except NotFoundError:
            continue
        return Base(generation, catalog.dataset(generation))
    return None


def commit(
    catalog: Catalog,
    session: Session,
    plan: PlanRecord,
    shares: Sequence[Finished],
    base: Base | None,
    carried: Carried | None = None,
) -> Outcome:
    """Publish everything that is finished as one generation.

    Args:
        catalog: of the repository.
        session: under which the units were stored.
        plan: what they are.
        shares: their journals.
        base: what the units were compared with when the ingest began.
        carried: of a replacement: units to be taken over from the base.

    Raises:
        ConflictError: see :class:`Append`.
        OutcomeUnknownError: run again: the journal is kept.
    """
    # What is taken over is kept alive by the base alone until this commit names it too.
    parent = None if carried is None or base is None else base.generation.version
    for _ in range(_GONE_TRIES):
        # A rival with the same inputs may have published our units, and cleared the journal.
        now = find_base(catalog, plan.name)
        if now is not None and (base is None or now.generation != base.generation):
            shares = [_without_published(catalog.store, plan, share, now) for share in shares]
        builder = Builder(catalog.store, session, plan, shares, carried)
        try:
            built = builder.build()
        except JournalGoneError:
            base = None
            continue
        return _publish(catalog, session, plan, builder, built, now, parent)
    raise JournalGoneError(
        f"finished files are no longer in the journal of session {session.key!r}, and "
        f"{plan.name!r} does not hold them; another ingest cleared it: run again",
        key=session.key,
    )


def _publish(
    catalog: Catalog,
    session: Session,
    plan: PlanRecord,
    builder: Builder,
    built: Built,
    now: Base | None,
    parent: int | None,
) -> Outcome:
    manifest = built.manifest
    if not manifest.parts or not (manifest.totals.files or (now and _has_news(built))):
        return Outcome(plan, now.generation if now else None, built, published=False)
    append = Append(builder, built, TakenKeys(catalog.store))
    generation = catalog.publish_dataset(
        plan.name,
        manifest,
        session=session,
        mode="replace" if plan.mode == "replace" else "append",
        reconcile=append,
        message=plan.message,
        idempotency_key=_idempotency_key(session, manifest),
        options=PublishOptions(parent=parent),
    )
    # A rival with the same inputs has the same session: what we added tells us apart.
    published = generation.session == session.session_id and bool(append.built.manifest.parts)
    return Outcome(plan, generation, append.built, published)


def _has_news(built: Built) -> bool:
    """Whether quarantined files alone are worth a generation: those that will stay so."""
    return any(row["reason"] not in TRANSIENT for row in built.quarantine)


def _without_published(store: Store, plan: PlanRecord, share: Finished, now: Base) -> Finished:
    """The share without units whose files the dataset holds by now, just as they are here."""
    known = load_known(store, now.manifest)

    def is_held(stem: str) -> bool:
        done = share.covered.get(stem)
        return done is not None and any(
            known.stored.get(f"{plan.source}/{name}") == (size, etag)
            for name, size, etag in done.objects
        )

    if plan.mode == "replace":
        return share
    return replace(share, wanted=frozenset(s for s in share.wanted if not is_held(s)))


def _idempotency_key(session: Session, manifest: Manifest) -> str:
    tables = [ref.sha256 for part in manifest.parts for ref in (part.files, part.samples)]
    return f"{session.session_id}:{sha256_hex(' '.join(tables).encode())[:32]}"


def _plus(left: ObjectCount, right: ObjectCount) -> ObjectCount:
    return ObjectCount(left.count + right.count, left.size_bytes + right.size_bytes)


def _version() -> str:
    try:
        return metadata.version("dstream")
    except metadata.PackageNotFoundError:
        return "unknown"
