"""``dstream alias``: list and remove aliases."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream.errors import InvalidInputError
from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.render import Table

NAME = "alias"
SUMMARY = "List the aliases of a name, or remove one."
EPILOG = epilog(
    "dstream alias run",
    "dstream alias --remove run@prod",
    "dstream alias --remove run@prod --expect v6",
    codes=(0, 1, 2, 10, 11, 12, 13),
)


def run(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="NAME | NAME@ALIAS", help="A name, or the alias to remove.")
    ],
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the alias; its generation stays.")
    ] = False,
    expect: Annotated[
        str, typer.Option(metavar="VERSION", help="Only if the alias is at this version now.")
    ] = "",
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """List the aliases of NAME, or remove NAME@ALIAS."""
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    name, _, alias = target.partition("@")
    if remove:
        if not alias:
            raise InvalidInputError(f"say which alias to remove: {name}@ALIAS")
        call.catalog().remove_alias(name, alias, expect or None)
        call.out.result({"name": name, "removed": alias}, [f"Removed {name}@{alias}"])
        return
    if alias or expect:
        raise InvalidInputError("listing takes a bare NAME; --remove takes NAME@ALIAS")
    catalog = call.catalog()
    root = catalog.head()
    if root.row(name) is None:
        catalog.resolve(name, root=root)  # says what there is
    aliases = root.aliases_of(name)
    rows = [(f"{name}@{alias}", f"v{version}") for alias, version in sorted(aliases.items())]
    call.out.result(
        {"name": name, "aliases": aliases}, [Table(("alias", ">version"), rows)] if rows else []
    )
    if not rows:
        call.out.message(f"{name} has no alias; make one with: dstream promote {name}@v1 ALIAS")
