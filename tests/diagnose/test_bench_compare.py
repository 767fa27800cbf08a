"""Two sets of benches: what changed is told, and noise is not taken for a change."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_documents import made_document
from cli_runner import dstream
from dstream.diagnose.bench.compare import SCHEMA, compare, parse_bench, side_of
from dstream.diagnose.bench.document import BenchDocument
from dstream.diagnose.bench.loader_document import LoaderDocument
from dstream.diagnose.bench.ratio import compare_rates, mann_whitney_ways
from dstream.diagnose.bench.verdict import failed
from dstream.errors import InvalidInputError
from loader_data import videos

RATES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=7)


def bench(*repeats: float, **settings: Any) -> BenchDocument:
    made = made_document(repeats=repeats, report={})
    whole = dataclasses.replace(made.whole, efficiency=repeats[0] / 50)
    return dataclasses.replace(made, whole=whole, settings={**made.settings, **settings})


# The interval


@given(RATES)
def test_a_set_is_never_different_from_itself(rates: list[float]) -> None:
    found = compare_rates(rates, rates)
    assert not found.differs
    assert found.low <= 1 <= found.high
    assert found.ratio == pytest.approx(1)


@given(RATES, RATES, st.floats(0.01, 100))
def test_the_ratio_scales_and_turns_over(a: list[float], b: list[float], factor: float) -> None:
    found = compare_rates(a, b)
    scaled = compare_rates([factor * rate for rate in a], [factor * rate for rate in b])
    grown = compare_rates(a, [factor * rate for rate in b])
    turned = compare_rates(b, a)
    for field in ("ratio", "low", "high"):
        value = getattr(found, field)
        assert getattr(scaled, field) == pytest.approx(value)
        assert getattr(grown, field) == pytest.approx(factor * value)
    assert (turned.low, turned.high) == pytest.approx((1 / found.high, 1 / found.low))
    assert turned.confidence == found.confidence


@given(RATES, RATES)
def test_the_interval_holds_the_ratio(a: list[float], b: list[float]) -> None:
    found = compare_rates(a, b)
    assert found.low <= found.ratio <= found.high
    assert 0 <= found.confidence < 1
    assert (found.differs is None) == (found.confidence < 0.95)


@given(st.integers(1, 9), st.integers(1, 9))
def test_the_ways_of_the_rank_test_are_all_orders(m: int, n: int) -> None:
    ways = mann_whitney_ways(m, n)
    assert sum(ways) == math.comb(m + n, n)
    assert ways == ways[::-1]


@pytest.mark.parametrize(("m", "n", "outside"), [(4, 4, 0), (5, 5, 2), (6, 6, 5), (8, 7, 10)])
def test_critical_values_are_those_of_the_tables(m: int, n: int, outside: int) -> None:
    """Of the two-sided Mann-Whitney test at 5%, as textbooks print them."""
    a, b = [2.0**i for i in range(m)], [3.0**i for i in range(n)]
    ratios = sorted(rate / base for base in a for rate in b)
    assert compare_rates(a, b).low == ratios[outside]


@pytest.mark.parametrize(("runs_a", "runs_b", "scatter"), [(4, 4, 0.02), (5, 8, 0.3), (10, 10, 1)])
def test_the_interval_covers_the_truth_as_often_as_it_says(
    runs_a: int, runs_b: int, scatter: float
) -> None:
    random, trials, covered = np.random.default_rng(7), 400, 0
    for _ in range(trials):
        a = np.exp(scatter * random.standard_normal(runs_a))
        b = 1.3 * np.exp(scatter * random.standard_normal(runs_b))
        found = compare_rates(a.tolist(), b.tolist())
        covered += found.low <= 1.3 <= found.high
    spread = 3 * math.sqrt(trials * found.confidence * (1 - found.confidence))
    assert abs(covered - trials * found.confidence) <= spread


def test_the_repeats_that_it_asks_for_do_show_five_percent() -> None:
    random, scatter = np.random.default_rng(11), 0.04

    def rates(count: int, factor: float) -> list[float]:
        return [float(factor * np.exp(scatter * z)) for z in random.standard_normal(count)]

    needed = compare_rates(rates(200, 1), rates(200, 1)).repeats_needed
    shown = sum(bool(compare_rates(rates(needed, 1), rates(needed, 1.05)).differs)
                for _ in range(200))  # fmt: skip
    assert 0.7 * 200 <= shown <= 0.9 * 200


# The sentence


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        ((10, 11, 10, 11), (20, 22, 21, 20), "B is 2.00 times A, 97% interval 1.82 to 2.20."),
        ((20, 22, 21, 20), (10, 11, 10, 11), "B is 0.50 times A, 97% interval"),
        ((10, 11, 10, 11), (11, 10, 11, 10), "No difference beyond noise: B is 1.00 times A"),
        ((10, 10, 10, 10), (10, 10, 10, 10), "To see 5% you need about 4 repeats of each."),
        ((10, 30, 90, 10), (10, 30, 90, 30), "The runs scatter too much to see 5%: make them"),
        ((10, 11, 12), (20, 22, 24), "Too few repeats to tell: B is 2.00 times A by 3 and 3, 90%"),
        ((10,), (20,), "Too few repeats to tell: B is 2.00 times A by 1 and 1. Give"),
    ],
)
def test_the_sentence(a: tuple[float, ...], b: tuple[float, ...], told: str) -> None:
    assert told in compare(side_of([bench(*a)]), side_of([bench(*b)])).sentence


# What else changed


def test_settings_versions_and_figures_that_differ_are_listed() -> None:
    before, after = bench(10, 11, 10, 11), bench(20, 21, 20, 21, frames=32, workers=4)
    after = dataclasses.replace(
        after,
        versions={**after.versions, "torch": "2.13.0"},
        report={"data_requests_per_clip": 2.0, "cache_hit_rate": 0.5},
    )
    found = compare(side_of([before]), side_of([after]))
    assert [(each.what, each.a, each.b) for each in found.asked] == [
        ("frames", 16, 32),
        ("torch", None, "2.13.0"),
        ("workers", None, 4),
    ]
    figures = {each.what: (each.a, each.b) for each in found.figures}
    assert figures["efficiency"] == (0.2, 0.4)
    assert figures["data requests a clip"] == (None, 2.0)
    assert figures["cache hit rate"] == (None, 0.5)
    assert "stall share" not in figures


def test_several_files_are_one_side() -> None:
    side = side_of([bench(1, 2, workers=2), bench(3, 4, workers=4), bench(5, 6, workers=2)])
    assert list(side.repeats) == [1, 2, 3, 4, 5, 6]
    assert side.asked["workers"] == (2, 4)
    assert side.figures["efficiency"] == pytest.approx(3 / 50)
    found = compare(side, side_of([bench(1, 2, workers=2)]))
    assert [(each.what, each.a, each.b) for each in found.asked] == [("workers", [2, 4], 2)]


def loader_bench(unit: str) -> LoaderDocument:
    ran = dstream(
        "bench", "--json", "--repeat", 4, "--loader",
        "loader_factories:generator" if unit == "samples/s" else "loader_factories:untold",
    )  # fmt: skip
    return LoaderDocument.parse(ran.document())


def test_what_has_nothing_in_common_is_refused() -> None:
    batches, samples, clips = loader_bench("batches/s"), loader_bench("samples/s"), bench(1, 2)
    assert compare(side_of([samples]), side_of([clips])).ratio.ratio > 0
    with pytest.raises(InvalidInputError, match="give --batch-size"):
        compare(side_of([batches]), side_of([clips]))
    with pytest.raises(InvalidInputError, match="count the same"):
        side_of([batches, samples])
    with pytest.raises(InvalidInputError, match="count the same, got none"):
        side_of([])
    cut_short = dataclasses.replace(clips, verdict=failed(8, InvalidInputError("gone")))
    with pytest.raises(InvalidInputError, match="has no rate: The run failed after 8 clips"):
        compare(side_of([clips]), side_of([clips, cut_short]))
    for repeats in ((), (1.0, 0.0), (1.0, math.nan)):
        with pytest.raises(InvalidInputError, match="above 0"):
            compare(side_of([clips]), side_of([dataclasses.replace(clips, repeats=repeats)]))


# The verb


def test_the_verb_reads_several_files_a_side(tmp_path: Path) -> None:
    for name, document in {
        "a1": bench(10, 11),
        "a2": bench(10, 12),
        "b1": bench(20, 22, workers=8),
        "b2": bench(21, 23, workers=8),
    }.items():
        (tmp_path / name).write_text(json.dumps(document.as_json()))
    a, b = (f"{tmp_path}/{side}1,{tmp_path}/{side}2" for side in "ab")
    ran = dstream("bench", "--compare", a, b)
    assert ran.code == 0
    assert ran.out.startswith("B is 2.00 times A, 97% interval")
    assert "The ratio is of all of these together: workers." in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    document = dstream("bench", "--compare", a, b, "--json").document()
    assert document["schema"] == SCHEMA
    assert document["ratio"]["differs"] is True
    assert document["a"]["repeats"] == [10, 11, 10, 12]


def test_what_the_bench_printed_is_compared(tmp_path: Path) -> None:
    videos(tmp_path / "raw", 2, frames=24, size=(64, 64))
    for name, frames in (("a", 2), ("b", 4)):
        ran = dstream("bench", tmp_path / "raw", "--frames", frames, "--clips", 8, "--repeat", 2,
                      "--json")  # fmt: skip
        assert ran.code == 0
        (tmp_path / name).write_text(ran.out)
    document = dstream("bench", "--compare", tmp_path / "a", tmp_path / "b", "--json").document()
    assert document["ratio"]["differs"] is None
    assert document["asked"] == [{"what": "frames", "a": 2, "b": 4}]
    assert "first batch, s" in document["a"]["figures"]
    assert "data requests a clip" in document["a"]["figures"]


def test_files_that_are_no_benches_are_named(tmp_path: Path) -> None:
    (tmp_path / "good").write_text(json.dumps(bench(1).as_json()))
    (tmp_path / "text").write_text("fast")
    (tmp_path / "other").write_text('{"schema": "dstream.bench/9"}')
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "deep").write_text("[" * 100_000)
    empty = {"schema": "dstream.bench-loader/1", "target": "a:b", "settings": {}, "versions": {},
             "cores": 2.0, "runs": [], "unit": "samples/s", "repeats": [],
             "verdict": {"cause": "cpu", "keeps_up": None, "sentence": ""}}  # fmt: skip
    (tmp_path / "empty").write_text(json.dumps(empty))
    names = ("text", "other", "binary", "deep", "empty")
    for name, code in (*((name, 2) for name in names), ("absent", 10)):
        ran = dstream("bench", "--compare", tmp_path / "good", tmp_path / name)
        assert ran.code == code
        assert f"{tmp_path / name}" in ran.err
    with pytest.raises(InvalidInputError):
        parse_bench("[1]")


def test_a_file_given_twice_is_not_two_runs(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps(bench(1, 2).as_json()))
    ran = dstream("bench", "--compare", f"{tmp_path}/a,{tmp_path}/a", tmp_path / "a")
    assert ran.code == 2
    assert "A has a file twice" in ran.err
