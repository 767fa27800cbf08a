"""``dstream verify``: look for damage."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.plain import counted
from dstream_cli.render import Facts, Part, Table

NAME = "verify"
SUMMARY = "Look for damage in the repository."
EPILOG = epilog(
    "dstream verify",
    "dstream verify --deep",
    "dstream verify --json",
    codes=(0, 1, 2, 10, 12),
)
EXIT_DAMAGED = 1


def run(
    context: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all bytes and compare their checksums.")
    ] = False,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> int:
    """Check the log's chain, and that every object of every kept generation is there and whole.

    Ends with 1 when something is damaged, and lists it. Data that lies in place, outside of the
    repository, is not looked at.
    """
    from dstream.units import format_bytes

    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    report = call.catalog().verify(deep=deep)
    facts = Facts(
        [
            ("log", f"{counted(report.roots, 'root')}, {report.cleared_roots:,} cleared"),
            ("generations", f"{report.generations:,}"),
            ("objects", f"{report.objects:,}"),
            ("read", format_bytes(report.bytes_read)),
            ("damaged", f"{report.damage_count:,}"),
        ]
    )
    parts: list[Part] = [facts]
    if report.damages:
        parts.append(Table(("where", "what"), [(d.where, d.what) for d in report.damages]))
    call.out.result(report, parts)
    return 0 if report.is_whole else EXIT_DAMAGED
