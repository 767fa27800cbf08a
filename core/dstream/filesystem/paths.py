"""What a ``dstream://`` path means. Pure.

::

    dstream://NAME@REF/FILE                  the repository is named by repo=
    dstream://ESCAPED-REPOSITORY/NAME@REF/FILE

The repository's URL is percent-escaped as a whole, ``/`` and ``:`` too. Names hold no ``%``, so a
first part that does is a repository. A relative folder is written ``./repo``, escaped as
``.%2Frepo``.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from dstream.errors import InvalidInputError

PROTOCOL = "dstream"


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path within a repository."""

    reference: str | None
    """``NAME@REF``; None above the generations."""
    inside: str
    """Path within the generation, or the beginning of a name where there is no reference."""


def split_url(url: str) -> tuple[str | None, str]:
    """(repository or None, path within it) of a URL, or of a path without its protocol.

    >>> split_url("dstream://s3%3A%2F%2Fb%2Frepo/clips@v3/files/a.mp4")
    ('s3://b/repo', 'clips@v3/files/a.mp4')
    >>> split_url("clips@v3/")
    (None, 'clips@v3')
    """
    path = url.removeprefix(f"{PROTOCOL}://").removeprefix(f"{PROTOCOL}::").rstrip("/")
    first, _, rest = path.partition("/")
    if "%" in first and "@" not in first:
        return unquote(first), rest
    return None, path


def join_url(repository: str, path: str) -> str:
    """The URL that :func:`split_url` takes apart.

    >>> join_url("/data/repo", "clips@v3")
    'dstream://%2Fdata%2Frepo/clips@v3'
    """
    first = quote(repository if "/" in repository else f"./{repository}", safe="")
    return f"{PROTOCOL}://{first}/{path}".rstrip("/")


def parse_path(path: str) -> FilePath:
    """What a path without protocol and repository names.

    Raises:
        InvalidInputError: absolute, or with a part that is empty, ``.``, ``..`` or holds NUL.

    >>> parse_path("team/clips@v3/files/a.mp4")
    FilePath(reference='team/clips@v3', inside='files/a.mp4')
    """
    parts = path.split("/") if path else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InvalidInputError(
            f"unusable path {path[:200]!r}: write NAME@REF/FILE, relative and without '.', '..' "
            "or empty parts",
            path=path,
        )
    for number, part in enumerate(parts, 1):
        if "@" in part:
            return FilePath("/".join(parts[:number]), "/".join(parts[number:]))
    return FilePath(None, path)
