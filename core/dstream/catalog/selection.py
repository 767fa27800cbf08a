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
    return f"; there are {len(names)} names, list them with: dstream ls"


def _what_there_is(root: Root, name: str) -> str:
    versions = [entry.version for entry in root.generations(name)]
    if not versions:
        return f"all generations of {name} have been retired"
    aliases = sorted(root.aliases_of(name))
    named = f"aliases {_joined(aliases)}" if aliases else "no alias"
    span = f"v{versions[0]}" if len(versions) == 1 else f"v{min(versions)} to v{max(versions)}"
    return f"{name} has {len(versions)} generation(s), {span}, and {named}"


def _joined(words: list[str]) -> str:
    shown = ", ".join(words[:_SHOWN])
    return shown if len(words) <= _SHOWN else f"{shown} and {len(words) - _SHOWN} more"
