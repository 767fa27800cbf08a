"""The page of a bench: one HTML document that needs nothing else, for screens and paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Any

from dstream.diagnose.bench.charts import latency, ratio_bars, roofline, strip
from dstream.diagnose.bench.document import BenchDocument, TimelinePoint
from dstream.diagnose.bench.markup import Markup, el, raw
from dstream.diagnose.bench.numerals import dollars, figures, seconds, share_of_limit
from dstream.diagnose.bench.recording import merged
from dstream.units import format_bytes

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is loaded and nothing runs, whatever a name in the data tries."""

_COUNTED = (
    "retries", "fallbacks", "skips", "refetches", "not_listed", "deadlines", "cache_refusals",
    "cache_rot", "cache_off", "pin_renewals",
)  # fmt: skip
"""Fields of the report that count by reason."""
_MOST_SKIPPED = 20


def page(document: BenchDocument) -> str:
    """The whole page as text."""
    style = raw(files("dstream.diagnose.bench").joinpath("page.css").read_text(encoding="utf-8"))
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"dstream bench: {document.target}"),
        el("style", style),
    )
    main = el(
        "main",
        el("header", el("div", "dstream bench", class_="tool"), el("h1", document.target)),
        _verdict(document),
        _tiles(document),
        _roofline(document),
        _timeline(document.timeline, document.whole.wall_s),
        _latencies(document),
        el("div", _amplification(document.report or {}), _cost(document), class_="pair"),
        el("div", _settings(document), _counted(document), class_="pair"),
        el("footer", f"{document.schema}. Every number is in the output of --json as well."),
    )
    return f"<!doctype html>\n{el('html', head, el('body', main), lang='en')}\n"


def _section(title: str, hint: str, *inside: object, class_: str | None = None) -> Markup:
    told = el("p", hint, class_="hint") if hint else None
    return el("section", el("h2", title), told, inside, class_=class_)


def _facts(pairs: Sequence[tuple[str, object]], class_: str) -> Markup:
    return el(
        "dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs], class_=class_
    )


def _verdict(document: BenchDocument) -> Markup:
    verdict = document.verdict
    changes: list[tuple[str, object]] = [("Cause", verdict.cause)]
    if verdict.setting is not None:
        value = "" if verdict.new_value is None else f" = {verdict.new_value}"
        changes.append(("Change", el("code", f"{verdict.setting}{value}")))
    if verdict.expected_gain > 1:
        changes.append(("Gain to expect", f"× {verdict.expected_gain:.2f}"))
    return el(
        "section",
        el("p", verdict.sentence, class_="sentence"),
        None
        if verdict.evidence in verdict.sentence
        else el("p", verdict.evidence, class_="evidence"),
        _facts(changes, "change"),
        class_="verdict" if verdict.expected_gain > 1 else "verdict fine",
    )


def _tiles(document: BenchDocument) -> Markup:
    whole = document.whole
    tiles: list[tuple[str, object]] = [
        ("Clips a second", figures(whole.clips_per_second)),
        ("Efficiency", "–" if whole.efficiency is None else share_of_limit(whole.efficiency)),
        ("Consumer waited", f"{whole.stall_share:.0%}"),
        ("First batch", seconds(whole.first_batch_s)),
        ("Clips", f"{whole.clips:,}"),
        ("Run", seconds(whole.wall_s)),
        ("Time explained", f"{whole.explained_share:.0%}"),
    ]
    return el("section", _facts(tiles, "tiles"))


def _roofline(document: BenchDocument) -> Markup | None:
    if not document.stages:
        return None
    return _section(
        "Roofline",
        "Each stage alone on this run's clips, with the threads that it has; the slowest in red. "
        "Stages that share threads add up, so the whole run, the dashed line, is slower than each. "
        "Listing comes before the first batch and limits nothing after it.",
        el("div", roofline(document.stages, document.whole.clips_per_second), class_="wide"),
    )


def _timeline(points: Sequence[TimelinePoint], wall_s: float) -> Markup | None:
    if not points:
        return None
    points = merged(points)
    starts = [point.start_s for point in points]
    edges = [*starts, max(wall_s, starts[-1] + 1e-3)]
    steps_s = [stop - start for start, stop in pairwise(edges)]

    def rates(amounts: Sequence[float]) -> list[float]:
        return [amount / step_s for amount, step_s in zip(amounts, steps_s, strict=True)]

    waits = [min(1.0, share) for share in rates([point.wait_s for point in points])]
    ready = [point.queue_ready_share for point in points]
    fetchers = [point.fetchers for point in points]
    megabytes = rates([point.bytes / 1e6 for point in points])
    return _section(
        "Timeline",
        "Prefetched batches are counted when the consumer comes for one.",
        el(
            "div",
            strip(edges, rates([point.clips for point in points]), "Clips a second", kind="rate"),
            strip(edges, megabytes, "Received from the store", kind="bytes", unit=" MB/s"),
            strip(edges, ready, "Prefetched batches ready", kind="ready", top=1, unit="%"),
            strip(edges, waits, "Consumer waiting", kind="wait", top=1, unit="%"),
            strip(edges, fetchers, "Fetches at the same time", kind="fetchers", axis=True),
            class_="wide",
        ),
    )


def _latencies(document: BenchDocument) -> Markup | None:
    shown = [(name, found) for name, found in document.latencies.items() if any(found.counts)]
    if not shown:
        return None
    used = [place for _, found in shown for place, count in enumerate(found.counts) if count]
    bins = range(max(0, min(used) - 1), max(used) + 2)
    return _section(
        "How long each stage took",
        "Of one clip, all on the same logarithmic axis; wait and collate are of one batch. Fetch "
        "includes the cache's part, decode that of convert.",
        el("div", [latency(name, found, bins) for name, found in shown], class_="grid"),
    )


def _amplification(report: Mapping[str, Any]) -> Markup | None:
    needed, decoded = report.get("bytes_needed", 0), report.get("frames_decoded", 0)
    if not needed and not decoded:
        return None
    received = report["bytes_received"]
    sizes = [
        ("clips' packets", needed), ("their GOPs", report["bytes_of_gops"]), ("received", received)
    ]  # fmt: skip
    frames = [("frames delivered", report["frames_delivered"]), ("frames decoded", decoded)]
    return _section(
        "Amplification",
        "What was read and decoded, beside what the clips needed.",
        ratio_bars(
            [(name, size, _times(format_bytes(size), size, needed)) for name, size in sizes]
        ),
        ratio_bars([(name, n, _times(f"{n:,}", n, frames[0][1])) for name, n in frames]),
    )


def _times(told: str, amount: float, base: float) -> str:
    return told if not base or amount == base else f"{told}, × {amount / base:.2f}"


def _cost(document: BenchDocument) -> Markup | None:
    cost = document.cost
    if cost is None:
        return None
    clips = document.whole.clips
    prices = cost.prices
    rows = [
        _row("Requests", f"{cost.requests:,}"),
        _row("Bytes", format_bytes(cost.bytes)),
        _row("1,000 GET and HEAD", dollars(prices.get_per_1000)),
        _row("1,000 PUT and LIST", dollars(prices.put_per_1000)),
        _row("Egress of 1 GB", dollars(prices.egress_per_gb)),
        _row("This run", dollars(cost.dollars), class_="sum"),
        _row("A million such clips", dollars(cost.dollars / clips * 1e6), class_="sum")
        if clips
        else None,
    ]
    return _section("Cost", "At these prices, wherever the data lie.", el("table", rows))


def _row(name: str, value: object, class_: str | None = None) -> Markup:
    return el("tr", el("th", name, scope="row"), el("td", value), class_=class_)


def _settings(document: BenchDocument) -> Markup:
    rows = [
        _row(name.replace("_", " "), _value(value))
        for name, value in (*document.settings.items(), *document.versions.items())
        if value not in (None, "")
    ]
    if len(document.repeats) > 1:
        rows.append(_row("clips/s of each run", ", ".join(map(figures, document.repeats))))
    return _section("Settings and versions", "", el("table", rows))


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return " × ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return figures(value) if isinstance(value, float) else str(value)


def _counted(document: BenchDocument) -> Markup:
    report = document.report or {}
    rows = [
        _row(f"{name.replace('_', ' ')}: {reason}", f"{count:,}")
        for name in _COUNTED
        for reason, count in report.get(name, {}).items()
    ]
    if report.get("throttles"):
        rows.append(_row("throttles", f"{report['throttles']:,}"))
    if report.get("outages"):
        rows.append(_row("outages", f"{report['outages']:,}, {seconds(report['outage_seconds'])}"))
    rows += [
        _row(f"{failure['sample_key']}: {failure['reason']}", failure["message"])
        for failure in document.skipped[:_MOST_SKIPPED]
    ]
    if len(document.skipped) > _MOST_SKIPPED:
        rows.append(_row("", f"and {len(document.skipped) - _MOST_SKIPPED:,} more files"))
    inside = el("table", rows) if rows else el("p", "Nothing.", class_="hint")
    return _section("What did not go straight", "Counted by reason.", inside)
