"""``dstream bench``: run the loader and say what it cost and what holds it up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dstream.errors import InvalidInputError
from dstream_cli.options import (
    Cache,
    CacheBytes,
    Common,
    Debug,
    Json,
    Quiet,
    Repo,
    S3Args,
    common,
    epilog,
    is_path,
)
from dstream_cli.plain import counted
from dstream_cli.progress import ProgressLine
from dstream_cli.render import Facts, Part, Table

if TYPE_CHECKING:
    from dstream.loader import Clips, Loader, LoaderReport
    from dstream.loader.failures import Failure

NAME = "bench"
SUMMARY = "Stream clips and report rate, cost and bottleneck."
EPILOG = epilog(
    "dstream bench gameplay --frames 16 --fps 8 --seconds 30",
    "dstream bench gameplay@v3 --clips 500 --batch-size 16 --resize 256 --json",
    "dstream bench gameplay --split train --where 'width >= 1280 and fps > 20'",
    "dstream bench s3://raw/videos --frames 16 --stride 2 --clips 100",
    codes=(0, 1, 2, 3, 10, 12),
)
_DEFAULT_SECONDS = 20.0

Sampling = Literal["uniform", "grid", "keyframe"]
OnError = Literal["raise", "skip"]

_ANY_NUMBER = 1 << 62
"""Of failing files: a bench of what lies there is to tell how many fail, not to stop at some."""


def run(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@REF] | SOURCE",
            help="A dataset's generation, or a folder or bucket of raw videos.",
        ),
    ],
    clips: Annotated[
        int,
        typer.Option(metavar="N", min=0, show_default=False, help="Stop after this many clips."),
    ] = 0,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, show_default=False, help="Stop after this long; 20 without --clips."
        ),
    ] = 0,
    frames: Annotated[int, typer.Option(metavar="N", min=1, help="Frames a clip.")] = 16,
    stride: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Take every N-th frame; 1 without --fps."),
    ] = None,
    fps: Annotated[
        float | None, typer.Option(metavar="RATE", help="Take frames by time instead.")
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Clips a batch.")] = 8,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Decoding threads; one for each CPU.")
    ] = None,
    resize: Annotated[
        str, typer.Option(metavar="SIZE", help="Shorter side as 256, or HEIGHTxWIDTH.")
    ] = "",
    crop: Annotated[
        str, typer.Option(metavar="HEIGHTxWIDTH", help="Cut this out of the middle afterwards.")
    ] = "",
    sampling: Annotated[Sampling, typer.Option(help="Where clips start.")] = "uniform",
    shuffle: Annotated[bool, typer.Option(help="In a random order, or as listed.")] = True,
    clips_per_gop: Annotated[
        int, typer.Option(metavar="N", min=1, help="Consecutive clips made from one decode.")
    ] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of order and starts.")] = 0,
    split: Annotated[
        str | None, typer.Option(metavar="SPLIT", help="Only samples of this split.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only samples for which this is true: 'width >= 1280'."),
    ] = None,
    recipe: Annotated[
        str, typer.Option(metavar="FILE", help="The recipe's file, if it is not installed.")
    ] = "",
    cache: Cache = "",
    cache_bytes: CacheBytes = "",
    on_error: Annotated[
        OnError | None,
        typer.Option(
            help="Stop at a file that gives no clip (datasets), or count it (raw videos).",
            show_default=False,
        ),
    ] = None,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> int:
    """Stream clips as training would, and report the rate, the cost and the bottleneck.

    Nothing is done with the clips, so the rate is the loader's own top speed. Clips repeat when
    the data is smaller than what is asked for.
    """
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    if stride is not None and fps is not None:
        raise InvalidInputError("give --stride or --fps, not both")
    source = open_clips(
        call,
        target,
        {"cache": cache or None, "cache_bytes": cache_bytes or None},
        frames=frames,
        stride=None if fps is not None else stride or 1,
        fps=fps,
        sampling=sampling,
        seed=seed,
        resize=parse_size(resize),
        crop=parse_crop(crop),
        split=split,
        where=where,
        recipe=recipe,
    )
    settings: dict[str, Any] = {} if workers is None else {"workers": workers}
    if on_error is None:
        on_error = "skip" if is_path(target, call.repo) else "raise"
    with source.loader(
        batch_size,
        rank=0,  # one process measures itself, whatever launched it
        world_size=1,
        epochs=None,
        shuffle=shuffle,
        clips_per_gop=clips_per_gop,
        on_error=on_error,
        max_failures=_ANY_NUMBER,
        **settings,
    ) as loader:
        _drain(call, loader, clips, seconds if seconds or clips else _DEFAULT_SECONDS)
        report, failures = loader.report(), loader.failures
    document = {"target": target, "report": report.as_json(), "skipped": failures}
    call.out.result(document, [*report_parts(report), *skipped_parts(failures)])
    return 3 if report.skips else 0


def open_clips(
    call: Common,
    target: str,
    cache: dict[str, Any],
    *,
    split: str | None,
    where: str | None,
    recipe: str,
    **clip: Any,
) -> Clips:
    """The clips of a dataset, or of raw videos, with the options of a verb."""
    import dstream

    options = call.store_options()
    if not is_path(target, call.repo):
        if recipe:
            clip["recipe"] = recipe
        repo = dstream.open(call.repo_url(), options=options, **cache)
        call.context.call_on_close(repo.close)
        return repo.clips(target, split=split, where=where, **clip)
    if split is not None or where is not None or recipe:
        raise InvalidInputError(
            "--split, --where and --recipe need a dataset: raw videos have none of them"
        )
    folder = target if "://" in target else Path(target).expanduser()
    return dstream.clips(folder, options=options, **cache, **clip)


def _drain(call: Common, loader: Loader, clips: int, seconds: float) -> None:
    """Take batches until there were enough clips, or the time is up."""
    from dstream.clock import SystemClock

    clock = SystemClock()
    started_s, taken = clock.monotonic_s(), 0
    with ProgressLine(call.out, clock, "bench") as line:
        for batch in loader:
            taken += len(batch)
            line.update(
                done=taken, total=clips or None, done_bytes=0, total_bytes=None, what="clips"
            )
            if clips and taken >= clips:
                break
            if seconds and clock.monotonic_s() - started_s >= seconds:
                break


def parse_size(text: str) -> int | tuple[int, int] | None:
    """``256`` is the shorter side, ``180x320`` (height, width), empty the video's own size.

    >>> parse_size("256"), parse_size("180x320"), parse_size("")
    (256, (180, 320), None)
    """
    if not text:
        return None
    numbers = text.lower().split("x")
    if len(numbers) > 2 or not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise InvalidInputError(f"--resize {text}: write 256 or HEIGHTxWIDTH such as 180x320")
    return int(numbers[0]) if len(numbers) == 1 else (int(numbers[0]), int(numbers[1]))


def parse_crop(text: str) -> tuple[int, int] | None:
    """``180x320`` is (height, width), empty none.

    >>> parse_crop("180x320"), parse_crop("")
    ((180, 320), None)
    """
    if not text:
        return None
    numbers = text.lower().split("x")
    if len(numbers) != 2 or not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise InvalidInputError(f"--crop {text}: write HEIGHTxWIDTH such as 180x320")
    return int(numbers[0]), int(numbers[1])


def skipped_parts(failures: Sequence[Failure]) -> list[Part]:
    """What was skipped, by reason, for people."""
    if not failures:
        return []
    by_reason: dict[str, dict[str, str]] = {}
    for failure in failures:
        files = by_reason.setdefault(failure.reason, {})
        files.setdefault(failure.sample_key, failure.message)
    rows = [
        (reason, len(files), next(f"{key}: {message}" for key, message in files.items()))
        for reason, files in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    ]
    return [Table(("reason", ">files", "for example"), rows, title="Skipped")]


def report_parts(report: LoaderReport) -> list[Part]:
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
            ("refetched", report.refetches),
            ("not cached", report.cache_refusals),
            ("cache rot", report.cache_rot),
            ("cache off", report.cache_off),
        )
        if counts
    ]
    if not report.clips:
        return [Facts(facts), report.bottleneck]
    # Waiting is left out: whoever only takes clips does nothing else.
    told = "This is the loader's own top speed: nothing is done with the clips."
    return [Facts(facts), f"{told} {report.slowest_stage}"]


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
