"""``dstream promote``: point an alias at a generation."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog

NAME = "promote"
SUMMARY = "Point an alias at a generation."
EPILOG = epilog(
    "dstream promote run@v7 prod",
    "dstream promote run@v7 prod --expect v6",
    "dstream promote run@v6 prod",
    codes=(0, 1, 2, 10, 11, 12, 13),
)


def run(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="NAME@REF", help="The generation: run@v7, run@newest ...")
    ],
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias to move or to make.")],
    expect: Annotated[
        str,
        typer.Option(
            metavar="VERSION",
            help="Only if the alias is at this version now (v6); 0: only if there is none.",
        ),
    ] = "",
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Point ALIAS at a generation, in one commit. Rolling back is promoting an older one.

    With --expect the move is refused (11) when somebody else has moved the alias.
    """
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    catalog = call.catalog()
    generation = catalog.promote(target, alias, expect or None)
    document = {"name": generation.name, "alias": alias, "version": generation.version}
    call.out.result(document, [f"{generation.name}@{alias} is now v{generation.version}"])
