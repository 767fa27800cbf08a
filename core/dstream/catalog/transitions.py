"""What each kind of commit does to the catalog's state. Pure: values in, values out.

An op is a frozen dataclass; :func:`apply` gives the state after it, or raises and changes
nothing. All ops are entries of one log, so each is checked against the very root that it is
committed on top of: whichever of two ops comes later sees the earlier one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from dstream.catalog.edits import with_alias, with_aliases, with_entries, with_op, with_row
from dstream.catalog.names import LATEST, check_alias, check_name
from dstream.catalog.pinning import PinRoot, RenewPin, Unpin, pin_root, renew_pin, unpin
from dstream.catalog.retention import Condemn, Forget, Retire, condemn, forget, retire
from dstream.errors import ConflictError, InvalidInputError, NotFoundError
from dstream.format.refs import ObjectRef
from dstream.format.root import Artifact, Generation, Json, Root, UsedKey

MAX_TEXT_CHARS = 10_000
"""Longest message."""

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class ApplyContext:
    """What an op may know besides the state."""

    seq: int
    """Number of the root being made."""
    time_hint_s: float
    """The writer's clock. Recorded, never compared."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Outcome of one op."""

    root: Root
    """The state after it; the very same object when there is nothing to commit."""
    generation: Generation | None = None
    """The generation that the op made, found or pointed at."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Make one new generation visible."""

    name: str
    kind: str
    manifest: ObjectRef
    content_sha256: str
    """Hash of what the caller asked for; an idempotency key stands for exactly this."""
    session: str
    base_seq: int
    parent: int | None = None
    step: int | None = None
    message: str = ""
    attrs: Json = field(default_factory=dict)
    idempotency_key: str | None = None
    move_latest: bool = True
    promote: str | None = None
    """An alias that points at the new generation from the same commit on."""


@dataclass(frozen=True, slots=True)
class MoveAlias:
    """Point an alias at a live generation."""

    name: str
    alias: str
    version: int
    expect: int | None = None
    """Version that the alias must have now; 0 means it must not exist; None means any."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to commit: the state already holds what was asked for."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Noop:
    """Change nothing, but take the slot: an undecided commit can then no longer land in it."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskTurn:
    """Change nothing, but ask rivals to wait a moment: see :mod:`dstream.catalog.backoff`."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class RemoveAlias:
    """Take an alias away."""

    name: str
    alias: str
    expect: int | None = None
    """Version that the alias must have now; None means any."""


Op = (
    Publish
    | MoveAlias
    | RemoveAlias
    | PinRoot
    | RenewPin
    | Unpin
    | Retire
    | Condemn
    | Forget
    | Nothing
    | Noop
    | AskTurn
)


def apply(root: Root, op: Op, context: ApplyContext) -> Transition:
    """The state after ``op``. Header fields of the root (seq, hash, txn) are not touched.

    Raises:
        InvalidInputError: a name, alias, kind, step or message that can never be accepted.
        NotFoundError: the op names a generation that does not exist.
        ConflictError: the op contradicts what was committed before it.
    """
    if isinstance(op, Publish):
        return _publish(root, op, context)
    if isinstance(op, MoveAlias):
        return _move_alias(root, op)
    if isinstance(op, Nothing):
        return Transition(root, op.generation)
    return Transition(_state_after(root, op, context))


def _state_after(
    root: Root,
    op: RemoveAlias | PinRoot | RenewPin | Unpin | Retire | Condemn | Forget | Noop | AskTurn,
    context: ApplyContext,
) -> Root:
    match op:
        case RemoveAlias():
            return _remove_alias(root, op)
        case PinRoot():
            return pin_root(root, op, context.seq, context.time_hint_s)
        case RenewPin():
            return renew_pin(root, op, context.seq, context.time_hint_s)
        case Unpin():
            return unpin(root, op)
        case Retire():
            return retire(root, op, context.seq)
        case Condemn():
            return condemn(root, op, context.seq)
        case Forget():
            return forget(root, op)
        case Noop():
            return with_op(root, {"op": "noop", "reason": op.reason})
        case AskTurn():
            return with_op(root, {"op": "turn", "wait_s": round(op.wait_s, 3)})


def find_published(
    root: Root, name: str, idempotency_key: str | None, content_sha256: str
) -> Generation | None:
    """The generation that an earlier publish with this key made.

    Raises:
        ConflictError: the key was used for other content, or its generation is gone.
    """
    if idempotency_key is None:
        return None
    used = root.used_key(name, idempotency_key)
    if used is None:
        return None
    facts: dict[str, object] = {"key": idempotency_key, "version": used.version}
    if used.content_sha256 != content_sha256:
        raise ConflictError(
            f"idempotency key {idempotency_key!r} already stands for {name}@v{used.version}, "
            "which has other content; use a new key for new content",
            **facts,
        )
    entry = root.generation(name, used.version)
    if entry is None:
        raise ConflictError(
            f"idempotency key {idempotency_key!r} stands for {name}@v{used.version}, which has "
            "been retired; use a new key to publish it again",
            **facts,
        )
    return entry


def check_fence(root: Root, base_seq: int, session: str = "") -> None:
    """Refuse a session that collection may have given up.

    Raises:
        ConflictError: fact ``reason`` is ``fenced``.
    """
    if base_seq < root.upload_floor:
        raise ConflictError(
            f"this session is fenced: it began at log number {base_seq}, and collection has since "
            f"given up sessions older than {root.upload_floor}, so its uploads may be deleted; "
            "begin a new session and upload again",
            reason="fenced",
            base_seq=base_seq,
            upload_floor=root.upload_floor,
        )
    if session in root.dead_sessions:
        raise ConflictError(
            f"this session is fenced: a generation that it published (session {session}) was "
            "retired and collected, so uploads that it shares with others may be deleted; begin "
            "a new session and upload again",
            reason="fenced",
            session=session,
        )


def _publish(root: Root, op: Publish, context: ApplyContext) -> Transition:
    _check_publish(op)
    known = root.row(op.name)
    row = Artifact(op.kind) if known is None else known.artifact
    if row.kind != op.kind:
        raise ConflictError(
            f"{op.name!r} is a {row.kind}, it cannot take a {op.kind}; use another name",
            name=op.name,
            kind=row.kind,
        )
    earlier = find_published(root, op.name, op.idempotency_key, op.content_sha256)
    if earlier is not None:
        return Transition(root, earlier)
    check_fence(root, op.base_seq, op.session)
    if op.parent is not None and root.generation(op.name, op.parent) is None:
        raise ConflictError(
            f"{op.name}@v{op.parent}, which this would append to, has been retired",
            reason="parent",
            name=op.name,
            version=op.parent,
        )
    entry = Generation(
        name=op.name,
        version=row.next_version,
        kind=op.kind,
        manifest=op.manifest,
        seq=context.seq,
        session=op.session,
        base_seq=op.base_seq,
        created_s=context.time_hint_s,
        parent=op.parent,
        step=op.step,
        message=op.message,
        idempotency_key=op.idempotency_key,
        attrs=op.attrs,
    )
    keys = dict(row.keys)
    if op.idempotency_key is not None:
        keys[op.idempotency_key] = UsedKey(entry.version, op.content_sha256, context.seq)
    artifact = replace(row, next_version=entry.version + 1, keys=keys)
    moves = op.move_latest and _latest_may_move(root, op)
    after = with_entries(with_row(root, op.name), (entry,))
    after = replace(after, artifacts={**after.artifacts, op.name: artifact})
    done: dict[str, object] = {"op": "publish", "name": op.name, "version": entry.version}
    done["latest"] = moves or op.promote == LATEST
    if moves:
        after = with_alias(after, op.name, LATEST, entry.version)
    if op.promote is not None:
        after = with_alias(after, op.name, op.promote, entry.version)
        done["promote"] = op.promote
    return Transition(with_op(after, done), entry)


def _check_publish(op: Publish) -> None:
    check_name(op.name)
    if not _KIND.fullmatch(op.kind):
        raise InvalidInputError(f"unusable kind {op.kind[:60]!r}", kind=op.kind)
    if op.promote is not None:
        check_alias(op.promote)
    if op.step is not None and op.step < 0:
        raise InvalidInputError(f"a step counts from 0, got {op.step}", step=op.step)
    if len(op.message) > MAX_TEXT_CHARS:
        raise InvalidInputError(
            f"the message has {len(op.message)} characters, the limit is {MAX_TEXT_CHARS}"
        )
    if op.idempotency_key is not None and not 0 < len(op.idempotency_key) <= 200:
        raise InvalidInputError("an idempotency key has 1 to 200 characters")


def _latest_may_move(root: Root, op: Publish) -> bool:
    version = root.aliases_of(op.name).get(LATEST)
    current = None if version is None else root.generation(op.name, version)
    if current is None or current.step is None or op.step is None:
        return True
    return op.step >= current.step


def _move_alias(root: Root, op: MoveAlias) -> Transition:
    check_name(op.name)
    check_alias(op.alias)
    target = root.record(op.name, op.version)
    if target is None:
        raise NotFoundError(
            f"no generation {op.name}@v{op.version}; list them with: dstream show {op.name}",
            name=op.name,
            version=op.version,
        )
    check_not_condemned(target)
    current = root.aliases_of(op.name).get(op.alias)
    _check_expected(op, current)
    if current == op.version and target.is_live:
        return Transition(root, target)
    after = root
    if not target.is_live:  # named again before collection got to it
        target = replace(target, retired_seq=None)
        after = with_entries(root, (target,))
    after = with_alias(after, op.name, op.alias, op.version)
    done = {
        "op": "move_alias",
        "name": op.name,
        "alias": op.alias,
        "from": current,
        "version": op.version,
    }
    return Transition(with_op(after, done), target)


def check_not_condemned(target: Generation) -> None:
    """Refuse to name what collection is deleting: its objects may be gone already.

    Raises:
        ConflictError: fact ``reason`` is ``condemned``.
    """
    if target.condemned_seq is not None:
        raise ConflictError(
            f"{target.label} is being deleted by collection and cannot be named again",
            reason="condemned",
            name=target.name,
            version=target.version,
        )


def _remove_alias(root: Root, op: RemoveAlias) -> Root:
    aliases = root.aliases_of(check_name(op.name))
    current = aliases.get(check_alias(op.alias))
    if current is None:
        raise NotFoundError(
            f"{op.name} has no alias {op.alias!r}; list them with: dstream alias {op.name}",
            name=op.name,
            alias=op.alias,
        )
    _check_expected(op, current)
    rest = {alias: version for alias, version in aliases.items() if alias != op.alias}
    done = {"op": "remove_alias", "name": op.name, "alias": op.alias, "from": current}
    return with_op(with_aliases(root, op.name, rest), done)


def _check_expected(op: MoveAlias | RemoveAlias, current: int | None) -> None:
    if op.expect is not None and op.expect != (current or 0):
        found = "does not exist" if current is None else f"is v{current}"
        wanted = f"v{op.expect}" if op.expect else "no such alias"
        raise ConflictError(
            f"{op.name}@{op.alias} {found}, expected {wanted}: somebody moved it; look at "
            "`dstream log`, then decide",
            reason="expect",
            found=current,
            expected=op.expect,
        )
