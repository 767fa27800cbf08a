"""Catalog shards: the part of the catalog that does not change often, in immutable objects.

A shard is a sorted run of records. A record's place is (name, slot): the name's row has the empty
slot, an idempotency key ``k:<key>``, a generation ``v:<19 digits>``. The root lists the shards in
order with the first place of each, so that any record lies in the one shard before it.

A shard's key begins with the log number of the one root that may be the first to name it. Once
that number is decided, a shard that the newest root does not name can never be named again.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dstream.errors import CorruptDataError
from dstream.format.entries import (
    Artifact,
    Generation,
    UsedKey,
    aliases_from,
    artifact_from,
    generation_from,
    used_key_from,
)
from dstream.format.fields import Fields
from dstream.format.zjson import decode_document, encode_document
from dstream.units import MIB

SHARD_PREFIX = "_ds/cat/"
MAX_SHARD_TEXT_BYTES = 8 * MIB
"""Most that a shard may decompress to."""

_VERSION = 1
_SHARD_KEY = re.compile(r"_ds/cat/(\d{16})-([0-9a-f]{64})\.c")

Place = tuple[str, str]
"""(name, slot) of a record."""

Record = tuple[Place, dict[str, object]]
"""A place and the document there."""

ROW = ""


def key_slot(key: str) -> str:
    """The slot of an idempotency key."""
    return f"k:{key}"


def version_slot(version: int) -> str:
    """The slot of a generation: sorts by number.

    >>> version_slot(7)
    'v:0000000000000000007'
    """
    return f"v:{version:019d}"


@dataclass(frozen=True, slots=True)
class ShardRef:
    """What a root says of one shard."""

    seq: int
    """The root that named it first."""
    first: Place
    records: int
    size_bytes: int
    sha256: str

    @property
    def key(self) -> str:
        """The object's key."""
        return f"{SHARD_PREFIX}{self.seq:016d}-{self.sha256}.c"

    def as_doc(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "seq": self.seq,
            "first": list(self.first),
            "n": self.records,
            "size": self.size_bytes,
            "sha256": self.sha256,
        }

    @classmethod
    def from_doc(cls, document: object, where: str) -> ShardRef:
        """Read the JSON form; raises CorruptDataError."""
        fields = Fields(document, f"{where}, shard")
        first = [str(part) for part in fields.take_list("first")]
        if len(first) != 2:
            raise CorruptDataError(f"{where}: a shard's first place is {first!r}", where=where)
        return cls(
            fields.take("seq", int),
            (first[0], first[1]),
            fields.take("n", int),
            fields.take("size", int),
            fields.take("sha256", str),
        )


def shard_seq(key: str) -> int | None:
    """The log number in a shard's key, or None for a key that is no shard's."""
    match = _SHARD_KEY.fullmatch(key)
    return None if match is None else int(match[1])


@dataclass(frozen=True, slots=True)
class Shard:
    """The records of one shard, sorted by place."""

    places: list[Place]
    documents: list[dict[str, object]]

    def find(self, place: Place) -> dict[str, object] | None:
        """The document at a place."""
        at = bisect_left(self.places, place)
        if at < len(self.places) and self.places[at] == place:
            return self.documents[at]
        return None

    def records(self) -> Iterator[Record]:
        """All records in order."""
        return zip(self.places, self.documents, strict=True)


def encode_shard(records: Sequence[Record]) -> bytes:
    """The stored bytes of a shard. ``records`` are sorted and not empty."""
    listed = [[name, slot, document] for (name, slot), document in records]
    document = {"v": _VERSION, "min_reader": _VERSION, "records": listed}
    return encode_document(document, max_bytes=MAX_SHARD_TEXT_BYTES, where="a catalog shard")


def decode_shard(data: bytes, ref: ShardRef) -> Shard:
    """The shard in ``data``, whose hash has been checked.

    Raises:
        CorruptDataError: it is no shard, or not the one that the root means.
    """
    where = f"catalog shard {ref.key}"
    fields = Fields(decode_document(data, max_bytes=MAX_SHARD_TEXT_BYTES, where=where), where)
    shard = Shard([], [])
    for record in fields.take_list("records"):
        if not (isinstance(record, list) and len(record) == 3 and isinstance(record[2], dict)):
            raise CorruptDataError(f"{where}: not a record: {str(record)[:100]}", where=where)
        shard.places.append((str(record[0]), str(record[1])))
        shard.documents.append(record[2])
    if not shard.places or shard.places[0] != ref.first or len(shard.places) != ref.records:
        raise CorruptDataError(f"{where}: it holds other records than its root says", where=where)
    return shard


@dataclass(frozen=True, slots=True)
class NameRow:
    """A name's row together with its aliases."""

    artifact: Artifact
    aliases: dict[str, int]


def _not_loadable(ref: ShardRef) -> Shard:
    raise CorruptDataError(f"catalog shard {ref.key} is needed, but no store was given")


@dataclass(frozen=True, slots=True)
class Shards:
    """All shards of a root; each is read when it is first needed, and then remembered."""

    refs: tuple[ShardRef, ...] = ()
    load: Callable[[ShardRef], Shard] = field(default=_not_loadable, compare=False, repr=False)

    def covering(self, place: Place) -> int:
        """Number of the shard in which ``place`` lies or would lie. There must be shards."""
        return max(0, bisect_right(self.refs, place, key=lambda ref: ref.first) - 1)

    def row(self, name: str) -> NameRow | None:
        """The row of a name, and its aliases."""
        document = self._find((name, ROW))
        if document is None:
            return None
        fields = Fields(document, f"row of {name!r}")
        aliases = aliases_from(fields.take_map("aliases"), f"aliases of {name!r}")
        return NameRow(artifact_from(fields.rest(), f"row of {name!r}"), aliases)

    def used_key(self, name: str, key: str) -> UsedKey | None:
        """What an idempotency key was used for."""
        document = self._find((name, key_slot(key)))
        return None if document is None else used_key_from(document, f"key {key!r} of {name!r}")

    def generation(self, name: str, version: int) -> Generation | None:
        """The record of a generation."""
        document = self._find((name, version_slot(version)))
        return None if document is None else generation_from(document, f"shard, {name!r}")

    def generations(self, name: str, *, backwards: bool = False) -> Iterator[Generation]:
        """All records of a name's generations by number; shards are read as they are reached."""
        if not self.refs:
            return
        start = self.covering((name, version_slot(0)))
        stop = self.covering((name, version_slot(10**19 - 1))) + 1
        numbers = range(start, stop)
        for number in reversed(numbers) if backwards else numbers:
            found = [
                document
                for (owner, slot), document in self.load(self.refs[number]).records()
                if owner == name and slot.startswith("v:")
            ]
            for document in reversed(found) if backwards else found:
                yield generation_from(document, f"shard, {name!r}")

    def records(self) -> Iterator[Record]:
        """Every record in order. Reads every shard."""
        for ref in self.refs:
            yield from self.load(ref).records()

    def _find(self, place: Place) -> dict[str, object] | None:
        if not self.refs or place < self.refs[0].first:
            return None
        return self.load(self.refs[self.covering(place)]).find(place)
