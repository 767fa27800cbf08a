"""Threads between plan and batch: fetch, then decode, delivered in the plan's order.

Tasks are handed out in order, and bytes are granted in order, so the clip that the consumer
waits for is always the first to get on. At most ``prefetch`` batches are in the making.
"""

from __future__ import annotations

import atexit
import heapq
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dstream.clock import Clock
from dstream.forks import renew_after_fork
from dstream.loader.batch import ArrayMaker, Batch
from dstream.loader.budget import ByteBudget
from dstream.loader.buffers import BufferPool
from dstream.loader.failures import FailureLog, is_for_good
from dstream.loader.pending import PendingBatch
from dstream.loader.plan import Draw, Order, Step
from dstream.loader.reader import ClipReader, PlannedClip
from dstream.loader.settings import LoaderSettings
from dstream.media.decode import ClipDecoder


@dataclass(slots=True)
class _Task:
    """One clip to be made."""

    turn: int
    batch: PendingBatch
    row: int
    draw: Draw
    attempt: int = 0
    """Clips of this position that failed."""


@dataclass(order=True, slots=True)
class _Fetched:
    """A clip whose bytes are here, waiting for a decoder. Ordered by turn."""

    turn: int
    task: _Task = field(compare=False)
    planned: PlannedClip = field(compare=False)
    data: list[bytes] = field(compare=False)


_LIVE: weakref.WeakSet[Pipeline] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Wait for decoders before the interpreter takes itself apart."""
    for pipeline in list(_LIVE):
        pipeline.close()


class Pipeline:
    """Makes batches in background threads until it is closed.

    Args:
        reader: makes clips.
        order: which clip is at which position.
        steps: this rank's steps.
        settings: threads and limits.
        failures: decides what may be skipped.
        arrays: hands batches over.
        pool: gives the memory of batches.
        clock: measures waiting.
    """

    def __init__(
        self,
        reader: ClipReader,
        order: Order,
        steps: Iterator[Step],
        settings: LoaderSettings,
        failures: FailureLog,
        arrays: ArrayMaker,
        pool: BufferPool,
        clock: Clock,
    ) -> None:
        self._reader, self._order, self._steps = reader, order, steps
        self._settings, self._failures, self._clock = settings, failures, clock
        self._arrays, self._pool, self._meter = arrays, pool, reader.meter
        self._budget = ByteBudget(settings.inflight_bytes)
        self._changed = threading.Condition()
        self._tasks: deque[_Task] = deque()
        self._pending: deque[PendingBatch] = deque()
        self._fetched: list[_Fetched] = []
        self._turns = 0
        self._exhausted = False
        self._closed = False
        self._fault: BaseException | None = None
        self.is_orphan = False
        """This is a forked child's copy, whose threads are the parent's."""
        self._threads = [
            *(
                threading.Thread(target=self._fetch_all, name=f"dstream-fetch-{i}", daemon=True)
                for i in range(settings.fetchers)
            ),
            *(
                threading.Thread(target=self._decode_all, name=f"dstream-decode-{i}", daemon=True)
                for i in range(settings.workers)
            ),
        ]
        _LIVE.add(self)
        renew_after_fork(self)
        for thread in self._threads:
            thread.start()

    def renew(self) -> None:
        """In a forked child: none of the threads came along, so there is nothing to stop."""
        self._changed = threading.Condition()
        self._budget = ByteBudget(self._settings.inflight_bytes)
        self._closed = self.is_orphan = True
        self._threads.clear()

    def next(self) -> tuple[Batch, Step] | None:
        """The next batch in the plan's order, or None after the last.

        Raises:
            Whatever the first failing clip of the batch raised.
        """
        began_s = self._clock.monotonic_s()
        with self._changed:
            self._look_at_queue()
            self._changed.wait_for(lambda: self._fault is not None or self._head_is_settled())
            if self._fault is not None:
                raise self._fault
            self._meter.add("seconds.wait", self._clock.monotonic_s() - began_s)
            if self._closed or not self._pending:
                return None
            batch = self._pending.popleft()
            self._changed.notify_all()
        return batch.deliver(self._arrays), batch.step

    def _head_is_settled(self) -> bool:
        if self._pending:
            return self._closed or self._pending[0].is_settled
        return self._closed or (self._exhausted and not self._tasks)

    def _look_at_queue(self) -> None:
        self._meter.add("queue.looks", 1)
        self._meter.add("queue.ready", sum(batch.is_settled for batch in self._pending))

    def stop(self) -> None:
        """Tell all threads to end after the clip in hand, without waiting for them.

        This is what a garbage collector may call, in any thread and at any allocation: waiting
        there could wait for a lock that the interrupted code holds.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._budget.close()

    def close(self) -> None:
        """Stop all threads and wait for them. Safe to call again."""
        self.stop()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._tasks.clear()
        self._pending.clear()
        self._fetched.clear()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Hand what ends a thread to the consumer, who would wait for it for ever."""
        try:
            yield
        except BaseException as error:
            with self._changed:
                self._fault = self._fault or error
                self._changed.notify_all()

    # Fetching

    def _fetch_all(self) -> None:
        # One call a clip, so that an idle thread holds no reference to a batch's memory.
        with self._watched():
            while self._fetch_one():
                pass

    def _fetch_one(self) -> bool:
        task = self._next_task()
        if task is None:
            return False
        try:
            fetched = self._obtain(task, has_turn=False)
        except BaseException as error:
            self._budget.forgo(task.turn)
            self._settle(task, error)
            return True
        if fetched is None:
            return False
        with self._changed:
            heapq.heappush(self._fetched, fetched)
            self._changed.notify_all()
        return True

    def _next_task(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(self._may_hand_out)
            if self._closed or not (self._tasks or self._admit_batch()):
                self._changed.notify_all()
                return None
            return self._tasks.popleft()

    def _may_hand_out(self) -> bool:
        return (
            self._closed
            or self._exhausted
            or bool(self._tasks)
            or len(self._pending) < self._settings.prefetch
        )

    def _admit_batch(self) -> bool:
        """Take the next step's clips into work; False at the end. Called under the lock."""
        while not self._exhausted:
            step = next(self._steps, None)
            if step is None:
                self._exhausted = True
            elif step.stop > step.start:
                batch = PendingBatch(step, self._reader.settings, self._pool)
                self._pending.append(batch)
                for row, position in enumerate(range(step.start, step.stop)):
                    draw = self._order.draw(position)
                    self._tasks.append(_Task(self._turns, batch, row, draw))
                    self._turns += 1
                return True
        return False

    def _obtain(self, task: _Task, has_turn: bool) -> _Fetched | None:
        """Plan and fetch a task's clip, or a substitute's; None when the pipeline was closed."""
        while True:
            if self._skip_known(task):
                continue
            began_s = self._clock.monotonic_s()
            size_bytes = 0
            planned: PlannedClip | None = None
            try:
                planned = self._reader.plan(task.draw)
                task.batch.expect(task.row, planned.sample)
                self._meter.add("seconds.fetch_stage", self._clock.monotonic_s() - began_s)
                if has_turn:
                    self._budget.overdraw(planned.size_bytes)
                elif not self._acquire(task, planned):
                    return None
                has_turn, size_bytes = True, planned.size_bytes
                began_s = self._clock.monotonic_s()
                data = self._reader.fetch(planned)
                self._meter.add("seconds.fetch_stage", self._clock.monotonic_s() - began_s)
                return _Fetched(task.turn, task, planned, data)
            except Exception as error:
                self._budget.release(size_bytes)
                self._substitute(task, error, planned)

    def _acquire(self, task: _Task, planned: PlannedClip) -> bool:
        began_s = self._clock.monotonic_s()
        granted = self._budget.acquire(task.turn, planned.size_bytes)
        self._meter.add("seconds.fetch_blocked", self._clock.monotonic_s() - began_s)
        return granted

    def _skip_known(self, task: _Task) -> bool:
        """Give the task another clip when its file is known to give none."""
        key, file = self._reader.sample_key(task.draw), self._reader.file_of(task.draw)
        if not self._failures.is_given_up(file, key, task.attempt):
            return False
        self._draw_again(task)
        return True

    def _substitute(self, task: _Task, error: Exception, planned: PlannedClip | None) -> None:
        """Give the task another clip after a failure, or raise the error."""
        name = None if planned is None else planned.sample.video.name
        self._failures.record(
            error,
            self._reader.sample_key(task.draw),
            task.attempt,
            self._reader.file_of(task.draw),
            for_good=is_for_good(error, placed=planned is not None, file=name),
        )
        self._draw_again(task)

    def _draw_again(self, task: _Task) -> None:
        task.attempt += 1
        task.draw = self._order.substitute(task.draw.position, task.attempt)

    # Decoding

    def _decode_all(self) -> None:
        with self._watched():
            decoder = ClipDecoder(self._reader.settings.pixels, self._meter, clock=self._clock)
            while self._decode_one(decoder):
                pass

    def _decode_one(self, decoder: ClipDecoder) -> bool:
        fetched = self._next_fetched()
        if fetched is None:
            return False
        task = fetched.task
        began_s = self._clock.monotonic_s()
        try:
            while fetched is not None and not self._decode(decoder, fetched):
                fetched = self._obtain(task, has_turn=True)
        except BaseException as error:
            self._settle(task, error)
        else:
            self._settle(task, None)
        self._meter.add("seconds.decode_stage", self._clock.monotonic_s() - began_s)
        return True

    def _next_fetched(self) -> _Fetched | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._fetched))
            return None if self._closed else heapq.heappop(self._fetched)

    def _decode(self, decoder: ClipDecoder, fetched: _Fetched) -> bool:
        """Decode into the batch; False when the clip failed and a substitute is to be tried."""
        task = fetched.task
        try:
            out = task.batch.out(task.row)
            task.batch.put(
                task.row, self._reader.decode(decoder, fetched.planned, fetched.data, out)
            )
        except Exception as error:
            self._substitute(task, error, fetched.planned)
            return False
        finally:
            self._budget.release(fetched.planned.size_bytes)
        return True

    def _settle(self, task: _Task, error: BaseException | None) -> None:
        with self._changed:
            task.batch.settle(task.row, error)
            self._changed.notify_all()
