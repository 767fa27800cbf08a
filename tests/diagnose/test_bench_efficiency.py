"""A run is held against what its parts could do, with the threads that it had."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_documents import made_document
from cli_runner import dstream
from dstream.diagnose.bench.document import BenchDocument, Stage
from dstream.diagnose.bench.page import page
from dstream.diagnose.bench.recording import Reading, mean_fetchers
from dstream.loader import concurrency
from dstream.loader.concurrency import FIRST, Concurrency, Seen
from dstream_cli.bench_tables import bench_parts
from dstream_cli.render import Facts
from made_video import make_video

STEPS = st.lists(st.tuples(st.floats(0.01, 10), st.integers(1, 64)), min_size=1, max_size=20)


@given(st.integers(1, 64), STEPS, st.floats(0, 1))
def test_a_varying_number_of_fetchers_gains_nothing(
    first: int, steps: list[tuple[float, int]], bend: float
) -> None:
    """Whatever concave function of their number fetching is."""
    readings = [Reading(0.0, fetchers=first)]
    done = 0.0
    for lasted_s, fetchers in steps:
        readings.append(Reading(readings[-1].at_s + lasted_s, fetchers=fetchers))
        done += lasted_s * fetchers**bend
    assert done / readings[-1].at_s <= mean_fetchers(readings) ** bend * (1 + 1e-6)


def test_fetching_is_measured_with_the_fetchers_of_the_run_not_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adapted(now: Concurrency, seen: Seen) -> Concurrency:
        return Concurrency(2)

    monkeypatch.setattr(concurrency, "adapted", adapted)
    monkeypatch.setattr(concurrency, "_WINDOW_S", 0.0)
    make_video(tmp_path / "a.mp4", frames=48, gop=12, size=(64, 48))
    asked = ("--clips", 80, "--frames", 4, "--batch-size", 2, "--workers", 1, "--json")
    document = BenchDocument.parse(dstream("bench", tmp_path, *asked).out)
    assert (document.report or {})["fetchers"] == 2
    fetch = next(stage for stage in document.stages if stage.name is Stage.FETCH)
    assert fetch.measured
    assert 2 < fetch.threads <= FIRST


@pytest.mark.parametrize(
    ("efficiency", "told", "tile"),
    [
        (0.934, "8 clips/s, 93% of the slowest part", "93%"),
        (1.004, "8 clips/s, 100% of the slowest part", "100%"),
        (
            1.25,
            "8 clips/s, over 100% of the slowest part, measured at least 20% too low",
            "over 100%",
        ),
    ],
)
def test_more_than_the_slowest_part_is_said_to_be_badly_measured(
    efficiency: float, told: str, tile: str
) -> None:
    made = made_document()
    document = made_document(whole=dataclasses.replace(made.whole, efficiency=efficiency))
    facts = next(part for part in bench_parts(document, details=False) if isinstance(part, Facts))
    assert dict(facts.pairs)["whole"] == told
    assert tile in page(document)
