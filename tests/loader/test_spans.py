"""What measuring hears of a run: each stage of each clip once, in agreement with the counters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dstream
from dstream.measure.spans import EDGES_S, ClipId, Span, SpanRecorder, SpanStage
from dstream.store.opening import open_store
from loader_data import fill, new_url, videos

ALONE = {SpanStage.PLAN, SpanStage.FETCH, SpanStage.DECODE, SpanStage.CONVERT}
OF_A_BATCH = {SpanStage.WAIT, SpanStage.COLLATE}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = new_url()
    fill(open_store(url), videos(tmp_path_factory.mktemp("spans"), 3))
    return url


def run(source: str, batches: int = 6, more: Any = None, **options: Any) -> tuple[Any, ...]:
    """The spans of a run, the delivered (position, slot, key), and the report."""
    recorder = SpanRecorder(max_spans=10_000)
    clips = dstream.clips(
        source, frames=8, clips_per_file=6, array="numpy", resize=(32, 32), **more or {}
    )
    delivered: list[ClipId] = []
    with clips.loader(4, epochs=None, workers=2, fetchers=3, spans=recorder, **options) as loader:
        for _ in range(batches):
            batch = next(loader)
            delivered += map(ClipId, batch.positions.tolist(), batch.slots.tolist(), batch.keys)
    assert recorder.dropped == 0
    return recorder.spans, delivered, loader.report()


def stages_of(spans: list[Span], clip: ClipId) -> Counter[SpanStage]:
    return Counter(span.stage for span in spans if clip in span.clips)


def test_each_stage_of_each_delivered_clip_once(source: str) -> None:
    spans, delivered, _ = run(source)
    assert len(delivered) == 24
    for clip in delivered:
        assert stages_of(spans, clip) == dict.fromkeys(ALONE | OF_A_BATCH, 1)
    alone = [span for span in spans if span.stage in ALONE]
    assert all(len(span.clips) == 1 for span in alone)
    assert max(Counter((span.stage, span.clips) for span in alone).values()) == 1


def test_the_cache_is_a_part_of_fetching(source: str, tmp_path: Path) -> None:
    more = {"cache": tmp_path / "cache", "cache_bytes": 10**9}
    spans, delivered, report = run(source, more=more)
    assert report.cache_hits
    assert report.cache_misses
    for clip in delivered:
        assert stages_of(spans, clip) == dict.fromkeys(ALONE | OF_A_BATCH | {SpanStage.CACHE}, 1)
        fetch, cache = (
            next(span for span in spans if span.stage is stage and clip in span.clips)
            for stage in (SpanStage.FETCH, SpanStage.CACHE)
        )
        assert fetch.start_s <= cache.start_s <= cache.end_s <= fetch.end_s


def test_a_group_has_one_span_with_all_its_clips(source: str) -> None:
    spans, delivered, report = run(source, clips_per_gop=3)
    assert not report.fallbacks
    for clip in delivered:
        assert stages_of(spans, clip) == dict.fromkeys(ALONE | OF_A_BATCH, 1)
    groups = [span.clips for span in spans if span.stage is SpanStage.DECODE]
    assert max(map(len, groups)) == 3
    assert {len({clip.sample for clip in clips}) for clips in groups} == {1}


def test_a_thread_does_one_thing_at_a_time(source: str) -> None:
    spans, _, _ = run(source)
    threads = {span.thread for span in spans}
    assert {name.rstrip("-0123456789") for name in threads} == {
        "dstream-fetch", "dstream-decode", "MainThread",
    }  # fmt: skip
    for thread in threads:
        ended_s = 0.0
        for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
            if span.thread == thread and span.stage is not SpanStage.CONVERT:
                assert span.start_s >= ended_s
                ended_s = span.end_s


def test_spans_add_up_to_the_counters(source: str) -> None:
    spans, _, report = run(source)

    def total(*stages: SpanStage) -> float:
        return float(sum(span.end_s - span.start_s for span in spans if span.stage in stages))

    fetched_s = total(SpanStage.PLAN, SpanStage.FETCH)
    assert report.fetch_busy_seconds == pytest.approx(fetched_s, rel=1e-6)
    assert report.wait_seconds == pytest.approx(total(SpanStage.WAIT), rel=1e-6)
    assert total(SpanStage.CONVERT) < total(SpanStage.DECODE) <= report.decode_busy_seconds


def test_a_clip_that_failed_has_no_span_of_its_failure(tmp_path: Path) -> None:
    url = new_url()
    files = videos(tmp_path, 3)
    media = files["v01.mp4"].index(b"mdat") + 4
    files["v01.mp4"] = files["v01.mp4"][:media] + bytes(len(files["v01.mp4"]) - media)
    fill(open_store(url), files)
    spans, delivered, report = run(url, on_error="skip")
    assert report.skips
    for clip in delivered:
        assert stages_of(spans, clip) == dict.fromkeys(ALONE | OF_A_BATCH, 1)
    decoded = {
        clip.sample for span in spans if span.stage is SpanStage.DECODE for clip in span.clips
    }
    assert "v01" not in " ".join(decoded)


def test_memory_is_bounded_and_drops_are_counted() -> None:
    recorder, clip = SpanRecorder(max_spans=2), (ClipId(0, 0, "a"),)
    for start_s in range(5):
        recorder.span(SpanStage.PLAN, start_s, start_s + 0.5, clip)
    assert [span.start_s for span in recorder.spans] == [0, 1]
    assert recorder.dropped == 3
    assert sum(recorder.counts()[SpanStage.PLAN]) == 5


@pytest.mark.parametrize(
    ("took_s", "place"),
    [(0.0, 0), (EDGES_S[0], 1), (EDGES_S[3], 4), (EDGES_S[-1], len(EDGES_S)), (1e9, len(EDGES_S))],
)
def test_a_duration_is_in_the_bin_that_begins_with_it(took_s: float, place: int) -> None:
    recorder = SpanRecorder()
    recorder.span(SpanStage.WAIT, 0.0, took_s, ())
    assert list(recorder.counts()) == [SpanStage.WAIT]
    assert recorder.counts()[SpanStage.WAIT][place] == 1
