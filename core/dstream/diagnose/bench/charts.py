"""The page's plots as inline SVG: no script, colours from the stylesheet, values in tooltips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10

from dstream.diagnose.bench.document import Histogram, Stage, StageRate
from dstream.diagnose.bench.markup import Markup, el
from dstream.diagnose.bench.numerals import figures, quantile_s, seconds, ticks

WIDTH = 960
_LEFT, _RIGHT = 92, 24


def _svg(height: float, label: str, *children: object, width: float = WIDTH) -> Markup:
    return el(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=label,
        xmlns="http://www.w3.org/2000/svg",
    )


def _text(x: float, y: float, text: str, class_: str = "", anchor: str | None = None) -> Markup:
    return el("text", text, x=x, y=y, class_=class_ or None, text_anchor=anchor)


@dataclass(frozen=True, slots=True)
class _RateAxis:
    """Clips a second from 10^low to 10^high, by their logarithms."""

    low: int
    high: int
    left: float = 96
    right: float = WIDTH - 330

    @classmethod
    def over(cls, rates: Sequence[float]) -> _RateAxis:
        """With room for all of them; a rate of 0 has no place."""
        known = [log10(rate) for rate in rates if rate > 0] or [0.0]
        low = floor(min(known) - 0.15)
        return cls(low, max(low + 1, ceil(max(known) + 0.02)))

    def x(self, rate: float) -> float:
        share = (log10(rate) - self.low) / (self.high - self.low)
        return self.left + share * (self.right - self.left)

    def grid(self, top: float, bottom: float) -> list[list[Markup]]:
        made = []
        for power in range(self.low, self.high + 1):
            x = self.x(10.0**power)
            line = el("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid")
            made.append([line, _text(x, bottom + 18, figures(10.0**power), "axis", "middle")])
        return made


def roofline(stages: Sequence[StageRate], whole: float) -> Markup:
    """A bar for each measured stage on a logarithmic axis, and a line where the whole run is."""
    row, top = 34.0, 24.0
    bottom = top + row * len(stages)
    axis = _RateAxis.over([whole, *(stage.clips_per_second or 0.0 for stage in stages)])
    slowest = min(
        (s.clips_per_second for s in stages if s.clips_per_second and s.name is not Stage.LIST),
        default=0.0,
    )
    rows = [
        _rate_row(stage, top + row * place, row, axis, stage.clips_per_second == slowest)
        for place, stage in enumerate(stages)
    ]
    return _svg(
        bottom + 26,
        "Rate of each stage alone, and of the whole run",
        axis.grid(top, bottom),
        _text(axis.right + 42, bottom + 18, "clips/s, logarithmic", "axis"),
        rows,
        _whole(axis.x(whole), whole, top, bottom) if whole > 0 else None,
    )


def _whole(x: float, rate: float, top: float, bottom: float) -> Markup:
    return el(
        "g",
        el("line", x1=x, x2=x, y1=top - 4, y2=bottom + 4, class_="whole"),
        _text(x, top - 11, f"whole run: {figures(rate)}", "label", "middle"),
    )


def _rate_row(stage: StageRate, y: float, row: float, axis: _RateAxis, is_slowest: bool) -> Markup:
    left, middle, told = axis.left, y + row / 2 + 4.5, axis.right + 12
    name = _text(left - 12, middle, str(stage.name), "name", "end")
    if not stage.clips_per_second:
        return el("g", name, _text(left + 6, middle, stage.why_not or "not measured", "quiet"))
    rate = figures(stage.clips_per_second)
    own = "" if stage.own_rate is None else f"{figures(stage.own_rate)} {stage.own_unit}"
    threads = "1 thread" if stage.threads == 1 else f"{stage.threads} threads"
    return el(
        "g",
        el("title", f"{stage.name}: {rate} clips/s, {own}, {threads}"),
        name,
        el(
            "rect", x=left, y=y + 6, width=max(2.0, axis.x(stage.clips_per_second) - left),
            height=row - 12, rx=3, class_="bar slowest" if is_slowest else "bar",
        ),
        _text(told, middle, rate, "value"),
        _text(told + 66, middle, own, "quiet"),
        None if stage.busy_share is None else _busy(told + 186, y + row / 2, stage.busy_share),
    )  # fmt: skip


def _busy(x: float, y: float, share: float) -> list[Markup]:
    return [
        el("rect", x=x, y=y - 3, width=60, height=6, rx=3, class_="track"),
        el("rect", x=x, y=y - 3, width=60 * min(1.0, share), height=6, rx=3, class_="fill"),
        _text(x + 68, y + 4.5, f"{share:.0%} busy", "quiet"),
    ]


def strip(
    edges_s: Sequence[float],
    values: Sequence[float],
    label: str,
    *,
    kind: str,
    top: float | None = None,
    unit: str = "",
    axis: bool = False,
) -> Markup:
    """One quantity over time: a step for each interval.

    Args:
        edges_s: one more than values.
        values: constant between two edges.
        label: what it is.
        kind: class of the area: ``rate``, ``bytes``, ``ready``, ``wait``, ``fetchers``.
        top: of the axis, else as the values need.
        unit: behind the axis' highest number.
        axis: draw the axis of time.
    """
    height, above = 92.0, 20.0
    marks = ticks(max(values, default=0.0) if top is None else top, 2)
    span_s = (edges_s[-1] if len(edges_s) else 0.0) or 1.0

    def x(at_s: float) -> float:
        return _LEFT + at_s / span_s * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return above + (1 - min(1.0, value / marks[-1])) * (height - above)

    line = [
        f"{x(at_s):.1f},{y(value):.1f}"
        for (start_s, stop_s), value in zip(pairwise(edges_s), values, strict=True)
        for at_s in (start_s, stop_s)
    ]
    area = [f"{x(0):.1f},{height:g}", *line, f"{x(span_s):.1f},{height:g}"]
    grid = [
        [
            el("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y(mark), y2=y(mark), class_="grid"),
            _text(_LEFT - 8, y(mark) + 4, _mark(mark, unit), "axis", "end"),
        ]
        for mark in marks
    ]
    tips = [
        el(
            "rect", el("title", f"{seconds(start_s)}: {_mark(value, unit)}"),
            x=x(start_s), y=above, width=x(stop_s) - x(start_s), height=height - above,
            class_="tip",
        )
        for (start_s, stop_s), value in zip(pairwise(edges_s), values, strict=True)
    ]  # fmt: skip
    times = [
        _text(x(at_s), height + 18, f"{figures(at_s)} s", "axis", "middle")
        for at_s in ticks(span_s, 6)
        if at_s <= span_s * 1.001
    ]
    return _svg(
        height + (26 if axis else 14),
        label,
        grid,
        el("polygon", points=" ".join(area), class_=f"area {kind}"),
        el("polyline", points=" ".join(line), class_=f"line {kind}", fill="none"),
        _text(_LEFT, 12, label, "label"),
        tips,
        times if axis else [],
    )


def _mark(value: float, unit: str) -> str:
    return f"{value:.0%}" if unit == "%" else f"{figures(value)}{unit}"


def latency(stage: str, histogram: Histogram, shown: range) -> Markup:
    """How long a stage took: bars over a logarithmic axis of time, with three quantiles.

    Args:
        stage: its name.
        histogram: not empty.
        shown: the bins of the axis.
    """
    width, height, left, right, above = 300.0, 150.0, 12.0, 12.0, 42.0
    edges, counts = histogram.edges_s, histogram.counts
    most, step = max(counts), (width - left - right) / len(shown)

    def bounds(place: int) -> str:
        if place == 0:
            return f"below {seconds(edges[0])}"
        if place == len(edges):
            return f"{seconds(edges[-1])} and longer"
        return f"{seconds(edges[place - 1])} to {seconds(edges[place])}"

    bars = [
        el(
            "rect", el("title", f"{bounds(place)}: {counts[place]:,}"),
            x=left + step * (place - shown.start) + 0.5, width=step - 1,
            y=height - (height - above) * counts[place] / most,
            height=(height - above) * counts[place] / most, class_="bar",
        )
        for place in shown if counts[place]
    ]  # fmt: skip
    decades = [
        (left + step * (place - shown.start), edges[place - 1])
        for place in shown
        if place > shown.start and abs(log10(edges[place - 1]) % 1 - 0.5) > 0.499
    ]
    labels = [_text(x, height + 16, seconds(edge_s), "axis", "middle") for x, edge_s in decades]
    told = " · ".join(
        f"{name} {seconds(quantile_s(histogram, share))}"
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    )
    return _svg(
        height + 22,
        f"Durations of {stage}",
        _text(left, 14, stage, "label"),
        _text(width - right, 14, f"{sum(counts):,}", "axis", "end"),
        _text(left, 31, told, "quiet"),
        el("line", x1=left, x2=width - right, y1=height, y2=height, class_="base"),
        bars,
        labels,
        width=width,
    )


def ratio_bars(rows: Sequence[tuple[str, float, str]]) -> Markup:
    """Amounts of one kind under each other, to the largest.

    Args:
        rows: name, amount, and what is told of it.
    """
    row, left, right = 30.0, 150.0, 150.0
    width = 460.0
    most = max((amount for _, amount, _ in rows), default=0.0) or 1.0
    made = []
    for place, (name, amount, told) in enumerate(rows):
        y, length = row * place, max(1.5, (width - left - right) * amount / most)
        made += [
            _text(left - 12, y + 20, name, "name", "end"),
            el("rect", x=left, y=y + 7, width=length, height=row - 12, rx=3, class_="bar"),
            _text(left + length + 8, y + 20, told, "quiet"),
        ]
    return _svg(row * len(rows) + 4, ", ".join(name for name, _, _ in rows), made, width=width)
