"""What all verbs share: options, exit codes, and how they reach a repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dstream.errors import InvalidInputError, NotFoundError
from dstream_cli.render import Output

if TYPE_CHECKING:
    from dstream.catalog import Catalog
    from dstream.measure import Meter
    from dstream.store.base import Store
    from dstream.store.options import StoreOptions

EXIT_CODES = {
    0: "done",
    1: "failed: the environment, or a bug",
    2: "usage: fix the command line",
    3: "done in part: something was quarantined or skipped",
    10: "not found",
    11: "conflict with another writer's committed work",
    12: "refused: going on would be unsafe (store, source or format)",
    13: "outcome unknown: look before trying again",
    130: "interrupted",
}
EXIT_INTERRUPTED = 130

Repo = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="DSTREAM_REPO",
        help="The repository: s3://bucket/prefix or a folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no messages.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")]
GetPrice = Annotated[
    float, typer.Option(metavar="USD", min=0, help="Of 1,000 GET and HEAD requests.")
]
PutPrice = Annotated[
    float, typer.Option(metavar="USD", min=0, help="Of 1,000 PUT, POST and LIST requests.")
]
EgressPrice = Annotated[
    float, typer.Option(metavar="USD", min=0, help="Of 10^9 received bytes; 0 within a region.")
]
Cache = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        envvar="DSTREAM_CACHE",
        help="Keep what is read from the store in this directory of the node.",
    ),
]
CacheBytes = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        envvar="DSTREAM_CACHE_BYTES",
        help="What the cache may take, such as 200GB; what was set last by default.",
    ),
]
S3Args = Annotated[
    list[str] | None,
    typer.Option(
        "--s3-arg",
        metavar="NAME=VALUE",
        help="An argument for every S3 request that knows it, such as "
        "RequestPayer=requester. Repeatable.",
    ),
]


def epilog(*examples: str, codes: Sequence[int] = (0, 1, 2)) -> str:
    """The end of a verb's help: examples, and the exit codes that it uses."""
    lines = "\n".join(f"  {example}" for example in examples)
    told = "\n".join(f"  {code:>3}  {EXIT_CODES[code]}" for code in codes)
    return f"\b\nExamples:\n{lines}\n\n\b\nExit codes:\n{told}"


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every verb takes, put to use."""

    out: Output
    repo: str
    s3_args: tuple[tuple[str, str], ...]
    context: typer.Context

    def store_options(self) -> StoreOptions:
        """Settings for every store that the verb opens."""
        from dstream.store.options import StoreOptions

        return StoreOptions(request_args=dict(self.s3_args))

    def open_store(
        self,
        url: str,
        meter: Meter | None = None,
        on_skip: Callable[[str, str], None] | None = None,
    ) -> Store:
        """The store at ``url``, with this call's options; closed when the verb is done."""
        from dstream.store.opening import open_store

        store = open_store(url, options=self.store_options(), meter=meter, on_skip=on_skip)
        self.context.call_on_close(store.close)
        return store

    def catalog(self, meter: Meter | None = None, *, target: str = "") -> Catalog:
        """The catalog of the repository. Raises ``NotFoundError`` where there is none."""
        from dstream.catalog import Catalog

        return Catalog.open(self.open_store(self.repo_url(target), meter), meter=meter)

    def repo_url(self, target: str = "") -> str:
        """The repository's URL.

        Args:
            target: what is wanted of it, where that could have been a path as well.

        Raises:
            InvalidInputError: none was given.
        """
        if not self.repo:
            raise InvalidInputError(
                "no repository: give --repo URL, or set DSTREAM_REPO"
                + (target and f". {target!r} was taken for a name in one; a path is ./{target}")
            )
        return self.repo


def common(
    context: typer.Context,
    *,
    repo: str = "",
    quiet: bool = False,
    s3_arg: Sequence[str] | None = None,
) -> Common:
    """Take the shared options of one call. ``--json`` and ``--debug`` are on the sink already."""
    out = context.ensure_object(Output)
    out.quiet = quiet
    return Common(out, repo, tuple(named_values(s3_arg or (), "--s3-arg").items()), context)


def named_values(pairs: Sequence[str], option: str) -> dict[str, str]:
    """``["a=1", "b=2"]`` as a mapping. Values may be secrets and are not repeated in errors."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidInputError(f"{option} takes NAME=VALUE, got {name!r} without a value")
        values[name.strip()] = value
    return values


@contextmanager
def by_name(target: str) -> Iterator[None]:
    """Looking ``target`` up by name in the body; where that fails and a path is meant, it is told.

    Raises:
        NotFoundError: as the body.
    """
    try:
        yield
    except NotFoundError as error:
        if not Path(target).exists():
            raise
        raise NotFoundError(
            f"{error}. {target!r} was taken for a name; what lies here is ./{target}",
            **error.facts,
        ) from error


def is_path(target: str, repo: str) -> bool:
    """Whether ``target`` is a path or URL rather than the name of an artifact.

    A URL is, and what begins like a path. Another word is a path when something lies there and
    it looks like one: it has a ``/``, or it is a file with a suffix. Without a repository
    nothing has a name, so whatever looks like a path or exists is one.
    """
    if "://" in target or target.startswith(("/", "./", "../", "~")) or target in (".", ".."):
        return True
    if target.lower().startswith(("s3:/", "file:/")):  # no name has a colon: a slash is missing
        return True
    path = Path(target)
    looks_like_one = "/" in target or path.suffix != ""
    if not repo:
        return looks_like_one or path.exists()
    return path.exists() and looks_like_one and ("/" in target or path.is_file())
