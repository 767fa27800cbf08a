"""The files that ``dstream bench`` writes: a page and a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli_runner import dstream
from dstream.diagnose.bench.document import BenchDocument
from dstream_cli import bench_outputs
from made_video import make_video

QUICK = ["--clips", "12", "--frames", "4", "--batch-size", "2", "--resize", "32x32"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    make_video(folder / "a<b>.mp4", frames=48, gop=12, size=(64, 48))
    return folder


def slices(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text())
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def test_bench_writes_a_page_and_a_trace_of_its_run(source: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    ran = dstream("bench", source, *QUICK, "--html", page, "--trace", trace)
    assert ran.code == 0
    assert f"the report is in {page}" in ran.err
    assert f"the trace of {len(slices(trace)):,} spans is in {trace}" in ran.err
    html = page.read_text()
    assert ran.out.split(":")[0].replace("\n", " ") in html
    assert "Clips a second" in html
    assert "a<b>" not in html
    assert {"plan", "fetch", "decode", "convert", "wait", "collate"} == {
        event["name"] for event in slices(trace)
    }
    waits = [event["args"]["positions"] for event in slices(trace) if event["name"] == "wait"]
    assert waits == [[place, place + 1] for place in range(0, 12, 2)]
    first = next(event for event in slices(trace) if event["name"] == "decode")
    assert first["args"]["samples"] == ["a<b>.mp4"]


def test_bench_says_what_a_trace_lacks(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_outputs, "_MAX_SPANS", 10)
    trace = tmp_path / "trace.json"
    ran = dstream("bench", source, *QUICK, "--trace", trace)
    dropped = json.loads(trace.read_text())["otherData"]["dropped_spans"]
    assert len(slices(trace)) == 10
    assert dropped > 20
    assert f"; {dropped} later ones were dropped" in ran.err
    ran = dstream("bench", source, *QUICK, "--trace", trace, "--json", "--quiet")
    dropped = json.loads(trace.read_text())["otherData"]["dropped_spans"]
    assert BenchDocument.parse(ran.out).dropped_spans == dropped > 20
    assert ran.err == ""


def test_bench_records_a_timeline_and_latencies_and_takes_prices(source: Path) -> None:
    document = BenchDocument.parse(
        dstream("bench", source, *QUICK, "--json", "--egress-price", 100).out
    )
    assert document.cost is not None
    assert document.cost.dollars > document.cost.bytes / 1e7
    assert document.cost.prices.egress_per_gb == 100
    assert sum(point.clips for point in document.timeline) == 12
    assert document.dropped_spans == 0
    assert sum(document.latencies["wait"].counts) == 6
    assert sum(document.latencies["decode"].counts) >= 12


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_bench_finds_out_early_that_a_file_cannot_be_written(
    source: Path, tmp_path: Path, option: str
) -> None:
    ran = dstream("bench", source, *QUICK, option, tmp_path / "none" / "file")
    assert ran.code == 2
    assert f"{option} " in ran.err
    assert "No such file or directory" in ran.err
    assert ran.out == ""
    assert list(tmp_path.iterdir()) == []
    assert dstream("bench", "--compare", "a.json", "b.json", option, tmp_path / "file").code == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_disk_that_fills_up_costs_the_file_and_not_the_result(source: Path, option: str) -> None:
    ran = dstream("bench", source, *QUICK, "--json", option, "/dev/full")
    assert ran.code == 1
    assert BenchDocument.parse(ran.out).whole.clips == 12
    assert f"{option} /dev/full: No space left on device" in ran.err


def test_a_run_that_fails_leaves_no_empty_file(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    page = tmp_path / "report.html"
    assert dstream("bench", tmp_path / "none", *QUICK, "--html", page).code == 10
    assert not page.exists()


@pytest.mark.parametrize(("option", "value"), [("--egress-price", "nan"), ("--step-ms", "inf")])
def test_prices_and_steps_are_numbers_that_can_be(source: Path, option: str, value: str) -> None:
    assert dstream("bench", source, *QUICK, option, value).code == 2
