"""Documents of benches that were never run, for the tests of what shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dstream.diagnose.bench.document import (
    BenchDocument,
    Cause,
    Cost,
    Histogram,
    Stage,
    StageRate,
    TimelinePoint,
    Verdict,
    Whole,
)
from dstream.loader.report import RunFacts, make_report
from dstream.measure import Meter, Purpose, RequestTotals
from dstream.measure.spans import EDGES_S


def _rate(name: Stage, clips_per_second: float | None, why_not: str = "") -> StageRate:
    known = clips_per_second is not None
    return StageRate(
        name=name, clips_per_second=clips_per_second, own_rate=2.5 if known else None,
        own_unit="MB/s", busy_share=0.5 if known else None, threads=2, why_not=why_not,
    )  # fmt: skip


def _report() -> dict[str, object]:
    meter = Meter()
    sums = {
        "clips.delivered": 80, "frames.delivered": 1280, "frames.decoded": 3840,
        "bytes.needed": 2_000_000, "bytes.gops": 3_000_000,
    }  # fmt: skip
    for name, amount in sums.items():
        meter.add(name, amount)
    meter.request("get", Purpose.DATA, "ok", RequestTotals(90, 4_000_000, 4_000_000, 1.0))
    meter.event("retry", "throttled", 7)
    counts = meter.snapshot()
    return make_report(counts, counts, RunFacts(10.0, 0.5, 4, 2, 2)).as_json()


def made_document(**changes: Any) -> BenchDocument:
    """A run of ten seconds that decoding held up, with some of its parts replaced."""
    point = TimelinePoint(
        start_s=0.0, clips=2, bytes=100_000, queue_ready_share=0.25, fetchers=16, wait_s=0.2
    )
    decode = [0] * (len(EDGES_S) + 1)
    decode[20:23] = [30, 40, 10]
    document = BenchDocument(
        target="s3://raw/videos",
        settings={"frames": 16, "batch_size": 2, "resize": None, "size": [128, 128]},
        versions={"dstream": "0.1.0", "torch": None},
        stages=(
            _rate(Stage.LIST, None, "a folder has no listing"),
            _rate(Stage.FETCH, 180.0),
            _rate(Stage.DECODE, 9.0),
            _rate(Stage.CONVERT, 70.0),
        ),
        whole=Whole(
            clips=80, clips_per_second=8.0, efficiency=8 / 9, stall_share=0.8, first_batch_s=0.5,
            wall_s=10.0, explained_share=0.98,
        ),
        verdict=Verdict(
            cause=Cause.DECODE_THREADS, sentence="Decoding sets the pace.", evidence="96% busy",
            setting="workers", new_value="8", expected_gain=2.5,
        ),
        timeline=tuple(replace(point, start_s=step / 4) for step in range(40)),
        latencies={"decode": Histogram(edges_s=EDGES_S, counts=tuple(decode))},
        cost=Cost(requests=90, bytes=4_000_000, dollars=0.000036),
        report=_report(),
    )  # fmt: skip
    return replace(document, **changes)
