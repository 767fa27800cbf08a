"""The iterator of batches."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, overload

from dstream.clock import Clock, SystemClock
from dstream.errors import InvalidInputError
from dstream.loader.batch import ArrayMaker, Batch
from dstream.loader.buffers import BufferPool
from dstream.loader.concurrency import Tuner
from dstream.loader.cursor import ALL_STEPS, Cursor, Share
from dstream.loader.failures import Failure, FailureLog
from dstream.loader.foresight import NodeReads
from dstream.loader.groups import gathered
from dstream.loader.ordering import order_of
from dstream.loader.pictures import check_all_same
from dstream.loader.pins import FrozenView, PinKeeper
from dstream.loader.pipeline import Pipeline
from dstream.loader.plan import Order
from dstream.loader.reader import ClipReader
from dstream.loader.report import (
    LoaderReport,
    RanksReport,
    RunFacts,
    gather_reports,
    make_report,
)
from dstream.loader.settings import LoaderSettings
from dstream.loader.signals import SignalStop, StopWaitingError, handled, state_writer
from dstream.loader.state import Identity, LoaderState, RankFacts, check_agreement
from dstream.loader.steps import Ranks, Step, count_steps
from dstream.measure import Snapshot

_NO_DATASET = (
    "a dstream loader is no dataset for torch's DataLoader, and needs none: it has threads of its "
    "own and gives whole batches. Iterate over it: `for batch in clips.loader(batch_size): ...`. "
    "Where one must be: `DataLoader(clips.iterable(batch_size), batch_size=None)`, or with a "
    "sampler of yours `DataLoader(clips, batch_size, collate_fn=dstream.collate)`"
)


class Loader:
    """Iterates over the batches of one rank.

    A ``for`` loop goes on where the last one stopped: after ``epochs`` whole epochs the loop
    ends, and the next loop delivers the epochs that follow. Leave the loop early and close the
    loader, or use it as a context manager, to stop its threads; a loader that is dropped does
    so by itself.

    Args:
        reader: makes clips.
        ranks: this rank's part of every step, and the batch size.
        settings: threads and limits.
        epochs: how many epochs a loop lasts; None for ever.
        clock: measures waiting.
        opened: the counters before the data set was opened; now by default.
        view: the frozen view that is read. Its token goes into the state, and rank 0 renews its
            pin while batches are made.
        arrange: makes another order, such as a mixture's, of that of all slots.

    Raises:
        InvalidInputError: there is no clip, sizes differ, or a setting cannot be used.
    """

    def __init__(
        self,
        reader: ClipReader,
        ranks: Ranks,
        settings: LoaderSettings,
        *,
        epochs: int | None = 1,
        clock: Clock | None = None,
        opened: Snapshot | None = None,
        view: FrozenView | None = None,
        arrange: Callable[[Order], Order] | None = None,
    ) -> None:
        if epochs is not None and epochs < 1:
            raise InvalidInputError(f"epochs must be at least 1, or None for ever, got {epochs}")
        self._reader = reader
        self.settings, self.ranks = settings, ranks
        """Threads and limits; which part of each step is made here."""
        order = order_of(reader, settings)
        self.order = order if arrange is None else arrange(order)
        """Which clip is at which position of the endless sequence."""
        self._epoch_size = settings.clips_per_epoch or self.order.total
        if ranks.batch_size > 1:
            counts = reader.source.slot_counts(reader.settings.window)
            check_all_same(reader.source.known_tracks(counts), reader.settings.pixels)
        self._epochs = epochs
        self._clock = clock or SystemClock()
        self._meter = reader.meter
        self._failures = FailureLog(
            settings.on_error, settings.max_failures, self._meter, settings.quarantine
        )
        self._tuner = Tuner(settings.fetchers, self._meter, self._clock)
        # One batch more than are in the making: the one that the consumer works on.
        buffers = settings.prefetch + 2
        self._arrays = ArrayMaker(settings.array, settings.device, slots=buffers, meter=self._meter)
        self._pool = BufferPool(buffers, self._arrays.allocate)
        self._identity = Identity.of(reader.source, reader.settings, self.order, self._epoch_size)
        self._view = view
        self._keeper: PinKeeper | None = None
        self._stop: SignalStop | None = None
        self._share = ALL_STEPS
        self._cursor = Cursor()
        self._restored = False
        next(self._ahead(), None)
        self._start = self._meter.snapshot()
        self._opened = opened or self._start
        self._began_s: float | None = None
        self._last_s = self._first_batch_s = 0.0
        self._pipeline: Pipeline | None = None
        self._stop_pipeline: weakref.finalize[..., Loader] | None = None

    @property
    def position(self) -> int:
        """How far the global order has been delivered: the same number on every rank."""
        return self._cursor.position

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The clips that were skipped, the first thousand of them."""
        return self._failures.failures

    def __len__(self) -> int:
        """Batches of a whole loop from the start of an epoch.

        Raises:
            TypeError: ``epochs=None`` never ends.
        """
        if self._epochs is None:
            raise TypeError("a loader with epochs=None has no length")
        return count_steps(0, self._epochs * self._epoch_size, self._epoch_size, self.ranks)

    def __iter__(self) -> Loader:
        if not self._restored and not self._cursor.finished and next(self._ahead(), None) is None:
            # The consumer counted its batches, and did not wait to be told that it was the last.
            self.close()
            self._cursor = self._cursor.at_loop_end(self._epoch_size, self._epochs)
        self._cursor = self._cursor.next_loop(self._epoch_size, self._share)
        return self

    def __next__(self) -> Batch:
        if self._cursor.finished:
            raise StopIteration
        if self._stop is not None and self._stop.is_due():
            self.close()
            raise StopIteration
        began_s = self._clock.monotonic_s()
        try:
            got = self._next_step()
        except StopWaitingError:
            self.close()
            raise StopIteration from None
        except BaseException:
            self.close()
            raise
        if got is None:
            self._cursor = self._cursor.at_loop_end(self._epoch_size, self._epochs)
            self.close()
            raise StopIteration
        batch, step = got
        self._restored = False
        self._cursor = self._cursor.after(step, self._share)
        self._last_s = self._clock.monotonic_s()
        if self._began_s is None:
            self._began_s = began_s
            self._first_batch_s = self._last_s - began_s
        if self._keeper is not None:
            self._keeper.warn()
        for component, count in self.order.origins(batch.slots).items():
            self._meter.event("component", component, count)
        self._meter.add("batches.delivered", 1)
        self._meter.add("clips.delivered", len(batch))
        self._meter.add("bytes.delivered", int(batch.video.nbytes))
        return batch

    def __getitem__(self, index: object) -> Batch:
        raise TypeError(_NO_DATASET)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(_NO_DATASET)

    def begin_at(self, epoch: int, share: Share = ALL_STEPS) -> None:
        """Put the loader to the beginning of an epoch, as if a loop had gone over each before.

        Args:
            epoch: counted from 0.
            share: which of the rank's steps this process makes: for workers of torch's DataLoader.
        """
        self.close()
        self._share = share
        self._cursor = Cursor.at_epoch(epoch, self._epoch_size, self.ranks, share)

    def batches_left(self) -> int:
        """Global steps from here to the end of the loop.

        Raises:
            TypeError: ``epochs=None`` never ends.
        """
        end = self._cursor.loop_end(self._epoch_size, self._epochs)
        if end is None:
            raise TypeError("a loader with epochs=None has no length")
        return max(0, count_steps(self._cursor.position, end, self._epoch_size, self.ranks))

    def state_dict(self) -> dict[str, object]:
        """Where this loader stands: a small JSON document, the same on every rank.

        It is that of the delivered batches: what is prefetched counts as not begun. Take it
        between batches, at any place: before the first, in any epoch, at the end of one.
        """
        token = None if self._view is None else self._view.token
        return LoaderState(self._cursor, self._identity, token, self._share).as_doc()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where ``state`` was taken: the next batch begins with the clip after its last.

        The number of ranks, the batch size, ``last``, threads and prefetch may be others. So may
        ``epochs``: it counts from the epoch in which the loop began that the state was taken in.

        Raises:
            InvalidInputError: it is no state, or one of other data, order, window or seed.
            FormatVersionError: a newer dstream wrote it.
        """
        found = LoaderState.from_doc(state)
        found.check(self._identity, self._share)
        self.close()
        self._cursor, self._restored = found.cursor, True

    @contextmanager
    def stopping_on_signals(
        self,
        *signals: int,
        state_path: str | os.PathLike[str] | None = None,
        every: int = 1,
        group: Any = None,
    ) -> Iterator[SignalStop]:
        """While this lasts, a signal ends the loop between two batches instead of the process.

        Where ``torch.distributed`` is initialised every rank enters, and a signal to any of them
        ends the loops of all at the same batch: before each batch they ask each other, on the
        CPU. The state is then that of the delivered batches, on every rank. The old handlers are
        back afterwards. A process that is alone does not wait for a batch that is still being
        made; in a group that batch comes first.

        Args:
            signals: ``SIGTERM`` by default.
            state_path: where the first rank writes the state, atomically, when the loop ends.
            every: ask only before every so many batches.
            group: torch's; all ranks by default.

        Returns:
            What tells whether the loop was ended (``stopped``), and by which signal.

        Raises:
            InvalidInputError: not in the main thread; or the ranks have unequal numbers of
                batches.
        """
        write = state_writer(state_path, self.ranks.rank, self.state_dict)
        stop = SignalStop(every, write, group)
        left = self._epoch_size % self.ranks.step_size
        if self.ranks.last == "short" and 0 < left < self.ranks.shares:
            raise InvalidInputError(
                f"last='short' leaves {left} clips for {self.ranks.shares} ranks: some have a "
                "batch less, and could not be asked before each; use last='wrap' or 'drop'"
            )
        with handled(stop, signals or (signal.SIGTERM,)):
            self._stop = stop
            try:
                yield stop
            finally:
                self._stop = None

    @property
    def facts(self) -> RankFacts:
        """What ranks compare with each other."""
        return RankFacts(self._identity, self._cursor, self.ranks)

    def check_ranks(self, group: Any = None) -> None:
        """Ask all ranks whether they deal out one sequence; every rank calls it.

        Compares data, order, window, position, batch size and ``last``, and that no rank is
        missing. Where no ``torch.distributed`` group is initialised, compare
        ``loader.state_dict()`` by other means: it is equal on all ranks.

        Args:
            group: torch's; all ranks by default.

        Raises:
            InvalidInputError: on every rank, naming what differs; or there is no group.
        """
        check_agreement(gathered(self.facts, "check_ranks()", group))

    @overload
    def report(self, gather: Literal[False] = False) -> LoaderReport: ...

    @overload
    def report(self, gather: Literal[True], group: Any = None) -> RanksReport: ...

    def report(self, gather: bool = False, group: Any = None) -> LoaderReport | RanksReport:
        """What was done and what it cost since this loader was made.

        Args:
            gather: of all ranks, through ``torch.distributed``: every rank calls it, and every
                rank gets all reports and which rank is the slowest.
            group: torch's; all ranks by default.

        Raises:
            InvalidInputError: ``gather`` without a group.
        """
        report = self._report()
        if not gather:
            return report
        return gather_reports(gathered(report, "report(gather=True)", group))

    def _report(self) -> LoaderReport:
        wall_s = 0.0 if self._began_s is None else self._last_s - self._began_s
        facts = RunFacts.of(self.settings, wall_s, self._first_batch_s, self._tuner.limit)
        now = self._meter.snapshot()
        return make_report(now.minus(self._start), now.minus(self._opened), facts)

    def close(self) -> None:
        """Stop the threads and give up what they were making. The next loop starts them again."""
        if self._stop_pipeline is not None:
            self._stop_pipeline.detach()
        if self._pipeline is not None:
            self._pipeline.close()
        self._pipeline = self._stop_pipeline = None
        if self._keeper is not None:
            self._keeper.close()
            self._keeper.warn()
            self._keeper = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ahead(self) -> Iterator[Step]:
        return self._cursor.ahead(
            self._epoch_size, self.order, self.ranks, self._epochs, self._share
        )

    def _next_step(self) -> tuple[Batch, Step] | None:
        pipeline, stop = self._running(), self._stop
        if stop is None:
            return pipeline.next()
        try:
            with stop.waiting():
                return pipeline.next()
        except StopWaitingError:
            stop.end()  # before threads are waited for: time may be short
            raise

    def _running(self) -> Pipeline:
        if self._pipeline is not None and self._pipeline.is_orphan:
            self.close()
        if self._pipeline is None:
            begin, workers = self._cursor.position, self._share.count
            reads = NodeReads.of(self.ranks, os.environ, self._epoch_size, begin, workers)
            self._reader.follow(self.order, reads)
            self._pipeline = Pipeline(
                self._reader,
                self.order,
                self._ahead(),
                reads.begin,
                self.settings,
                self._tuner,
                self._failures,
                self._arrays,
                self._pool,
                self._clock,
            )
            # The threads know the pipeline, not the loader: one that is dropped ends them.
            self._stop_pipeline = weakref.finalize(self, self._pipeline.stop)
            self._stop_pipeline.atexit = False
            self._pipeline.start()
            self._hold_pin()
        return self._pipeline

    def _hold_pin(self) -> None:
        """Renew the view's pin from now on, in one process of all."""
        if self._view is None or not self._view.pin_id or self.ranks.rank or self._share.number:
            return
        self._keeper = PinKeeper(self._view, self._meter)
        self._keeper.start()
        weakref.finalize(self, self._keeper.stop).atexit = False
