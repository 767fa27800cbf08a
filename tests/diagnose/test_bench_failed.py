"""A bench whose data fail tells what it measured before, and ends with the error's exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import dstream as library
from cli_runner import dstream
from dstream.clock import SystemClock
from dstream.diagnose.bench.bench import bench
from dstream.diagnose.bench.document import BenchDocument, Cause
from dstream.diagnose.bench.interruption import Interruption
from dstream.diagnose.bench.page import page
from dstream.diagnose.bench.run import Wish
from dstream.diagnose.prices import Prices
from dstream.errors import DstreamError
from dstream_cli.bench_tables import bench_parts
from made_video import make_video

QUICK = ["--clips", "8", "--frames", "4", "--batch-size", "2"]


def measured(folder: Path, tell: Any, **options: Any) -> Any:
    loading = {"workers": 1, "fetchers": 1, "prefetch": 1, "epochs": None, "rank": 0,
               "world_size": 1, **options}  # fmt: skip
    return bench(
        lambda: library.clips(folder, frames=4), "folder", 2, loading,
        Wish(clips=10_000, repeat=3), {}, Prices(), SystemClock(), tell,
        Interruption(),
    )  # fmt: skip


def test_what_vanishes_during_a_run_ends_it_with_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    make_video(path, frames=48, gop=12, size=(64, 48))

    def tell(taken: int) -> None:
        if taken == 8:
            path.unlink()

    document, _, error = measured(tmp_path, tell, on_error="skip", max_failures=1 << 62)
    assert "clips in a row failed" in str(error)
    assert document.whole.clips >= 8
    assert document.whole.explained_share > 0
    assert document.whole.efficiency is None
    assert document.repeats == (document.whole.clips_per_second,)  # no further run
    assert [failure["sample_key"] for failure in document.skipped] == ["a.mp4"]
    assert document.verdict.cause is Cause.FAILED
    assert document.verdict.sentence.startswith(f"The run failed after {document.whole.clips} ")
    assert {stage.why_not for stage in document.stages} == {"", "the run failed"}
    assert BenchDocument.parse(json.dumps(document.as_json())).verdict == document.verdict
    assert "clips in a row failed" in page(document)
    assert document.verdict.sentence in bench_parts(document, details=True)


def test_an_error_before_anything_was_measured_is_only_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with pytest.raises(DstreamError, match=r"a\.mp4"):
        measured(tmp_path, lambda taken: None, on_error="raise")


def test_a_folder_without_a_good_file_tells_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video" * 100)
    ran = dstream("bench", tmp_path, *QUICK)
    assert ran.code == 1
    assert "in a row failed" in ran.err
    assert ran.out.startswith("The run failed after 0 clips")
    assert "a.mp4: " in ran.out.partition("Skipped")[2]
    ran = dstream("bench", tmp_path, *QUICK, "--json")
    assert ran.code == 1
    document = BenchDocument.parse(ran.out)
    assert sum((document.report or {})["skips"].values()) >= 100
    assert json.loads(ran.err)["error"] == "DstreamError"


def test_what_a_listing_leaves_out_is_told(tmp_path: Path) -> None:
    make_video(tmp_path / "a.mp4", frames=48, gop=12, size=(64, 48))
    (tmp_path / "b.mp4").touch()
    (tmp_path / "notes.txt").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/c\xff.mp4")).write_bytes(b"x")
    ran = dstream("bench", tmp_path, *QUICK, "--html", tmp_path / "report.html", "--details")
    assert ran.code == 0
    assert "not listed 1 bad-name, 1 empty" in " ".join(ran.out.split())
    told = ran.out.partition("Skipped")[2]
    assert [line.split()[:2] for line in told.splitlines() if "left out" in line] == [
        ["bad-name", "1"],
        ["empty", "1"],
    ]
    assert "not listed: empty" in (tmp_path / "report.html").read_text()
    document = dstream("bench", tmp_path, *QUICK, "--json").document()
    assert document["report"]["not_listed"] == {"bad-name": 1, "empty": 1}
