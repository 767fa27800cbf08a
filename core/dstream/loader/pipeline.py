"""Threads between plan and batch: fetch, then decode, delivered in the plan's order.

Tasks are handed out in order, and bytes are granted in order, so the clip that the consumer
waits for is always the first to get on. At most ``prefetch`` batches are decoded ahead.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator

from dstream.clock import Clock
from dstream.forks import renew_after_fork
from dstream.loader.batch import ArrayMaker, Batch
from dstream.loader.budget import ByteBudget
from dstream.loader.buffers import BufferPool
from dstream.loader.concurrency import Tuner
from dstream.loader.decode_stage import DecodeStage
from dstream.loader.failures import FailureLog
from dstream.loader.fetch_stage import FetchStage
from dstream.loader.pending import PendingBatch
from dstream.loader.plan import Order
from dstream.loader.reader import ClipReader
from dstream.loader.settings import LoaderSettings
from dstream.loader.shared import Sharing
from dstream.loader.steps import Step
from dstream.loader.work import Fetched, Task, Work
from dstream.measure.laps import Laps
from dstream.measure.spans import SpanStage
from dstream.store.patience import Outage, patient

_CLOSING_S = 10.0
"""How long to wait for a thread that is in the middle of a read or a decode."""

_LIVE: weakref.WeakSet[Pipeline] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Wait for decoders before the interpreter takes itself apart."""
    for pipeline in list(_LIVE):
        pipeline.close()


class Pipeline:
    """Makes batches in background threads, from :meth:`start` until it is closed.

    Args:
        reader: makes clips.
        order: which clip is at which position.
        steps: this rank's steps.
        first_position: where they begin.
        settings: threads and limits.
        tuner: says how many clips are fetched at the same time.
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
        first_position: int,
        settings: LoaderSettings,
        tuner: Tuner,
        failures: FailureLog,
        arrays: ArrayMaker,
        pool: BufferPool,
        clock: Clock,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._arrays, self._meter, self._spans = arrays, reader.meter, reader.spans
        self._budget = ByteBudget(settings.inflight_bytes)
        self._tuner = tuner
        sharing = Sharing(reader, order, first_position, settings.decoded_bytes)
        self._work = Work(
            order,
            steps,
            sharing,
            lambda step: PendingBatch(step, reader.settings, pool),
            settings.prefetch,
            self._tuner.limit,
            settings.workers,
        )
        self._fetch = FetchStage(
            reader, order, self._budget, failures, sharing, self._work.retake, clock
        )
        self._outage = Outage(settings.max_outage_s, reader.source.name, self._meter, clock)
        self._decode = DecodeStage(
            reader,
            self._work,
            self._fetch,
            sharing,
            settings.decoder,
            settings.decode_timeout_s,
            clock,
            self._start,
        )
        self.is_orphan = False
        """This is a forked child's copy, whose threads are the parent's."""
        self._fetchers: list[threading.Thread] = []
        _LIVE.add(self)
        renew_after_fork(self)

    def start(self) -> None:
        """Start the threads. Apart from the making, so that what interrupts it can close them."""
        laps = Laps(self._meter, self._clock)
        self._add_fetchers()
        for _ in range(self._settings.workers):
            self._decode.add()
        laps.end("seconds.start")

    def renew(self) -> None:
        """In a forked child: none of the threads came along, so there is nothing to stop."""
        self._work.renew()
        self._budget = ByteBudget(self._settings.inflight_bytes)
        self.is_orphan = True

    def next(self) -> tuple[Batch, Step] | None:
        """The next batch in the plan's order, or None after the last.

        Raises:
            Whatever the first failing clip of the batch raised.
        """
        laps = Laps(self._meter, self._clock)
        began_s = laps.last_s
        self._look_at_queue()
        batch = self._work.next_batch(self._decode.look)
        came_s = laps.end("seconds.wait")
        if batch is None:
            return None
        delivered = batch.deliver(self._arrays)
        given_s = laps.end("seconds.deliver")
        if self._spans is not None:
            self._spans.span(SpanStage.WAIT, began_s, came_s, batch.ids)
            self._spans.span(SpanStage.COLLATE, came_s, given_s, batch.ids)
        return delivered, batch.step

    def _look_at_queue(self) -> None:
        self._meter.add("queue.looks", 1)
        self._meter.add("queue.ready", self._work.count_ready())

    def stop(self) -> None:
        """Tell all threads to end after the clip in hand, without waiting for them.

        This is what a garbage collector may call, in any thread and at any allocation: waiting
        there could wait for a lock that the interrupted code holds.
        """
        self._work.close()
        self._budget.close()

    def close(self) -> None:
        """Stop all threads and wait for them. Safe to call again.

        One that is in the middle of a read or a decode that does not end is not waited for any
        longer than that should take; it ends by itself when it comes back.
        """
        self.stop()
        if not self.is_orphan:
            self._join([*self._fetchers, *self._decode.threads])
        self._work.clear()

    def _join(self, threads: Iterable[threading.Thread]) -> None:
        until_s = self._clock.monotonic_s() + _CLOSING_S
        for thread in threads:
            thread.join(max(0.0, until_s - self._clock.monotonic_s()))
            if thread.is_alive():
                self._meter.event("deadline", "close")

    def _start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=lambda: self._watched(work), name=name, daemon=True)
        thread.start()
        return thread

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            with patient(self._outage, lambda: self._work.closed):
                work()
        except BaseException as error:
            self._work.fail(error)

    # Fetching

    def _add_fetchers(self) -> None:
        while len(self._fetchers) < self._tuner.limit:
            name = f"dstream-fetch-{len(self._fetchers)}"
            self._fetchers.append(self._start(name, self._fetch_all))

    def _fetch_all(self) -> None:
        laps, goes_on = Laps(self._meter, self._clock), True
        while goes_on:
            # One call a clip, so that an idle thread holds no reference to a batch's memory.
            goes_on = self._fetch_one(laps)
            laps.end("seconds.fetch_handover")

    def _fetch_one(self, laps: Laps) -> bool:
        task = self._work.next_task()
        laps.end("seconds.fetch_idle")
        if task is None:
            return False
        try:
            fetched = self._obtain(task, laps)
            if fetched is None:
                return False
            self._work.put(fetched)
            self._tune(fetched.size_bytes)
        except BaseException as error:
            self._fetch.forgo(task)
            self._work.settle(task, error)
        finally:
            self._work.done_fetching()
        return True

    def _obtain(self, task: Task, laps: Laps) -> Fetched | None:
        try:
            return self._fetch.obtain(task, has_turn=False)
        finally:
            laps.end("seconds.fetch_threads")

    def _tune(self, size_bytes: int) -> None:
        if self._tuner.fetched(size_bytes, self._work.awaited):
            self._work.set_fetch_limit(self._tuner.limit)
            self._add_fetchers()
