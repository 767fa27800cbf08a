"""Bytes of the catalog's log: numbered roots and their keys.

A root is the complete state of the catalog after one commit: reading the newest one is enough,
nothing is replayed. Fields that this version does not know are kept and written back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dstream.errors import CorruptDataError, FormatVersionError, RefusedError
from dstream.format.fields import Fields
from dstream.format.refs import ObjectRef
from dstream.format.zjson import decode_document, encode_document
from dstream.units import MIB, format_bytes

FORMAT_VERSION = 1
"""The version this code writes, and the newest that it reads."""

MAX_ROOT_BYTES = 1 * MIB
"""Largest root as stored: every open and every commit moves one."""

MAX_ROOT_TEXT_BYTES = 64 * MIB
"""Most that a root may decompress to."""

LOG_PREFIX = "_ds/log/"
HINT_KEY = "_ds/hint"

_LAST_SEQ = 2**64 - 1
_LOG_KEY = re.compile(r"_ds/log/(\d{20})\.r")

Json = Mapping[str, object]


def log_key(seq: int) -> str:
    """Key of root ``seq``. Counted downwards, so that the newest root is listed first.

    >>> log_key(0), log_key(1)
    ('_ds/log/18446744073709551615.r', '_ds/log/18446744073709551614.r')
    """
    return f"{LOG_PREFIX}{_LAST_SEQ - seq:020d}.r"


def log_seq(key: str) -> int | None:
    """The number of the root stored under ``key``, or None for a key that is no root's.

    >>> log_seq(log_key(7)), log_seq("_ds/log/x")
    (7, None)
    """
    match = _LOG_KEY.fullmatch(key)
    if match is None or int(match[1]) > _LAST_SEQ:
        return None
    return _LAST_SEQ - int(match[1])


def sha256_hex(data: bytes) -> str:
    """SHA-256 of ``data`` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Generation:
    """One immutable version of an artifact."""

    name: str
    version: int
    """Counted from 1 within the name; never used twice."""
    kind: str
    """``dataset`` or ``checkpoint``."""
    manifest: ObjectRef
    seq: int
    """The root that published it."""
    session: str
    base_seq: int
    """The head when its upload began; what the fence is compared with."""
    created_s: float
    """The writer's clock at commit, seconds since the epoch. A hint for people."""
    parent: int | None = None
    """Version that it was appended to."""
    step: int | None = None
    """Training step of a checkpoint; ``latest`` never moves to a lower one by itself."""
    message: str = ""
    idempotency_key: str | None = None
    attrs: Json = field(default_factory=dict, hash=False)
    extra: Json = field(default_factory=dict, hash=False)
    """Fields written by a newer version."""

    @property
    def label(self) -> str:
        """``name@v7``."""
        return f"{self.name}@v{self.version}"


@dataclass(frozen=True, slots=True)
class UsedKey:
    """What an idempotency key was used for."""

    version: int
    content_sha256: str
    """Hash of what the caller asked to publish, before any merge."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The row of a name. It outlives its generations: numbers are never given twice."""

    kind: str
    next_version: int = 1
    keys: Mapping[str, UsedKey] = field(default_factory=dict)
    """Idempotency keys that were used."""
    extra: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Root:
    """The whole catalog after commit ``seq``."""

    seq: int
    prev_sha256: str
    """Hash of root ``seq - 1`` as stored; empty in root 0."""
    txn_id: str
    """Unique to the commit: how a writer whose answer was lost knows its own root."""
    time_hint_s: float
    by: str
    """Who committed, for people."""
    ops: tuple[Json, ...] = ()
    """What this commit did, for people; the state below is the result."""
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    entries: tuple[Generation, ...] = ()
    """Live generations in the order of their commits."""
    aliases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Name -> alias -> version."""
    pins: Json = field(default_factory=dict)
    superseded: tuple[Json, ...] = ()
    condemned: tuple[Json, ...] = ()
    """Generations that collection is deleting: ``{name, version, ...}``; never revived."""
    upload_floor: int = 0
    """The fence: sessions whose ``base_seq`` is lower can publish no more."""
    min_pinnable_seq: int = 0
    v: int = FORMAT_VERSION
    min_reader: int = 1
    min_writer: int = 1
    extra: Json = field(default_factory=dict)

    def generation(self, name: str, version: int) -> Generation | None:
        """The live generation ``name@v<version>``."""
        for entry in reversed(self.entries):
            if entry.version == version and entry.name == name:
                return entry
        return None

    def generations(self, name: str) -> Iterator[Generation]:
        """Live generations of ``name``, oldest first."""
        return (entry for entry in self.entries if entry.name == name)

    def newest(self, name: str) -> Generation | None:
        """The live generation of ``name`` with the highest number."""
        return max(self.generations(name), key=lambda entry: entry.version, default=None)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left of an old root: nobody may read it, its slot stays taken."""

    txn_id: str


def encode_root(root: Root) -> bytes:
    """The stored bytes of a root.

    Raises:
        RefusedError: more than ``MAX_ROOT_BYTES``; nothing more can be published.
        InvalidInputError: attributes that JSON cannot hold.
    """
    data = encode_document(_root_doc(root))
    if len(data) > MAX_ROOT_BYTES:
        raise RefusedError(
            f"the catalog's root would take {format_bytes(len(data))}, the limit is "
            f"{format_bytes(MAX_ROOT_BYTES)} ({len(root.entries)} generations); shorten messages "
            "and attributes, or use another repository",
            size_bytes=len(data),
            limit_bytes=MAX_ROOT_BYTES,
        )
    return data


def decode_root(data: bytes, seq: int) -> Root | Tombstone:
    """The root stored as number ``seq``.

    Raises:
        FormatVersionError: it needs a newer reader.
        CorruptDataError: it is damaged, or is not number ``seq``.
    """
    where = f"root {seq} ({log_key(seq)})"
    document = _decode_bounded(data, where)
    fields = Fields(document, where)
    check_readable(document, where)
    txn_id = fields.take("txn_id", str)
    if fields.take("tombstone", int, 0):
        return Tombstone(txn_id)
    root = _root_from(fields, txn_id, where)
    if root.seq != seq:
        raise CorruptDataError(f"{where}: it says it is root {root.seq}", where=where)
    return root


def peek_txn_id(data: bytes, seq: int) -> str:
    """The transaction of any root, also one that only a newer version can read.

    Raises:
        CorruptDataError: not a root at all.
    """
    where = f"root {seq} ({log_key(seq)})"
    return Fields(_decode_bounded(data, where), where).take("txn_id", str)


def check_readable(document: Json, where: str) -> None:
    """Refuse a document that this version must not read.

    Raises:
        FormatVersionError: its ``min_reader`` is newer, or it has catalog shards.
        CorruptDataError: it names no version.
    """
    fields = Fields(document, where)
    min_reader = fields.take("min_reader", int)
    if min_reader > FORMAT_VERSION:
        raise FormatVersionError(
            f"{where} needs a reader of format {min_reader}, this dstream reads up to "
            f"{FORMAT_VERSION}; upgrade dstream",
            needed=min_reader,
            supported=FORMAT_VERSION,
        )
    if fields.take_list("shards"):
        raise FormatVersionError(
            f"{where} keeps part of the catalog in shards, which this dstream cannot read and "
            "must not ignore; upgrade dstream",
            supported=FORMAT_VERSION,
        )


def check_writable(root: Root) -> None:
    """Refuse to build on a root that only a newer version may continue.

    Raises:
        FormatVersionError: its ``min_writer`` is newer than this version.
    """
    if root.min_writer > FORMAT_VERSION:
        raise FormatVersionError(
            f"root {root.seq} may only be continued by a writer of format {root.min_writer}, this "
            f"dstream writes {FORMAT_VERSION}; upgrade dstream to publish (reading works)",
            needed=root.min_writer,
            supported=FORMAT_VERSION,
        )


def _decode_bounded(data: bytes, where: str) -> dict[str, object]:
    if len(data) > MAX_ROOT_BYTES:
        raise CorruptDataError(
            f"{where}: {len(data)} bytes, a root has at most {MAX_ROOT_BYTES}", where=where
        )
    return decode_document(data, max_bytes=MAX_ROOT_TEXT_BYTES, where=where)


def _root_doc(root: Root) -> dict[str, object]:
    return {
        **root.extra,
        "v": root.v,
        "min_reader": root.min_reader,
        "min_writer": root.min_writer,
        "seq": root.seq,
        "prev_sha256": root.prev_sha256,
        "txn_id": root.txn_id,
        "time_hint_s": root.time_hint_s,
        "by": root.by,
        "ops": list(root.ops),
        "artifacts": {name: _artifact_doc(row) for name, row in root.artifacts.items()},
        "entries": [_generation_doc(entry) for entry in root.entries],
        "aliases": {name: dict(row) for name, row in root.aliases.items()},
        "pins": dict(root.pins),
        "superseded": list(root.superseded),
        "condemned": list(root.condemned),
        "shards": [],
        "upload_floor": root.upload_floor,
        "min_pinnable_seq": root.min_pinnable_seq,
    }


def _root_from(fields: Fields, txn_id: str, where: str) -> Root:
    fields.take_list("shards")
    artifacts = {
        name: _artifact_from(doc, f"{where}, artifact {name!r}")
        for name, doc in fields.take_map("artifacts").items()
    }
    aliases: dict[str, dict[str, int]] = {}
    for name, row in fields.take_map("aliases").items():
        taken = Fields(row, f"{where}, aliases of {name!r}")
        aliases[name] = {alias: taken.take(alias, int) for alias in taken.rest()}
    return Root(
        v=fields.take("v", int),
        min_reader=fields.take("min_reader", int),
        min_writer=fields.take("min_writer", int),
        seq=fields.take("seq", int),
        prev_sha256=fields.take("prev_sha256", str),
        txn_id=txn_id,
        time_hint_s=fields.take("time_hint_s", float),
        by=fields.take("by", str),
        ops=_maps(fields, "ops", where),
        artifacts=artifacts,
        entries=tuple(_generation_from(doc, where) for doc in fields.take_list("entries")),
        aliases=aliases,
        pins=fields.take_map("pins"),
        superseded=_maps(fields, "superseded", where),
        condemned=_maps(fields, "condemned", where),
        upload_floor=fields.take("upload_floor", int),
        min_pinnable_seq=fields.take("min_pinnable_seq", int),
        extra=fields.rest(),
    )


def _maps(fields: Fields, name: str, where: str) -> tuple[Json, ...]:
    return tuple(Fields(doc, f"{where}, {name}").rest() for doc in fields.take_list(name))


def _artifact_doc(row: Artifact) -> dict[str, object]:
    document: dict[str, object] = {
        **row.extra,
        "kind": row.kind,
        "next_version": row.next_version,
    }
    if row.keys:
        document["keys"] = {
            key: {"version": used.version, "content_sha256": used.content_sha256}
            for key, used in row.keys.items()
        }
    return document


def _artifact_from(document: object, where: str) -> Artifact:
    fields = Fields(document, where)
    keys: dict[str, UsedKey] = {}
    for key, used in fields.take_map("keys").items():
        taken = Fields(used, f"{where}, key {key!r}")
        keys[key] = UsedKey(taken.take("version", int), taken.take("content_sha256", str))
    return Artifact(
        kind=fields.take("kind", str),
        next_version=fields.take("next_version", int),
        keys=keys,
        extra=fields.rest(),
    )


def _generation_doc(entry: Generation) -> dict[str, object]:
    document: dict[str, object] = {
        **entry.extra,
        "name": entry.name,
        "version": entry.version,
        "kind": entry.kind,
        "manifest": entry.manifest.as_doc(),
        "seq": entry.seq,
        "session": entry.session,
        "base_seq": entry.base_seq,
        "created_s": entry.created_s,
    }
    optional: dict[str, object] = {
        "parent": entry.parent,
        "step": entry.step,
        "message": entry.message or None,
        "idempotency_key": entry.idempotency_key,
        "attrs": dict(entry.attrs) or None,
    }
    document.update({name: value for name, value in optional.items() if value is not None})
    return document


def _generation_from(document: object, where: str) -> Generation:
    fields = Fields(document, f"{where}, generation")
    name, version = fields.take("name", str), fields.take("version", int)
    return Generation(
        name=name,
        version=version,
        kind=fields.take("kind", str),
        manifest=ObjectRef.from_doc(fields.take_map("manifest"), f"{where}, {name}@v{version}"),
        seq=fields.take("seq", int),
        session=fields.take("session", str),
        base_seq=fields.take("base_seq", int),
        created_s=fields.take("created_s", float),
        parent=fields.take_optional("parent", int),
        step=fields.take_optional("step", int),
        message=fields.take("message", str, ""),
        idempotency_key=fields.take_optional("idempotency_key", str),
        attrs=fields.take_map("attrs"),
        extra=fields.rest(),
    )
