"""The page of a bench: whole, escaped, and drawn by a browser without a complaint."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bench_documents import made_document
from browser import visit
from dstream.diagnose.bench.document import (
    BenchDocument,
    Cause,
    Cost,
    Histogram,
    TimelinePoint,
    Verdict,
    Whole,
)
from dstream.diagnose.bench.numerals import quantile_s
from dstream.diagnose.bench.page import page
from dstream.diagnose.prices import Prices
from dstream.measure.spans import EDGES_S

VOID = {"meta", "line", "rect", "path"}
MEASURE = """
const root = frame.contentDocument;
const sizes = (selector) => [...root.querySelectorAll(selector)].map((shape) => {
  const box = shape.getBBox();
  return [box.width, box.height];
});
return {
  title: root.title,
  first: root.querySelector("section").innerText,
  bars: sizes("rect.bar"),
  areas: sizes("polygon.area"),
  titles: [...root.querySelectorAll("h2")].map((title) => title.innerText),
  wide: root.documentElement.scrollWidth - root.documentElement.clientWidth,
  fill: root.defaultView.getComputedStyle(root.querySelector("rect.slowest")).fill,
  loaded: root.defaultView.performance.getEntriesByType("resource").length,
};
"""


class Text(HTMLParser):
    """Texts, tags and attributes of a page; fails where it is not well nested."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def look(html: str, tmp_path: Path) -> tuple[dict[str, Any], list[str]]:
    seen = visit("/report.html", MEASURE, {"/report.html": html.encode()}, tmp_path)
    return seen.found, seen.console


def test_a_browser_draws_every_plot_and_logs_nothing(tmp_path: Path) -> None:
    found, console = look(page(made_document()), tmp_path)
    assert console == []
    assert found["loaded"] == 0
    assert found["title"] == "dstream bench: s3://raw/videos"
    assert found["first"].startswith("Decoding sets the pace.")
    assert found["wide"] <= 0
    assert found["fill"] == "rgb(210, 69, 30)"  # the stylesheet holds
    # Three rates, three bins of the histogram, three sizes, two numbers of frames.
    assert len(found["bars"]) == 3 + 3 + 3 + 2
    assert all(width > 0 and height > 0 for width, height in found["bars"])
    assert len(found["areas"]) == 5
    assert all(width > 500 and height > 5 for width, height in found["areas"])
    assert found["titles"] == [
        "Roofline", "Timeline", "How long each stage took", "Amplification", "Cost",
        "Settings and versions", "What did not go straight",
    ]  # fmt: skip


def test_the_browser_would_have_logged_a_fault(tmp_path: Path) -> None:
    html = page(made_document()).replace("</main>", "<img src='https://example.com/x'></main>")
    _, console = look(html, tmp_path)
    assert len(console) == 1
    assert "Content Security Policy" in console[0]


HOSTILE = "</title><script>alert(1)</script><img src=x onerror='a()'>\"&amp;"


def test_texts_are_escaped() -> None:
    verdict = Verdict(
        cause=Cause.UNKNOWN, sentence=HOSTILE, evidence=HOSTILE, setting=HOSTILE,
        new_value=HOSTILE, expected_gain=2.0,
    )  # fmt: skip
    usual = made_document()
    seen = Text(
        page(
            replace(
                usual,
                target=HOSTILE,
                settings={HOSTILE: HOSTILE},
                versions={HOSTILE: HOSTILE},
                verdict=verdict,
                stages=tuple(
                    replace(stage, own_unit=HOSTILE, why_not=HOSTILE) for stage in usual.stages
                ),
                latencies={HOSTILE: usual.latencies["decode"]},
                skipped=({"sample_key": HOSTILE, "reason": HOSTILE, "message": HOSTILE},) * 30,
                report={**(usual.report or {}), "retries": {HOSTILE: 1}},
            )
        )
    )
    assert not {"script", "img"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert seen.text.count("<script>alert(1)</script>") >= 10 + 3 * 20
    assert "and 10 more files" in seen.text


@pytest.mark.parametrize("document", [made_document(), made_document(cost=None, report=None)])
def test_it_needs_nothing_else(document: BenchDocument) -> None:
    html = page(document)
    seen = Text(html)
    assert not {"script", "link", "img", "iframe", "object"} & set(seen.tags)
    assert not {name for name, _ in seen.attributes} & {"src", "href", "style"}
    assert not re.search(r"url\(|@import", html)


EMPTY = made_document(
    stages=(), timeline=(), latencies={}, cost=None, report=None, settings={},
    whole=Whole(
        clips=0, clips_per_second=0.0, efficiency=None, stall_share=0.0, first_batch_s=0.0,
        wall_s=0.0, explained_share=0.0,
    ),
)  # fmt: skip
STILL = made_document(
    whole=EMPTY.whole,
    timeline=(
        TimelinePoint(start_s=0.0, clips=0, bytes=0, queue_ready_share=0.0, fetchers=0, wait_s=0.0),
    ),
    latencies={"fetch": Histogram(edges_s=EDGES_S, counts=(0,) * (len(EDGES_S) + 1))},
    cost=Cost(requests=0, bytes=0, dollars=0.0),
)


@pytest.mark.parametrize("document", [EMPTY, STILL], ids=["nothing known", "nothing happened"])
def test_a_run_of_nothing_has_a_page(document: BenchDocument) -> None:
    assert "nan" not in Text(page(document)).text.lower()


def test_cost_is_told_with_its_prices() -> None:
    cost = Cost(requests=90, bytes=4_000_000, dollars=0.0004, prices=Prices(egress_per_gb=0.09))
    text = Text(page(made_document(cost=cost))).text
    assert "Egress of 1 GB\n$0.09" in text
    assert "This run\n$0.00040" in text
    assert "A million such clips\n$5.00" in text


def test_repeats_are_told_where_there_are_any() -> None:
    assert "of each run" not in page(made_document(repeats=(8.0,)))
    assert "8, 8.25, 9" in page(made_document(repeats=(8.0, 8.25, 9.0)))


def test_quantiles_lie_in_their_bins() -> None:
    counts = [0] * (len(EDGES_S) + 1)
    counts[10], counts[20] = 90, 10
    histogram = Histogram(edges_s=EDGES_S, counts=tuple(counts))
    assert EDGES_S[9] <= quantile_s(histogram, 0.5) <= quantile_s(histogram, 0.9) <= EDGES_S[10]
    assert EDGES_S[19] < quantile_s(histogram, 0.95) < EDGES_S[20]
    assert quantile_s(replace(histogram, counts=(0,) * len(counts)), 0.5) == 0
