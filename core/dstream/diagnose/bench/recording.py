"""What a measured run records beside the loader's counters: latencies, a timeline, the spans."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from dstream.clock import Clock
from dstream.diagnose.bench.document import Histogram, TimelinePoint
from dstream.loader import Loader
from dstream.measure import Meter, Purpose, Snapshot
from dstream.measure.spans import EDGES_S, SpanRecorder

_STEP_S = 0.25
_MOST_STEPS = 160
"""Longer runs have longer steps."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of a run at one moment, since its beginning."""

    at_s: float
    clips: int = 0
    bytes: int = 0
    looks: int = 0
    """Times that the consumer came for a batch."""
    ready: int = 0
    """Batches that were ready, summed over them."""
    wait_s: float = 0.0
    fetchers: int = 0


def reading_of(counts: Snapshot, at_s: float, fetchers: int) -> Reading:
    """One moment of a run, from what was counted since its beginning."""
    sums = counts.sums
    return Reading(
        at_s,
        int(sums.get("clips.delivered", 0)),
        counts.total(purpose=Purpose.DATA).bytes_received,
        int(sums.get("queue.looks", 0)),
        int(sums.get("queue.ready", 0)),
        sums.get("seconds.wait", 0.0),
        fetchers,
    )


def thinned(readings: Sequence[Reading]) -> list[Reading]:
    """Every second one, the first included: steps of twice the length."""
    return list(readings[::2])


def points(readings: Sequence[Reading], prefetch: int) -> tuple[TimelinePoint, ...]:
    """What happened between each reading and the next.

    A wait is counted when it is over; one longer than its step began in those before, and is
    spread over them. Ready batches are known when the consumer comes; until it comes again they
    count as before.

    Args:
        readings: rising in time.
        prefetch: batches that may be ready.
    """
    found, share = [], 0.0
    for before, after in pairwise(readings):
        looks = after.looks - before.looks
        if looks:
            share = (after.ready - before.ready) / (looks * prefetch)
        found.append(
            TimelinePoint(
                start_s=before.at_s,
                clips=after.clips - before.clips,
                bytes=after.bytes - before.bytes,
                queue_ready_share=share,
                fetchers=after.fetchers,
                wait_s=after.wait_s - before.wait_s,
            )
        )
    over_s = 0.0
    for place in reversed(range(len(found))):
        wait_s = found[place].wait_s + over_s
        fits_s = min(wait_s, readings[place + 1].at_s - readings[place].at_s)
        found[place], over_s = replace(found[place], wait_s=fits_s), wait_s - fits_s
    return tuple(found)


def mean_fetchers(readings: Sequence[Reading]) -> int:
    """Clips that might be fetched at the same time, on average over the time, rounded up.

    Of each step the larger number counts, so that as many threads alone can do what the run did.
    Fetching is a concave function of their number: it gains nothing by varying it.

    >>> mean_fetchers([Reading(0.0, fetchers=16), Reading(3.0, fetchers=16), Reading(4.0)])
    16
    >>> mean_fetchers([Reading(0.0, fetchers=16), Reading(1.0, fetchers=2), Reading(4.0)])
    6
    """
    steps = [(b.at_s - a.at_s, max(a.fetchers, b.fetchers)) for a, b in pairwise(readings)]
    total_s = sum(lasted_s for lasted_s, _ in steps)
    if total_s <= 0:
        return max(1, *(reading.fetchers for reading in readings))
    mean = sum(lasted_s * fetchers for lasted_s, fetchers in steps) / total_s
    return max(1, math.ceil(mean - 1e-9))


def merged(points: Sequence[TimelinePoint], batches: int = 4) -> tuple[TimelinePoint, ...]:
    """Longer steps, of about so many batches each: of single ones a rate is a comb, no curve."""
    batch = min((point.clips for point in points if point.clips), default=0)
    together = 1
    while together * 8 <= len(points) and (
        sum(point.clips for point in points) * together < batches * batch * len(points)
    ):
        together += 1
    starts = range(0, len(points), together)
    return tuple(_joined(points[start : start + together]) for start in starts)


def _joined(points: Sequence[TimelinePoint]) -> TimelinePoint:
    return TimelinePoint(
        start_s=points[0].start_s,
        clips=sum(point.clips for point in points),
        bytes=sum(point.bytes for point in points),
        queue_ready_share=sum(point.queue_ready_share for point in points) / len(points),
        fetchers=points[-1].fetchers,
        wait_s=sum(point.wait_s for point in points),
    )


class Recording:
    """Records one run of a loader that was given :attr:`spans`.

    Args:
        meter: the loader's.
        clock: the loader's.
        max_spans: how many spans are kept, for a trace.
    """

    def __init__(self, meter: Meter, clock: Clock, max_spans: int = 0) -> None:
        self._meter, self._clock, self._prefetch = meter, clock, 1
        self.spans = SpanRecorder(max_spans)
        """For the loader."""
        self._step_s = _STEP_S
        self._readings: list[Reading] = []

    @contextmanager
    def watching(self, loader: Loader) -> Iterator[None]:
        """Take readings while the body takes batches."""
        self._prefetch = loader.settings.prefetch
        began, began_s = self._meter.snapshot(), self._clock.monotonic_s()

        def read() -> None:
            counts, at_s = self._meter.snapshot().minus(began), self._clock.monotonic_s() - began_s
            self._readings.append(reading_of(counts, at_s, loader.report().fetchers))
            if len(self._readings) > _MOST_STEPS:
                self._readings = thinned(self._readings)
                self._step_s *= 2

        over = threading.Event()

        def watch() -> None:
            while not over.wait(self._step_s):
                read()

        read()
        thread = threading.Thread(target=watch, name="dstream-timeline", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            if len(self._readings) > 2 and self._ends_early(began_s):
                self._readings.pop()  # rates over a short step are noise
            read()

    def _ends_early(self, began_s: float) -> bool:
        since_s = self._clock.monotonic_s() - began_s - self._readings[-1].at_s
        return since_s < self._step_s / 2

    def timeline(self) -> tuple[TimelinePoint, ...]:
        """The run in steps of equal length, the last one apart."""
        return points(self._readings, self._prefetch)

    def fetchers(self) -> int:
        """As :func:`mean_fetchers` has it."""
        return mean_fetchers(self._readings)

    def latencies(self) -> dict[str, Histogram]:
        """How long each stage took, by its name."""
        return {
            str(stage): Histogram(edges_s=EDGES_S, counts=counts)
            for stage, counts in self.spans.counts().items()
        }
