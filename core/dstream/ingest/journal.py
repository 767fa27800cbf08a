"""What an ingest has finished, kept in the repository until a commit names it.

Every finished group leaves one entry below ``_ds/ses/<key>/<share>/``: the rows of its units,
whose bytes are in the repository already. A run that starts again reads the entries and does
only what is missing. Of two entries for one unit the later one counts. Entries are named by
their content, so that two processes that do the same work write the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from dstream.catalog.sessions import Session
from dstream.errors import (
    ConflictError,
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    MediaReason,
    NotFoundError,
)
from dstream.format.manifest import ObjectCount, RecipeRef
from dstream.format.repository import SESSION_PREFIX, session_key
from dstream.format.zjson import decode_document, encode_document
from dstream.ingest.rows import Listed, UnitRows
from dstream.ingest.settings import Share
from dstream.measure import Meter, Purpose
from dstream.store.base import Store

VERSION = 1
MIN_READER = 1
MAX_ENTRY_BYTES = 1 << 30

TRANSIENT = frozenset({MediaReason.CHANGED, MediaReason.UNREADABLE})
"""Reasons that may be gone next time: such files are always tried again."""

_DONE = "done"
_ENTRY_SUFFIX = ".entry"


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """What all shares of one ingest must agree on."""

    name: str
    source: str
    layout: str
    recipe: RecipeRef
    mode: str
    """``append`` or ``replace``."""
    message: str

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PlanRecord:
        """Read the JSON form; raises KeyError and TypeError."""
        recipe = document["recipe"]
        return cls(
            name=str(document["name"]),
            source=str(document["source"]),
            layout=str(document["layout"]),
            recipe=RecipeRef(str(recipe["name"]), dict(recipe["params"])),
            mode=str(document["mode"]),
            message=str(document["message"]),
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished group."""

    units: tuple[UnitRows, ...]
    shards: ObjectCount
    indexes: ObjectCount


@dataclass(frozen=True, slots=True)
class Covered:
    """A unit that is finished."""

    entry: str
    """Key of the entry that counts."""
    objects: tuple[Listed, ...]


class Journal:
    """The entries of one share of one session."""

    def __init__(self, store: Store, session: Session, share: Share, meter: Meter) -> None:
        if session.key is None:
            raise InvalidInputError("a journal needs a session with a key")
        self._store = store
        self.session = session
        self._meter = meter
        self._share = share
        self.prefix = f"{SESSION_PREFIX}{session.key}/{share.label}/"
        self._next = 0

    def load(self, *, keep_transient: bool) -> dict[str, Covered]:
        """Which units are finished, by stem.

        Args:
            keep_transient: count units as finished whose failure may be gone by now.
        """
        covered: dict[str, Covered] = {}
        for key in self.keys():
            self._next = max(self._next, _sequence(key) + 1)
            entry = self.read(key)
            if entry is None:
                continue
            for unit in entry.units:
                covered.pop(unit.stem, None)
                if keep_transient or not _is_transient(unit):
                    covered[unit.stem] = Covered(key, unit.objects)
        return covered

    def keys(self) -> list[str]:
        """Keys of all entries, oldest first."""
        infos = self._store.list(self.prefix, purpose=Purpose.LOG)
        return sorted(info.key for info in infos if info.key.endswith(_ENTRY_SUFFIX))

    def read(self, key: str) -> Entry | None:
        """One entry; None where it belongs to an earlier session of the same key.

        Raises:
            CorruptDataError: the entry is damaged.
            FormatVersionError: a newer dstream wrote it.
        """
        document = _decode(self._store.get(key, purpose=Purpose.LOG).data, key)
        try:
            if document["session_id"] != self.session.session_id:
                self._meter.event("journal-skip", "other-session")
                return None
            return Entry(
                tuple(UnitRows.from_json(unit) for unit in document["units"]),
                ObjectCount(**document["shards"]),
                ObjectCount(**document["indexes"]),
            )
        except (KeyError, TypeError) as error:
            raise CorruptDataError(f"{key}: cannot be read: {error!r}", key=key) from error

    def reserve(self) -> int:
        """The number of the next entry; entries count in the order they were reserved."""
        self._next += 1
        return self._next - 1

    def append(self, number: int, entry: Entry) -> str:
        """Record a finished group; its objects must be stored already. Returns the key."""
        data = encode_document(
            {
                "v": VERSION,
                "min_reader": MIN_READER,
                "session_id": self.session.session_id,
                "base_seq": self.session.base_seq,
                "units": [unit.as_json() for unit in entry.units],
                "shards": asdict(entry.shards),
                "indexes": asdict(entry.indexes),
            }
        )
        key = f"{self.prefix}{number:08d}-{xxhash.xxh3_64_hexdigest(data)}{_ENTRY_SUFFIX}"
        self._store.put(key, data, purpose=Purpose.LOG)
        return key

    def mark_done(self, plan: PlanRecord, wanted: Iterable[str]) -> None:
        """Say that this share is complete.

        Args:
            plan: what was done.
            wanted: stems of the units that the share publishes.
        """
        document = {
            "v": VERSION,
            "min_reader": MIN_READER,
            "session_id": self.session.session_id,
            "share": [self._share.index, self._share.count],
            "plan": asdict(plan),
            "wanted": sorted(wanted),
        }
        self._store.put(f"{self.prefix}{_DONE}", encode_document(document), purpose=Purpose.LOG)

    def clear(self, keys: Iterable[str]) -> None:
        """Delete entries that a commit has made superfluous. Failures are counted, not raised."""
        doomed = [*keys, f"{self.prefix}{_DONE}"]
        failed = self._store.delete_many([(key, None) for key in doomed], purpose=Purpose.LOG)
        if failed:
            self._meter.event("journal-left", "undeletable", len(failed))


@dataclass(frozen=True, slots=True)
class DoneShare:
    """A share that says it is complete."""

    share: Share
    plan: PlanRecord
    wanted: frozenset[str]


def read_done(store: Store, session: Session) -> list[DoneShare]:
    """All complete shares of a session, in order.

    Raises:
        NotFoundError: the session has no complete share.
        ConflictError: shares are missing, or do not belong together.
    """
    prefix = f"{SESSION_PREFIX}{session.key}/"
    keys = [i.key for i in store.list(prefix, purpose=Purpose.LOG) if i.key.endswith("/" + _DONE)]
    done = [share for key in keys if (share := _read_done(store, key, session)) is not None]
    if not done:
        raise NotFoundError(
            f"session {session.key!r} has no finished part; run `dstream ingest ... --part i/n "
            f"--into {session.key}` first",
            key=session.key,
        )
    counts = sorted({share.share.count for share in done})
    if len(counts) > 1:
        raise ConflictError(
            f"session {session.key!r} has parts of different divisions: of {counts}; use one "
            "number of parts for one key",
            key=session.key,
        )
    present = {share.share.index for share in done}
    missing = [i for i in range(1, counts[0] + 1) if i not in present]
    if missing:
        named = ", ".join(f"{i}/{counts[0]}" for i in missing[:20])
        raise ConflictError(
            f"session {session.key!r}: {len(missing)} of {counts[0]} parts are not finished: "
            f"{named}; run them, then finish again",
            key=session.key,
            missing=missing,
        )
    if any(share.plan != done[0].plan for share in done):
        raise ConflictError(
            f"session {session.key!r}: its parts were run with different names, sources, layouts "
            "or recipes; run all parts again with the same ones",
            key=session.key,
        )
    return sorted(done, key=lambda share: share.share.index)


def forget_session(store: Store, session: Session, meter: Meter) -> None:
    """Delete the record of a session that has nothing left, so that its key is free again."""
    prefix = f"{SESSION_PREFIX}{session.key}/"
    record = session_key(str(session.key))
    if all(info.key == record for info in store.list(prefix, purpose=Purpose.LOG)):
        if store.delete_many([(record, None)], purpose=Purpose.LOG):
            meter.event("journal-left", "undeletable")


def _read_done(store: Store, key: str, session: Session) -> DoneShare | None:
    document = _decode(store.get(key, purpose=Purpose.LOG).data, key)
    try:
        if document["session_id"] != session.session_id:
            return None
        index, count = document["share"]
        return DoneShare(
            Share(int(index), int(count)),
            PlanRecord.from_json(document["plan"]),
            frozenset(document["wanted"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{key}: cannot be read: {error!r}", key=key) from error


def _decode(data: bytes, key: str) -> dict[str, Any]:
    document: dict[str, Any] = decode_document(data, max_bytes=MAX_ENTRY_BYTES, where=key)
    if document.get("min_reader", MIN_READER) > VERSION:
        raise FormatVersionError(
            f"{key}: written by a newer dstream (format {document.get('v')}); update this one",
            key=key,
        )
    return document


def _sequence(key: str) -> int:
    digits = key.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _is_transient(unit: UnitRows) -> bool:
    return any(row["reason"] in TRANSIENT for row in unit.quarantine)


def each_entry(journal: Journal, keys: Iterable[str]) -> Iterator[tuple[str, Entry]]:
    """Entries one at a time, in order; those that a rival's commit deleted are left out."""
    for key in sorted(keys):
        try:
            entry = journal.read(key)
        except NotFoundError:
            continue
        if entry is not None:
            yield key, entry
