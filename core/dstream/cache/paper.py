"""A cache on paper: what the policy makes of one read after another. No bytes, no files."""

from __future__ import annotations

from dstream.cache.layout import SegmentName, segment_bytes
from dstream.cache.lifetimes import Uses
from dstream.cache.policy import Room, cost_bytes, over_budget
from dstream.cache.record import RECORD_BYTES

_SCOPE = ""


class PaperCache:
    """The cache of a node on which one process reads one data set, an extent after the other.

    Args:
        budget_bytes: what its files would take together; 0: it keeps nothing.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._segment_bytes = segment_bytes(budget_bytes)
        self._room = Room()
        self._extents: dict[SegmentName, list[int]] = {}
        self._segment_of: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self.kept_bytes = self.moved_bytes = 0
        """Written for extents that were missed, and for those whose segment made room."""
        self._current: SegmentName | None = None
        self._left_bytes = 0
        """Of the current segment."""
        self._pause_bytes = 0
        """So much is refused before a full cache is looked at again."""
        self._made = 0

    def read(self, extent: int, size_bytes: int, uses: Uses | None = None) -> bool:
        """Whether an extent is there; where not, it is kept if the policy finds room.

        Args:
            extent: its number.
            size_bytes: of it.
            uses: when it is read again; None: the reader follows no plan.
        """
        self._room.note_read(uses, size_bytes)
        number = self._segment_of.get(extent)
        if number is not None:
            self._room.note_hit(extent, number, size_bytes, uses)
        elif self._room.is_worth_it(uses):
            self._admit(extent, size_bytes, uses)
        return number is not None

    def _admit(self, extent: int, size_bytes: int, uses: Uses | None) -> None:
        name = self._segment_for(size_bytes)
        if name is None:
            self._pause_bytes -= size_bytes
            self._room.note_refused(size_bytes)
            return
        self._put(name, extent, size_bytes)
        self.kept_bytes += size_bytes
        self._room.note_there(extent, name.number, size_bytes, uses)

    def _put(self, name: SegmentName, extent: int, size_bytes: int) -> None:
        self._extents[name].append(extent)
        self._segment_of[extent], self._sizes[extent] = name.number, size_bytes

    def reopened(self, budget_bytes: int) -> PaperCache:
        """What the next process finds, perhaps with another budget."""
        cache = PaperCache(budget_bytes)
        cache._extents, cache._segment_of = self._extents, self._segment_of
        cache._current, cache._left_bytes = self._current, self._left_bytes
        cache._made, cache._sizes = self._made, self._sizes
        cache._room.begin(self._extents)
        cache._evict(over_budget(list(self._extents), budget_bytes=budget_bytes, leaving=()))
        return cache

    def _segment_for(self, size_bytes: int) -> SegmentName | None:
        cost = cost_bytes(size_bytes)
        if cost > self._budget_bytes or self._pause_bytes > 0:
            return None
        if cost > self._segment_bytes:  # it gets one of its own
            return self._begin(cost)
        if self._current is None or cost > self._left_bytes:
            self._current = None
            self._left_bytes = self._segment_bytes
            self._current = self._begin(cost)
        self._left_bytes -= cost - RECORD_BYTES  # the room for a seal is still there
        return self._current

    def _begin(self, need_bytes: int) -> SegmentName | None:
        names = list(self._extents)
        found = self._room.reserve(
            names,
            [name for name in names if name != self._current],
            budget_bytes=self._budget_bytes,
            segment_bytes=self._segment_bytes,
            need_bytes=need_bytes,
            leaving=(),
        )
        if found is None:
            self._pause_bytes = self._segment_bytes
            return None
        moving = self._room.moving(found)
        self._evict(found.evict)
        self._made += 1
        name = SegmentName(self._made, found.capacity_bytes, _SCOPE)
        self._extents[name] = []
        self._move(moving, name, need_bytes)
        self._room.note_made(name, found.evict)
        return name

    def _move(self, extents: list[int], name: SegmentName, need_bytes: int) -> None:
        for extent in extents:
            cost = cost_bytes(self._sizes[extent])
            if cost + need_bytes <= self._left_bytes:
                self._left_bytes -= cost - RECORD_BYTES
                self._put(name, extent, self._sizes[extent])
                self.moved_bytes += self._sizes[extent]
                self._room.note_moved(extent, name.number)

    def _evict(self, names: tuple[SegmentName, ...]) -> None:
        for name in names:
            for extent in self._extents.pop(name):
                del self._segment_of[extent]
            if name == self._current:
                self._current = None
