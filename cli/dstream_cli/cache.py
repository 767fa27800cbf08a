"""``dstream cache``: look at the node's cache, fill it, empty it."""

from __future__ import annotations

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
    by_name,
    common,
    epilog,
    is_path,
)
from dstream_cli.plain import counted
from dstream_cli.progress import ProgressLine
from dstream_cli.render import Facts, Part, Table

if TYPE_CHECKING:
    from dstream.loader import Clips
    from dstream.loader.warming import Warmed

NAME = "cache"
SUMMARY = "Show, fill or empty the cache of this node."
EPILOG = epilog(
    "dstream cache stat --cache /nvme/dstream",
    "dstream cache warm gameplay --cache /nvme/dstream --cache-bytes 200GB",
    "dstream cache clear --dry-run",
    codes=(0, 1, 2, 3, 10, 12),
)
Action = Literal["stat", "warm", "clear"]


def run(
    context: typer.Context,
    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)],
    target: Annotated[
        str,
        typer.Argument(
            metavar="[NAME[@REF] | SOURCE]",
            help="warm: what to read. clear: only what was kept of it.",
        ),
    ] = "",
    cache: Cache = "",
    cache_bytes: CacheBytes = "",
    threads: Annotated[
        int, typer.Option(metavar="N", min=1, help="warm: files at the same time.")
    ] = 16,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="clear: delete nothing, tell what would go.")
    ] = False,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> int:
    """Show what the node's cache holds, fill it before a run, or empty it.

    warm reads every file once, until the budget is used up; it ends with 3 when some could not
    be read. clear is safe while others read: they fetch again what they need.
    """
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    if not cache:
        raise InvalidInputError("which cache? give --cache DIR, or set DSTREAM_CACHE")
    if dry_run and action != "clear":
        raise InvalidInputError("--dry-run is for `dstream cache clear`")
    directory = Path(cache).expanduser().absolute()
    if action == "warm":
        return _warm(call, target, threads, {"cache": cache, "cache_bytes": cache_bytes or None})
    if action == "clear":
        return _clear(call, directory, target, dry_run)
    if target:
        raise InvalidInputError("`dstream cache stat` takes no name: it shows all there is")
    return _stat(call, directory)


def _stat(call: Common, directory: Path) -> int:
    from dstream.cache.admin import cache_stat
    from dstream.clock import SystemClock
    from dstream.units import format_bytes

    stat = cache_stat(directory, SystemClock())
    budget = "unknown" if stat.budget_bytes is None else format_bytes(stat.budget_bytes)
    facts: list[tuple[str, object]] = [
        ("cache", stat.directory),
        ("budget", f"{format_bytes(stat.reserved_bytes)} of {budget} reserved"),
        (
            "holds",
            f"{counted(stat.extents, 'extent')}, {format_bytes(stat.extent_bytes)}, in "
            f"{counted(stat.segments, 'segment')}",
        ),
    ]
    if stat.broken_slots:
        facts.append(("broken", f"{counted(stat.broken_slots, 'slot')} of index files"))
    parts: list[Part] = [Facts(facts)]
    if stat.data_sets:
        rows = [
            (
                use.label,
                use.extents,
                format_bytes(use.extent_bytes),
                use.segments,
                "yes" if use.in_use else "no",
            )
            for use in stat.data_sets
        ]
        parts.append(Table(("data set", ">extents", ">bytes", ">segments", "in use"), rows))
    call.out.result(stat, parts)
    return 0


def _clear(call: Common, directory: Path, target: str, dry_run: bool) -> int:
    from dstream.cache.admin import clear_cache
    from dstream.clock import SystemClock
    from dstream.units import format_bytes

    label = _label(call, target) if target else None
    cleared = clear_cache(directory, SystemClock(), label=label, dry_run=dry_run)
    would = "would be " if dry_run else ""
    facts = Facts(
        [
            (
                f"{would}deleted",
                f"{counted(cleared.segments, 'segment')}, {format_bytes(cleared.file_bytes)}",
            ),
            ("of", ", ".join(cleared.labels) or "nothing"),
        ]
    )
    call.out.result(cleared, [facts])
    return 0


def _label(call: Common, target: str) -> str:
    """What the cache calls a data set."""
    if is_path(target, call.repo):
        return call.open_store(target).url
    return f"{call.open_store(call.repo_url(target)).url} {target.partition('@')[0]}"


def _warm(call: Common, target: str, threads: int, cache: dict[str, Any]) -> int:
    from dstream.clock import SystemClock
    from dstream.loader.warming import warm
    from dstream.units import format_bytes

    if not target:
        raise InvalidInputError("warm what? give NAME[@REF], or a folder or bucket of videos")
    clips = _open(call, target, cache)
    if clips.cache is not None:
        call.context.call_on_close(clips.cache.close)
    before = clips.meter.snapshot()
    with ProgressLine(call.out, SystemClock(), "warm") as line:

        def show(now: Warmed) -> None:
            line.update(
                done=now.files,
                total=now.files_total,
                done_bytes=now.gop_bytes,
                total_bytes=None,
                what="files",
            )

        done = warm(clips, threads=threads, progress=show)
    counts = clips.meter.snapshot().minus(before)
    added_bytes = int(counts.sums.get("bytes.cache_admitted", 0))
    off = clips.meter.snapshot().event("cache-off")  # it may have been so when it was opened
    document = {"target": target, "warmed": done, "added_bytes": added_bytes, "cache_off": off}
    facts: list[tuple[str, object]] = [
        ("files", f"{done.files:,} of {done.files_total:,}"),
        ("added", f"{format_bytes(added_bytes)} of {format_bytes(done.gop_bytes)} gone through"),
    ]
    if done.is_full:
        facts.append(("full", "the budget was used up before the end"))
    if off:
        facts.append(("cache off", ", ".join(off)))
    parts: list[Part] = [Facts(facts)]
    if done.failed:
        parts.append(Table(("file", "why not"), list(done.failed[:20]), title="Not read"))
    call.out.result(document, parts)
    return 3 if done.failed or off else 0


def _open(call: Common, target: str, cache: dict[str, Any]) -> Clips:
    import dstream

    options = call.store_options()
    if is_path(target, call.repo):
        folder = target if "://" in target else Path(target).expanduser()
        return dstream.clips(folder, frames=1, options=options, **cache)
    repo = dstream.open(call.repo_url(target), options=options, **cache)
    call.context.call_on_close(repo.close)
    with by_name(target):
        return repo.clips(target, frames=1, recipe=None)
