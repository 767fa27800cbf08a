"""``dstream pin``: keep what a repository lists now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.render import Line
from dstream_cli.usage import parsed

if TYPE_CHECKING:
    from dstream.catalog import Pinned

NAME = "pin"
SUMMARY = "Keep what the repository lists now."
EPILOG = epilog(
    "dstream pin --ttl 30d --owner alice",
    "dstream pin --only gameplay --id run-17 --ttl 30d",
    "TOKEN=$(dstream pin --id run-17 --quiet)",
    codes=(0, 1, 2, 10, 11, 12, 13),
)


def run(
    context: typer.Context,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Keep only this name's. Repeatable."),
    ] = None,
    pin_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="To find it again; made up by default.")
    ] = "",
    ttl: Annotated[
        str, typer.Option(metavar="TIME", help="How long, such as 30d or 12h; else for ever.")
    ] = "",
    owner: Annotated[str, typer.Option(metavar="TEXT", help="Whose it is, for people.")] = "",
    seq: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Pin an earlier root of the log.")
    ] = None,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Keep everything that is listed now, whatever is retired later, in one small write.

    Prints a token. dstream.open(token) and clips(..., pin=token) show the same frozen listing to
    every process. Pin once a run, not once a process; pinning again under one id is the same pin.
    """
    from dstream.units import parse_duration

    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    ttl_s = parsed("--ttl", parse_duration, ttl) if ttl else None
    made = call.catalog().pin(
        only or None,
        pin_id=pin_id or None,
        owner=owner,
        ttl_s=ttl_s,
        seq=seq,
    )
    call.out.result(pin_document(made), [Line(made.token)])
    call.out.message(f"Give it up with: dstream unpin {made.pin_id}")


def pin_document(pinned: Pinned) -> dict[str, object]:
    """What ``--json`` prints of a pin."""
    pin = pinned.pin
    names: Sequence[str] | None = pin.names
    return {
        "id": pinned.pin_id,
        "token": pinned.token,
        "seq": pin.seq,
        "names": names,
        "owner": pin.owner,
        "ttl_s": pin.ttl_s,
        "renewed_s": pin.time_hint_s,
    }
