"""Collection: give up what nothing keeps, wait, then delete it.

Phase one is one entry of the log: it condemns generations, drops expired pins and raises the
fence. Only when that entry is confirmed, and the grace has passed by the store's clock, phase two
deletes (:mod:`dstream.catalog.gc_sweep`) and a second entry forgets what is gone. A collector may
die or stall anywhere, and several may run at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dstream.catalog.ages import TIME_KEY, LogAges, store_time_s
from dstream.catalog.commit import Committer
from dstream.catalog.contents import Contents, KeptKeys
from dstream.catalog.gc_report import GcReport, GcSettings, Item
from dstream.catalog.gc_sweep import Sweeper
from dstream.catalog.log import Head, LogReader
from dstream.catalog.publishing import ManifestObjects
from dstream.catalog.retention import Condemn, Forget, Retention, condemn, judge
from dstream.errors import CorruptDataError, NotFoundError
from dstream.format.catalog_shard import SHARD_PREFIX, shard_seq
from dstream.format.entries import Pin
from dstream.format.root import (
    Generation,
    Root,
    Tombstone,
    encode_tombstone,
    log_key,
    peek_txn_id,
)
from dstream.measure import Meter, Purpose
from dstream.store.base import ObjectInfo, Store, Upload

PROBE_PREFIX = "_ds/probe/"
_TRIES = 5


@dataclass(frozen=True, slots=True)
class _Plan:
    """What this run does, decided from the log's ages."""

    op: Condemn
    shards: tuple[ObjectInfo, ...]
    """Catalog shards that no root needs which may still be read."""


class Collector:
    """One run of collection on one repository."""

    def __init__(
        self,
        store: Store,
        log: LogReader,
        committer: Committer,
        manifests: ManifestObjects,
        meter: Meter,
        settings: GcSettings,
    ) -> None:
        self._store = store
        self._log = log
        self._committer = committer
        self._settings = settings
        self.report = GcReport(settings.dry_run)
        self._contents = Contents(store, manifests)
        self._sweeper = Sweeper(store, self._contents, meter, self.report)
        self._now_s = 0.0

    def run(self) -> GcReport:
        """Collect.

        Raises:
            CorruptDataError: something that is kept cannot be read; nothing was deleted.
            OutcomeUnknownError: the log could not be written; run again.
        """
        head = self._log.confirmed()  # what an old root names may be gone
        dry = self._settings.dry_run
        self._now_s = self._seen_time_s(head) if dry else store_time_s(self._store)
        ages = LogAges(self._store, head.seq, self._now_s)
        plan = self._plan(head.root, ages)
        why = self._judged(head.root, plan.op)
        if dry:
            root, seq = condemn(head.root, plan.op, head.seq + 1), head.seq + 1
        else:
            # Nothing may be deleted before this entry is confirmed.
            committed = self._committer.commit(lambda _: plan.op)
            root, seq = committed.head.root, committed.head.seq if committed.wrote else -1
        self.report.upload_floor = root.upload_floor
        self.report.condemned = [
            Item("generation", generation.label, why.get(generation.label, "not kept"))
            for generation in root.all_records()
            if generation.condemned_seq == seq
        ]
        swept = self._sweep(root, ages)
        self._sweeper.manifests(root)
        self._sweeper.journals(root.upload_floor, self._now_s - self._settings.session_grace_s)
        self._catalog_shards(root, plan)
        self._probes()
        self._uploads()
        cleared = self._clear_roots(root, plan.op.clear_below)
        if not dry:
            op = Forget(frozenset((g.name, g.version) for g in swept), cleared)
            self._committer.commit(lambda _: op)
        return self.report

    def _seen_time_s(self, head: Head) -> float:
        """The store's clock without writing anything."""
        info = self._store.head(log_key(head.seq), purpose=Purpose.LOG)
        return info.server_date_s or info.last_modified_s or 0.0

    def _plan(self, root: Root, ages: LogAges) -> _Plan:
        wanted = self._settings
        since = root.cleared_below
        keep_from = None
        if wanted.keep_within_s is not None:
            oldest_kept = ages.newest_older_than(wanted.keep_within_s, since)
            # Where no root is known to be so old, everything may be young.
            keep_from = 0 if oldest_kept is None else oldest_kept + 1
        expired = {
            (name, pin.since_seq)
            for name, pin in root.pins.items()
            if pin.ttl_s is not None and ages.age_s(pin.since_seq) >= pin.ttl_s
        }
        old = ages.newest_older_than(wanted.log_age_s, since) or 0
        readable = ages.newest_older_than(wanted.grace_s, since)
        shards = () if readable is None else tuple(self._unused_shards(root, readable))
        pending = [g.condemned_seq for g in root.all_records() if g.condemned_seq is not None]
        return _Plan(
            Condemn(
                retention=Retention(wanted.keep_last, keep_from),
                floor=ages.newest_older_than(wanted.session_grace_s, since) or 0,
                expired=frozenset(expired),
                clear_below=min([old, *pending]),  # their age is asked again
                pinnable_from=readable if shards and readable is not None else 0,
                drop_keys_below=ages.newest_older_than(wanted.key_age_s, since) or 0,
            ),
            shards,
        )

    def _judged(self, root: Root, op: Condemn) -> dict[str, str]:
        """Tell what is kept and why; returns why the others go."""
        expired = {name for name, _ in op.expired}
        self.report.expired_pins = sorted(expired)
        pins: list[Pin] = [pin for name, pin in root.pins.items() if name not in expired]
        why: dict[str, str] = {}
        for kept in judge(root, op.retention, pins):
            if kept.goes:
                why[kept.generation.label] = kept.reason
            else:
                self.report.kept[kept.reason] += 1
        return why

    def _sweep(self, root: Root, ages: LogAges) -> list[Generation]:
        """Delete what is due; returns the generations of which nothing is left."""
        due, kept = self._split(root, ages)
        self.report.waiting = sum(g.condemned_seq is not None for g in kept)
        if not due and not self._sweeper.has_fenced_objects(root.upload_floor):
            return []
        keys = self._kept_keys(root, ages, kept)
        swept = [generation for generation in due if self._sweeper.generation(generation, keys)]
        self._sweeper.orphans(root.upload_floor, keys)
        self.report.swept = [generation.label for generation in swept]
        return swept

    def _split(self, root: Root, ages: LogAges) -> tuple[list[Generation], list[Generation]]:
        due: list[Generation] = []
        kept: list[Generation] = []
        for generation in root.all_records():
            condemned = generation.condemned_seq
            ripe = condemned is not None and (
                not self._settings.grace_s
                or (condemned <= root.seq and ages.age_s(condemned) >= self._settings.grace_s)
            )
            (due if ripe else kept).append(generation)
        return due, kept

    def _kept_keys(self, root: Root, ages: LogAges, kept: Iterable[Generation]) -> KeptKeys:
        """What must stay. A collector that is ahead of us may be deleting what we take for kept."""
        for _ in range(_TRIES):
            try:
                return KeptKeys(self._contents, kept)
            except CorruptDataError:
                newer = self._log.refresh().root
                if newer.seq == root.seq:
                    raise
                root = newer
                _, kept = self._split(root, ages)
        return KeptKeys(self._contents, kept)

    def _unused_shards(self, root: Root, readable: int) -> Iterator[ObjectInfo]:
        """Catalog shards that neither the newest root nor any that may be read names.

        Roots after ``readable`` name shards that it names, or shards with later numbers. So what
        is found here can never be named again; only a pin of an older root may still need it.
        """
        needed = self._shards_of(readable, *(pin.seq for pin in root.pins.values()))
        needed.update(ref.key for ref in root.shards.refs)
        for info in self._store.list(SHARD_PREFIX, purpose=Purpose.LISTING):
            number = shard_seq(info.key)
            if number is not None and number <= readable and info.key not in needed:
                yield info

    def _shards_of(self, *seqs: int) -> set[str]:
        heads = (self._log.try_read(seq) for seq in set(seqs))
        return {
            ref.key for head in heads if isinstance(head, Head) for ref in head.root.shards.refs
        }

    def _catalog_shards(self, root: Root, plan: _Plan) -> None:
        """Delete unused shards, but for those of roots that were pinned until the commit."""
        if not plan.shards:
            return
        needed = self._shards_of(*(pin.seq for pin in root.pins.values()))
        self._sweeper.delete(
            Item("catalog-shard", info.key, "no root that is read names it", info.size_bytes)
            for info in plan.shards
            if info.key not in needed
        )

    def _probes(self) -> None:
        self._sweeper.delete(
            Item("probe", info.key, "left over", info.size_bytes)
            for info in self._store.list(PROBE_PREFIX, purpose=Purpose.LISTING)
            if info.key != TIME_KEY
            and info.last_modified_s is not None
            and self._now_s - info.last_modified_s > self._settings.session_grace_s
        )

    def _uploads(self) -> None:
        """Abort multipart uploads, and delete temporary files, that were given up long ago."""

        def is_old(upload: Upload) -> bool:
            return self._now_s - upload.initiated_s > self._settings.session_grace_s

        for upload in list(filter(is_old, self._store.list_uploads())):
            if not self._settings.dry_run:
                self._store.abort_upload(upload)
            self.report.note(Item("upload", upload.key, "begun long ago, never finished"))

    def _clear_roots(self, root: Root, below: int) -> int:
        """Clear old roots that no pin needs; returns the number below which all are done."""
        needed = {seq for pin in root.pins.values() for seq in (pin.seq, pin.since_seq)}
        for seq in range(root.cleared_below, below):
            if seq in needed:
                continue
            try:
                data = self._store.get(log_key(seq), purpose=Purpose.LOG).data
            except NotFoundError as error:
                raise CorruptDataError(
                    f"the log is broken: number {seq} is missing below {root.seq}", seq=seq
                ) from error
            tombstone = encode_tombstone(peek_txn_id(data, seq))
            if len(data) <= len(tombstone) and isinstance(self._log.decode(data, seq), Tombstone):
                continue
            if not self._settings.dry_run:
                self._store.put(log_key(seq), tombstone, purpose=Purpose.LOG)
            self.report.note(
                Item("root", log_key(seq), "old and not pinned", len(data) - len(tombstone))
            )
        return max(below, root.cleared_below)
