"""Paths of files inside a checkpoint, as they may be stored and as they may be written to disk.

A manifest comes from outside: whoever may publish chose its names. So the same rules are applied
when a folder is published and when a manifest is read.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MAX_PATH_BYTES = 1024
MAX_PART_BYTES = 255
"""The limit of common file systems for one name."""

MARKER_NAME = ".dstream-generation.json"
"""Written by ``fetch`` into the folder that it made; never part of a checkpoint."""


def path_fault(path: str) -> str | None:
    """Why ``path`` cannot name a file of a checkpoint; None where it can.

    >>> path_fault("model/weights.bin"), path_fault("../x")
    (None, "a part of it is empty, '.' or '..'")
    """
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if not path:
        return "it is empty"
    if path.startswith("/"):
        return "it is absolute"
    # Zl and Zp end a line as well, for some readers of lists of names.
    if any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in path):
        return "it holds a control character"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "a part of it is empty, '.' or '..'"
    if len(encoded) > MAX_PATH_BYTES:
        return f"it is longer than {MAX_PATH_BYTES} bytes"
    if any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"a part of it is longer than {MAX_PART_BYTES} bytes"
    if path == MARKER_NAME:
        return "that name is kept for what fetch notes"
    return None


def path_clash(paths: Iterable[str]) -> tuple[str, str] | None:
    """Two of ``paths`` that cannot both be written; None where all can.

    The same path twice, a file that is also a folder, or paths that some file systems take for
    the same: they differ only in case or in how accents are composed.

    >>> path_clash(["a/b", "A/c"]), path_clash(["a/b", "A/B"]), path_clash(["a", "a/b"])
    (None, ('a/b', 'A/B'), ('a', 'a/b'))
    """
    seen: dict[str, str] = {}
    for path in paths:
        folded = _folded(path)
        if folded in seen:
            return seen[folded], path
        seen[folded] = path
    for folded, path in seen.items():
        end = folded.find("/")
        while end >= 0:
            if folded[:end] in seen:
                return seen[folded[:end]], path
            end = folded.find("/", end + 1)
    return None


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
