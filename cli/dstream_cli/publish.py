"""``dstream publish``: make a folder of files the next generation of a checkpoint."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dstream.errors import InvalidInputError
from dstream_cli.options import (
    Common,
    Debug,
    Json,
    Quiet,
    Repo,
    S3Args,
    common,
    epilog,
    named_values,
)
from dstream_cli.progress import ProgressLine, copy_line

if TYPE_CHECKING:
    from dstream.checkpoint import Published

NAME = "publish"
SUMMARY = "Publish a folder as a checkpoint."
EPILOG = epilog(
    "dstream publish ./out/checkpoint-500 --name run7 --step 500",
    "dstream publish ./model --name prod --attr sha=$GIT_SHA --promote stable",
    "dstream publish ./model --name prod --idempotency-key $CI_JOB_ID --json",
    codes=(0, 1, 2, 10, 11, 12, 13),
)


def run(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A folder, or one file.")],
    name: Annotated[
        str, typer.Option("--name", "-n", metavar="NAME", help="What it is a generation of.")
    ],
    attr: Annotated[
        list[str] | None,
        typer.Option(
            "--attr", metavar="K=V", help="An attribute; V is JSON, or else text. Repeatable."
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Training step: latest is the highest one."),
    ] = None,
    promote: Annotated[
        str,
        typer.Option(metavar="ALIAS", help="Point this alias at it, in the same transaction."),
    ] = "",
    idempotency_key: Annotated[
        str,
        typer.Option(
            metavar="K", help="Stands for this content; without one, the content itself does."
        ),
    ] = "",
    loader_state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON object: where the data loader stood."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Publish what symbolic links to files point at.")
    ] = False,
    threads: Annotated[
        int, typer.Option(metavar="N", min=1, help="Files that are sent at the same time.")
    ] = 8,
    message: Annotated[
        str, typer.Option("--message", "-m", metavar="TEXT", help="Kept with the commit.")
    ] = "",
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Stage the files at PATH, then make them visible in one transaction.

    Unchanged files of the previous generation are not sent again. It is safe to run twice: the
    same content is the same generation.
    """
    from dstream.checkpoint import publish
    from dstream.clock import SystemClock
    from dstream.measure import Meter

    call, meter = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg), Meter()
    with ProgressLine(call.out, SystemClock(), NAME) as line:
        done = publish(
            call.catalog(meter),
            path,
            name,
            attrs=attributes(attr or ()),
            step=step,
            message=message,
            promote=promote or None,
            idempotency_key=idempotency_key or None,
            loader_state=None if loader_state is None else read_state(loader_state),
            follow=follow,
            threads=threads,
            progress=copy_line(line),
            meter=meter,
        )
    left_out = meter.snapshot().event("publish-skip").get("empty-folder", 0)
    _report(call, done, promote, left_out)


def attributes(pairs: list[str] | tuple[()]) -> dict[str, Any]:
    """Values as JSON where they are JSON, else as text.

    >>> attributes(["loss=0.5", "sha=0a1", "tags=[1]", "empty="])
    {'loss': 0.5, 'sha': '0a1', 'tags': [1], 'empty': ''}
    """
    values: dict[str, Any] = {}
    for name, text in named_values(pairs, "--attr").items():
        try:
            values[name] = json_module.loads(text, parse_constant=str)
        except ValueError:
            values[name] = text
    return values


def read_state(path: Path) -> dict[str, object]:
    """The JSON object in a file."""
    try:
        document = json_module.loads(path.read_bytes())
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"{path} holds no JSON object")
    return document


def _report(call: Common, done: Published, promote: str, left_out: int) -> None:
    from dstream.units import format_bytes
    from dstream_cli.plain import counted
    from dstream_cli.render import Facts

    generation = done.generation
    document = {
        "repository": call.repo,
        "name": generation.name,
        "version": generation.version,
        "reference": generation.label,
        "step": generation.step,
        "seq": generation.seq,
        "published": done.is_new,
        "promoted": promote or None,
        "files": done.files,
        "bytes": done.size_bytes,
        "uploaded_files": done.uploaded_files,
        "uploaded_bytes": done.uploaded_bytes,
        "empty_folders_left_out": left_out,
    }
    sent = f"{counted(done.uploaded_files, 'file')}, {format_bytes(done.uploaded_bytes)}"
    facts: list[tuple[str, object]] = [
        ("holds", f"{counted(done.files, 'file')}, {format_bytes(done.size_bytes)}"),
        ("sent", sent if done.uploaded_files else "nothing: all files were there"),
    ]
    if promote:
        facts.append(("alias", f"{generation.name}@{promote}"))
    if left_out:
        facts.append(("left out", counted(left_out, "empty folder")))
    verb = "Published" if done.is_new else "Nothing new: this is"
    call.out.result(document, [Facts(facts, title=f"{verb} {generation.label}")])
