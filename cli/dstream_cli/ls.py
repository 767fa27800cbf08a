"""``dstream ls``: what a repository holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from dstream.errors import NotFoundError
from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.plain import timestamp
from dstream_cli.render import Part, Table

if TYPE_CHECKING:
    from dstream.catalog import Catalog, Root
    from dstream.format.manifest import Totals

NAME = "ls"
SUMMARY = "List what a repository holds."
EPILOG = epilog(
    "dstream ls",
    "dstream ls --repo s3://lab/repo --json",
    codes=(0, 1, 2, 10, 12),
)


def run(
    context: typer.Context,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """List the artifacts of a repository with their latest generation."""
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    catalog = call.catalog()
    root = catalog.head()
    found = [_listed(catalog, root, name) for name in root.names()]
    if not found:
        call.out.message("The repository is empty; fill it with: dstream ingest SOURCE --name NAME")
    titles = ("name", "latest", "kind", ">samples", ">length", ">bytes", "created")
    parts: list[Part] = [Table(titles, [_row(item) for item in found])] if found else []
    call.out.result({"repository": catalog.store.url, "seq": root.seq, "artifacts": found}, parts)


@dataclass(frozen=True, slots=True)
class Listed:
    """One artifact, as ``--json`` prints it."""

    name: str
    kind: str
    generations: int
    aliases: dict[str, int]
    latest: int | None
    created: str
    recipe: str | None
    """Of the latest generation, for a dataset."""
    totals: Totals | None
    """Of the latest generation, for a dataset."""


def _listed(catalog: Catalog, root: Root, name: str) -> Listed:
    row = root.row(name)
    if row is None:
        raise NotFoundError(f"nothing is named {name!r} here", name=name)
    aliases = row.aliases
    latest = root.generation(name, aliases["latest"]) if "latest" in aliases else None
    dataset = catalog.dataset(latest) if latest and latest.kind == "dataset" else None
    return Listed(
        name=name,
        kind=row.artifact.kind,
        generations=len(list(root.generations(name))),
        aliases=aliases,
        latest=None if latest is None else latest.version,
        created="" if latest is None else timestamp(latest.created_s),
        recipe=None if dataset is None else dataset.recipe.name,
        totals=None if dataset is None else dataset.totals,
    )


def _row(item: Listed) -> tuple[object, ...]:
    from dstream.units import format_bytes
    from dstream_cli.lengths import RECIPE_OF_ROWS, length

    totals = item.totals
    duration_s = 0.0 if totals is None else totals.duration_s
    rows_s = duration_s if item.recipe == RECIPE_OF_ROWS else 0.0
    return (
        item.name,
        "none" if item.latest is None else f"v{item.latest}",
        item.kind,
        "" if totals is None else f"{totals.samples:,}",
        "" if totals is None else length(duration_s, rows_s),
        "" if totals is None else format_bytes(totals.bytes),
        item.created,
    )
