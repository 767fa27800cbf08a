"""Ingest: source -> scan -> sort -> fetch and prepare -> store groups -> one commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import xxhash

from dstream.catalog.catalog import Catalog
from dstream.catalog.names import check_name
from dstream.catalog.sessions import Session
from dstream.clock import Clock, SystemClock
from dstream.errors import ConflictError, InvalidInputError, NotFoundError
from dstream.format.manifest import RecipeRef
from dstream.format.tar import BLOCK_BYTES
from dstream.ingest.agenda import Agenda, bad_stem, make_agenda
from dstream.ingest.commit import Finished, Outcome, commit, find_base
from dstream.ingest.journal import Covered, Journal, PlanRecord, forget_session, read_done
from dstream.ingest.pack import Packer
from dstream.ingest.pipeline import ProgressMeter, run_units
from dstream.ingest.scan import SkipLog, Unit, scan
from dstream.ingest.settings import (
    WHOLE,
    IngestResult,
    IngestSettings,
    Layout,
    Progress,
    Quarantined,
)
from dstream.ingest.spool import Spool
from dstream.ingest.work import UnitWork, Worker
from dstream.measure import Meter, Snapshot
from dstream.recipe import Recipe, files_of, recipe_params
from dstream.store.base import Store

_MAX_SESSIONS = 100


def ingest(
    catalog: Catalog,
    source: Store,
    name: str,
    *,
    recipe: Recipe,
    settings: IngestSettings | None = None,
    progress: Callable[[Progress], None] | None = None,
    meter: Meter | None = None,
    clock: Clock | None = None,
    skips: SkipLog | None = None,
) -> IngestResult:
    """Bring the videos of a source into a repository as one generation of a dataset.

    Files that the dataset holds already are recognised and skipped. What is finished when the
    process dies is found by the next run with the same inputs. Nothing becomes visible before
    the single commit at the end. The source is never written to.

    Args:
        catalog: of the repository.
        source: rooted at the folder or prefix to take; open it with ``skips`` as ``on_skip``.
        name: of the dataset.
        recipe: says what the samples of a video are.
        settings: layout, limits, shares; see :class:`IngestSettings`.
        progress: called in this thread after every unit; may raise to stop.
        meter: where quarantines, fallbacks and skips are counted; give the stores the same one.
        clock: for the rate of progress.
        skips: what the source's listing leaves out.

    Raises:
        NotFoundError: no such source, or no videos in it.
        PermissionDeniedError: the source cannot be listed.
        ConflictError: a file differs from what the dataset holds under its name, a sample key
            is taken, or the dataset was made by another recipe.
        StorageError: the source, the repository or the local disk failed; run again to go on.
        OutcomeUnknownError: the commit's answer was lost; run again to settle it.
    """
    settings = settings or IngestSettings()
    meter = meter or Meter()
    clock = clock or SystemClock()
    check_name(name)
    before = meter.snapshot()
    plan = _plan(source, name, recipe, settings)
    found = scan(source, settings, meter, skips, files_of(recipe))
    base = find_base(catalog, name)
    session = _session(catalog, plan, settings)
    journal = Journal(catalog.store, session, settings.share or WHOLE, meter)
    try:
        agenda = make_agenda(catalog.store, plan, settings, journal, found, base)
    except ConflictError:
        forget_session(catalog.store, session, meter)
        raise
    job = _Job(catalog.store, source, recipe, settings, meter, clock)
    done, tally = job.run(journal, agenda, progress)
    covered = agenda.covered | done
    if settings.share is not None:
        journal.mark_done(plan, agenda.wanted)
        return _share_result(plan, session, settings, agenda, tally, meter.snapshot().minus(before))
    finished = [Finished(journal, covered, agenda.wanted)]
    outcome = commit(catalog, session, plan, finished, base, agenda.carried)
    journal.clear({*agenda.old_entries, *(done.entry for done in covered.values())})
    forget_session(catalog.store, session, meter)
    return _result(outcome, session, agenda, meter.snapshot().minus(before))


def finish_ingest(
    catalog: Catalog, key: str, *, name: str | None = None, meter: Meter | None = None
) -> IngestResult:
    """Commit all parts of a session as one generation.

    Args:
        catalog: of the repository.
        key: the session's.
        name: of the dataset; refuse parts that were made for another one.
        meter: where events are counted.

    Raises:
        NotFoundError: the session has no finished part.
        InvalidInputError: ``name`` is not theirs.
        ConflictError: parts are missing or do not fit each other; see also :func:`ingest`.
    """
    meter = meter or Meter()
    before = meter.snapshot()
    session = catalog.begin_session(key)
    try:
        shares = read_done(catalog.store, session)
    except NotFoundError:
        forget_session(catalog.store, session, meter)
        raise
    journals = [Journal(catalog.store, session, share.share, meter) for share in shares]
    finished = [
        Finished(journal, journal.load(keep_transient=True), share.wanted)
        for journal, share in zip(journals, shares, strict=True)
    ]
    plan = shares[0].plan
    if name is not None and plan.name != name:
        raise InvalidInputError(
            f"the parts of {key!r} are for the dataset {plan.name!r}, not for {name!r}", key=key
        )
    outcome = commit(catalog, session, plan, finished, find_base(catalog, plan.name))
    for journal in journals:
        journal.clear(journal.keys())
    forget_session(catalog.store, session, meter)
    return _result(outcome, session, None, meter.snapshot().minus(before))


@dataclass(slots=True)
class _Tally:
    """What this run has stored and left out."""

    files: int = 0
    bytes: int = 0
    samples: int = 0
    quarantined: list[Quarantined] = field(default_factory=list)

    def count(self, work: UnitWork) -> None:
        """Add one unit."""
        self.files += len(work.videos) + len(work.side)
        self.bytes += sum(video.info.size_bytes for video in work.videos)
        self.bytes += sum(info.size_bytes for info, _ in work.side.values())
        self.samples += sum(len(video.samples) for video in work.videos)
        self.quarantined += work.quarantined


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of ingest: where from, where to, how."""

    store: Store
    source: Store
    recipe: Recipe
    settings: IngestSettings
    meter: Meter
    clock: Clock

    def run(
        self, journal: Journal, agenda: Agenda, progress: Callable[[Progress], None] | None
    ) -> tuple[dict[str, Covered], _Tally]:
        """Do all new units; returns where the journal has them, and their counts."""
        tally = _Tally()
        packed = self.settings.layout is Layout.PACKED
        new = agenda.todo.new
        shown = ProgressMeter(new, self.clock, progress, len(agenda.bad))
        if not new and not agenda.bad:
            return {}, tally
        with ExitStack() as stack:
            folder, files = self.settings.spool_folder, files_of(self.recipe)
            align_bytes = BLOCK_BYTES if files is None else files.align_bytes
            spool = stack.enter_context(Spool(folder, self.meter)) if packed else None
            packer = stack.enter_context(
                Packer(self.store, self.source.url, self.settings, journal, spool, align_bytes)
            )

            def deliver(work: UnitWork) -> None:
                tally.count(work)
                packer.add(work)
                shown.finished(work.unit, len(work.quarantined))

            run_units(
                new,
                Worker(self.source, self.recipe, self.settings, spool, self.meter, self.clock),
                deliver,
                workers=self.settings.workers,
                budget_bytes=self.settings.spool_bytes if packed else None,
            )
            for row in agenda.bad:
                unit = UnitWork(Unit(bad_stem(row), (), ()), quarantined=[row])
                tally.count(unit)
                packer.add(unit)
                self.meter.event("quarantine", row.reason)
            packer.finish()
            return packer.covered, tally


def _plan(source: Store, name: str, recipe: Recipe, settings: IngestSettings) -> PlanRecord:
    return PlanRecord(
        name=name,
        source=source.url,
        layout=str(settings.layout),
        recipe=RecipeRef(recipe.name, recipe_params(recipe)),
        mode="replace" if settings.replace else "append",
        message=settings.message,
    )


def _session(catalog: Catalog, plan: PlanRecord, settings: IngestSettings) -> Session:
    """The session of the given key, or of a key that the same inputs always give."""
    if settings.session_key is not None:
        return catalog.begin_session(settings.session_key)
    inputs = [
        plan.name, plan.source, plan.layout, plan.recipe.name, dict(plan.recipe.params),
        plan.mode, settings.checksum, settings.include, settings.exclude, settings.recursive,
        sorted(settings.quarantine),
    ]  # fmt: skip
    digest = xxhash.xxh3_64_hexdigest(json.dumps(inputs, sort_keys=True).encode())
    for attempt in range(_MAX_SESSIONS):
        try:
            return catalog.begin_session(f"auto-{digest}" + (f"-{attempt}" if attempt else ""))
        except ConflictError as error:  # given up by collection: start afresh
            if error.facts.get("reason") != "fenced" or attempt == _MAX_SESSIONS - 1:
                raise
    raise ConflictError("every session of these inputs is fenced; give a session key")


def _result(
    outcome: Outcome, session: Session, agenda: Agenda | None, requests: Snapshot
) -> IngestResult:
    totals = outcome.built.manifest.totals
    return IngestResult(
        name=outcome.plan.name,
        generation=outcome.generation,
        published=outcome.published,
        session_key=str(session.key),
        share=None,
        files=totals.files,
        bytes=totals.bytes,
        samples=totals.samples,
        resumed_files=_videos(agenda.todo.resumed) if agenda else 0,
        unchanged_files=_videos(agenda.todo.unchanged) if agenda else 0,
        quarantined=tuple(Quarantined(**row) for row in outcome.built.quarantine),
        requests=requests,
    )


def _share_result(
    plan: PlanRecord,
    session: Session,
    settings: IngestSettings,
    agenda: Agenda,
    tally: _Tally,
    requests: Snapshot,
) -> IngestResult:
    return IngestResult(
        name=plan.name,
        generation=None,
        published=False,
        session_key=str(session.key),
        share=settings.share,
        files=tally.files,
        bytes=tally.bytes,
        samples=tally.samples,
        resumed_files=_videos(agenda.todo.resumed),
        unchanged_files=_videos(agenda.todo.unchanged),
        quarantined=tuple(tally.quarantined),
        requests=requests,
    )


def _videos(units: tuple[Unit, ...]) -> int:
    return sum(len(unit.videos) for unit in units)
