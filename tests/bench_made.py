"""A bench document with every part filled in, for tests of what reads one."""

from __future__ import annotations

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


def made_stage(
    name: Stage,
    clips_per_second: float | None,
    own_rate: float | None = None,
    own_unit: str = "clips/s",
    busy_share: float | None = 0.5,
) -> StageRate:
    return StageRate(
        name=name,
        clips_per_second=clips_per_second,
        own_rate=clips_per_second if own_rate is None else own_rate,
        own_unit=own_unit,
        busy_share=busy_share,
        threads=2,
        why_not="no GPU" if clips_per_second is None else "",
    )


def made_document(clips_per_second: float = 40.0) -> BenchDocument:
    return BenchDocument(
        target="gameplay@v3",
        settings={"frames": 16, "batch_size": 8, "step_ms": 0.0},
        versions={"dstream": "0.1.0", "python": "3.11.9", "av": "18.1", "torch": None, "cpus": 2},
        stages=(
            made_stage(Stage.FETCH, 50.0, own_rate=60.0, own_unit="MB/s"),
            made_stage(Stage.DECODE, 200.0),
            made_stage(Stage.COPY, None),
        ),
        whole=Whole(
            clips=400,
            clips_per_second=clips_per_second,
            efficiency=clips_per_second / 50,
            stall_share=0.9,
            first_batch_s=0.4,
            wall_s=10.0,
            explained_share=0.99,
        ),
        verdict=Verdict(
            cause=Cause.BANDWIDTH,
            sentence="The link to the store sets the pace.",
            evidence="60 MB/s of 62 MB/s",
            setting=None,
            new_value=None,
            expected_gain=1.5,
        ),
        timeline=tuple(
            TimelinePoint(
                start_s=0.5 * step,
                clips=20,
                bytes=24_000_000,
                queue_ready_share=0.5,
                fetchers=8,
                wait_s=0.45,
            )
            for step in range(20)
        ),
        latencies={
            "fetch": Histogram(edges_s=(0.01, 0.1), counts=(3, 390, 7)),
            "decode": Histogram(edges_s=(0.01, 0.1), counts=(380, 20, 0)),
        },
        repeats=(clips_per_second * 0.99, clips_per_second * 1.01),
        cost=Cost(requests=400, bytes=480_000_000, dollars=0.00016),
        report={"clips": 400},
    )
