"""How long extents are worth their room, for readers who know their plan. No clock, no files.

Whoever follows a plan knows when an extent will be read again. Of two extents the one whose next
use is nearer is worth its room more; so one is kept as long as the gaps between its uses are below
a *span*, and dead after the last of them. The span is what fits: by Little's law, the gaps below it
of all that is read, times their sizes, over the time in which they were read, are the bytes that
are held at a time.

Several plans may be followed by turns, training and validation for two. Each has a clock of its
own, on which its extents live; the bytes that are read of all plans are the common one, on which
the span is found. So what one plan keeps is room that the others do not have, and the clock of a
plan that pauses stands still. One that pauses for longer than a span is over.

Whole segments make room, so those with the fewest bytes that still live are chosen, and what lives
in them is copied on. A part of the room is left to the dead: with less of it more has to be copied.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dstream.cache.layout import SegmentName
from dstream.cache.lives import Lives, lives_until

FILLED = 0.87
"""Part of the room that shall live. On paper 0.85 copies 1.7 extents a miss, 0.90 copies 2.8."""
_MOST_MOVED = 0.85
"""Part of a segment that is copied on at most; what lives beyond it is lost."""
_EVERY = 8
"""Of so many reads one is a sample, once there are some: what is to come costs a little to find."""
_SAMPLES, _LEAST_SAMPLES, _RENEWED_AFTER = 512, 64, 16
_MOST_PLANS = 8
"""That are followed at a time; memory is bounded by it."""


@dataclass(frozen=True, slots=True)
class Uses:
    """When an extent is read, on the clock of a plan: any numbers that rise."""

    plan: str
    """Clocks of other plans tell other times."""
    now: int
    readers: int
    """Processes of this node that share the plan's reads evenly, this one among them."""
    find: Callable[[], Sequence[int]]
    """When any of them reads it after ``now``, ascending, as far as is known."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One read."""

    now: int
    gap: int | None
    """Until the next one of the extent; None: none is known."""
    size_bytes: int
    reads: int = 1
    """So many of the node's reads it stands for."""
    read_bytes: int = 0
    """What this process had read by then, of all plans: a clock that plans have in common."""


def spans_of(plans: Sequence[Sequence[Sample]], room_bytes: float) -> tuple[float, list[int]]:
    """The longest gap that an extent is kept for, so that what is kept fills the room.

    Args:
        plans: samples of some time of each, in any order.
        room_bytes: what can be held.

    Returns:
        The gap in bytes that this process reads meanwhile, and on the clock of each plan.
    """
    elapsed = [max(_width([s.now for s in samples]), 1) for samples in plans]
    paces = [
        max(_width([s.read_bytes for s in samples]), 1) / time
        for samples, time in zip(plans, elapsed, strict=True)
    ]
    gaps = sorted(
        (s.gap * pace, s.gap * s.size_bytes * s.reads / time)
        for samples, pace, time in zip(plans, paces, elapsed, strict=True)
        for s in samples
        if s.gap is not None
    )
    held_bytes = accumulate(share_bytes for _, share_bytes in gaps)
    fits = [gap for (gap, _), held in zip(gaps, held_bytes, strict=True) if held <= room_bytes]
    # The one that no longer fits in whole is kept as well: room is never left unused.
    longest = gaps[min(len(fits), len(gaps) - 1)][0] if gaps else 0.0
    return longest, [round(longest / pace) for pace in paces]


def _width(numbers: Sequence[int]) -> int:
    return max(numbers) - min(numbers)


class _Plan:
    """What is known of one plan."""

    def __init__(self) -> None:
        self.now, self.reads, self.readers = -1, 0, 1
        self.read_bytes = 0
        """When it was read last, on the common clock."""
        self.span: int | None = None
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self.lives = Lives()


class Lifetimes:
    """What lives in the segments, as far as one process knows. Thread-safe.

    Args:
        room_bytes: what the cache can hold.
    """

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self._found: set[int] = set()
        """Segments that were there when this process began."""
        self._made: set[int] = set()
        """Those that it fills, or filled."""
        self._learn_anew()

    def renew(self) -> None:
        """In a forked child: another thread may have held the lock, with half of a change made."""
        self._found, self._made = self._found | self._made, set()
        self._learn_anew()

    def _learn_anew(self) -> None:
        self._lock = threading.Lock()
        self._plans: dict[str, _Plan] = {}
        self._read_bytes = 0
        self._span_bytes = 0.0

    @property
    def is_known(self) -> bool:
        """Enough was read by some plan to tell what lives."""
        with self._lock:
            return any(plan.span is not None for plan in self._plans.values())

    def find(self, segments: Collection[int]) -> None:
        """These segments are there before this process makes any."""
        with self._lock:
            self._found.update(segments)

    def note_read(self, uses: Uses | None, size_bytes: int) -> None:
        """Learn how soon extents are read again. For every read, before all else.

        Args:
            uses: of the extent; None: its reader follows no plan.
            size_bytes: of it.
        """
        with self._lock:
            self._read_bytes += size_bytes
            self._end_pauses()
            if uses is None:
                return
            plan = self._plan(uses)
            plan.now = max(plan.now, uses.now)
            plan.reads += 1
            plan.readers, plan.read_bytes = uses.readers, self._read_bytes
            every = 1 if plan.span is None else _EVERY
            if plan.reads % every:
                return
            read_bytes = self._read_bytes
        upcoming = uses.find()
        gap = upcoming[0] - uses.now if upcoming else None
        with self._lock:  # what is forgotten meanwhile learns in vain
            plan.samples.append(Sample(uses.now, gap, size_bytes, every * uses.readers, read_bytes))
            if plan.span is None or plan.reads // _EVERY % _RENEWED_AFTER == 0:
                self._set_spans()

    def _plan(self, uses: Uses) -> _Plan:
        plan = self._plans.get(uses.plan)
        if plan is not None and plan.samples and uses.now < plan.samples[0].now:
            del self._plans[uses.plan]  # it is followed from an earlier place on
            plan = None
        if plan is None:
            if len(self._plans) == _MOST_PLANS:
                del self._plans[min(self._plans, key=lambda name: self._plans[name].read_bytes)]
            plan = self._plans[uses.plan] = _Plan()
        return plan

    def _end_pauses(self) -> None:
        """Forget the plans that were not followed for so long that nothing is kept that long."""
        over = [
            name
            for name, plan in self._plans.items()
            if self._read_bytes - plan.read_bytes
            > max(self._span_bytes, self.room_bytes / plan.readers)
        ]
        for name in over:
            del self._plans[name]
        if over:
            self._set_spans()

    def _set_spans(self) -> None:
        known = [plan for plan in self._plans.values() if len(plan.samples) >= _LEAST_SAMPLES]
        samples = [plan.samples for plan in known]
        self._span_bytes, spans = spans_of(samples, self.room_bytes * FILLED)
        for plan, span in zip(known, spans, strict=True):
            plan.span = span

    def is_worth_it(self, uses: Uses) -> bool:
        """Whether an extent is read again soon enough to be kept, in a cache that is full."""
        plan = self._plans.get(uses.plan)
        if plan is None or (span := plan.span) is None:
            return True
        upcoming = uses.find()
        return bool(upcoming) and upcoming[0] - uses.now <= span

    def note_there(self, key: int, segment: int, size_bytes: int, uses: Uses) -> None:
        """An extent lies in a segment, and is read now."""
        plan = self._plans.get(uses.plan)
        if plan is None or (span := plan.span) is None:
            return
        if plan.lives.is_known(key, segment, uses.now):
            return
        until = lives_until(uses.now, uses.find(), span)
        with self._lock:
            plan.lives.drop(key)
            plan.lives.bury(plan.now)
            if until > plan.now:
                plan.lives.put(key, segment, size_bytes, until)

    def note_moved(self, key: int, segment: int) -> None:
        """An extent was copied to another segment."""
        with self._lock:
            for lives in self._lives():
                lives.move(key, segment)

    def _lives(self) -> list[Lives]:
        for plan in self._plans.values():
            plan.lives.bury(plan.now)
        return [plan.lives for plan in self._plans.values()]

    def victims(self, finished: Sequence[SegmentName]) -> list[SegmentName]:
        """The segments that may go, beginning with the one in which least lives.

        Other processes know better what lives in what they made. So a process that made its share
        of the segments goes by these; before that, also by those that it found; and by any others
        where there are none.

        Args:
            finished: those that nobody writes.
        """
        with self._lock:
            lives = self._lives()
            made = [name for name in finished if name.number in self._made]
            readers = max((plan.readers for plan in self._plans.values()), default=1)
            if len(made) * readers < len(finished):
                made += [name for name in finished if name.number in self._found]

            def living(name: SegmentName) -> tuple[float, SegmentName]:
                live_bytes = sum(one.live_bytes(name.number) for one in lives)
                return live_bytes / name.capacity_bytes, name

            return sorted(made or finished, key=living)

    def moving(self, segments: Iterable[int], capacity_bytes: int) -> list[int]:
        """The extents that live in segments, as many as shall be copied to one of that capacity."""
        with self._lock:
            lives = self._lives()
            sizes: dict[int, int] = {}
            for segment in segments:
                for one in lives:
                    sizes |= {key: one.size_bytes(key) for key in one.living(segment)}
        moving, moved_bytes = list[int](), 0
        for key, size_bytes in sizes.items():
            moved_bytes += size_bytes
            if moved_bytes > _MOST_MOVED * capacity_bytes:
                break
            moving.append(key)
        return moving

    def note_made(self, segment: int, gone: Iterable[int] = ()) -> None:
        """This process fills a segment, and others are gone for it."""
        with self._lock:
            self._made.add(segment)
            self._found.discard(segment)  # one that was left unfinished is gone on with
            self._made.difference_update(gone)
            self._found.difference_update(gone)
            for lives in self._lives():
                for number in gone:
                    lives.end(number)
