"""``dstream log``: the commits of a repository, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.plain import timestamp
from dstream_cli.render import Table

NAME = "log"
SUMMARY = "List the commits of a repository."
EPILOG = epilog(
    "dstream log",
    "dstream log --limit 5 --json",
    codes=(0, 1, 2, 10, 12),
)


def run(
    context: typer.Context,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="Most commits to show; 0: all.")
    ] = 20,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Show who committed what and when, newest first; the chain of hashes is checked."""
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    catalog = call.catalog()
    entries = catalog.log(limit or None)
    document = {
        "repository": catalog.store.url,
        "commits": [
            {
                "seq": entry.seq,
                "time_s": entry.time_hint_s,
                "time": timestamp(entry.time_hint_s),
                "by": entry.by,
                "txn_id": entry.txn_id,
                "ops": entry.ops,
            }
            for entry in entries
        ],
    }
    rows = [
        (
            entry.seq,
            timestamp(entry.time_hint_s),
            entry.by,
            "; ".join(told(operation) for operation in entry.ops),
        )
        for entry in entries
    ]
    call.out.result(document, [Table((">seq", "when", "who", "what"), rows)])


def told(operation: Mapping[str, object]) -> str:
    """One operation of a commit in words. Those of newer versions are told by their name.

    >>> told({"op": "publish", "name": "a", "version": 2, "latest": True, "promote": "prod"})
    'publish a@v2 (latest, prod)'
    >>> told({"op": "pin", "id": 3})
    'pin id=3'
    """
    kind = str(operation.get("op", "?"))
    facts = {name: value for name, value in operation.items() if name != "op"}
    if kind == "publish":
        moved = ["latest"] if facts.get("latest") else []
        moved += [str(facts["promote"])] if facts.get("promote") else []
        mark = f" ({', '.join(moved)})" if moved else ""
        return f"publish {facts.get('name')}@v{facts.get('version')}{mark}"
    if kind == "move_alias":
        return f"{facts.get('name')}@{facts.get('alias')} is now v{facts.get('version')}"
    return " ".join([kind, *(f"{name}={_listed(value)}" for name, value in facts.items())])


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
