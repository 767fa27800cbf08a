"""``dstream fetch``: a checkpoint into a folder that appears whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dstream_cli.options import Debug, Json, Quiet, Repo, S3Args, common, epilog
from dstream_cli.progress import ProgressLine, copy_line

NAME = "fetch"
SUMMARY = "Fetch a checkpoint into a folder."
EPILOG = epilog(
    "dstream fetch run7@latest ./ckpt",
    "dstream fetch run7@v12 ./ckpt --replace",
    "dstream fetch run7 ./output --layout transformers",
    codes=(0, 1, 2, 10, 11, 12),
)

Layout = Literal[
    "plain", "checkpoint-step", "transformers", "accelerate", "torchtitan", "lightning"
]


def run(
    context: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="NAME[@REF]", help="The generation; latest without REF.")
    ],
    dest: Annotated[
        Path,
        typer.Argument(
            metavar="DEST", help="The folder to make; with a layout, the folder of the run."
        ),
    ],
    layout: Annotated[
        Layout, typer.Option(help="Name the checkpoint's folder below DEST as a framework does.")
    ] = "plain",
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of another folder that is there.")
    ] = False,
    sync: Annotated[
        bool, typer.Option("--sync/--no-sync", help="Make it durable before it appears.")
    ] = True,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Reads at the same time.")] = 8,
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Fetch every file, check it against its hash, and rename the whole folder into place.

    Run it again after an interruption: finished files are kept. With --quiet only the folder's
    path is printed.
    """
    from dstream.checkpoint import fetch
    from dstream.clock import SystemClock
    from dstream.measure import Meter
    from dstream.units import format_bytes
    from dstream_cli.plain import counted
    from dstream_cli.render import Facts, Line, Part

    call, meter = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg), Meter()
    with ProgressLine(call.out, SystemClock(), NAME) as line:
        done = fetch(
            call.catalog(meter),
            reference,
            dest,
            layout=layout,
            replace=replace,
            threads=threads,
            progress=copy_line(line),
            meter=meter,
            sync=sync,
        )
    generation = done.generation
    document = {
        "repository": call.repo,
        "reference": generation.label,
        "name": generation.name,
        "version": generation.version,
        "step": generation.step,
        "path": str(done.path),
        "files": done.files,
        "bytes": done.size_bytes,
        "kept_files": done.kept_files,
        "was_there": done.was_there,
    }
    facts: list[tuple[str, object]] = [
        ("path", done.path),
        ("holds", f"{counted(done.files, 'file')}, {format_bytes(done.size_bytes)}"),
    ]
    if done.kept_files:
        facts.append(("kept", f"{counted(done.kept_files, 'file')} of an interrupted fetch"))
    verb = "Already there:" if done.was_there else "Fetched"
    shown: Part = Facts(facts, title=f"{verb} {generation.label}")
    call.out.result(document, [Line(str(done.path)) if quiet else shown])
