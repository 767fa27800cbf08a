"""Reading the log of roots: finding the newest one cheaply, and checking the chain."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass

from dstream.catalog.shards import ShardObjects
from dstream.clock import Clock
from dstream.errors import CorruptDataError, NotFoundError
from dstream.forks import renew_after_fork
from dstream.format.root import (
    HINT_KEY,
    LOG_PREFIX,
    Root,
    Tombstone,
    decode_root,
    log_key,
    log_seq,
    sha256_hex,
)
from dstream.measure import Meter, Purpose
from dstream.store.base import Store

MAX_STEPS = 4
"""Newer roots that are read one after another before the log is listed instead."""


@dataclass(frozen=True, slots=True)
class Head:
    """A root together with what the next one must say of it."""

    root: Root
    sha256: str
    """Hash of the root as stored."""
    read_at_s: float
    """Monotonic time at which it was read or written."""

    @property
    def seq(self) -> int:
        """The root's number."""
        return self.root.seq


class LogReader:
    """The newest root of one repository, remembered between calls.

    For many threads. What was seen is never unseen: a listing that lags behind is ignored.
    """

    def __init__(self, store: Store, clock: Clock, meter: Meter) -> None:
        self._store = store
        self._clock = clock
        self._meter = meter
        self.shards = ShardObjects(store)
        """The catalog shards that roots name."""
        self._newest: Head | None = None
        self._lock = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock after a fork: another thread may have held it."""
        self._lock = threading.Lock()

    def cached(self) -> Head | None:
        """The newest head seen so far, without any request."""
        with self._lock:
            return self._newest

    def adopt(self, head: Head) -> Head:
        """Remember ``head`` if it is newer than what is known; returns the newest known."""
        with self._lock:
            if self._newest is None or head.seq >= self._newest.seq:
                self._newest = head
            return self._newest

    def refresh(self) -> Head:
        """The newest root in the store now.

        One request when nothing changed since the last call, two on the first call.

        Raises:
            NotFoundError: there is no log: not a repository.
            CorruptDataError: roots do not chain, or are damaged.
        """
        head = self.cached()
        if head is None:
            return self._find_newest(None)
        for _ in range(MAX_STEPS):
            following = self.try_read(head.seq + 1)
            if following is None:
                return self.adopt(head)
            if isinstance(following, Tombstone):
                break
            check_chain(head, following)
            head = following
        return self._find_newest(self.adopt(head))

    def confirmed(self) -> Head:
        """The newest root, whose next slot was read and found free: so where listings lag, too.

        One request more than :meth:`refresh`, which is enough to read, and to try to write.
        """
        head = self.refresh()
        while (newer := self.refresh()).seq > head.seq:
            head = newer
        return head

    def read(self, seq: int) -> Head:
        """Root ``seq``.

        Raises:
            NotFoundError: it was not written yet, or collection has cleared it.
        """
        found = self.try_read(seq)
        if isinstance(found, Head):
            return found
        reason = "was cleared by collection" if found else "does not exist"
        raise NotFoundError(f"{self._store.url}: log number {seq} {reason}", seq=seq)

    def try_read(self, seq: int) -> Head | Tombstone | None:
        """Root ``seq``, what is left of it, or None where the slot is free."""
        data = self.try_read_bytes(seq)
        return None if data is None else self.decode(data, seq)

    def decode(self, data: bytes, seq: int) -> Head | Tombstone:
        """The head in bytes that were read from slot ``seq``."""
        found = decode_root(data, seq, self.shards.load)
        if isinstance(found, Tombstone):
            return found
        return Head(found, sha256_hex(data), self._clock.monotonic_s())

    def try_read_bytes(self, seq: int) -> bytes | None:
        """The stored bytes of slot ``seq``, or None where it is free."""
        try:
            return self._store.get(log_key(seq), purpose=Purpose.LOG).data
        except NotFoundError:
            return None

    def newest_seq(self) -> int | None:
        """The highest number in the log by listing it; None where there is no log."""
        try:
            return self._listed_newest()
        except NotFoundError:  # not even the folder is there, on a local disk
            return None

    def _listed_newest(self) -> int | None:
        if self._store.capabilities.ordered_list:
            for info in self._store.list(LOG_PREFIX, limit=1, purpose=Purpose.LOG):
                seq = log_seq(info.key)
                if seq is not None:
                    return seq
                self._meter.event("fallback", "log-listed-whole: a foreign key is first")
                break
            else:
                return None
        seqs = (log_seq(info.key) for info in self._store.list(LOG_PREFIX, purpose=Purpose.LOG))
        return max((seq for seq in seqs if seq is not None), default=None)

    def write_hint(self, seq: int) -> None:
        """Leave a hint for readers where listing is unordered. Best effort, only a hint."""
        if self._store.capabilities.ordered_list:
            return
        data = json.dumps({"seq": seq}).encode()
        self._store.put(HINT_KEY, data, purpose=Purpose.LOG)

    def _find_newest(self, known: Head | None) -> Head:
        hinted = None if known else self._hinted()
        if hinted is not None:
            self.adopt(hinted)
            return self.refresh()
        seq = self.newest_seq()
        if known is not None and (seq is None or seq <= known.seq):
            if seq != known.seq:
                self._meter.event("fallback", "log-listing-stale")
            return self._onward(known.seq + 1) or known
        if seq is None:
            raise NotFoundError(
                f"{self._store.url} is not a dstream repository: it has no {LOG_PREFIX}; make one "
                f"with: dstream init {self._store.url}",
                url=self._store.url,
            )
        found = self.try_read(seq)
        if isinstance(found, Head):
            return self.adopt(found)
        # The newest root is never cleared: the listing is older than what cleared this one.
        newer = None if found is None else self._onward(seq + 1)
        if newer is None:
            raise CorruptDataError(
                f"{self._store.url}: the newest log entry, number {seq}, was listed but "
                f"{'is cleared' if found else 'cannot be found'}",
                seq=seq,
            )
        self._meter.event("fallback", "log-listing-stale")
        return newer

    def _onward(self, seq: int) -> Head | None:
        """The newest root from ``seq`` on, found by reading where a listing lags; None: none.

        Reads one slot after the other, past those that collection has cleared.
        """
        while isinstance(found := self.try_read(seq), Tombstone):
            seq += 1
        if found is None:
            return None
        self.adopt(found)
        return self.refresh()

    def _hinted(self) -> Head | None:
        if self._store.capabilities.ordered_list:
            return None
        try:
            document = json.loads(self._store.get(HINT_KEY, purpose=Purpose.LOG).data)
            seq = document["seq"] if isinstance(document, dict) else None
        except (NotFoundError, ValueError, KeyError):
            seq = None
        found = self.try_read(seq) if type(seq) is int and seq >= 0 else None
        if isinstance(found, Head):
            return found
        self._meter.event("fallback", "log-listed-whole: no usable hint")
        return None


def check_chain(earlier: Head, later: Head) -> None:
    """Check that ``later`` was built on ``earlier``.

    Raises:
        CorruptDataError: it was not: a root was replaced, or the log rolled back.
    """
    if later.seq == earlier.seq + 1 and later.root.prev_sha256 == earlier.sha256:
        return
    raise CorruptDataError(
        f"the log is broken: root {later.seq} says its predecessor has hash "
        f"{later.root.prev_sha256[:16]}…, root {earlier.seq} has {earlier.sha256[:16]}…; somebody "
        "replaced or rolled back objects of the log",
        seq=later.seq,
    )
