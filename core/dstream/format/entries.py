"""Records of the catalog, in roots and in catalog shards: generations, names, keys, pins.

Fields that this version does not know are kept and written back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dstream.format.fields import Fields
from dstream.format.refs import ObjectRef

Json = Mapping[str, object]


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
    """Version that it was appended to, or whose objects it shares."""
    step: int | None = None
    """Training step of a checkpoint; ``latest`` never moves to a lower one by itself."""
    message: str = ""
    idempotency_key: str | None = None
    attrs: Json = field(default_factory=dict, hash=False)
    retired_seq: int | None = None
    """The first root that no longer lists it; None: it is live."""
    condemned_seq: int | None = None
    """The root from which on collection deletes its objects; it can never be named again."""
    extra: Json = field(default_factory=dict, hash=False)
    """Fields written by a newer version."""

    @property
    def label(self) -> str:
        """``name@v7``."""
        return f"{self.name}@v{self.version}"

    @property
    def is_live(self) -> bool:
        """Whether it can be found by its name."""
        return self.retired_seq is None

    def live_at(self, seq: int) -> bool:
        """Whether root ``seq`` listed it. It may say yes of one that was retired and revived."""
        return self.seq <= seq and (self.retired_seq is None or self.retired_seq > seq)


@dataclass(frozen=True, slots=True)
class UsedKey:
    """What an idempotency key was used for."""

    version: int
    content_sha256: str
    """Hash of what the caller asked to publish, before any merge."""
    seq: int = 0
    """The root that published it: tells the key's age by the store's clock."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The row of a name. It outlives its generations: numbers are never given twice."""

    kind: str
    next_version: int = 1
    keys: Mapping[str, UsedKey] = field(default_factory=dict)
    """Idempotency keys used since the row was last moved into a shard."""
    extra: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pin:
    """Keeps what one root lists, whatever is retired later."""

    seq: int
    """The root whose generations are kept."""
    since_seq: int
    """The root that made the pin or renewed it last: when, by the store's clock."""
    names: tuple[str, ...] | None = None
    """Only generations of these artifacts; None: of all."""
    owner: str = ""
    ttl_s: float | None = None
    """How long after root ``since_seq`` it lasts; None: for ever."""
    time_hint_s: float = 0.0
    """The writer's clock at ``since_seq``. A hint for people."""
    extra: Json = field(default_factory=dict, hash=False)

    def covers(self, generation: Generation) -> bool:
        """Whether it keeps this generation."""
        in_scope = self.names is None or generation.name in self.names
        return in_scope and generation.live_at(self.seq)


def generation_doc(entry: Generation) -> dict[str, object]:
    """The JSON form of a generation."""
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
        "retired_seq": entry.retired_seq,
        "condemned_seq": entry.condemned_seq,
    }
    document.update({name: value for name, value in optional.items() if value is not None})
    return document


def generation_from(document: object, where: str) -> Generation:
    """Read the JSON form; raises CorruptDataError."""
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
        retired_seq=fields.take_optional("retired_seq", int),
        condemned_seq=fields.take_optional("condemned_seq", int),
        extra=fields.rest(),
    )


def used_key_doc(used: UsedKey) -> dict[str, object]:
    """The JSON form of what a key was used for."""
    return {"version": used.version, "content_sha256": used.content_sha256, "seq": used.seq}


def used_key_from(document: object, where: str) -> UsedKey:
    """Read the JSON form; raises CorruptDataError."""
    taken = Fields(document, where)
    return UsedKey(
        taken.take("version", int), taken.take("content_sha256", str), taken.take("seq", int, 0)
    )


def artifact_doc(row: Artifact) -> dict[str, object]:
    """The JSON form of a name's row."""
    document: dict[str, object] = {
        **row.extra,
        "kind": row.kind,
        "next_version": row.next_version,
    }
    if row.keys:
        document["keys"] = {key: used_key_doc(used) for key, used in row.keys.items()}
    return document


def artifact_from(document: object, where: str) -> Artifact:
    """Read the JSON form; raises CorruptDataError."""
    fields = Fields(document, where)
    keys = {
        key: used_key_from(used, f"{where}, key {key!r}")
        for key, used in fields.take_map("keys").items()
    }
    return Artifact(
        kind=fields.take("kind", str),
        next_version=fields.take("next_version", int),
        keys=keys,
        extra=fields.rest(),
    )


def aliases_from(document: object, where: str) -> dict[str, int]:
    """Alias -> version; raises CorruptDataError."""
    taken = Fields(document, where)
    return {alias: taken.take(alias, int) for alias in taken.rest()}


def pin_doc(pin: Pin) -> dict[str, object]:
    """The JSON form of a pin."""
    document: dict[str, object] = {
        **pin.extra,
        "seq": pin.seq,
        "since_seq": pin.since_seq,
        "owner": pin.owner,
        "time_hint_s": pin.time_hint_s,
    }
    if pin.names is not None:
        document["names"] = list(pin.names)
    if pin.ttl_s is not None:
        document["ttl_s"] = pin.ttl_s
    return document


def pin_from(document: object, where: str) -> Pin:
    """Read the JSON form; raises CorruptDataError."""
    fields = Fields(document, where)
    scoped = "names" in fields.rest()
    names = tuple(str(name) for name in fields.take_list("names"))
    return Pin(
        seq=fields.take("seq", int),
        since_seq=fields.take("since_seq", int),
        names=names if scoped else None,
        owner=fields.take("owner", str, ""),
        ttl_s=fields.take_optional("ttl_s", float),
        time_hint_s=fields.take("time_hint_s", float, 0.0),
        extra=fields.rest(),
    )
