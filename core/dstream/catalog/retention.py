"""Ops that end generations: retiring, condemning, forgetting. Pure.

A generation is live, then retired (no name leads to it), then condemned (collection deletes its
objects; nothing revives it), then forgotten. Each step is an entry of the log, so a commit that
comes later sees it and one that came earlier is seen by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dstream.catalog.edits import with_entries, with_op, without
from dstream.catalog.pinning import without_pins
from dstream.catalog.sessions import SHARED_SESSION
from dstream.errors import ConflictError, NotFoundError
from dstream.format.catalog_shard import Place, key_slot
from dstream.format.entries import Generation, Pin
from dstream.format.root import Root

_SHOWN = 20
"""Generations that an entry of the log names one by one."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Take generations out of the listing."""

    targets: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Retention:
    """Which live generations are kept though nobody retired them."""

    keep_last: int | None = None
    """The newest so many of each name; None: no limit by number."""
    keep_from_seq: int | None = None
    """Those published by this root or later; None: no limit by age."""

    @property
    def is_asked_for(self) -> bool:
        """Without either, only what was retired is given up."""
        return self.keep_last is not None or self.keep_from_seq is not None


@dataclass(frozen=True, slots=True)
class Condemn:
    """Give up what nothing keeps, and the sessions that began too long ago."""

    retention: Retention = Retention()
    floor: int = 0
    """The new fence."""
    expired: frozenset[tuple[str, int]] = frozenset()
    """(id, ``since_seq``) of pins that are over; one that was renewed meanwhile stays."""
    clear_below: int = 0
    """Roots below may be cleared."""
    pinnable_from: int = 0
    """Roots below may lose catalog shards."""
    drop_keys_below: int = 0
    """Idempotency keys that were used by roots below are forgotten."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the records of condemned generations whose objects are deleted."""

    swept: frozenset[tuple[str, int]]
    cleared_below: int = 0


def retire(root: Root, op: Retire, seq: int) -> Root:
    """The state in which the targets are retired; ``root`` itself where they all were.

    Raises:
        NotFoundError: a target does not exist.
        ConflictError: an alias points at a target.
    """
    changed = []
    for name, version in op.targets:
        entry = root.record(name, version)
        if entry is None:
            raise NotFoundError(
                f"no generation {name}@v{version}; list them with: dstream show {name}",
                name=name,
                version=version,
            )
        pointing = sorted(a for a, v in root.aliases_of(name).items() if v == version)
        if pointing and entry.is_live:
            raise ConflictError(
                f"{entry.label} is {name}@{pointing[0]}: promote another generation, or remove "
                f"the alias with: dstream alias --remove {name}@{pointing[0]}",
                reason="aliased",
                name=name,
                version=version,
                aliases=pointing,
            )
        if entry.is_live:
            changed.append(replace(entry, retired_seq=seq))
    if not changed:
        return root
    after = with_entries(root, changed)
    return with_op(after, {"op": "retire", **_named(changed)})


@dataclass(frozen=True, slots=True)
class Kept:
    """One generation and what becomes of it."""

    generation: Generation
    reason: str
    """Why it is kept, or why it goes."""
    goes: bool


def judge(root: Root, retention: Retention, pins: Iterable[Pin]) -> list[Kept]:
    """What becomes of every generation, and why. Reads every catalog shard."""
    held = list(pins)
    by_name: dict[str, list[Generation]] = defaultdict(list)
    for entry in root.all_records():
        by_name[entry.name].append(entry)
    verdicts = []
    for name, entries in by_name.items():
        versions = sorted(entry.version for entry in entries if entry.is_live)
        last = set(versions[-retention.keep_last :] if retention.keep_last else ())
        aliases = {version: alias for alias, version in root.aliases_of(name).items()}
        for entry in entries:
            verdicts.append(_judged(entry, retention, held, last, aliases))
    return verdicts


def _judged(
    entry: Generation,
    retention: Retention,
    pins: Sequence[Pin],
    last: set[int],
    aliases: dict[int, str],
) -> Kept:
    if entry.condemned_seq is not None:
        return Kept(entry, f"condemned at {entry.condemned_seq}", True)
    if entry.is_live and entry.version in aliases:
        return Kept(entry, f"is @{aliases[entry.version]}", False)
    if any(pin.covers(entry) for pin in pins):
        return Kept(entry, "pinned", False)
    if not entry.is_live:
        return Kept(entry, f"retired at {entry.retired_seq}", True)
    if not retention.is_asked_for:
        return Kept(entry, "live", False)
    if entry.version in last:
        return Kept(entry, f"one of the last {retention.keep_last}", False)
    if retention.keep_from_seq is not None and entry.seq >= retention.keep_from_seq:
        return Kept(entry, "recent", False)
    return Kept(entry, "beyond retention", True)


def condemn(root: Root, op: Condemn, seq: int) -> Root:
    """The state in which what nothing keeps is condemned; ``root`` itself if nothing changes."""
    expired = {name: pin for name, pin in root.pins.items() if (name, pin.since_seq) in op.expired}
    after = without_pins(root, expired) if expired else root
    floor = max(root.upload_floor, op.floor)
    doomed = [
        replace(
            kept.generation,
            retired_seq=seq if kept.generation.is_live else kept.generation.retired_seq,
            condemned_seq=seq,
        )
        for kept in judge(root, op.retention, after.pins.values())
        if kept.goes and kept.generation.condemned_seq is None
    ]
    after = with_entries(after, doomed) if doomed else after
    after = replace(after, dead_sessions=_dead_sessions(root, doomed, floor))
    keys = _old_keys(root, op.drop_keys_below)
    after = without(after, (), keys)
    # Whatever is condemned now may be listed by any root before this one.
    given_up = max(op.clear_below, op.pinnable_from, seq if doomed else 0)
    min_pinnable = max(root.min_pinnable_seq, given_up)
    after = replace(after, upload_floor=floor, min_pinnable_seq=min_pinnable)
    if not (expired or doomed or keys) and after == root:
        return root
    done: dict[str, object] = {"op": "condemn", "fence": floor, **_named(doomed)}
    if expired:
        done["expired_pins"] = sorted(expired)
    return with_op(after, done)


def _dead_sessions(root: Root, doomed: Sequence[Generation], floor: int) -> dict[str, int]:
    """Shared sessions whose objects may go: a journal could still name them."""
    dead = {g.session: g.base_seq for g in doomed if g.session.startswith(SHARED_SESSION)}
    known = {**root.dead_sessions, **dead}
    return {session: base for session, base in known.items() if base >= floor}


def _old_keys(root: Root, below_seq: int) -> list[Place]:
    if not below_seq:
        return []
    found = [
        place
        for place, document in root.shards.records()
        if place[1].startswith("k:")
        and place not in root.gone
        and isinstance(used := document.get("seq", 0), int)
        and used < below_seq
    ]
    for name, row in root.artifacts.items():
        found += [(name, key_slot(k)) for k, used in row.keys.items() if used.seq < below_seq]
    return found


def forget(root: Root, op: Forget) -> Root:
    """The state without the records of what has been deleted."""
    gone = [
        entry
        for name, version in op.swept
        if (entry := root.record(name, version)) is not None and entry.condemned_seq is not None
    ]
    after = without(root, gone)
    after = replace(after, cleared_below=max(root.cleared_below, op.cleared_below))
    if not gone and after == root:
        return root
    return with_op(after, {"op": "swept", **_named(gone)})


def _named(generations: Sequence[Generation]) -> dict[str, object]:
    labels = sorted(entry.label for entry in generations)
    named: dict[str, object] = {"generations": labels[:_SHOWN]}
    if len(labels) > _SHOWN:
        named["and_more"] = len(labels) - _SHOWN
    return named
