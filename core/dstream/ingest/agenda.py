"""What an ingest has to do: new units, finished ones, unchanged ones, and what must not be."""

from __future__ import annotations

from dataclasses import dataclass

from dstream.errors import ConflictError
from dstream.ingest.carry import Carried
from dstream.ingest.commit import Base
from dstream.ingest.journal import Covered, Journal, PlanRecord
from dstream.ingest.known import Known, Todo, load_known, sort_units
from dstream.ingest.scan import Scan, in_share
from dstream.ingest.settings import WHOLE, IngestSettings, Layout, Quarantined
from dstream.store.base import Store

_NAMED = 10


@dataclass(frozen=True, slots=True)
class Agenda:
    """What there is to do."""

    todo: Todo
    bad: tuple[Quarantined, ...]
    """Of the listing, and not yet recorded."""
    covered: dict[str, Covered]
    wanted: frozenset[str]
    """Stems of the units that this run publishes."""
    old_entries: tuple[str, ...]
    """Journal entries found at the start."""
    carried: Carried | None
    """Of a replacement: units whose rows are taken over from the base."""


def make_agenda(
    store: Store,
    plan: PlanRecord,
    settings: IngestSettings,
    journal: Journal,
    found: Scan,
    base: Base | None,
) -> Agenda:
    """Decide what is new, what is done and what must not be.

    Raises:
        ConflictError: stored files have changed, and this is no replacement.
    """
    known = load_known(store, base.manifest if base else None)
    covered = journal.load(keep_transient=False)
    share = settings.share or WHOLE
    units = [unit for unit in found.units if in_share(unit.stem, share)]
    replacing = settings.replace and not _is_same(base, plan, known, found)
    if replacing:
        # What can be taken over from the base counts as unchanged, all else is done anew.
        can_carry = base is not None and _carries(base, plan, settings)
        known = load_known(store, base.manifest, plan.layout) if base and can_carry else Known()
        known.refused.clear()
    todo = sort_units(
        units,
        plan.source,
        known,
        covered,
        retry_quarantined=settings.retry_quarantined,
        replace=replacing,
    )
    if todo.changed:
        raise _changed(plan, todo.changed)
    bad = [
        row
        for row in found.quarantined
        if in_share(bad_stem(row), share)
        and known.refused.get(row.source_uri) != (row.size_bytes, row.etag)
    ]
    wanted = {unit.stem for unit in todo.new + todo.resumed} | {bad_stem(row) for row in bad}
    carried = None
    if replacing and base is not None and todo.unchanged:
        carried = Carried(store, base.manifest, todo.unchanged, plan.source, plan.layout)
    return Agenda(
        todo,
        tuple(row for row in bad if bad_stem(row) not in covered),
        {stem: done for stem, done in covered.items() if stem in wanted},
        frozenset(wanted),
        tuple(journal.keys()),
        carried,
    )


def _carries(base: Base, plan: PlanRecord, settings: IngestSettings) -> bool:
    """Whether a replacement may take over rows: same recipe, no checksums to add, no shares.

    A share's rows are published later, by when the base may be another one.
    """
    new_sums = settings.checksum and settings.layout is Layout.IN_PLACE
    return base.manifest.recipe == plan.recipe and settings.share is None and not new_sums


def _is_same(base: Base | None, plan: PlanRecord, known: Known, found: Scan) -> bool:
    """Whether the source holds exactly what the dataset holds, so that replacing is idle."""
    if base is None or base.manifest.recipe != plan.recipe:
        return False
    if any(part.layout != plan.layout for part in base.manifest.parts):
        return False
    listed = {
        f"{plan.source}/{info.key}": (info.size_bytes, info.etag)
        for unit in found.units
        for info in unit.objects
    }
    held = known.stored.items()
    return all(listed.get(uri) == place for uri, place in held) and all(
        known.stored.get(uri) == place or known.refused.get(uri) == place
        for uri, place in listed.items()
    )


def _changed(plan: PlanRecord, names: tuple[str, ...]) -> ConflictError:
    shown = ", ".join(name if len(name) < 200 else name[:200] + "…" for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ConflictError(
        f"{len(names)} files in {plan.source} differ from what {plan.name!r} holds under the same "
        f"names: {shown}{more}; rename them, or publish what the source holds now with replace",
        names=names[:1000],
    )


def bad_stem(row: Quarantined) -> str:
    """How the journal names a file that has no unit; no unit's stem starts like this."""
    return f"/{row.name}"
