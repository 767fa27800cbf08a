"""What a run records: steps of time that add up to the counters, however long it lasts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dstream
from dstream.clock import SystemClock
from dstream.diagnose.bench.document import TimelinePoint
from dstream.diagnose.bench.recording import Reading, Recording, merged, points, reading_of, thinned
from dstream.measure import Meter, Purpose, RequestTotals
from dstream.store.opening import open_store
from loader_data import fill, new_url, videos

POINT = TimelinePoint(start_s=0.0, clips=0, bytes=0, queue_ready_share=0.5, fetchers=4, wait_s=0.0)


def test_a_step_is_the_difference_of_two_readings() -> None:
    readings = [
        Reading(0.0, fetchers=16),
        Reading(1.0, clips=8, bytes=100, looks=4, ready=2, wait_s=0.5, fetchers=16),
        Reading(2.0, clips=24, bytes=100, looks=4, ready=2, wait_s=0.5, fetchers=24),
    ]
    assert points(readings, prefetch=2) == (
        TimelinePoint(
            start_s=0.0, clips=8, bytes=100, queue_ready_share=0.25, fetchers=16, wait_s=0.5
        ),
        # Nobody came to look.
        TimelinePoint(
            start_s=1.0, clips=16, bytes=0, queue_ready_share=0.25, fetchers=24, wait_s=0.0
        ),
    )


def test_a_long_wait_is_spread_over_the_steps_that_it_lasted() -> None:
    readings = [Reading(float(at_s), wait_s=2.5 if at_s == 4 else 0.0) for at_s in range(5)]
    assert [point.wait_s for point in points(readings, 1)] == [0.0, 0.5, 1.0, 1.0]


amounts = st.lists(st.integers(0, 1000), min_size=1, max_size=30)


@given(amounts)
def test_no_clip_is_lost_by_thinning_or_merging(clips: list[int]) -> None:
    totals = [sum(clips[:place]) for place in range(len(clips) + 1)]
    readings = [Reading(float(at_s), clips=total) for at_s, total in enumerate(totals)]
    made = points(readings, 1)
    assert sum(point.clips for point in made) == sum(clips)
    assert sum(point.clips for point in merged(made)) == sum(clips)
    assert merged(made)[0].start_s == 0
    thin = points([*thinned(readings), readings[-1]], 1)
    assert sum(point.clips for point in thin) == sum(clips)


def test_steps_of_many_batches_stay_and_those_of_few_are_joined() -> None:
    busy = tuple(replace(POINT, start_s=step / 4, clips=8 + 8 * (step % 9)) for step in range(40))
    assert merged(busy) == busy
    slow = tuple(
        replace(POINT, start_s=step / 4, clips=8 * (step % 2), wait_s=0.1) for step in range(80)
    )
    joined = merged(slow)
    assert len(joined) == 10
    assert {point.clips for point in joined} == {32}
    assert joined[1].start_s == 2.0
    assert joined[1].wait_s == pytest.approx(0.8)


def test_readings_count_media_bytes_alone() -> None:
    meter = Meter()
    meter.request("get", Purpose.DATA, "ok", RequestTotals(1, 10, 10, 0.1))
    meter.request("get", Purpose.TABLE, "ok", RequestTotals(1, 99, 99, 0.1))
    meter.add("clips.delivered", 8)
    assert reading_of(meter.snapshot(), 2.0, 16) == Reading(2.0, clips=8, bytes=10, fetchers=16)


def test_a_run_adds_up_to_its_report(tmp_path: Path) -> None:
    url, clock = new_url(), SystemClock()
    fill(open_store(url), videos(tmp_path, 2))
    clips = dstream.clips(url, frames=8, clips_per_file=6, array="numpy", resize=(32, 32))
    recording = Recording(clips.meter, clock)
    loader = clips.loader(4, epochs=None, workers=1, spans=recording.spans)
    with loader, recording.watching(loader):
        for _ in range(20):
            next(loader)
            clock.sleep(0.04)
    report, timeline = loader.report(), recording.timeline()
    assert len(timeline) > 1
    assert sum(point.clips for point in timeline) == report.clips == 80
    assert sum(point.bytes for point in timeline) == report.bytes_received
    assert sum(point.wait_s for point in timeline) == pytest.approx(report.wait_seconds)
    counts = {name: sum(found.counts) for name, found in recording.latencies().items()}
    assert counts["wait"] == counts["collate"] == 20
    assert counts["decode"] == counts["convert"] == report.clips_decoded
    assert recording.spans.spans == []
