"""``dstream resolve``: settle a commit whose outcome is unknown."""

from __future__ import annotations

from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog

NAME = "resolve"
SUMMARY = "Settle a commit whose outcome is unknown."
EPILOG = epilog(
    "dstream resolve 0f3a5c0d9b1e4c7aa2f6c1d8e9b7a653 41",
    "dstream resolve 0f3a5c0d9b1e4c7aa2f6c1d8e9b7a653",
    codes=(0, 1, 2, 10, 12, 13),
)


def run(
    context: typer.Context,
    txn: Annotated[
        str, typer.Argument(metavar="TXN", help="The transaction that the error named.")
    ],
    slot: Annotated[
        int | None,
        typer.Argument(
            metavar="[SLOT]", min=0, help="The log number that it named; else the log is read."
        ),
    ] = None,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Say for good whether a commit that ended with 13 is in the log.

    Where its place in the log is still free it is taken by an entry that changes nothing, so
    that the lost write can no longer arrive.
    """
    from dstream.catalog.names import check_txn_id

    check_txn_id(txn)
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    committed = call.catalog().resolve_txn(txn, slot)
    said = "is committed" if committed else "is not committed and never will be: run it again"
    call.out.result({"txn_id": txn, "slot": slot, "committed": committed}, [f"{txn} {said}"])
