"""What is to be fetched, decoded and given, in the plan's order. Shared by all threads of a loader.

Batches are admitted in order and their clips handed out in order. Decoders work on the next
``prefetch`` batches only: those hold decoded frames. Fetchers may be further ahead, by one clip
each, since fetched bytes are small and have a budget of their own; else one round trip could be
hidden behind no more clips than two small batches hold. A decoder that would idle decodes a group
that is fetched already, where its frames have room: groups of all partitions begin at about the
same time, and their other clips give no decoder anything to do.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dstream.loader.pending import PendingBatch
from dstream.loader.plan import Draw, Order
from dstream.loader.reader import PlannedClip
from dstream.loader.shared import GroupPlan, SharedGroup, Sharing
from dstream.loader.steps import Step, drawn_steps


@dataclass(slots=True)
class Task:
    """One clip to be made."""

    turn: int
    batch: PendingBatch
    row: int
    draw: Draw
    ordinal: int
    """Which batch of this run it belongs to."""
    attempt: int = 0
    """Clips of this position that failed."""
    group: SharedGroup | None = None
    """What it is to be decoded with; None: alone."""
    leads: bool = False
    """It reads and decodes for its group."""

    @property
    def joins(self) -> bool:
        """Another clip of its group leads."""
        return self.group is not None and not self.leads


@dataclass(order=True, slots=True)
class Fetched:
    """A clip whose bytes are here, waiting for a decoder. Ordered by turn."""

    turn: int
    task: Task = field(compare=False)
    planned: PlannedClip = field(compare=False)
    data: list[bytes] = field(compare=False)
    """Of its extents, or of its group's; empty where another clip of the group leads."""
    shared: GroupPlan | None = field(default=None, compare=False)
    """What its group reads, if it leads one."""
    is_early: bool = field(default=False, compare=False)
    """It is being decoded before it is due."""

    @property
    def size_bytes(self) -> int:
        """Bytes that it took of the budget."""
        if self.task.joins:
            return 0
        return self.planned.size_bytes if self.shared is None else self.shared.size_bytes

    @property
    def clips(self) -> Sequence[PlannedClip]:
        """Those that are read and decoded at once: its group's, if it leads one."""
        return [self.planned] if self.shared is None else self.shared.clips


class Work:
    """The queues between the stages. Every method may be called from any thread.

    Args:
        order: which clip is at which position.
        steps: this rank's steps.
        sharing: says which clips are made together.
        make_batch: a batch to be filled, for one step.
        prefetch: batches that may be decoded ahead of the one in use.
        fetch_limit: clips that may be fetched at the same time, and how many reads beyond the
            prefetched batches may be here.
        decoders: threads that call :meth:`next_job`.
    """

    def __init__(
        self,
        order: Order,
        steps: Iterator[Step],
        sharing: Sharing,
        make_batch: Callable[[Step], PendingBatch],
        prefetch: int,
        fetch_limit: int,
        decoders: int,
    ) -> None:
        self._steps, self._make_batch = drawn_steps(steps, order), make_batch
        self._sharing, self._prefetch = sharing, prefetch
        self._fetch_limit, self._decoders = fetch_limit, decoders
        self._fetching = self._early = 0
        self.changed = threading.Condition()
        """Guards everything here; notified at each change."""
        self._tasks: deque[Task] = deque()
        self._retaken: deque[Task] = deque()
        self._pending: deque[PendingBatch] = deque()
        self._reads: deque[int] = deque()
        """For each of them, how many of its clips are read: not by another of their group."""
        self._fetched: list[Fetched] = []
        self._ahead_reads = 0
        self._turns = self._admitted = self._given = 0
        self._exhausted = False
        self._fault: BaseException | None = None
        self.closed = False
        self.awaited = 0
        """Clips whose bytes came while a decoder was waiting for them."""
        self._waiting_decoders = 0

    def renew(self) -> None:
        """In a forked child: nobody works here any more."""
        self.changed = threading.Condition()
        self.closed = True

    def close(self) -> None:
        """Let every thread come home. Safe to call again."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def clear(self) -> None:
        """Let go of all batches and bytes."""
        with self.changed:
            for queue in (self._tasks, self._retaken, self._pending, self._reads):
                queue.clear()
            self._fetched.clear()

    def fail(self, error: BaseException) -> None:
        """Hand what ended a thread to the consumer, who would wait for it for ever."""
        with self.changed:
            self._fault = self._fault or error
            self.changed.notify_all()

    # Fetchers

    def next_task(self) -> Task | None:
        """The next clip to fetch, once there is one and room for it; None at the end.

        Call :meth:`done_fetching` afterwards, however it went.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._is_over() or self._may_fetch())
            if self.closed or not self._has_task():
                self.changed.notify_all()
                return None
            self._fetching += 1
            return self._tasks.popleft()

    def done_fetching(self) -> None:
        """Make room for another one."""
        with self.changed:
            self._fetching -= 1
            self.changed.notify_all()

    def set_fetch_limit(self, clips: int) -> None:
        """From now on so many clips may be fetched at the same time."""
        with self.changed:
            self._fetch_limit = clips
            self.changed.notify_all()

    def _is_over(self) -> bool:
        return self.closed or (self._exhausted and not self._tasks)

    def _may_fetch(self) -> bool:
        return self._fetching < self._fetch_limit and (
            bool(self._tasks)
            or len(self._pending) < self._prefetch
            or self._ahead_reads < self._fetch_limit
        )

    def _has_task(self) -> bool:
        try:
            return bool(self._tasks) or self._admit()
        except BaseException as error:
            # At once: to the next thread a plan that failed looks like one that is through.
            self._fault = self._fault or error
            raise

    def _admit(self) -> bool:
        """Take the next step's clips into work; False at the end. Called under the lock."""
        while not self._exhausted:
            step, draws = next(self._steps, (None, []))
            if step is None:
                self._exhausted = True
            elif draws:
                batch = self._make_batch(step)
                reads = 0
                for row, draw in enumerate(draws):
                    group, leads = self._sharing.join(draw, step.start)
                    task = Task(self._turns, batch, row, draw, self._admitted, 0, group, leads)
                    self._tasks.append(task)
                    self._turns += 1
                    reads += not task.joins
                if len(self._pending) >= self._prefetch:
                    self._ahead_reads += reads
                self._pending.append(batch)
                self._reads.append(reads)
                self._admitted += 1
                return True
        return False

    def put(self, fetched: Fetched) -> None:
        """A clip's bytes are here."""
        with self.changed:
            self.awaited += self._waiting_decoders > 0 and not self._may_decode()
            self.put_back(fetched)

    def put_back(self, fetched: Fetched) -> None:
        """A clip that was taken by :meth:`next_job` waits until its batch is due."""
        with self.changed:
            heapq.heappush(self._fetched, fetched)
            self.changed.notify_all()

    # Decoders

    def next_job(self) -> Fetched | Task | None:
        """The first fetched clip whose batch may be decoded, or a clip to be made anew.

        Where there is none, a group that is due later; see :meth:`is_due`.
        """
        with self.changed:
            self._waiting_decoders += 1
            try:
                while not self.closed:
                    if self._retaken:
                        return self._retaken.popleft()
                    if self._may_decode():
                        return heapq.heappop(self._fetched)
                    early = self._early_group()
                    if early is not None:
                        self._fetched.remove(early)
                        heapq.heapify(self._fetched)
                        early.is_early, self._early = True, self._early + 1
                        return early
                    self.changed.wait()
                return None
            finally:
                self._waiting_decoders -= 1

    def is_due(self, task: Task) -> bool:
        """Whether the task's batch may hold decoded frames."""
        return task.ordinal < self._given + self._prefetch

    def _may_decode(self) -> bool:
        return bool(self._fetched) and self.is_due(self._fetched[0].task)

    def end_early(self, fetched: Fetched) -> None:
        """A group that may have been taken before it was due is decoded, or given up."""
        with self.changed:
            self._early -= fetched.is_early
            fetched.is_early = False

    def _early_group(self) -> Fetched | None:
        if self._early >= max(1, self._decoders - 1):
            return None  # one stays at hand for what becomes due meanwhile
        groups = (fetched for fetched in self._fetched if fetched.shared is not None)
        first = min(groups, default=None)
        if first is None or first.shared is None or not self._sharing.has_room(first.shared):
            return None
        return first

    def retake(self, task: Task) -> None:
        """Have a clip made from the beginning, before all others."""
        with self.changed:
            self._retaken.append(task)
            self.changed.notify_all()

    def settle(self, task: Task, error: BaseException | None) -> None:
        """A clip is in its batch, or failed for good."""
        with self.changed:
            task.batch.settle(task.row, error)
            self.changed.notify_all()

    # The consumer

    def count_ready(self) -> int:
        """Batches that could be given now."""
        with self.changed:
            return sum(batch.is_settled for batch in self._pending)

    def next_batch(self, look: Callable[[], float]) -> PendingBatch | None:
        """The next batch in the plan's order once it is settled; None after the last.

        Args:
            look: called under the lock while waiting, to look after the decoders; returns after
                how many seconds it wants to be called again.

        Raises:
            Whatever ended a thread.
        """
        with self.changed:
            while not (self._fault is not None or self._head_is_settled()):
                self.changed.wait(look())
            if self._fault is not None:
                raise self._fault
            if self.closed or not self._pending:
                return None
            if len(self._pending) > self._prefetch:
                self._ahead_reads -= self._reads[self._prefetch]
            self._reads.popleft()
            batch = self._pending.popleft()
            self._given += 1
            self.changed.notify_all()
            return batch

    def _head_is_settled(self) -> bool:
        if self._pending:
            return self.closed or self._pending[0].is_settled
        return self._is_over()
