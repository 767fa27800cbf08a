"""``dstream bench``: run a loader, measure its stages alone, and judge.

With several runs, the one of median rate is judged; of an even number the slower of the middle two.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from dstream.clock import Clock
from dstream.diagnose.bench.accounting import explained_share
from dstream.diagnose.bench.document import BenchDocument, Cost, Whole
from dstream.diagnose.bench.limits import Measured
from dstream.diagnose.bench.processes import usable_cores
from dstream.diagnose.bench.recording import Recording
from dstream.diagnose.bench.roofline import Roofline
from dstream.diagnose.bench.run import WholeRun, Wish, run_whole
from dstream.diagnose.bench.stages import Found, Setup, measured, stage_rates
from dstream.diagnose.bench.verdict import judge
from dstream.diagnose.bench.versions import versions
from dstream.diagnose.prices import Prices
from dstream.diagnose.s3_request import Kind
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
) -> tuple[BenchDocument, Recording]:
    """Measure a loader; besides what was found, gives what the judged run recorded.

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

    Raises:
        As opening, and as iterating over the loader.
    """
    importlib.import_module("dstream.api")  # which is no part of opening
    began_s = clock.monotonic_s()
    clips = open_clips()
    opening_s = clock.monotonic_s() - began_s
    opening_requests = clips.meter.snapshot().total().count
    runs: list[tuple[WholeRun, Loader, Recording]] = []
    for _ in range(wish.repeat):
        recording = Recording(clips.meter, clock, wish.max_spans)
        loader = clips.loader(batch_size, spans=recording.spans, **options)
        with recording.watching(loader):
            runs.append((run_whole(clips, loader, wish, clock, tell), loader, recording))
    ranked = sorted(runs, key=lambda run: run[0].clips_per_second)
    whole, loader, recording = ranked[(len(ranked) - 1) // 2]
    setup = Setup(
        slots=len(clips),
        batch_size=batch_size,
        settings=loader.settings,
        step_s=wish.step_s,
        cpus=max(1, int(usable_cores())),
        opening_s=opening_s,
        opening_requests=opening_requests,
    )
    found = Found(setup, whole)
    roofline = Roofline(clips, loader, found, clock)
    roofline.measure()
    run = roofline.what_if(measured(found))
    document = BenchDocument(
        target=target,
        settings={**settings, "alone_s": roofline.seconds},
        versions=versions(),
        stages=stage_rates(found),
        whole=_whole(whole, run),
        verdict=judge(run),
        timeline=recording.timeline(),
        latencies=recording.latencies(),
        repeats=tuple(run.clips_per_second for run, _, _ in runs),
        cost=_cost(whole.report, prices),
        report=whole.report.as_json(),
        skipped=tuple(asdict(failure) for failure in loader.failures),
    )
    return document, recording


def _whole(whole: WholeRun, run: Measured) -> Whole:
    return Whole(
        clips=whole.report.clips,
        clips_per_second=whole.clips_per_second,
        efficiency=whole.clips_per_second / run.slowest[1] if run.limits else None,
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
