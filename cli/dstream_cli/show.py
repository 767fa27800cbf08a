"""``dstream show``: a generation, a video of one, or a raw video file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dstream.errors import InvalidInputError, NotFoundError
from dstream_cli.options import (
    Common,
    Debug,
    Json,
    Quiet,
    Repo,
    S3Args,
    by_name,
    common,
    epilog,
    is_path,
)
from dstream_cli.render import Line

NAME = "show"
SUMMARY = "Show a generation, a sample or a raw video."
EPILOG = epilog(
    "dstream show gameplay",
    "dstream show gameplay@v3 --json",
    "dstream show run7@latest --quiet",
    "dstream show gameplay session7/run1.mp4",
    "dstream show ./run1.mp4",
    "dstream show s3://raw/videos/run1.mp4",
    codes=(0, 1, 2, 10, 12),
)


def run(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@REF] | VIDEO",
            help="A generation, or the path or URL of a raw video file.",
        ),
    ],
    key: Annotated[
        str, typer.Argument(metavar="[KEY]", help="A sample of the dataset: show its video.")
    ] = "",
    repo: Repo = "",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    s3_arg: S3Args = None,
) -> None:
    """Show what a generation holds, or how a video is laid out and what its clips cost.

    REF is a version (v3), an alias (latest, prod) or newest. With --quiet a generation is one
    line, NAME@v3: what REF means now, for scripts.
    """
    call = common(context, repo=repo, quiet=quiet, s3_arg=s3_arg)
    if key:
        _sample(call, target, key)
    elif is_path(target, repo):
        _raw_file(call, target)
    else:
        _generation(call, target)


def _generation(call: Common, reference: str) -> None:
    from dstream_cli.datasets import generation_document, generation_parts

    catalog = call.catalog(target=reference)
    with by_name(reference):
        generation = catalog.resolve(reference)
    if call.out.quiet and not call.out.json:
        call.out.result({}, [Line(generation.label)])
        return
    document = generation_document(catalog, generation)
    call.out.result(document, generation_parts(document))


def _sample(call: Common, reference: str, key: str) -> None:
    from dstream.loader.generation import GenerationSource
    from dstream_cli.videos import sample_facts, video_document, video_parts

    catalog = call.catalog()
    generation = catalog.resolve(reference)
    source = GenerationSource(
        generation.label, catalog.store, catalog.dataset(generation), call.open_store
    )
    sample = source.resolve(source.find(key))
    document = {
        "generation": generation.label,
        "sample": sample_facts(sample),
        **video_document([sample.index]),
    }
    call.out.result(document, video_parts(document))


def _raw_file(call: Common, target: str) -> None:
    from dstream.media.index import index_video
    from dstream.media.reader import StoreReader
    from dstream_cli.videos import video_document, video_parts

    if "://" not in target and Path(target).expanduser().is_dir():
        raise _is_folder(target)
    folder, name = _split(target)
    if not name:
        raise _is_folder(target)
    store = call.open_store(folder)
    try:
        info = store.head(name)
    except NotFoundError:
        if next(iter(store.list(f"{name}/", limit=1)), None) is None:
            raise
        raise _is_folder(target) from None
    indexes = index_video(StoreReader(store, info))
    document = {"file": target, **video_document(indexes)}
    call.out.result(document, video_parts(document))


def _is_folder(target: str) -> InvalidInputError:
    return InvalidInputError(
        f"{target} is a folder, and show takes one video or the name of a dataset. "
        f"`dstream bench {target}` streams its videos, `dstream ingest {target} --name NAME` "
        "makes a dataset of them",
        target=target,
    )


def _split(target: str) -> tuple[str, str]:
    """Folder and name of a path or URL; no name where it is a bucket or a root.

    >>> _split("s3://raw/videos/a.mp4"), _split("s3://raw"), _split("file:///a.mp4")
    (('s3://raw/videos', 'a.mp4'), ('s3://raw', ''), ('file:///', 'a.mp4'))
    """
    scheme, has_scheme, rest = target.partition("://")
    if not has_scheme:
        whole = Path(target).expanduser()
        return str(whole.parent), whole.name
    folder, _, name = rest.rstrip("/").rpartition("/")
    if scheme == "file":
        return f"file://{folder or '/'}", name
    return (f"{scheme}://{folder}", name) if folder else (target, "")
