"""What ``dstream bench`` found, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dstream_cli.plain import counted
from dstream_cli.render import Facts, Part, Table

if TYPE_CHECKING:
    from dstream.diagnose.bench.document import BenchDocument
    from dstream.loader import LoaderReport


def bench_parts(document: BenchDocument, *, details: bool) -> list[Part]:
    """The page: the verdict, the stages alone, the whole; with ``details`` all counters."""
    parts: list[Part] = [document.verdict.sentence, _stages(document)]
    unmeasured: dict[str, list[str]] = {}
    for stage in document.stages:
        if stage.why_not:
            unmeasured.setdefault(stage.why_not, []).append(stage.name)
    lines = [f"{', '.join(names)}: {why_not}" for why_not, names in unmeasured.items()]
    parts += ["\n".join(("Not measured:", *lines))] if lines else []
    parts.append(Facts(_whole_facts(document)))
    if details and document.report is not None:
        from dstream.loader import LoaderReport

        parts.append(Facts(report_facts(LoaderReport(**document.report)), title="Counters"))
    not_listed = (document.report or {}).get("not_listed", {})
    return [*parts, *skipped_parts(document.skipped, not_listed)]


def _stages(document: BenchDocument) -> Table:
    whole = document.whole.clips_per_second
    rows = [
        (
            stage.name,
            _short(stage.clips_per_second),
            f"{_short(stage.clips_per_second / whole)}x" if whole else "",
            f"{_short(stage.own_rate)} {stage.own_unit}",
            "" if stage.busy_share is None else f"{stage.busy_share:.0%}",
            stage.threads,
        )
        for stage in document.stages
        if stage.clips_per_second is not None and stage.own_rate is not None
    ]
    titles = ("stage alone", ">clips/s", ">of the whole", ">in its unit", ">busy", ">threads")
    return Table(titles, rows)


def _short(value: float) -> str:
    """Three digits that count.

    >>> _short(0.01234), _short(12.34), _short(1234567.0)
    ('0.0123', '12.3', '1,230,000')
    """
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _whole_facts(document: BenchDocument) -> list[tuple[str, object]]:
    from dstream.diagnose.bench.numerals import BEYOND_LIMIT, share_of_limit
    from dstream.diagnose.prices import Prices
    from dstream.units import format_bytes, format_duration

    whole, cost = document.whole, document.cost
    of_slowest = ""
    if whole.efficiency is not None:
        of_slowest = f", {share_of_limit(whole.efficiency)} of the slowest part"
        if whole.efficiency >= BEYOND_LIMIT:
            of_slowest += f", measured at least {1 - 1 / whole.efficiency:.0%} too low"
    alone_s = document.settings.get("alone_s")
    facts: list[tuple[str, object]] = [
        ("whole", f"{_short(whole.clips_per_second)} clips/s{of_slowest}"),
        (
            "clips",
            f"{whole.clips:,} in {format_duration(whole.wall_s)}"
            + (
                f", the first batch after {format_duration(whole.first_batch_s)}"
                if whole.clips
                else ""
            ),
        ),
        ("consumer", f"waited {whole.stall_share:.0%} of the time after that"),
        ("explained", f"{whole.explained_share:.1%} of the threads' time, by stages and waits"),
    ]
    if cost is not None:
        at = "S3's list prices" if cost.prices == Prices() else "the given prices"
        paid = f"{counted(cost.requests, 'request')}, {format_bytes(cost.bytes)}"
        facts.append(("cost", f"{paid}: ${cost.dollars:.2g} at {at}"))
    if alone_s is not None:
        facts.append(("alone", f"each stage for {format_duration(alone_s)}, after the run"))
    if told := document.settings.get("nvdec_alone"):
        facts.append(("NVDEC alone", told))
    return facts


def skipped_parts(
    failures: Sequence[Mapping[str, str]], not_listed: Mapping[str, int]
) -> list[Part]:
    """What was skipped, by reason, for people; below it what was not even listed."""
    if not failures and not not_listed:
        return []
    by_reason: dict[str, dict[str, str]] = {}
    for failure in failures:
        files = by_reason.setdefault(failure["reason"], {})
        files.setdefault(failure["sample_key"], failure["message"])
    rows = [
        (reason, len(files), next(f"{key}: {message}" for key, message in files.items()))
        for reason, files in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    ]
    rows += [(reason, n, "left out of the listing") for reason, n in sorted(not_listed.items())]
    return [Table(("reason", ">files", "for example"), rows, title="Skipped")]


def report_facts(report: LoaderReport) -> list[tuple[str, object]]:
    """The report for people; each number is explained where :class:`LoaderReport` has it."""
    from dstream.units import format_bytes, format_duration

    # Clips in the making when the run ended were paid for as well.
    fetched = max(1.0, report.data_requests / (report.data_requests_per_clip or 1.0))
    facts: list[tuple[str, object]] = [
        (
            "clips",
            f"{report.clips:,} in {format_duration(report.wall_seconds)}, "
            f"{report.clips_per_second:.3g}/s",
        ),
        (
            "first batch",
            f"after {format_duration(report.first_batch_seconds)}",
        ),
        (
            "frames",
            f"{report.frames_delivered:,} delivered, {report.frames_decoded:,} decoded "
            f"({report.decode_amplification:.2f}x), {report.frames_skipped:,} skipped",
        ),
        ("decoder", f"{report.decode_frames_per_second:,.0f} frames/s a thread"),
        (
            "bytes",
            f"{format_bytes(report.bytes_received)} received for "
            f"{format_bytes(report.bytes_needed)} needed ({report.byte_amplification:.2f}x)",
        ),
        (
            "a clip",
            f"{report.data_requests_per_clip:.2f} data requests, "
            f"{format_bytes(report.bytes_received / fetched)}",
        ),
        ("unverified", f"{format_bytes(report.bytes_unverified)} had no checksum"),
    ]
    facts += [
        (name, f"{counted(count, 'request')}, {format_bytes(size_bytes)}")
        for name, count, size_bytes in (
            ("side files", report.side_requests, report.side_bytes),
            ("tables", report.table_requests, report.table_bytes),
            ("indexing", report.index_requests, report.index_bytes),
        )
        if count
    ]
    facts += _cache_facts(report)
    if report.nvdec_sessions:
        sessions = ", ".join(f"{count:,} {what}" for what, count in report.nvdec_sessions.items())
        told = (
            f"{report.nvdec_frames:,} frames, {report.nvdec_frames_per_second:,.0f}/s a session, "
            f"{report.nvdec_frames_per_engine:,.0f}/s an engine; sessions: {sessions}"
        )
        facts.append(("NVDEC", told))
    if report.device_memory:
        held = ", ".join(f"{format_bytes(n)} {what}" for what, n in report.device_memory.items())
        facts.append(("GPU memory", f"at most {held}"))
    if report.copies_per_byte:
        facts.append(("GPU copies", f"{report.copies_per_byte:.2f} bytes for each delivered"))
    if report.index_full_passes:
        facts.append(("full passes", f"{counted(report.index_full_passes, 'video')} read whole"))
    if report.outages:
        lasted = format_duration(report.outage_seconds)
        facts.append(("outages", f"{report.outages:,}, {lasted} in all"))
    if report.throttles:
        facts.append(("throttled", counted(report.throttles, "request")))
    facts += [
        (name, ", ".join(f"{count:,} {reason}" for reason, count in counts.items()))
        for name, counts in (
            ("retries", report.retries),
            ("fallbacks", report.fallbacks),
            ("deadlines", report.deadlines),
            ("skipped", report.skips),
            ("not listed", report.not_listed),
            ("refetched", report.refetches),
            ("not cached", report.cache_refusals),
            ("cache rot", report.cache_rot),
            ("cache off", report.cache_off),
        )
        if counts
    ]
    return facts


def _cache_facts(report: LoaderReport) -> list[tuple[str, object]]:
    from dstream.units import format_bytes

    if not report.cache_hits + report.cache_misses:
        return []
    told = (
        f"{report.cache_hits:,} of {report.cache_hits + report.cache_misses:,} pieces hit "
        f"({report.cache_hit_rate:.0%}; {report.cache_byte_hit_rate:.0%} of the bytes), "
        f"{format_bytes(report.cache_bytes_admitted)} added"
    )
    facts: list[tuple[str, object]] = [("cache", told)]
    if report.cache_evictions:
        evicted = counted(report.cache_evictions, "segment")
        facts.append(("evicted", f"{evicted}, {format_bytes(report.cache_bytes_evicted)}"))
    return facts
