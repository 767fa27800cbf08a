"""What is admitted and what goes: values in, values out.

A shuffled epoch that is larger than the cache and reads every extent once reads all of them before
it reads any again, so whatever is thrown out for another extent would have been wanted just as
soon. Keeping the first ones that came is then as good as knowing the future.

An order that keeps the clips of one place together reads an extent several times within a window,
then not for an epoch. So a part of the data set's newest segments is a *ring*: its oldest one makes
room for what comes. The ring is as large as it pays: one segment more while its oldest one is hit
more often than those that are kept, one fewer otherwise. Where nothing is read twice it vanishes,
and is tried again now and then.

Otherwise whole segments go when their data set has left, or the budget shrank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dstream.cache.layout import SegmentName
from dstream.cache.record import RECORD_BYTES

_COST_BYTES = 3 * RECORD_BYTES
"""Both copies of an extent's record, and the seal that may follow."""


def cost_bytes(size_bytes: int) -> int:
    """Room that an extent takes in a segment, records included."""
    return size_bytes + _COST_BYTES


@dataclass(frozen=True, slots=True)
class Reservation:
    """Make a segment of ``capacity_bytes`` after deleting ``evict``."""

    capacity_bytes: int
    evict: tuple[SegmentName, ...] = ()


def reserve(
    segments: Sequence[SegmentName],
    *,
    budget_bytes: int,
    segment_bytes: int,
    need_bytes: int,
    leaving: Collection[str],
) -> Reservation | None:
    """How to make room for one more segment, or None: the cache is full.

    Args:
        segments: all there are; each counts with its whole capacity.
        budget_bytes: what they may take together.
        segment_bytes: capacity of a usual segment.
        need_bytes: room that is wanted in it; a larger extent gets a segment of its own.
        leaving: scopes that no process uses; their oldest segments make room.
    """
    capacity = max(segment_bytes, need_bytes)
    if capacity > budget_bytes:
        return None
    over = sum(name.capacity_bytes for name in segments) + capacity - budget_bytes
    evict = _oldest((name for name in segments if name.scope in leaving), over)
    return None if evict is None else Reservation(capacity, evict)


PROBE_AFTER_SEGMENTS = 16
"""A ring that vanished is tried again when so many segments could have been filled."""
_LEAST_SEGMENTS = 8
"""With fewer, one segment of ring would cost more than a tenth of what is kept."""
_GROWS_BY = 2
"""Misses show a ring that is too small at once, one that is too large costs little."""


def ring_victim(finished: Sequence[SegmentName], ring: int) -> SegmentName | None:
    """The segment that makes room for what comes; None where none may.

    Args:
        finished: the data set's segments that nobody writes.
        ring: how many of the newest ones may go.
    """
    if ring < 1 or len(finished) < _LEAST_SEGMENTS:
        return None
    return sorted(finished)[-ring:][0]


def next_ring(finished: Sequence[SegmentName], ring: int, hit_bytes: Mapping[int, int]) -> int:
    """How many segments the ring has from now on, decided whenever its oldest one goes.

    Args:
        finished: as for :func:`ring_victim`, with the one that goes.
        ring: how many it has now; at least 1.
        hit_bytes: bytes of hits by segment number since the last segment was begun.
    """
    names = sorted(finished)
    kept, oldest = names[:-ring], names[-ring:][0]
    if not kept:
        return len(names) - 1
    average = sum(hit_bytes.get(name.number, 0) for name in kept) / len(kept)
    if hit_bytes.get(oldest.number, 0) > average:
        return min(ring + _GROWS_BY, len(names) - 1)
    return ring - 1


def over_budget(
    segments: Sequence[SegmentName], *, budget_bytes: int, leaving: Collection[str]
) -> tuple[SegmentName, ...]:
    """What goes when the budget shrank: of data sets that left first, then the newest."""
    over = sum(name.capacity_bytes for name in segments) - budget_bytes
    gone = sorted(name for name in segments if name.scope in leaving)
    rest = sorted((name for name in segments if name.scope not in leaving), reverse=True)
    chosen: list[SegmentName] = []
    for name in (*gone, *rest):
        if over <= 0:
            break
        chosen.append(name)
        over -= name.capacity_bytes
    return tuple(chosen)


def _oldest(names: Iterable[SegmentName], over_bytes: int) -> tuple[SegmentName, ...] | None:
    chosen: list[SegmentName] = []
    for name in sorted(names):
        if over_bytes <= 0:
            break
        chosen.append(name)
        over_bytes -= name.capacity_bytes
    return tuple(chosen) if over_bytes <= 0 else None
