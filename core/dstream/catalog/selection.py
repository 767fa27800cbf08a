"""Finding a generation in a root, and saying helpfully that it is not there. Pure."""

from __future__ import annotations

import difflib

from dstream.catalog.names import Reference
from dstream.errors import NotFoundError
from dstream.format.root import Generation, Root

_SHOWN = 5


def select(root: Root, reference: Reference) -> Generation:
    """The generation that ``reference`` means in this root.

    Raises:
        NotFoundError: the message names close matches, or what the name does have.
    """
    if root.row(reference.name) is None:
        raise NotFoundError(
            f"nothing is named {reference.name!r} here{_similar(root, reference.name)}",
            name=reference.name,
        )
    entry = find(root, reference)
    if entry is not None:
        return entry
    raise NotFoundError(
        f"there is no {reference}; {_what_there_is(root, reference.name)}",
        name=reference.name,
        reference=str(reference),
    )


def find(root: Root, reference: Reference) -> Generation | None:
    """The generation that ``reference`` means in this root, or None."""
    if reference.version is not None:
        return root.generation(reference.name, reference.version)
    if reference.alias is None:
        return root.newest(reference.name)
    version = root.aliases_of(reference.name).get(reference.alias)
    return None if version is None else root.generation(reference.name, version)


def _similar(root: Root, name: str) -> str:
    names = root.names()
    close = difflib.get_close_matches(name, names, n=_SHOWN, cutoff=0.5)
    if close:
        return f"; did you mean {_joined(close)}?"
    if not names:
        return "; the repository is empty"
    count = "is 1 name" if len(names) == 1 else f"are {len(names)} names"
    return f"; there {count}, list them with: dstream ls"


def _what_there_is(root: Root, name: str) -> str:
    versions = [entry.version for entry in root.generations(name)]
    if not versions:
        return f"all generations of {name} have been retired"
    aliases = sorted(root.aliases_of(name))
    named = f"aliases {_joined(aliases)}" if aliases else "no alias"
    count = "1 generation" if len(versions) == 1 else f"{len(versions)} generations"
    return f"{name} has {count}, {_spans(sorted(versions))}, and {named}"


def _spans(versions: list[int]) -> str:
    """What exists, in runs without a gap; the newest few where there are many.

    >>> _spans([1, 3]), _spans([1, 2, 3, 4, 7]), _spans(list(range(1, 30, 2)))
    ('v1, v3', 'v1 to v4, v7', 'v21, v23, v25, v27, v29 and 10 older')
    """
    runs: list[list[int]] = []
    for version in versions:
        if runs and version == runs[-1][-1] + 1:
            runs[-1].append(version)
        else:
            runs.append([version])
    shown = runs[-_SHOWN:]
    older = sum(map(len, runs)) - sum(map(len, shown))
    text = ", ".join(_span(run[0], run[-1]) for run in shown)
    return f"{text} and {older} older" if older else text


def _span(first: int, last: int) -> str:
    if last - first < 2:
        return ", ".join(f"v{version}" for version in range(first, last + 1))
    return f"v{first} to v{last}"


def _joined(words: list[str]) -> str:
    shown = ", ".join(words[:_SHOWN])
    return shown if len(words) <= _SHOWN else f"{shown} and {len(words) - _SHOWN} more"
