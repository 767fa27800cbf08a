"""From what a caller wants to publish to the op that says so, for whatever head there is."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dstream.catalog.names import LATEST, Reference, parse_selector
from dstream.catalog.selection import find, select
from dstream.catalog.sessions import Session
from dstream.catalog.transitions import ApplyContext, Nothing, Op, Publish, apply
from dstream.errors import CorruptDataError, InvalidInputError
from dstream.forks import renew_after_fork
from dstream.format.manifest import Manifest, decode_manifest, encode_manifest
from dstream.format.refs import ObjectRef
from dstream.format.root import Generation, Json, Root, sha256_hex
from dstream.measure import Purpose
from dstream.store.base import Store

MAX_ATTRS_BYTES = 10_000

Reconcile = Callable[[Manifest, Manifest], Manifest]
"""(base, new) -> what an append publishes. Called again for every base that a rival makes."""

_UNSTAGED = ObjectRef("", 0, "0" * 64)


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """What can be said of a generation besides its manifest."""

    step: int | None = None
    message: str = ""
    attrs: Json = field(default_factory=dict)
    idempotency_key: str | None = None
    """Publishing again with the same key returns what the first time made."""
    content_sha256: str | None = None
    """What the key stands for, where a rerun's manifest differs only in random object names;
    None: the manifest itself."""
    move_latest: bool = True
    """``latest`` moves to the new generation, unless it points at a higher step."""
    promote: str | None = None
    """An alias to point at the new generation, in the same commit."""
    parent: int | None = None
    """Version whose objects the manifest names as well; the commit is refused once it is gone.
    An append finds its own."""


def plain_attrs(attrs: Mapping[str, object] | None) -> dict[str, object]:
    """A copy of ``attrs`` as JSON gives it back.

    Raises:
        InvalidInputError: JSON cannot hold it, or it is longer than ``MAX_ATTRS_BYTES``.
    """
    try:
        text = json.dumps(dict(attrs or {}), allow_nan=False)
        size_bytes = len(text.encode())
    except (TypeError, ValueError, RecursionError) as fault:
        raise InvalidInputError(f"attributes cannot be stored as JSON: {fault}") from fault
    if size_bytes > MAX_ATTRS_BYTES:
        raise InvalidInputError(
            f"attributes take {size_bytes} bytes, the limit is {MAX_ATTRS_BYTES}; keep large "
            "facts in an object and its key here",
            size_bytes=size_bytes,
        )
    plain: dict[str, object] = json.loads(text)
    return plain


class ManifestObjects:
    """Reads and writes manifests; remembers the last one, which appends build on."""

    def __init__(self, store: Store, new_id: Callable[[], str]) -> None:
        self._store = store
        self._new_id = new_id
        self._last: tuple[str, Manifest] | None = None
        self._lock = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock after a fork."""
        self._lock = threading.Lock()

    def write_bytes(self, session: Session, data: bytes) -> ObjectRef:
        """Store a manifest under a name of its own. Invisible until a commit names it."""
        key = f"{session.manifest_prefix}{self._new_id()}.m"
        self._store.put(key, data, purpose=Purpose.TABLE)
        return ObjectRef(key, len(data), sha256_hex(data))

    def write(self, session: Session, manifest: Manifest) -> ObjectRef:
        """Store a dataset's manifest."""
        ref = self.write_bytes(session, encode_manifest(manifest))
        self._remember(ref, manifest)
        return ref

    def read_bytes(self, ref: ObjectRef) -> bytes:
        """A manifest as stored.

        Raises:
            NotFoundError: the object is gone.
            CorruptDataError: its size or hash is not that of the catalog.
        """
        data = self._store.get(ref.key, purpose=Purpose.TABLE).data
        if len(data) != ref.size_bytes or sha256_hex(data) != ref.sha256:
            raise CorruptDataError(
                f"manifest {ref.key}: got {len(data)} bytes with hash {sha256_hex(data)[:16]}…, "
                f"the catalog says {ref.size_bytes} bytes with {ref.sha256[:16]}…",
                key=ref.key,
            )
        return data

    def read(self, ref: ObjectRef) -> Manifest:
        """A dataset's manifest. Immutable, so the last one is not read again."""
        with self._lock:
            last = self._last
        if last is not None and last[0] == ref.sha256:
            return last[1]
        manifest = decode_manifest(self.read_bytes(ref))
        self._remember(ref, manifest)
        return manifest

    def _remember(self, ref: ObjectRef, manifest: Manifest) -> None:
        with self._lock:
            self._last = (ref.sha256, manifest)


class FixedIntent:
    """Publishes the same manifest whatever rivals did meanwhile; it is written once."""

    def __init__(self, op: Publish, stage: Callable[[], ObjectRef]) -> None:
        self._op = op
        self._stage = stage
        self._staged: ObjectRef | None = None

    def __call__(self, root: Root) -> Op:
        """The op for this head."""
        if _settled(root, self._op):
            return self._op
        if self._staged is None:
            self._staged = self._stage()
        return replace(self._op, manifest=self._staged)


class AppendIntent:
    """Adds new parts to whatever the name means now: rewrites only the list of parts.

    A rival's append changes the base, so the merge is made again on the rival's; a rival that
    published another name changes nothing here, and the merged manifest is kept.
    """

    def __init__(
        self,
        op: Publish,
        new: Manifest,
        session: Session,
        objects: ManifestObjects,
        *,
        onto: str | None,
        reconcile: Reconcile,
    ) -> None:
        self._op = op
        self._new = new
        self._session = session
        self._objects = objects
        self._onto = None if onto is None else parse_selector(onto)
        self._reconcile = reconcile
        self._made: dict[int | None, ObjectRef | None] = {}

    def __call__(self, root: Root) -> Op:
        """The op for this head."""
        base = self._base(root)
        parent = None if base is None else base.version
        op = replace(self._op, parent=parent)
        if _settled(root, op):
            return op
        if parent not in self._made:
            self._made[parent] = self._merge(base)
        staged = self._made[parent]
        if staged is None and base is not None:
            return Nothing(base)
        return op if staged is None else replace(op, manifest=staged)

    def _base(self, root: Root) -> Generation | None:
        if self._onto is not None:
            return select(root, Reference(self._op.name, *self._onto))
        latest = find(root, Reference(self._op.name, alias=LATEST))
        return latest or root.newest(self._op.name)

    def _merge(self, base: Generation | None) -> ObjectRef | None:
        """The manifest to publish on ``base``; None when it would equal the base's."""
        if base is None:
            return self._objects.write(self._session, self._new)
        old = self._objects.read(base.manifest)
        merged = self._reconcile(old, self._new)
        if merged.parts == old.parts:
            return None
        return self._objects.write(self._session, merged)


def publish_op(
    session: Session, name: str, kind: str, content_sha256: str, options: PublishOptions
) -> Publish:
    """The op of a publish whose manifest is not written yet."""
    return Publish(
        name=name,
        kind=kind,
        manifest=_UNSTAGED,
        content_sha256=options.content_sha256 or content_sha256,
        session=session.session_id,
        base_seq=session.base_seq,
        parent=options.parent,
        step=options.step,
        message=options.message,
        attrs=options.attrs,
        idempotency_key=options.idempotency_key,
        move_latest=options.move_latest,
        promote=options.promote,
    )


def _settled(root: Root, op: Publish) -> bool:
    """True when ``op`` has been committed already; raises when it cannot be.

    Asked before anything is written, so that a refused publish leaves no objects behind.
    """
    return apply(root, op, ApplyContext(root.seq + 1, 0.0)).root is root
