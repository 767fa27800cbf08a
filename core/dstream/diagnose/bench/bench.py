"""``dstream bench``: run a loader, measure its stages alone, and judge.

With several runs, the one of median rate is judged.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from dstream.clock import Clock
from dstream.diagnose.bench.accounting import explained_share
from dstream.diagnose.bench.document import (
    BenchDocument,
    Cost,
    Stage,
    Whole,
    of_median_rate,
)
from dstream.diagnose.bench.interruption import InterruptedRunError, Interruption
from dstream.diagnose.bench.processes import usable_cores
from dstream.diagnose.bench.recording import Recording
from dstream.diagnose.bench.roofline import Roofline
from dstream.diagnose.bench.run import WholeRun, Wish, run_whole
from dstream.diagnose.bench.stages import Found, Setup, measured, stage_rates
from dstream.diagnose.bench.verdict import failed, interrupted, judge
from dstream.diagnose.bench.versions import versions
from dstream.diagnose.prices import Prices
from dstream.diagnose.s3_request import Kind
from dstream.errors import DstreamError
from dstream.loader.clips import Clips
from dstream.loader.loader import Loader
from dstream.loader.report import LoaderReport


def bench(
    open_clips: Callable[[], Clips],
    target: str,
    batch_size: int,
    options: Mapping[str, Any],
    wish: Wish,
    settings: Mapping[str, Any],
    prices: Prices,
    clock: Clock,
    tell: Callable[[int], None],
    interruption: Interruption,
) -> tuple[BenchDocument, Recording, DstreamError | None]:
    """Measure a loader.

    Gives what was found, what the judged run recorded, and the error that ended it early, if one
    did: then no stage is measured alone, and there are no more runs.

    Args:
        open_clips: opens the data; its time counts as listing.
        target: what people call the data.
        batch_size: clips in a batch.
        options: more of :meth:`Clips.loader`.
        wish: how long, and with which consumer.
        settings: what the document is to tell about the run.
        prices: of its requests and bytes.
        clock: measures, and takes the consumer's steps.
        tell: hears how many clips there were, after each batch.
        interruption: ends it early, with what was measured until then: whole runs, if there are.

    Raises:
        As opening; and as iterating over the loader, before anything was delivered or skipped.
        KeyboardInterrupt: it was interrupted before that.
    """
    importlib.import_module("dstream.api")  # which is no part of opening
    began_s = clock.monotonic_s()
    with interruption.breaking():
        clips = open_clips()
    opening_s = clock.monotonic_s() - began_s
    opening_requests = clips.meter.snapshot().total().count
    runs = _runs(clips, batch_size, options, wish, clock, tell, interruption)
    error, begun = runs[-1][0].error, len(runs)
    cut_off = f"in run {begun} of {wish.repeat}" if runs[-1][0].is_interrupted else ""
    runs = [run for run in runs if not run[0].is_interrupted] or runs
    typical = of_median_rate(runs, lambda run: run[0].clips_per_second)
    whole, loader, recording = typical if error is None else runs[-1]
    setup = Setup(
        slots=len(clips),
        batch_size=batch_size,
        settings=loader.settings,
        step_s=wish.step_s,
        cpus=usable_cores(),
        opening_s=opening_s,
        opening_requests=opening_requests,
    )
    found = Found(setup, whole, recording.fetchers())
    alone_s = slowest = None
    if error is None:
        roofline = Roofline(clips, loader, found, clock, interruption)
        roofline.measure()
        run = roofline.what_if(measured(found))
        verdict, alone_s = judge(run), roofline.seconds if found.paces else None
        slowest = run.slowest[1] if run.limits else None
    else:
        found.why_not.update(dict.fromkeys(Stage, "the run failed"))
        verdict = failed(whole.report.clips, error)
    told = dict[str, Any]()
    if interruption.came and error is None:
        between = f"after run {begun} of {wish.repeat}" if begun < wish.repeat else ""
        where = cut_off or between or "while the stages were measured alone"
        verdict, slowest, told = interrupted(where), None, {"interrupted": where}
    engines = {} if found.engines is None else {"nvdec_alone": found.engines.told}
    document = BenchDocument(
        target=target,
        settings={**settings, "alone_s": alone_s, **engines, **told},
        versions=versions(),
        stages=stage_rates(found),
        whole=_whole(whole, slowest),
        verdict=verdict,
        timeline=recording.timeline(),
        latencies=recording.latencies(),
        repeats=tuple(run.clips_per_second for run, _, _ in runs),
        cost=_cost(whole.report, prices),
        report=whole.report.as_json(),
        skipped=tuple(asdict(failure) for failure in loader.failures),
        dropped_spans=recording.spans.dropped if wish.max_spans else 0,
    )
    return document, recording, error


def _runs(
    clips: Clips,
    batch_size: int,
    options: Mapping[str, Any],
    wish: Wish,
    clock: Clock,
    tell: Callable[[int], None],
    interruption: Interruption,
) -> list[tuple[WholeRun, Loader, Recording]]:
    """One after the other, until one fails or somebody interrupts. Raises as :func:`bench`."""
    runs: list[tuple[WholeRun, Loader, Recording]] = []
    while len(runs) < wish.repeat:
        recording = Recording(clips.meter, clock, wish.max_spans)
        loader = clips.loader(batch_size, spans=recording.spans, **options)
        with recording.watching(loader):
            run = run_whole(clips, loader, wish, clock, tell, interruption)
        runs.append((run, loader, recording))
        if run.error is not None or interruption.came:
            break
    if not any(run.report.clips or run.report.skips for run, _, _ in runs):
        if run.error is not None:
            raise run.error
        if interruption.came:
            raise InterruptedRunError
    return runs


def _whole(whole: WholeRun, slowest: float | None) -> Whole:
    return Whole(
        clips=whole.report.clips,
        clips_per_second=whole.clips_per_second,
        efficiency=None if slowest is None else whole.clips_per_second / slowest,
        stall_share=whole.stall_share,
        first_batch_s=whole.report.first_batch_seconds,
        wall_s=whole.wall_s,
        explained_share=explained_share(whole.threads),
    )


def _cost(report: LoaderReport, prices: Prices) -> Cost:
    gets = (
        report.data_requests + report.side_requests + report.table_requests + report.index_requests
    )
    received = report.bytes_received + report.side_bytes + report.table_bytes + report.index_bytes
    dollars = prices.dollars({Kind.GET: gets, Kind.LIST: report.listing_requests}, received)
    requests = gets + report.listing_requests
    return Cost(requests=requests, bytes=received, dollars=dollars, prices=prices)
