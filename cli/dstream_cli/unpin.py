"""``dstream unpin``: give a pin up."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog

NAME = "unpin"
SUMMARY = "Give a pin up."
EPILOG = epilog("dstream unpin run-17", codes=(0, 1, 2, 10, 12, 13))


def run(
    context: typer.Context,
    pin_id: Annotated[str, typer.Argument(metavar="ID", help="The pin.")],
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Give a pin up. What it alone kept goes with the next collections."""
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    call.catalog().unpin(pin_id)
    call.out.result({"unpinned": pin_id}, [f"Unpinned {pin_id}"])
