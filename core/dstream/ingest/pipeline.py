"""Many units at work at once, delivered in order, within a budget of local disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dstream.clock import Clock
from dstream.ingest.scan import Unit
from dstream.ingest.settings import Progress
from dstream.ingest.work import UnitWork


def run_units(
    units: Sequence[Unit],
    work: Callable[[Unit], UnitWork],
    deliver: Callable[[UnitWork], None],
    *,
    workers: int,
    budget_bytes: int | None,
) -> None:
    """Work on units in threads and deliver the results here, in the units' order.

    Args:
        units: what to do.
        work: called in worker threads.
        deliver: called in this thread; takes over the result.
        workers: threads.
        budget_bytes: most bytes of units at work or waiting; one unit alone may exceed it.
            None for no limit.

    Raises:
        whatever ``work`` or ``deliver`` raises first, in the units' order. What was not
        delivered is discarded.
    """
    waiting: deque[tuple[Unit, Future[UnitWork]]] = deque()
    upcoming = deque(units)
    at_work_bytes = 0
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="dstream-ingest") as pool:
        try:
            while upcoming or waiting:
                while upcoming and len(waiting) < 2 * workers:
                    size = upcoming[0].size_bytes
                    over = budget_bytes is not None and at_work_bytes + size > budget_bytes
                    if over and waiting:
                        break
                    unit = upcoming.popleft()
                    waiting.append((unit, pool.submit(work, unit)))
                    at_work_bytes += size
                unit, future = waiting.popleft()
                try:
                    deliver(future.result())
                finally:
                    at_work_bytes -= unit.size_bytes
        finally:
            for _, future in waiting:
                future.cancel()
            for _, future in waiting:
                if not future.cancelled() and future.exception() is None:
                    future.result().discard()


class ProgressMeter:
    """Turns finished units into :class:`Progress` with a rate and the time left."""

    def __init__(
        self,
        units: Sequence[Unit],
        clock: Clock,
        report: Callable[[Progress], None] | None,
        quarantined: int = 0,
    ) -> None:
        self._clock = clock
        self._report = report
        self._start_s = clock.monotonic_s()
        self._files_total = sum(len(unit.videos) for unit in units)
        self._bytes_total = sum(unit.size_bytes for unit in units)
        self._files = 0
        self._bytes = 0
        self._quarantined = quarantined
        self._tell()

    def finished(self, unit: Unit, quarantined: int) -> None:
        """Count one unit and report."""
        self._files += len(unit.videos)
        self._bytes += unit.size_bytes
        self._quarantined += quarantined
        self._tell()

    def _tell(self) -> None:
        if self._report is None:
            return
        elapsed_s = self._clock.monotonic_s() - self._start_s
        rate = self._bytes / elapsed_s if elapsed_s > 0 else 0.0
        left = self._bytes_total - self._bytes
        self._report(
            Progress(
                self._files,
                self._files_total,
                self._bytes,
                self._bytes_total,
                self._quarantined,
                elapsed_s,
                rate,
                left / rate if rate > 0 else None,
            )
        )
