"""What is admitted and what goes: values in, values out.

A shuffled epoch that is larger than the cache reads every extent once before it reads any of them
again, so whatever is thrown out for another extent would have been wanted just as soon. Keeping
the first ones that came is then as good as knowing the future. Whole segments go, and only when
their data set has left or the budget shrank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dstream.cache.layout import SegmentName
from dstream.cache.record import RECORD_BYTES

_COST_BYTES = 2 * RECORD_BYTES


def cost_bytes(size_bytes: int) -> int:
    """Room that an extent takes in a segment: its bytes and both copies of its record."""
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
