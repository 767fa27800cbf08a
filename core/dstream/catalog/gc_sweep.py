"""Collection's second phase: deleting what a committed root says is over.

Nothing is decided here by time or by looking around: what may go was condemned, or fenced, by an
entry of the log that is confirmed. Every step may be cut off and done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from dstream.catalog.contents import Contents, KeptKeys
from dstream.catalog.gc_report import GcReport, Item
from dstream.errors import CorruptDataError, NotFoundError, PermissionDeniedError
from dstream.format.repository import SESSION_PREFIX, decode_session
from dstream.format.root import Generation, Root
from dstream.measure import Meter, Purpose
from dstream.store.base import ObjectInfo, Store

DATA_PREFIX = "data/"
MANIFEST_PREFIX = "_ds/man/"
_BATCH = 1000


def base_seq_of(key: str, prefix: str) -> int | None:
    """The log number in a key below ``prefix``; None where there is none.

    >>> base_seq_of("data/0000000000000007/s/x", "data/"), base_seq_of("_ds/hint", "data/")
    (7, None)
    """
    if not key.startswith(prefix):
        return None
    digits = key.removeprefix(prefix).partition("/")[0]
    return int(digits) if len(digits) == 16 and digits.isascii() and digits.isdecimal() else None


class Sweeper:
    """Deletes, counts, and goes on when something may not be deleted."""

    def __init__(self, store: Store, contents: Contents, meter: Meter, report: GcReport) -> None:
        self._store = store
        self._contents = contents
        self._meter = meter
        self._report = report
        self._told: set[str] = set()
        """Of a dry run: what would be gone by now, so that it is not told twice."""

    def delete(self, items: Iterable[Item]) -> set[str]:
        """Delete objects by name; returns the names of those that could not be."""
        failed: dict[str, str] = {}
        batch: list[Item] = []
        for item in items:
            if item.name in self._told:
                continue
            batch.append(item)
            if len(batch) == _BATCH:
                failed |= self._delete_batch(batch)
                batch = []
        if batch:
            failed |= self._delete_batch(batch)
        return set(failed)

    def _delete_batch(self, batch: list[Item]) -> dict[str, str]:
        failed: dict[str, str] = {}
        if self._report.dry_run:
            self._told.update(item.name for item in batch)
        else:
            keys: list[tuple[str, str | None]] = [(item.name, None) for item in batch]
            try:
                failed = self._store.delete_many(keys, purpose=Purpose.OTHER)
            except PermissionDeniedError as error:
                failed = dict.fromkeys((item.name for item in batch), str(error))
        for item in batch:
            if item.name not in failed:
                self._report.note(item)
        for key, reason in failed.items():
            self._report.failed[key] = reason
            self._meter.event("gc.not-deleted", reason.partition(":")[0])
        return failed

    def generation(self, doomed: Generation, kept: KeptKeys) -> bool:
        """Delete a condemned generation's objects, its manifest last; True when all are gone."""
        why = f"of {doomed.label}, condemned at {doomed.condemned_seq}"
        keys = {key for key in self._keys(doomed) if key not in kept}
        found = [
            Item("object", info.key, why, info.size_bytes)
            for prefix in sorted({_session_prefix(key) for key in keys})
            for info in self._listed(prefix)
            if info.key in keys
        ]
        # Tables go after what only they name, so that a sweep that is cut off finds it again.
        found.sort(key=lambda item: item.name.endswith(".parquet"))
        if self.delete(found):
            return False
        ref = doomed.manifest
        return not self.delete([Item("manifest", ref.key, why, ref.size_bytes)])

    def _keys(self, doomed: Generation) -> set[str]:
        """What is left of a condemned generation: an earlier sweep may have been cut off.

        Only uploads: a manifest is a stranger's word, and may name anything.
        """
        return {key for key in self._named(doomed) if base_seq_of(key, DATA_PREFIX) is not None}

    def _named(self, doomed: Generation) -> set[str]:
        try:
            return self._contents.keys(doomed)
        except NotFoundError:
            pass  # a table is gone, so what it names is gone; or the manifest is
        except CorruptDataError:
            # What it had becomes orphans of its session, and goes once that is fenced.
            self._meter.event("gc.unreadable", doomed.kind)
        try:
            return {ref.key for ref in self._contents.named(doomed)}
        except (NotFoundError, CorruptDataError):
            return set()

    def orphans(self, floor: int, kept: KeptKeys) -> None:
        """Delete what fenced sessions left behind and no generation names."""
        self.delete(
            Item("orphan", info.key, "its session is fenced, nothing names it", info.size_bytes)
            for info in self._below_floor(DATA_PREFIX, floor)
            if info.key not in kept
        )

    def manifests(self, root: Root) -> None:
        """Delete manifests of fenced sessions that no generation has."""
        named = {generation.manifest.key for generation in root.all_records()}
        self.delete(
            Item("manifest", info.key, "its session is fenced, nothing names it", info.size_bytes)
            for info in self._below_floor(MANIFEST_PREFIX, root.upload_floor)
            if info.key not in named
        )

    def has_fenced_objects(self, floor: int) -> bool:
        """Whether anything lies below the fence at all."""
        return next(self._below_floor(DATA_PREFIX, floor), None) is not None

    def journals(self, floor: int, is_old: float) -> None:
        """Delete journals of fenced sessions, each session's record last.

        Args:
            floor: the fence.
            is_old: the store's time before which a journal without a record is a left-over.
        """
        for folder, infos in groupby(self._listed(SESSION_PREFIX), key=_session_folder):
            listed = list(infos)
            record = f"{folder}session.json"
            if any(info.key == record for info in listed):
                if not self._is_fenced(record, floor):
                    continue
            elif any((info.last_modified_s or is_old) >= is_old for info in listed):
                continue
            listed.sort(key=lambda info: info.key == record)
            self.delete(
                Item("journal", info.key, "its session is fenced", info.size_bytes)
                for info in listed
            )

    def _is_fenced(self, record: str, floor: int) -> bool:
        try:
            data = self._store.get(record, purpose=Purpose.LOG).data
        except NotFoundError:
            return False
        return decode_session(data, record).base_seq < floor

    def _below_floor(self, prefix: str, floor: int) -> Iterator[ObjectInfo]:
        ordered = self._store.capabilities.ordered_list
        for info in self._listed(prefix):
            base_seq = base_seq_of(info.key, prefix)
            if base_seq is None:
                continue  # not ours
            if base_seq < floor:
                yield info
            elif ordered:
                return

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._store.list(prefix, purpose=Purpose.LISTING)


def _session_prefix(key: str) -> str:
    """``data/<base_seq>/<session>/`` of a key, or its folder."""
    parts = key.split("/")
    return "/".join(parts[:3]) + "/" if len(parts) > 3 else key.rpartition("/")[0]


def _session_folder(info: ObjectInfo) -> str:
    rest = info.key.removeprefix(SESSION_PREFIX)
    return SESSION_PREFIX + rest.partition("/")[0] + "/"
