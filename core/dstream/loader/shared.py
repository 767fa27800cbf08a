"""Several clips of one group from one read and one run of the decoder.

The first clip of a group that is handed out leads: its thread reads and decodes for all of them.
The others wait in no thread: whichever decoder finishes the group puts them into their batches. A
group that cannot be decoded as one leaves each clip to itself, counted as a fallback.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from dstream.errors import DstreamError
from dstream.loader.buffers import BufferPool
from dstream.loader.plan import Draw, Order
from dstream.loader.reader import ClipReader, PlannedClip, ReadClip, naming
from dstream.media.clip import ClipPlan, join_plans
from dstream.media.decode import ClipDecoder, Wanted
from dstream.media.pixels import output_dtype, output_shape

if TYPE_CHECKING:
    from dstream.loader.work import Task

_KEPT_BUFFERS = 16


@dataclass(frozen=True, slots=True, eq=False)
class GroupPlan:
    """What a group reads, and the clips that come of it."""

    clips: tuple[PlannedClip, ...]
    plan: ClipPlan

    @property
    def size_bytes(self) -> int:
        """Bytes of its GOPs."""
        return sum(extent.size_bytes for extent in self.plan.extents)


class SharedGroup:
    """One group of one epoch: not decoded yet, decoded, or given up. Thread-safe."""

    def __init__(self, draws: Sequence[Draw]) -> None:
        self.draws = draws
        self._lock = threading.Lock()
        self._clips: dict[int, ReadClip] = {}
        self._is_over = False
        self._waiting: list[Task] = []

    def clip_or_wait(self, task: Task) -> ReadClip | None:
        """The task's clip; None where the task waits now, and comes back with the group.

        Raises:
            KeyError: the group does not have it: the clip is to be made alone.
        """
        with self._lock:
            if self._is_over:
                return self._clips[task.draw.position]
            self._waiting.append(task)
            return None

    def end(self, clips: dict[int, ReadClip]) -> list[Task]:
        """The group's clips by position, none where it failed; returns who waited for it."""
        with self._lock:
            if self._is_over:
                return []
            self._clips, self._is_over = clips, True
            waited, self._waiting = self._waiting, []
            return waited


class Sharing:
    """Which clips of a run are made together.

    Args:
        reader: makes clips.
        order: says what is a group.
        first_position: where the run begins; what lies before was delivered by another.
        max_bytes: bound of decoded frames that wait for their batches.
    """

    def __init__(
        self, reader: ClipReader, order: Order, first_position: int, max_bytes: int
    ) -> None:
        self._reader, self._order = reader, order
        self._first_position, self._max_bytes = first_position, max_bytes
        self._groups: dict[tuple[int, int], SharedGroup] = {}
        self._pool = BufferPool(_KEPT_BUFFERS)
        self._lock = threading.Lock()
        self._held_bytes = 0
        # Sizes of buffers that went, told from wherever garbage is collected: no lock there.
        self._freed: deque[int] = deque()

    def join(self, draw: Draw, step_start: int) -> tuple[SharedGroup | None, bool]:
        """The group of a clip that is handed out, and whether the clip leads it.

        Called in the order of the plan, by one thread at a time.
        """
        if draw.group < 0:
            return None, False
        name = draw.epoch, draw.group
        found = self._groups.get(name)
        if found is not None:
            return found, False
        over = [k for k, group in self._groups.items() if group.draws[-1].position < step_start]
        for key in over:
            del self._groups[key]
        draws = [d for d in self._order.group(draw.position) if d.position >= self._first_position]
        if len(draws) < 2:
            return None, False
        group = self._groups[name] = SharedGroup(draws)
        return group, True

    def plan(self, group: SharedGroup) -> GroupPlan | None:
        """The reads of a group; None where fewer than two of its clips can be planned."""
        clips = []
        for draw in group.draws:
            try:
                clips.append(self._reader.plan(draw))
            except DstreamError:
                continue  # made alone, it will say what is wrong with it
        if len(clips) < 2:
            return None
        with naming(clips[0].sample):
            plan = join_plans(clips[0].sample.index, [clip.plan for clip in clips])
        return GroupPlan(tuple(clips), plan)

    def fetch(self, planned: GroupPlan) -> list[bytes]:
        """The bytes of the plan's extents, in their order."""
        data = self._reader.fetch_extents(
            planned.clips[0].sample.video, planned.plan.extents, clips=planned.clips
        )
        self._reader.meter.add("clips.fetched", len(planned.clips))
        self._reader.count_bytes(planned.plan)
        return data

    def decode(
        self, decoder: ClipDecoder, group: SharedGroup, planned: GroupPlan, data: Sequence[bytes]
    ) -> dict[int, ReadClip] | None:
        """All clips by their positions, in memory of their own; None where there is no room.

        The memory counts as held for as long as ``group`` is known to anybody.

        Raises:
            MediaError, CorruptDataError, NeedMoreData: they cannot be decoded as one.
        """
        buffer = self._room(group, planned)
        if buffer is None:
            return None
        sample = planned.clips[0].sample
        wanted = [
            Wanted(clip.plan, out, clip.crop_at)
            for clip, out in zip(planned.clips, buffer, strict=True)
        ]
        with naming(sample):
            decoded = decoder.decode_many(sample.index, planned.plan, data, wanted)
        self._reader.meter.add("clips.decoded", len(decoded))
        return {
            clip.draw.position: ReadClip(clip, frames, self._reader.side_arrays(sample, frames))
            for clip, frames in zip(planned.clips, decoded, strict=True)
        }

    def has_room(self, planned: GroupPlan) -> bool:
        """Whether a group may be decoded before it is due: one that is due still has room then."""
        shape, dtype = self._form(planned)
        with self._lock:
            return self._now_held() + 2 * _size_bytes(shape, dtype) <= self._max_bytes

    def _room(self, group: SharedGroup, planned: GroupPlan) -> NDArray[np.generic] | None:
        shape, dtype = self._form(planned)
        size_bytes = _size_bytes(shape, dtype)
        with self._lock:
            if self._now_held() + size_bytes > self._max_bytes:
                return None
            self._held_bytes += size_bytes
        finalize(group, self._freed.append, size_bytes).atexit = False
        return self._pool.take(shape, dtype)

    def _now_held(self) -> int:
        while self._freed:
            self._held_bytes -= self._freed.popleft()
        return self._held_bytes

    def _form(self, planned: GroupPlan) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
        """Shape and dtype of a group's frames."""
        track, settings = planned.clips[0].sample.index.track, self._reader.settings
        frame = output_shape(track, settings.pixels)
        return (
            (len(planned.clips), settings.window.frames, *frame),
            output_dtype(track, settings.pixels),
        )


def _size_bytes(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
