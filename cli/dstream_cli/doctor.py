"""``dstream doctor``: what this machine does in hardware, and what holds a loader up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, S3Args, common, epilog
from dstream_cli.render import Part, Table

if TYPE_CHECKING:
    from dstream.diagnose.finding import Finding

NAME = "doctor"
SUMMARY = "Measure the way from a bucket to a GPU on this machine."
EPILOG = epilog(
    "dstream doctor",
    "dstream doctor s3://raw/videos --cache /nvme/dstream",
    "dstream doctor s3://lab/repo --write --json",
    codes=(0, 1, 2),
)
SCHEMA = "dstream.doctor/1"


def run(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="A bucket, prefix or folder to read from.")
    ] = "",
    cache: Annotated[
        str,
        typer.Option(
            metavar="DIR", envvar="DSTREAM_CACHE", help="Where a cache would lie; else TMPDIR."
        ),
    ] = "",
    write: Annotated[
        bool, typer.Option("--write", help="Write a few bytes to URL, to prove what it can hold.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="How long each rate is measured.")
    ] = 2.0,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> int:
    """Walk the four gaps: store to host, cache disk, host to GPU, bytes to frames.

    Each line says what was found and what to do about it; what could not be measured is said
    too. URL is only read, unless --write is given. The cache's directory gets a file of 128 MiB
    for a moment.
    """
    from dstream.clock import SystemClock
    from dstream.diagnose.doctor import Examination, examine

    call = common(context, quiet=quiet, s3_arg=s3_arg)
    call.out.message("measuring, this takes some seconds")
    folder = Path(cache or gettempdir())
    what = Examination(url or None, folder, write, seconds, call.store_options())
    findings = examine(what, SystemClock())
    call.out.result({"schema": SCHEMA, "findings": findings}, page(findings))
    return 0


def page(findings: Sequence[Finding]) -> list[Part]:
    """The findings by gap, then what to do."""
    parts: list[Part] = []
    for gap in dict.fromkeys(finding.gap for finding in findings):
        rows = [(f.check, f.verdict.value, f.found) for f in findings if f.gap is gap]
        parts.append(Table(("check", "verdict", "found"), rows, title=gap.value))
    remedies = [(f.check, f.remedy) for f in findings if f.remedy]
    if remedies:
        parts.append(Table(("for", "do"), remedies, title="What to do"))
    return parts
