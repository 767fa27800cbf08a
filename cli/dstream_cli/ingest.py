"""``dstream ingest``: make a folder or bucket of raw videos a generation of a dataset."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dstream.errors import InvalidInputError
from dstream_cli.options import (
    Common,
    Debug,
    Json,
    Quiet,
    Repo,
    S3Args,
    common,
    epilog,
    named_values,
)
from dstream_cli.progress import ProgressLine
from dstream_cli.render import Facts, Part
from dstream_cli.usage import parsed

if TYPE_CHECKING:
    from dstream.ingest import IngestResult, IngestSettings, Progress, Share

NAME = "ingest"
SUMMARY = "Add raw videos to a dataset."
EPILOG = epilog(
    "dstream ingest ./videos --name gameplay",
    "dstream ingest s3://raw/videos --name gameplay --in-place",
    "dstream ingest ./runs --name runs --recipe gameplay --recipe-arg align=time",
    "dstream ingest s3://raw/videos --name gameplay --dry-run",
    "dstream ingest s3://raw/videos --name big --part 3/16 --into big-2026-05",
    "dstream ingest --finish big-2026-05",
    codes=(0, 1, 2, 3, 10, 11, 12, 13),
)


def run(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder, or a bucket prefix. Never written.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", "-n", metavar="NAME", help="The dataset to add to, or to make.")
    ] = "",
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Copy nothing: index the files where they lie.")
    ] = False,
    recipe: Annotated[
        str,
        typer.Option(metavar="RECIPE", help="An installed name, or a Python file of your own."),
    ] = "video",
    recipe_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A parameter of the recipe. Repeatable."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only names like this: 'day7/*.mp4'. Repeatable."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="No names like this. Repeatable."),
    ] = None,
    quarantine: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Leave the files that loaders wrote here, with quarantine=FILE."
        ),
    ] = "",
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Packed: bytes of a tar shard.")
    ] = "256MiB",
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="Files read at the same time.")
    ] = 8,
    checksum: Annotated[
        bool, typer.Option("--checksum", help="In place: read all bytes, to verify later reads.")
    ] = False,
    max_index_bytes: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Quarantine files whose index costs more to find."),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Hold what the source holds now, and no more.")
    ] = False,
    retry_quarantined: Annotated[
        bool, typer.Option("--retry-quarantined", help="Try what an earlier run left out.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change nothing; estimate both layouts from a sample."),
    ] = False,
    part: Annotated[
        str,
        typer.Option(metavar="I/N", help="Do share I of N and commit nothing; with --into."),
    ] = "",
    into: Annotated[
        str, typer.Option(metavar="KEY", help="Names the ingest that the shares belong to.")
    ] = "",
    finish: Annotated[
        str, typer.Option(metavar="KEY", help="Commit the shares that went --into KEY.")
    ] = "",
    message: Annotated[
        str, typer.Option("--message", "-m", metavar="TEXT", help="Kept with the commit.")
    ] = "",
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> int:
    """Probe raw videos and commit them as one generation of a dataset.

    What the dataset has already is skipped; a killed run is resumed by running it again. Files
    that give no frames are quarantined with a reason, and the command ends with exit code 3.
    """
    from dstream.ingest import IngestSettings, Layout
    from dstream.units import parse_bytes

    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    _check(source, name, part, into, finish, dry_run=dry_run)
    settings = IngestSettings(
        layout=Layout.IN_PLACE if in_place else Layout.PACKED,
        shard_bytes=parsed("--shard-size", parse_bytes, shard_size),
        workers=workers,
        checksum=checksum,
        max_index_bytes=(
            parsed("--max-index-bytes", parse_bytes, max_index_bytes) if max_index_bytes else None
        ),
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        quarantine=read_quarantine(quarantine),
        share=parse_share(part),
        session_key=into or finish or None,
        replace=replace,
        retry_quarantined=retry_quarantined,
        message=message,
    )
    params = named_values(recipe_arg or (), "--recipe-arg")
    job = Job(call, source, name, settings, recipe, params)
    if dry_run:
        return job.estimate()
    return job.finish() if finish else job.run()


def read_quarantine(path: str) -> frozenset[str]:
    """The names in a file that loaders wrote; none for an empty path."""
    from pathlib import Path

    from dstream.format.quarantine import parse_lines

    if not path:
        return frozenset()
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"--quarantine {path}: {error.strerror or error}") from error
    return frozenset(line.name for line in parse_lines(data, path))


def parse_share(text: str) -> Share | None:
    """``3/16`` as a share; None for an empty text."""
    from dstream.ingest import Share

    if not text:
        return None
    index, slash, count = text.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal():
        raise InvalidInputError(f"--part {text}: write I/N, for example 3/16")
    return Share(int(index), int(count))


def _check(source: str, name: str, part: str, into: str, finish: str, *, dry_run: bool) -> None:
    if bool(part) != bool(into):
        raise InvalidInputError("--part I/N and --into KEY go together")
    if not finish and not (source and name):
        missing = "SOURCE" if not source else "--name NAME"
        raise InvalidInputError(f"{missing} is missing; see dstream ingest --help")
    if finish and part:
        raise InvalidInputError("--finish commits what the shares did; it takes no --part")
    if dry_run and (part or finish):
        raise InvalidInputError("--dry-run estimates the whole source, without --part or --finish")


@dataclass(frozen=True, slots=True)
class Job:
    """One call of ``ingest``, put together."""

    call: Common
    source: str
    name: str
    settings: IngestSettings
    recipe: str
    params: dict[str, str]

    def run(self) -> int:
        """Ingest, or do one share. Returns the exit code."""
        from dstream.ingest import SkipLog, ingest
        from dstream.measure import Meter
        from dstream.recipe import load_recipe

        recipe = load_recipe(self.recipe, self.params)
        meter, skips = Meter(), SkipLog()
        catalog = self.call.catalog(meter)
        source = self.call.open_store(self.source, meter, on_skip=skips)
        with self._line() as line:
            result = ingest(
                catalog,
                source,
                self.name,
                recipe=recipe,
                settings=self.settings,
                progress=lambda progress: _show(line, progress),
                meter=meter,
                skips=skips,
            )
        return _report(self.call, result)

    def finish(self) -> int:
        """Commit what the shares did. Returns the exit code."""
        from dstream.ingest import finish_ingest
        from dstream.measure import Meter

        meter = Meter()
        key = str(self.settings.session_key)
        result = finish_ingest(self.call.catalog(meter), key, name=self.name or None, meter=meter)
        return _report(self.call, result)

    def estimate(self) -> int:
        """Say what it would cost. Needs no repository. Returns the exit code."""
        from dstream.ingest import SkipLog, dry_run
        from dstream.measure import Meter
        from dstream.recipe import files_of, load_recipe
        from dstream_cli.estimates import estimate_parts

        meter, skips = Meter(), SkipLog()
        recipe = load_recipe(self.recipe, self.params)
        found = dry_run(
            self.call.open_store(self.source, meter, on_skip=skips),
            recipe=recipe,
            settings=self.settings,
            meter=meter,
            skips=skips,
        )
        unit = "file" if files_of(recipe) else "video"
        self.call.out.result(found, estimate_parts(found, unit, recipe.name))
        return 0

    def _line(self) -> ProgressLine:
        from dstream.clock import SystemClock

        return ProgressLine(self.call.out, SystemClock(), "ingest")


def _show(line: ProgressLine, progress: Progress) -> None:
    what = "files" if not progress.quarantined else f"files ({progress.quarantined} quarantined)"
    line.update(
        done=progress.files_done,
        total=progress.files_total,
        done_bytes=progress.bytes_done,
        total_bytes=progress.bytes_total,
        what=what,
    )


def _report(call: Common, result: IngestResult) -> int:
    from dstream.units import format_bytes
    from dstream_cli.datasets import quarantine_table
    from dstream_cli.plain import counted, plain

    document = {
        "repository": call.repo,
        "name": result.name,
        "version": None if result.generation is None else result.generation.version,
        "published": result.published,
        "session_key": result.session_key,
        "share": None if result.share is None else [result.share.index, result.share.count],
        "files": result.files,
        "bytes": result.bytes,
        "samples": result.samples,
        "resumed_files": result.resumed_files,
        "unchanged_files": result.unchanged_files,
        "quarantined": plain(result.quarantined),
        "requests": result.requests.as_json(),
    }
    facts: list[tuple[str, object]] = [
        (
            "added",
            f"{counted(result.samples, 'sample')} in {counted(result.files, 'file')}, "
            f"{format_bytes(result.bytes)}",
        ),
        *(
            (name, counted(count, "file"))
            for name, count in (
                ("unchanged", result.unchanged_files),
                ("resumed", result.resumed_files),
                ("quarantined", len(result.quarantined)),
            )
            if count
        ),
    ]
    parts: list[Part] = [Facts(facts, title=_headline(result))]
    if result.quarantined:
        parts.append(quarantine_table([asdict(row) for row in result.quarantined]))
    call.out.result(document, parts)
    return 3 if result.quarantined else 0


def _headline(result: IngestResult) -> str:
    if result.share is not None:
        return f"Share {result.share.index} of {result.share.count} is done"
    if result.generation is None:
        return "Nothing could be published"
    label = result.generation.label
    return f"Published {label}" if result.published else f"Nothing new: {label} holds it all"
