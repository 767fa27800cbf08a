"""``dstream pins``: what is pinned, by whom, and what it costs."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.pin import pin_document
from dstream_cli.plain import timestamp
from dstream_cli.render import Table

NAME = "pins"
SUMMARY = "List the pins."
EPILOG = epilog(
    "dstream pins",
    "dstream pins --no-bytes",
    "dstream pins --json",
    codes=(0, 1, 2, 10, 12),
)


def run(
    context: typer.Context,
    with_bytes: Annotated[
        bool,
        typer.Option(
            "--bytes/--no-bytes", help="Add up what each alone keeps alive; reads manifests."
        ),
    ] = True,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """List the pins, with the bytes that would go if one were given up.

    Those are the objects of retired generations that this pin alone keeps.
    """
    from dstream.units import format_bytes, format_duration

    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    catalog = call.catalog()
    found = catalog.pins(with_bytes=with_bytes)
    documents = [
        {
            **pin_document(pinned),
            "alone_generations": list(pinned.generations),
            "alone_bytes": pinned.bytes_alone,
        }
        for pinned in found
    ]
    rows = [
        (
            pinned.pin_id,
            pinned.pin.seq,
            "all" if pinned.pin.names is None else ", ".join(pinned.pin.names),
            pinned.pin.owner,
            timestamp(pinned.pin.time_hint_s),
            "for ever" if pinned.pin.ttl_s is None else format_duration(pinned.pin.ttl_s),
            "" if pinned.bytes_alone is None else format_bytes(pinned.bytes_alone),
        )
        for pinned in found
    ]
    titles = ("id", ">root", "names", "owner", "since", "lasts", ">alone keeps")
    call.out.result(
        {"repository": catalog.store.url, "pins": documents}, [Table(titles, rows)] if rows else []
    )
    if not rows:
        call.out.message("Nothing is pinned.")
