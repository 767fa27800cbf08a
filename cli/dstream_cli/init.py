"""``dstream init``: make an empty repository."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, S3Args, common, epilog

NAME = "init"
SUMMARY = "Make an empty repository."
EPILOG = epilog(
    "dstream init ./repo",
    "dstream init s3://lab/repo",
    "AWS_ENDPOINT_URL=http://10.0.0.7:9000 dstream init s3://lab/repo",
    codes=(0, 1, 2, 11, 12, 13),
)


def run(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="Where it will lie: s3://bucket/prefix or a folder."),
    ],
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Make an empty repository, after proving that its store keeps one winner of a race.

    A store that lets a second conditional write through is refused: commits on it could be
    lost.
    """
    from dstream.catalog import Catalog

    call = common(context, quiet=quiet, s3_arg=s3_arg)
    store = call.open_store(url)
    root = Catalog.create(store).head()
    document = {"repository": store.url, "seq": root.seq}
    call.out.result(document, [f"Made an empty repository in {store.url}"])
    call.out.message(f"Next: dstream ingest SOURCE --name NAME --repo {store.url}")
