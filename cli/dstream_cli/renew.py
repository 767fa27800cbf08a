"""``dstream renew``: let a pin's time begin anew."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.pin import pin_document
from dstream_cli.render import Line
from dstream_cli.usage import parsed

NAME = "renew"
SUMMARY = "Let a pin's time begin anew."
EPILOG = epilog(
    "dstream renew run-17",
    "dstream renew run-17 --ttl 60d",
    codes=(0, 1, 2, 10, 11, 12, 13),
)


def run(
    context: typer.Context,
    pin_id: Annotated[str, typer.Argument(metavar="ID", help="The pin.")],
    ttl: Annotated[str, typer.Option(metavar="TIME", help="A new length, such as 60d.")] = "",
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Let a pin's time begin anew. A pin that is over is a conflict (11): it cannot be revived."""
    from dstream.units import parse_duration

    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    ttl_s = parsed("--ttl", parse_duration, ttl) if ttl else None
    renewed = call.catalog().renew(pin_id, ttl_s)
    call.out.result(pin_document(renewed), [Line(renewed.token)])
