"""The whole loader with a consumer of a given speed, and what its threads did meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dstream.clock import Clock
from dstream.diagnose.bench.accounting import ThreadTime, thread_times
from dstream.diagnose.bench.interruption import InterruptedRunError, Interruption
from dstream.errors import DstreamError
from dstream.loader.clips import Clips
from dstream.loader.loader import Loader
from dstream.loader.report import LoaderReport
from dstream.measure import Meter
from dstream.measure.laps import Laps


@dataclass(frozen=True, slots=True)
class Wish:
    """How long a run lasts, and what is done with its batches."""

    clips: int = 0
    """Stop after so many; 0: never."""
    seconds: float = 0.0
    """Stop after so long; 0: never."""
    step_s: float = 0.0
    """What the consumer takes for a batch."""
    repeat: int = 1
    """Run so often, each time with a new loader."""
    max_spans: int = 0
    """Keep so many spans of a run, for a trace."""


@dataclass(frozen=True, slots=True)
class WholeRun:
    """What one run did."""

    report: LoaderReport
    threads: tuple[ThreadTime, ThreadTime, ThreadTime]
    clips_per_second: float
    """See :func:`steady_pace`."""
    stall_share: float
    """Of the same time, that the consumer waited."""
    wall_s: float
    """From the first request for a batch to the end of the last step."""
    cpu_per_clip_s: float
    """See :func:`cpu_per_clip`."""
    error: DstreamError | None = None
    """What ended it early."""
    is_interrupted: bool = False
    """Somebody ended it early."""


@dataclass(frozen=True, slots=True)
class Moment:
    """How far a run was when a batch had been delivered."""

    at_s: float
    """Since the first request for a batch."""
    delivered: int
    decoded: int
    """Clips made, those that wait for their batches included."""
    waited_s: float
    cpu_s: float = 0.0
    """Of this process, until then."""


def steady_pace(first: Moment, last: Moment) -> tuple[float, float]:
    """Clips/s, and the share of the time that the consumer waited, after the first batch.

    What was decoded before that and delivered after it is a stock, and no pace. Of a single batch
    the whole time counts.

    >>> steady_pace(Moment(1.0, 8, 24, 1.0), Moment(3.0, 48, 64, 2.0))
    (20.0, 0.5)
    >>> steady_pace(Moment(1.0, 8, 64, 1.0), Moment(3.0, 48, 64, 2.0))
    (0.0, 0.5)
    >>> steady_pace(Moment(2.0, 8, 24, 1.0), Moment(2.0, 8, 24, 1.0))
    (4.0, 0.5)
    """
    if last == first:
        first = Moment(0.0, 0, last.decoded - last.delivered, 0.0)
    seconds = last.at_s - first.at_s
    if seconds <= 0:
        return 0.0, 0.0
    clips = min(last.delivered - first.delivered, last.decoded - first.decoded)
    waited_s = max(0.0, last.waited_s - first.waited_s)
    return max(0, clips) / seconds, min(1.0, waited_s / seconds)


def cpu_per_clip(first: Moment, last: Moment) -> float:
    """CPU seconds of this process for a clip that was decoded after the first batch; 0: unknown.

    What comes before is starting: threads, decoders and modules. Of a single batch all counts.

    >>> cpu_per_clip(Moment(1.0, 8, 24, 1.0, 2.0), Moment(3.0, 48, 64, 2.0, 6.0))
    0.1
    >>> cpu_per_clip(Moment(2.0, 8, 25, 1.0, 2.5), Moment(2.0, 8, 25, 1.0, 2.5))
    0.1
    """
    if last == first:
        first = Moment(0.0, 0, 0, 0.0)
    clips = last.decoded - first.decoded
    return (last.cpu_s - first.cpu_s) / clips if clips > 0 else 0.0


def run_whole(
    clips: Clips,
    loader: Loader,
    wish: Wish,
    clock: Clock,
    tell: Callable[[int], None],
    interruption: Interruption,
) -> WholeRun:
    """Take batches until there were enough clips or the time is up, the loader fails, or somebody
    interrupts; it is closed then.

    Args:
        clips: what the loader delivers.
        loader: not begun.
        wish: when to stop.
        clock: measures, and takes the consumer's steps.
        tell: hears how many clips there were, after each batch.
        interruption: ends it early.
    """
    before, began_cpu_s = clips.meter.snapshot(), time.process_time()
    began_s = ended_s = clock.monotonic_s()
    first = last = Moment(0.0, 0, 0, 0.0)
    own = Meter()
    error: DstreamError | None = None
    is_interrupted = False
    laps = Laps(own, clock)
    with loader:
        try:
            with interruption.breaking():
                for batch in loader:
                    laps.end("loader")
                    sums = clips.meter.snapshot().minus(before).sums
                    last = Moment(
                        clock.monotonic_s() - began_s,
                        last.delivered + len(batch),
                        int(sums.get("clips.decoded", 0)),
                        sums.get("seconds.wait", 0.0),
                        time.process_time() - began_cpu_s,
                    )
                    first = first if first.delivered else last
                    tell(last.delivered)
                    laps.end("notes")
                    if wish.step_s:
                        clock.sleep(wish.step_s)
                    laps.end("step")
                    # As the next turn of a loop would. torch frees a tensor without the
                    # interpreter's lock (THPVariable_clear in python_variable.cpp), and has to get
                    # that back.
                    del batch
                    ended_s = laps.end("release")
                    if wish.clips and last.delivered >= wish.clips:
                        break
                    if wish.seconds and ended_s - began_s >= wish.seconds:
                        break
        except InterruptedRunError:
            # Up to the last batch: an unfinished wait or step is in no count.
            is_interrupted, ended_s = True, max(ended_s, began_s + last.at_s)
        except DstreamError as failed:
            error, ended_s = failed, clock.monotonic_s()
        report = loader.report()
    # Threads that were left in a wait have come home: now all of their time is counted.
    sums = clips.meter.snapshot().minus(before).sums
    clips_per_second, stall_share = steady_pace(first, last)
    return WholeRun(
        report=report,
        threads=thread_times(sums, ended_s - began_s, own.snapshot().sums),
        clips_per_second=clips_per_second,
        stall_share=stall_share,
        wall_s=ended_s - began_s,
        cpu_per_clip_s=cpu_per_clip(first, last),
        error=error,
        is_interrupted=is_interrupted,
    )
