"""How long extents are worth their room, for readers who know their plan. No clock, no files.

Whoever follows a plan knows when an extent will be read again. Of two extents the one whose next
use is nearer is worth its room more; so one is kept as long as the gaps between its uses are below
a *span*, and dead after the last of them. The span is what fits: by Little's law, the gaps below it
of all that is read, times their sizes, over the time in which they were read, are the bytes that
are held at a time.

Whole segments make room, so those with the fewest bytes that still live are chosen, and what lives
in them is copied on. A part of the room is left to the dead: with less of it more has to be copied.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

FILLED = 0.87
"""Part of the room that shall live. On paper 0.85 copies 1.7 extents a miss, 0.90 copies 2.8."""
_MOST_MOVED = 0.85
"""Part of a segment that is copied on at most; what lives beyond it is lost."""
_EVERY = 8
"""Of so many reads one is a sample, once there are some: what is to come costs a little to find."""
_SAMPLES, _LEAST_SAMPLES, _RENEWED_AFTER = 512, 64, 16


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


def span_of(samples: Sequence[Sample], room_bytes: float) -> int:
    """The longest gap that an extent is kept for, so that what is kept fills the room.

    Args:
        samples: of some time, in any order.
        room_bytes: what can be held.
    """
    elapsed = max(sample.now for sample in samples) - min(sample.now for sample in samples)
    held = 0.0
    known = sorted((s.gap, s.size_bytes * s.reads) for s in samples if s.gap is not None)
    for gap, size_bytes in known:
        held += gap * size_bytes
        if held > room_bytes * max(elapsed, 1):
            return gap
    return known[-1][0] if known else 0


def lives_until(now: int, upcoming: Sequence[int], span: int) -> int:
    """The last of an extent's uses before the first gap that is longer than ``span``.

    >>> lives_until(10, [12, 15, 40, 41], 5), lives_until(10, [40], 5)
    (15, 10)
    """
    for use in upcoming:
        if use - now > span:
            break
        now = use
    return now


class Lifetimes:
    """What lives in the segments, as far as one process knows. Thread-safe.

    Args:
        room_bytes: what the cache can hold.
    """

    def __init__(self, room_bytes: int = 1) -> None:
        self.room_bytes = room_bytes
        self._lock = threading.Lock()
        self._own: set[int] = set()
        """Segments that may go: other processes know better what lives in theirs."""
        self._forget("")

    def _forget(self, plan: str) -> None:
        self._plan, self._now, self._reads = plan, -1, 0
        self._span: int | None = None
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._extents: dict[int, tuple[int, int, int]] = {}
        """Extent -> segment, size and until when it lives. None that is dead for long."""
        self._live_bytes: dict[int, int] = {}
        self._living: dict[int, set[int]] = {}
        """Both by segment number."""
        self._due: list[tuple[int, int]] = []
        """When extents die, and which: a heap. Some have got a longer life meanwhile."""

    def renew(self) -> None:
        """In a forked child: another thread may have held the lock, with half of a change made."""
        self._lock = threading.Lock()
        self._forget("")

    @property
    def is_known(self) -> bool:
        """Enough was read by one plan to tell what lives."""
        return self._span is not None

    def own(self, segments: Collection[int]) -> None:
        """These segments may go: this process fills them, or nobody does."""
        with self._lock:
            self._own.update(segments)

    def note_read(self, uses: Uses, size_bytes: int) -> None:
        """Learn how soon extents are read again. For every read, before all else."""
        with self._lock:
            if uses.plan != self._plan or (self._samples and uses.now < self._samples[0].now):
                self._forget(uses.plan)  # another plan, or the same from an earlier place on
            self._now = max(self._now, uses.now)
            self._reads += 1
            every = 1 if self._span is None else _EVERY
            if self._reads % every:
                return
        upcoming = uses.find()
        with self._lock:
            if uses.plan != self._plan:
                return  # forgotten meanwhile
            gap = upcoming[0] - uses.now if upcoming else None
            self._samples.append(Sample(uses.now, gap, size_bytes, every * uses.readers))
            enough = len(self._samples) >= _LEAST_SAMPLES
            if enough and (self._span is None or self._reads // _EVERY % _RENEWED_AFTER == 0):
                self._span = span_of(self._samples, self.room_bytes * FILLED)

    def is_worth_it(self, uses: Uses) -> bool:
        """Whether an extent is read again soon enough to be kept, in a cache that is full."""
        span = self._span
        if span is None:
            return True
        upcoming = uses.find()
        return bool(upcoming) and upcoming[0] - uses.now <= span

    def note_there(self, key: int, segment: int, size_bytes: int, uses: Uses) -> None:
        """An extent lies in a segment, and is read now."""
        known = self._extents.get(key)
        if known is not None and known[0] == segment and known[2] > uses.now:
            return
        span = self._span
        if span is None:
            return
        until = lives_until(uses.now, uses.find(), span)
        with self._lock:
            self._drop(key)
            if uses.plan == self._plan and until > self._now:
                self._put(key, segment, size_bytes, until)

    def note_moved(self, key: int, segment: int) -> None:
        """An extent was copied to another segment."""
        with self._lock:
            known = self._drop(key)
            if known is not None:
                self._put(key, segment, known[1], known[2])

    def victim(self, finished: Sequence[tuple[int, int]]) -> int | None:
        """The segment to go: the one in which least lives, of those that may.

        Args:
            finished: number and capacity of those that nobody writes.
        """
        with self._lock:
            self._bury()
            found = min(
                (
                    (self._live_bytes.get(number, 0) / capacity_bytes, number)
                    for number, capacity_bytes in finished
                    if number in self._own
                ),
                default=None,
            )
        return None if found is None else found[1]

    def moving(self, segment: int, capacity_bytes: int) -> list[int]:
        """The extents that live in a segment, as many as shall be copied to one as large."""
        with self._lock:
            self._bury()
            moving, moved_bytes = list[int](), 0
            for key in self._living.get(segment, ()):
                moved_bytes += self._extents[key][1]
                if moved_bytes > _MOST_MOVED * capacity_bytes:
                    break
                moving.append(key)
            return moving

    def end(self, segment: int) -> None:
        """A segment is gone."""
        with self._lock:
            self._own.discard(segment)
            for key in list(self._living.get(segment, ())):
                self._drop(key)
            self._live_bytes.pop(segment, None)
            self._living.pop(segment, None)

    def _put(self, key: int, segment: int, size_bytes: int, until: int) -> None:
        self._bury()
        self._extents[key] = segment, size_bytes, until
        self._live_bytes[segment] = self._live_bytes.get(segment, 0) + size_bytes
        self._living.setdefault(segment, set()).add(key)
        heapq.heappush(self._due, (until, key))

    def _drop(self, key: int) -> tuple[int, int, int] | None:
        known = self._extents.pop(key, None)
        if known is not None:
            self._live_bytes[known[0]] -= known[1]
            self._living[known[0]].discard(key)
            if not self._living[known[0]]:
                del self._living[known[0]], self._live_bytes[known[0]]
        return known

    def _bury(self) -> None:
        """Forget what is dead by now."""
        while self._due and self._due[0][0] <= self._now:
            until, key = heapq.heappop(self._due)
            if (known := self._extents.get(key)) is not None and known[2] == until:
                self._drop(key)
