"""What is admitted and what goes: no clock, no files.

A shuffled epoch that is larger than the cache and reads every extent once reads all of them before
it reads any again, so whatever is thrown out for another extent would have been wanted just as
soon. Keeping the first ones that came is then as good as knowing the future.

An order that keeps the clips of one place together reads an extent several times within a window,
then not for an epoch. So a part of the data set's newest segments is a *ring*: its oldest one makes
room for what comes. The ring is as large as it pays: it grows while the segments that would go next
are hit more often than those that are kept, and shrinks otherwise. It begins with a quarter of the
segments, since one that is far too small is hit no more than none. Where nothing is read twice it
vanishes, and is tried again now and then.

Who knows when an extent will be read again needs none of that: the segment in which least lives
makes room then, and what lives in it moves on (``lifetimes.py``).

Otherwise whole segments go when their data set has left, when they have become useless, or when the
budget shrank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dstream.cache.layout import SegmentName
from dstream.cache.lifetimes import Lifetimes, Uses
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
    keeps_living: bool = False
    """What lives in these shall move to the new segment."""


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
"""A ring that vanished is tried again when so many times what it had written was refused."""
_LEAST_SEGMENTS = 8
"""With fewer, one segment of ring would cost more than a tenth of what is kept."""


def ring_of(finished: Sequence[SegmentName], ring: int) -> list[SegmentName]:
    """The segments that may make room for what comes, the first to go first.

    Args:
        finished: the data set's segments that nobody writes.
        ring: how many of the newest ones may go.
    """
    if ring < 1 or len(finished) < _LEAST_SEGMENTS:
        return []
    return sorted(finished)[-ring:]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a larger ring, and what for a smaller one."""

    tail_bytes: float = 0.0
    """Hits of the segments that go next: the oldest quarter of the ring."""
    due_bytes: float = 0.0
    """What they would have been for as many of those that are kept."""
    ring_bytes: float = 0.0
    """Hits of the whole ring."""
    ring_due_bytes: float = 0.0
    """What they would have been for as many of those that are kept."""

    segments: int = 0
    """That were written meanwhile."""

    def of(
        self, finished: Sequence[SegmentName], ring: int, hit_bytes: Mapping[int, int]
    ) -> Evidence:
        """With the hits of some time more, by segment number."""
        names = sorted(finished)
        kept, of_ring = names[:-ring], names[-ring:]
        tail = of_ring[: max(1, ring // 4, len(names) // 16)]

        def hits(of: Sequence[SegmentName]) -> int:
            return sum(hit_bytes.get(name.number, 0) for name in of)

        average = hits(kept) / len(kept) if kept else 0.0
        return Evidence(
            self.tail_bytes + hits(tail),
            self.due_bytes + average * len(tail),
            self.ring_bytes + hits(of_ring),
            self.ring_due_bytes + average * len(of_ring),
            self.segments + 1,
        )

    def next_ring(self, ring: int, finished: int, segment_bytes: int) -> int | None:
        """How many segments the ring has from now on; None: there were too few hits to tell.

        It grows by a quarter and shrinks by a fifth, so that chance alone makes nothing of it; one
        that is worth less than half of what is kept is halved, as happens when an epoch begins. One
        that was filled anew without any hit goes.
        """
        if max(self.tail_bytes, self.due_bytes) < segment_bytes / 4:
            return 0 if self.segments >= ring and not self.ring_bytes else None
        if 2 * self.ring_bytes < self.ring_due_bytes:
            return ring // 2
        if self.tail_bytes > self.due_bytes:
            return min(ring + max(1, ring // 4), finished - max(1, finished // 8))
        return ring * 4 // 5


class Room:
    """Where a reader of one data set finds room; it learns from the hits. Not thread-safe."""

    def __init__(self) -> None:
        self._lifetimes = Lifetimes(1)
        self._is_planned = False
        """What lives decides which segment goes."""
        self.is_full = False
        """The budget is used up, so that whatever comes takes the place of something else."""
        self._ring = 0
        self._evidence = Evidence()
        self._hit_bytes: dict[int, int] = {}
        """By segment number, since room was looked for the last time."""
        self._tried_bytes = 0
        """Written to the ring since it was tried, or was hit twice as often as what is kept."""
        self._refused_bytes = -1
        """For lack of room, since the ring vanished; -1: none was tried yet."""
        self._unhit_bytes = 0
        """That were missed since one of the older half was hit."""
        self._idle: set[int] = set()
        """Segments whose data are not read any more."""

    def begin(self, segments: Iterable[SegmentName]) -> None:
        """What is there before this process makes any."""
        self._lifetimes.find([name.number for name in segments])

    def renew(self) -> None:
        """In a forked child."""
        self._lifetimes.renew()

    def note_read(self, uses: Uses | None, size_bytes: int) -> None:
        """Learn how soon extents are read again; before all else. See :class:`Lifetimes`."""
        if self.is_full:  # before, everything is kept: nothing has to be known of it
            self._lifetimes.note_read(uses, size_bytes)

    def note_hit(self, key: int, segment: int, size_bytes: int, uses: Uses | None) -> None:
        """Learn which segments are worth their room. Counts that threads lose do no harm."""
        self._hit_bytes[segment] = self._hit_bytes.get(segment, 0) + size_bytes
        self._idle.discard(segment)
        self.note_there(key, segment, size_bytes, uses)

    def note_there(self, key: int, segment: int, size_bytes: int, uses: Uses | None) -> None:
        """An extent was read, and lies in a segment."""
        if self.is_full and uses is not None:
            self._lifetimes.note_there(key, segment, size_bytes, uses)

    def note_refused(self, size_bytes: int) -> None:
        """Learn what did not find room."""
        self._refused_bytes += size_bytes if self._refused_bytes >= 0 else 0
        self._unhit_bytes += size_bytes

    def is_worth_it(self, uses: Uses | None) -> bool:
        """Whether an extent is to be kept for these uses; see :meth:`Lifetimes.is_worth_it`."""
        if uses is None or not (self.is_full and self._is_planned):
            return True
        return self._lifetimes.is_worth_it(uses)

    def reserve(
        self,
        segments: Sequence[SegmentName],
        finished: Sequence[SegmentName],
        *,
        budget_bytes: int,
        segment_bytes: int,
        need_bytes: int,
        leaving: Collection[str],
    ) -> Reservation | None:
        """Room for a segment: free, of a data set that left, idle, or of our own ring.

        Args:
            segments, budget_bytes, segment_bytes, need_bytes, leaving: as for :func:`reserve`.
            finished: the data set's segments that nobody writes.
        """

        def among(present: Sequence[SegmentName]) -> Reservation | None:
            return reserve(
                present,
                budget_bytes=budget_bytes,
                segment_bytes=segment_bytes,
                need_bytes=need_bytes,
                leaving=leaving,
            )

        found = among(segments)
        self.is_full = found is None
        if found is None:
            if finished:
                self._lifetimes.room_bytes = _room_bytes(segments, finished, budget_bytes)
            self._is_planned = self._lifetimes.is_known and len(finished) >= _LEAST_SEGMENTS
            if self._is_planned:
                victims = self._lifetimes.victims(finished)
            else:
                victims = self._idle_ones(finished) or self._ring_ones(finished, segment_bytes)
            gone: list[SegmentName] = []
            while found is None and len(gone) < len(victims):  # they may be smaller than a new one
                gone.append(victims[len(gone)])
                found = among([name for name in segments if name not in gone])
            if found is not None:
                self._unhit_bytes += found.capacity_bytes
                evict = *gone, *found.evict
                found = Reservation(found.capacity_bytes, evict, self._is_planned)
        self._hit_bytes = {}
        return found

    def moving(self, reservation: Reservation) -> list[int]:
        """The extents that shall move to a new segment, before others are gone for it."""
        if not reservation.keeps_living:
            return []
        gone = [name.number for name in reservation.evict]
        return self._lifetimes.moving(gone, reservation.capacity_bytes)

    def note_moved(self, key: int, segment: int) -> None:
        """An extent was copied to a new segment."""
        self._lifetimes.note_moved(key, segment)

    def note_made(self, segment: SegmentName, gone: Sequence[SegmentName] = ()) -> None:
        """This process fills a segment, and others are gone for it."""
        self._lifetimes.note_made(segment.number, [name.number for name in gone])

    def _idle_ones(self, finished: Sequence[SegmentName]) -> list[SegmentName]:
        """The segments that have become useless, oldest first.

        Where none of the older half of what is kept was hit while the cache could have been filled
        anew twice, the node reads something else now: its job goes on with another number of
        nodes, for one.
        """
        kept = sorted(finished)[: len(finished) - self._ring]
        older = kept[: -(-len(kept) // 2)]
        if any(name.number in self._hit_bytes for name in older):
            self._unhit_bytes = 0
        elif self._unhit_bytes > 2 * sum(name.capacity_bytes for name in finished):
            self._unhit_bytes = 0
            self._idle = {name.number for name in older}
        return sorted(name for name in finished if name.number in self._idle)

    def _ring_ones(self, finished: Sequence[SegmentName], segment_bytes: int) -> list[SegmentName]:
        if self._ring:
            self._evidence = self._evidence.of(finished, self._ring, self._hit_bytes)
            if self._evidence.ring_bytes > 2 * self._evidence.ring_due_bytes:
                self._tried_bytes = 0
            self._tried_bytes += segment_bytes
            ring = self._evidence.next_ring(self._ring, len(finished), segment_bytes)
            if ring is not None:
                self._ring, self._evidence, self._refused_bytes = ring, Evidence(), 0
        elif self._refused_bytes < 0 or self._refused_bytes >= PROBE_AFTER_SEGMENTS * max(
            self._tried_bytes, segment_bytes
        ):
            self._ring, self._evidence, self._tried_bytes = len(finished) // 4, Evidence(), 0
        return ring_of(finished, self._ring)


def _room_bytes(
    segments: Sequence[SegmentName], finished: Sequence[SegmentName], budget_bytes: int
) -> int:
    """What other data sets leave of the budget."""
    own = {name.scope for name in finished}
    return budget_bytes - sum(n.capacity_bytes for n in segments if n.scope not in own)


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
