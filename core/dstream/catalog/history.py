"""The log as people read it: who did what, newest first."""

from __future__ import annotations

from dataclasses import dataclass

from dstream.catalog.log import Head, LogReader, check_chain
from dstream.errors import CorruptDataError
from dstream.format.root import Json, Tombstone


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One commit, for people."""

    seq: int
    time_hint_s: float | None
    """The writer's clock, seconds since the epoch; None where collection cleared the root."""
    by: str
    txn_id: str
    ops: tuple[Json, ...]
    """What it did; each has at least ``op``."""


def read_history(log: LogReader, limit: int | None) -> list[LogEntry]:
    """The last commits, newest first; the chain of hashes is checked along the way.

    Args:
        log: of the repository.
        limit: most entries to return; None for all. Each costs one read.

    Raises:
        CorruptDataError: a root is missing or was replaced.
    """
    head = log.refresh()
    entries = [_entry(head)]
    later: Head | None = head
    for seq in range(head.seq - 1, -1, -1):
        if limit is not None and len(entries) >= limit:
            break
        found = log.try_read(seq)
        if found is None:
            raise CorruptDataError(
                f"the log is broken: number {seq} is missing below {head.seq}", seq=seq
            )
        if isinstance(found, Tombstone):
            entries.append(LogEntry(seq, None, "", found.txn_id, ({"op": "cleared"},)))
            later = None
            continue
        if later is not None:
            check_chain(found, later)
        entries.append(_entry(found))
        later = found
    return entries if limit is None else entries[: max(limit, 0)]


def _entry(head: Head) -> LogEntry:
    root = head.root
    return LogEntry(root.seq, root.time_hint_s, root.by, root.txn_id, root.ops)
