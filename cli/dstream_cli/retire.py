"""``dstream retire``: take generations out of the listing."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog

NAME = "retire"
SUMMARY = "Take generations out of the listing."
EPILOG = epilog(
    "dstream retire run@v3",
    "dstream retire run@v3 run@v4 gameplay@v1",
    codes=(0, 1, 2, 10, 11, 12, 13),
)


def run(
    context: typer.Context,
    targets: Annotated[
        list[str], typer.Argument(metavar="NAME@REF...", help="The generations: run@v3 ...")
    ],
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Take generations out of the listing. `dstream gc` then deletes what no pin keeps.

    One that an alias points at is refused (11). Until collection condemns it, promoting it again
    brings it back.
    """
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    retired = call.catalog().retire(*targets)
    labels = [generation.label for generation in retired] or list(targets)
    call.out.result({"retired": labels}, ["Retired " + ", ".join(labels)])
    call.out.message("Their bytes go once nothing holds them, with: dstream gc")
