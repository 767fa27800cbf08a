"""``dstream gc``: collect what nothing keeps."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.plain import counted
from dstream_cli.render import Facts, Part, Table
from dstream_cli.usage import parsed

NAME = "gc"
SUMMARY = "Delete what nothing keeps."
EPILOG = epilog(
    "dstream gc --dry-run",
    "dstream gc",
    "dstream gc --keep-last 5",
    "dstream gc --keep-last 5 --keep-within 30d --json",
    codes=(0, 1, 2, 3, 10, 12, 13),
)
EXIT_PARTLY = 3
_SHOWN = 40


def run(
    context: typer.Context,
    keep_last: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Give up all but the newest N of each name."),
    ] = None,
    keep_within: Annotated[
        str, typer.Option(metavar="TIME", help="Give up what is older, such as 30d.")
    ] = "",
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Bytes go so long after they were given up.")
    ] = "24h",
    session_grace: Annotated[
        str, typer.Option(metavar="TIME", help="Uploads that began earlier are given up.")
    ] = "7d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print what would go, and why.")
    ] = False,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> int:
    """Give up what nothing keeps, and delete what was given up long enough ago.

    Kept is what an alias, a pin or a kept generation needs, what is live (with --keep-last or
    --keep-within: only what they keep), and uploads in progress. Two runs at once are safe, and
    so is one that is cut off. Ends with 3 when something could not be deleted.
    """
    from dstream.catalog import GcSettings
    from dstream.units import format_bytes, parse_duration

    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    settings = GcSettings(
        keep_last=keep_last,
        keep_within_s=parsed("--keep-within", parse_duration, keep_within) if keep_within else None,
        grace_s=parsed("--grace", parse_duration, grace),
        session_grace_s=parsed("--session-grace", parse_duration, session_grace),
        dry_run=dry_run,
    )
    report = call.catalog().gc(settings)
    would = "would be " if dry_run else ""
    facts = Facts(
        [
            (f"{would}given up", counted(len(report.condemned), "generation")),
            ("waiting for their grace", counted(report.waiting, "generation")),
            (f"{would}deleted", ", ".join(_told(report.deleted)) or "nothing"),
            (f"{would}freed", format_bytes(report.deleted_bytes)),
            ("expired pins", ", ".join(report.expired_pins) or "none"),
            ("kept", "; ".join(f"{n:,} {why}" for why, n in report.kept.most_common(8))),
            ("fence", f"uploads from before log number {report.upload_floor} are over"),
        ]
    )
    rows = [(item.what, item.name, item.reason) for item in (*report.condemned, *report.items)]
    parts: list[Part] = [facts]
    if rows:
        parts.append(Table(("what", "name", "why"), rows[:_SHOWN]))
    if len(rows) > _SHOWN:
        parts.append(f"and {len(rows) - _SHOWN:,} more; --json lists them")
    if report.failed:
        failed = list(report.failed.items())[:_SHOWN]
        parts.append(Table(("not deleted", "why"), failed))
    call.out.result(report, parts)
    return EXIT_PARTLY if report.failed else 0


def _told(deleted: dict[str, int]) -> list[str]:
    return [counted(number, what) for what, number in sorted(deleted.items())]
