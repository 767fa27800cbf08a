"""Bytes of the catalog's log: numbered roots and their keys.

A root is the complete state of the catalog after one commit: reading the newest one is enough,
nothing is replayed. Fields that this version does not know are kept and written back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge

from dstream.errors import CorruptDataError, FormatVersionError, RefusedError
from dstream.format.catalog_shard import (
    ROW,
    NameRow,
    Place,
    Shard,
    ShardRef,
    Shards,
    key_slot,
    version_slot,
)
from dstream.format.entries import (
    Artifact,
    Generation,
    Json,
    Pin,
    UsedKey,
    aliases_from,
    artifact_doc,
    artifact_from,
    generation_doc,
    generation_from,
    pin_doc,
    pin_from,
)
from dstream.format.fields import Fields
from dstream.format.log_keys import HINT_KEY, LOG_PREFIX, log_key, log_seq
from dstream.format.zjson import decode_document, encode_document, text_size_bytes
from dstream.units import MIB, format_bytes

__all__ = [
    "FORMAT_VERSION",
    "HINT_KEY",
    "LOG_PREFIX",
    "Artifact",
    "Generation",
    "Json",
    "Pin",
    "Root",
    "Tombstone",
    "UsedKey",
    "check_readable",
    "check_writable",
    "decode_root",
    "encode_root",
    "encode_tombstone",
    "log_key",
    "log_seq",
    "peek_txn_id",
    "sha256_hex",
]

FORMAT_VERSION = 2
"""The version this code writes, and the newest that it reads."""

MAX_ROOT_BYTES = 1 * MIB
"""Largest root as stored: every open and every commit moves one."""

MAX_ROOT_TEXT_BYTES = 8 * MIB
"""Most that a root may decompress to; parsing it takes 200 MB at worst."""


def sha256_hex(data: bytes) -> str:
    """SHA-256 of ``data`` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Root:
    """The whole catalog after commit ``seq``.

    What changed lately is in the root itself, the rest in the catalog shards that it names; a
    record in the root hides the shards' one of the same place. The methods look at both.
    """

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
    """Rows of names that changed lately."""
    entries: tuple[Generation, ...] = ()
    """Records of generations that changed lately, in the order of the changes."""
    aliases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Name -> alias -> version, for the names in ``artifacts``."""
    gone: frozenset[Place] = frozenset()
    """Records of the shards that are no more."""
    shards: Shards = field(default_factory=Shards)
    pins: Mapping[str, Pin] = field(default_factory=dict)
    """By their id."""
    upload_floor: int = 0
    """The fence: sessions whose ``base_seq`` is lower can publish no more."""
    dead_sessions: Mapping[str, int] = field(default_factory=dict)
    """Shared sessions above the fence that can publish no more, with their ``base_seq``: a
    generation of theirs was condemned, and its objects with it."""
    min_pinnable_seq: int = 0
    """No root below may be pinned: it may list what is condemned, or be cleared."""
    cleared_below: int = 0
    """Roots below have been cleared, but for those that were pinned at the time."""
    v: int = FORMAT_VERSION
    min_reader: int = FORMAT_VERSION
    min_writer: int = FORMAT_VERSION
    extra: Json = field(default_factory=dict)

    def row(self, name: str) -> NameRow | None:
        """The row of a name with its aliases."""
        artifact = self.artifacts.get(name)
        if artifact is not None:
            return NameRow(artifact, dict(self.aliases.get(name, {})))
        return self.shards.row(name)

    def aliases_of(self, name: str) -> dict[str, int]:
        """Alias -> version of a name."""
        row = self.row(name)
        return {} if row is None else row.aliases

    def names(self) -> list[str]:
        """All names, sorted. Reads every shard."""
        stored = {name for (name, slot), _ in self.shards.records() if slot == ROW}
        return sorted(stored | set(self.artifacts))

    def used_key(self, name: str, key: str) -> UsedKey | None:
        """What an idempotency key was used for."""
        artifact = self.artifacts.get(name)
        if artifact is not None and key in artifact.keys:
            return artifact.keys[key]
        return None if (name, key_slot(key)) in self.gone else self.shards.used_key(name, key)

    def record(self, name: str, version: int) -> Generation | None:
        """The generation ``name@v<version>``, whatever its state."""
        for entry in reversed(self.entries):
            if entry.version == version and entry.name == name:
                return entry
        if (name, version_slot(version)) in self.gone:
            return None
        return self.shards.generation(name, version)

    def generation(self, name: str, version: int) -> Generation | None:
        """The live generation ``name@v<version>``."""
        entry = self.record(name, version)
        return entry if entry is not None and entry.is_live else None

    def generations(self, name: str) -> Iterator[Generation]:
        """Live generations of ``name``, oldest first."""
        changed = {entry.version: entry for entry in self.entries if entry.name == name}
        stored = (e for e in self.shards.generations(name) if not self._hidden(e, changed))
        found = merge(stored, sorted(changed.values(), key=_version), key=_version)
        return (entry for entry in found if entry.is_live)

    def newest(self, name: str) -> Generation | None:
        """The live generation of ``name`` with the highest number."""
        changed = {entry.version: entry for entry in self.entries if entry.name == name}
        lately = max((v for v, entry in changed.items() if entry.is_live), default=0)
        for entry in self.shards.generations(name, backwards=True):
            if entry.version < lately:
                break
            if entry.is_live and not self._hidden(entry, changed):
                return entry
        return changed.get(lately)

    def all_records(self) -> Iterator[Generation]:
        """Every generation, whatever its state, by name and number. Reads every shard."""
        changed = {(entry.name, entry.version): entry for entry in self.entries}

        def stored() -> Iterator[Generation]:
            for place, document in self.shards.records():
                if place[1].startswith("v:") and place not in self.gone:
                    entry = generation_from(document, f"shard, {place[0]!r}")
                    if (entry.name, entry.version) not in changed:
                        yield entry

        return merge(stored(), sorted(changed.values(), key=_place), key=_place)

    def _hidden(self, entry: Generation, changed: Mapping[int, Generation]) -> bool:
        place = (entry.name, version_slot(entry.version))
        return entry.version in changed or place in self.gone


def _version(entry: Generation) -> int:
    return entry.version


def _place(entry: Generation) -> tuple[str, int]:
    return entry.name, entry.version


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left of an old root: nobody may read it, its slot stays taken."""

    txn_id: str


def encode_root(root: Root) -> bytes:
    """The stored bytes of a root.

    Raises:
        RefusedError: more than ``MAX_ROOT_BYTES``, or too much text; nothing can be published.
        InvalidInputError: attributes that JSON cannot hold.
    """
    data = encode_document(_root_doc(root))
    for size_bytes, limit_bytes, what in (
        (len(data), MAX_ROOT_BYTES, ""),
        (text_size_bytes(data), MAX_ROOT_TEXT_BYTES, " of text"),
    ):
        if size_bytes <= limit_bytes:
            continue
        raise RefusedError(
            f"the catalog's root would take {format_bytes(size_bytes)}{what}, the limit is "
            f"{format_bytes(limit_bytes)} ({len(root.entries)} generations); shorten messages "
            "and attributes, or use another repository",
            size_bytes=size_bytes,
            limit_bytes=limit_bytes,
        )
    return data


def encode_tombstone(txn_id: str) -> bytes:
    """What replaces an old root: its slot stays taken, its transaction stays provable."""
    return encode_document({"v": FORMAT_VERSION, "min_reader": 1, "txn_id": txn_id, "tombstone": 1})


def decode_root(
    data: bytes, seq: int, load: Callable[[ShardRef], Shard] | None = None
) -> Root | Tombstone:
    """The root stored as number ``seq``.

    Args:
        data: the stored bytes.
        seq: its number.
        load: reads its catalog shards, when they are needed.

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
    root = _root_from(fields, txn_id, where, load)
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
        FormatVersionError: its ``min_reader`` is newer.
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
    document = {
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
        "artifacts": {name: artifact_doc(row) for name, row in root.artifacts.items()},
        "entries": [generation_doc(entry) for entry in root.entries],
        "aliases": {name: dict(row) for name, row in root.aliases.items()},
        "pins": {name: pin_doc(pin) for name, pin in root.pins.items()},
        "shards": [ref.as_doc() for ref in root.shards.refs],
        "upload_floor": root.upload_floor,
        "min_pinnable_seq": root.min_pinnable_seq,
        "cleared_below": root.cleared_below,
    }
    if root.dead_sessions:
        document["dead_sessions"] = dict(root.dead_sessions)
    if root.gone:
        document["gone"] = [list(place) for place in sorted(root.gone)]
    return document


def _root_from(
    fields: Fields, txn_id: str, where: str, load: Callable[[ShardRef], Shard] | None
) -> Root:
    for former in ("superseded", "condemned"):  # always empty; entries say it themselves now
        fields.take_list(former)
    artifacts = {
        name: artifact_from(doc, f"{where}, artifact {name!r}")
        for name, doc in fields.take_map("artifacts").items()
    }
    aliases = {
        name: aliases_from(row, f"{where}, aliases of {name!r}")
        for name, row in fields.take_map("aliases").items()
    }
    refs = tuple(ShardRef.from_doc(doc, where) for doc in fields.take_list("shards"))
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
        entries=tuple(generation_from(doc, where) for doc in fields.take_list("entries")),
        aliases=aliases,
        gone=_places(fields, where),
        shards=Shards(refs) if load is None else Shards(refs, load),
        pins={
            name: pin_from(doc, f"{where}, pin {name!r}")
            for name, doc in fields.take_map("pins").items()
        },
        upload_floor=fields.take("upload_floor", int),
        dead_sessions=aliases_from(fields.take_map("dead_sessions"), f"{where}, dead sessions"),
        min_pinnable_seq=fields.take("min_pinnable_seq", int),
        cleared_below=fields.take("cleared_below", int, 0),
        extra=fields.rest(),
    )


def _maps(fields: Fields, name: str, where: str) -> tuple[Json, ...]:
    return tuple(Fields(doc, f"{where}, {name}").rest() for doc in fields.take_list(name))


def _places(fields: Fields, where: str) -> frozenset[Place]:
    places = set()
    for place in fields.take_list("gone"):
        if not isinstance(place, list) or len(place) != 2:
            raise CorruptDataError(f"{where}: not a place: {str(place)[:100]}", where=where)
        places.add((str(place[0]), str(place[1])))
    return frozenset(places)
