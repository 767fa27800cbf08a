"""Two sets of benches: what changed, and whether it is more than noise."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dstream.diagnose.bench import loader_document
from dstream.diagnose.bench.document import BenchDocument, Cause
from dstream.diagnose.bench.loader_document import LoaderDocument, typical
from dstream.diagnose.bench.ratio import FEWEST_REPEATS, Ratio, compare_rates
from dstream.errors import InvalidInputError

SCHEMA = "dstream.bench-compare/1"
_SAME = 0.01
"""Measured values that are closer than this are not told as a change."""

_CHOSEN = {"alone_s", "nvdec_alone"}
"""Settings that a run chose for itself: they differ by chance."""
_FEW = 100
"""Beyond so many repeats it is told to measure better instead."""

Document = BenchDocument | LoaderDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The benches of one side, taken together."""

    unit: str
    """Of ``repeats``: ``clips/s``, ``samples/s`` or ``batches/s``."""
    repeats: tuple[float, ...]
    """Of all documents."""
    asked: Mapping[str, tuple[Any, ...]]
    """Targets, settings and versions: the different values that the documents have."""
    figures: Mapping[str, float]
    """What was measured besides: the median over the documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that is not the same on both sides. None: a side does not have it."""

    what: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What ``dstream bench --compare --json`` prints."""

    a: Side
    b: Side
    ratio: Ratio
    """B's rates to A's."""
    sentence: str
    asked: tuple[Change, ...]
    """Targets, settings and versions that differ: the ratio is of all of them together."""
    figures: tuple[Change, ...]
    """Measured values that differ by more than 1%."""
    schema: str = SCHEMA


def parse_bench(text: str) -> Document:
    """A document of ``dstream bench --json``, with or without ``--loader``.

    Raises:
        InvalidInputError: it is neither, or of another version.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"it is no JSON: {error}") from error
    if isinstance(found, Mapping) and found.get("schema") == loader_document.SCHEMA:
        measured = LoaderDocument.parse(found)
        if not measured.runs:
            raise InvalidInputError("it holds no run: run the bench again")
        return measured
    return BenchDocument.parse(found)


def side_of(documents: Sequence[Document]) -> Side:
    """Take the documents of one side together.

    Raises:
        InvalidInputError: there is none, one failed, or their rates are of different things.
    """
    for each in documents:
        if each.verdict.cause == Cause.FAILED:
            raise InvalidInputError(f"a bench that failed has no rate: {each.verdict.sentence}")
    units = {_unit(each) for each in documents}
    if len(units) != 1:
        raise InvalidInputError(
            f"the benches of one side must count the same, got {', '.join(sorted(units)) or 'none'}"
        )
    asked: dict[str, list[Any]] = {}
    figures: dict[str, list[float]] = {}
    for each in documents:
        for name, value in {"target": each.target, **each.settings, **each.versions}.items():
            if name in _CHOSEN:
                continue
            values = asked.setdefault(name, [])
            if value not in values:
                values.append(value)
        for name, figure in _figures(each):
            if figure is not None:
                figures.setdefault(name, []).append(figure)
    return Side(
        unit=units.pop(),
        repeats=tuple(rate for each in documents for rate in each.repeats),
        asked={name: tuple(values) for name, values in asked.items()},
        figures={name: statistics.median(values) for name, values in figures.items()},
    )


def _unit(each: Document) -> str:
    return each.unit if isinstance(each, LoaderDocument) else "clips/s"


_FROM_REPORT = {
    "data_requests_per_clip": "data requests a clip",
    "byte_amplification": "bytes received / needed",
    "decode_amplification": "frames decoded / delivered",
    "cache_hit_rate": "cache hit rate",
}


def _figures(each: Document) -> Iterable[tuple[str, float | None]]:
    if isinstance(each, LoaderDocument):
        run = typical(each.runs)
        yield "stall share", run.wait_share
        yield "first batch, s", run.first_batch_s
        yield "cores busy", run.cores_busy
        yield "memory, MB", _mega(run.peak_pss_bytes or run.peak_rss_bytes)
        yield "a batch, MB", _mega(run.batch_bytes)
        return
    yield "stall share", each.whole.stall_share
    yield "first batch, s", each.whole.first_batch_s
    yield "efficiency", each.whole.efficiency
    for stage in each.stages:
        yield f"{stage.name} alone, clips/s", stage.clips_per_second
    for field, name in _FROM_REPORT.items():
        yield name, (each.report or {}).get(field)
    if each.cost is not None and each.whole.clips:
        yield "dollars a 1,000 clips", 1000 * each.cost.dollars / each.whole.clips


def _mega(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / 1e6


def compare(a: Side, b: Side) -> Comparison:
    """Say what B is to A.

    Raises:
        InvalidInputError: one side counts batches and the other samples, or a side has no rates.
    """
    if a.unit != b.unit and "batches/s" in (a.unit, b.unit):
        raise InvalidInputError(
            f"A is in {a.unit} and B in {b.unit}: no number follows from the two; give "
            "--batch-size to the bench that could not tell its samples"
        )
    ratio = compare_rates(a.repeats, b.repeats)
    return Comparison(
        a=a,
        b=b,
        ratio=ratio,
        sentence=tell(ratio, len(a.repeats), len(b.repeats)),
        asked=tuple(
            Change(what=name, a=_told(a.asked, name), b=_told(b.asked, name))
            for name in dict.fromkeys([*a.asked, *b.asked])
            if a.asked.get(name) != b.asked.get(name)
        ),
        figures=tuple(
            Change(what=name, a=a.figures.get(name), b=b.figures.get(name))
            for name in dict.fromkeys([*a.figures, *b.figures])
            if not _close(a.figures.get(name), b.figures.get(name))
        ),
    )


def _told(asked: Mapping[str, tuple[Any, ...]], name: str) -> Any:
    values = asked.get(name, (None,))
    return values[0] if len(values) == 1 else list(values)


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= _SAME * max(abs(a), abs(b))


def tell(ratio: Ratio, runs_a: int, runs_b: int) -> str:
    """The comparison in a sentence or two."""
    factor = f"B is {_times(ratio.ratio)} times A"
    interval = f"{ratio.confidence:.0%} interval {_times(ratio.low)} to {_times(ratio.high)}"
    if ratio.differs is None:
        counts = f"by {runs_a} and {runs_b}" + (f", {interval}" if ratio.confidence else "")
        return (
            f"Too few repeats to tell: {factor} {counts}. "
            f"Give --repeat {FEWEST_REPEATS} or more to both."
        )
    if ratio.differs:
        return f"{factor}, {interval}."
    advice = (
        f"To see 5% you need about {ratio.repeats_needed} repeats of each."
        if ratio.repeats_needed <= _FEW
        else "The runs scatter too much to see 5%: make them longer, on a quieter machine."
    )
    return f"No difference beyond noise: {factor}, {interval}. {advice}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if 0.1 <= ratio < 100 else f"{ratio:.3g}"
