"""The whole loader with a consumer of a given speed, and what its threads did meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dstream.clock import Clock
from dstream.diagnose.bench.accounting import ThreadTime, thread_times
from dstream.loader.clips import Clips
from dstream.loader.loader import Loader
from dstream.loader.report import LoaderReport


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
    """After the first batch, where there is a second."""
    stall_share: float
    """Of the same time, that the consumer waited."""
    wall_s: float
    """From the first request for a batch to the end of the last step."""
    cpu_s: float
    """Of this process in it."""


def run_whole(
    clips: Clips, loader: Loader, wish: Wish, clock: Clock, tell: Callable[[int], None]
) -> WholeRun:
    """Take batches until there were enough clips or the time is up; the loader is closed then.

    Args:
        clips: what the loader delivers.
        loader: not begun.
        wish: when to stop.
        clock: measures, and takes the consumer's steps.
        tell: hears how many clips there were, after each batch.
    """
    before, cpu_s = clips.meter.snapshot(), time.process_time()
    taken = first_clips = 0
    step_s = first_wait_s = 0.0
    began_s = first_s = last_s = ended_s = clock.monotonic_s()
    with loader:
        for batch in loader:
            last_s = clock.monotonic_s()
            if not taken:
                first_clips, first_s, first_wait_s = len(batch), last_s, last_s - began_s
            taken += len(batch)
            tell(taken)
            resumed_s = clock.monotonic_s()
            if wish.step_s:
                clock.sleep(wish.step_s)
            ended_s = clock.monotonic_s()
            step_s += ended_s - resumed_s
            if wish.clips and taken >= wish.clips:
                break
            if wish.seconds and ended_s - began_s >= wish.seconds:
                break
        cpu_s = time.process_time() - cpu_s
        report = loader.report()
    # Threads that were left in a wait have come home: now all of their time is counted.
    sums = clips.meter.snapshot().minus(before).sums
    steady_s, steady_clips = last_s - first_s, taken - first_clips
    if not steady_clips:
        steady_s, steady_clips, first_wait_s = last_s - began_s, taken, 0.0
    return WholeRun(
        report,
        thread_times(sums, ended_s - began_s, step_s),
        steady_clips / steady_s if steady_s > 0 else 0.0,
        max(0.0, report.wait_seconds - first_wait_s) / steady_s if steady_s > 0 else 0.0,
        ended_s - began_s,
        cpu_s,
    )
