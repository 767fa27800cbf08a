"""Listing a folder tree as an object store would: files in byte order of their whole keys.

A folder holds at most one level in memory at a time (per depth), so that large trees stream.
What cannot be listed is counted and named, never fatal, and never silent.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dstream.store.base import MAX_KEY_BYTES

TEMP_PREFIX = ".dstream-tmp."
"""Files being written. They are invisible to listings and swept as unfinished uploads."""

_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)

Skip = Callable[[str, str], None]
"""Called with (printable name, reason) for what a listing leaves out."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One regular file below the root."""

    key: str
    status: os.stat_result


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    is_folder: bool


def walk(
    root: Path, prefix: str, start_after: str | None, skip: Skip, *, temporary: bool = False
) -> Iterator[FoundFile]:
    """Regular files below ``root`` whose key starts with ``prefix`` and follows ``start_after``.

    Symbolic links are followed; a link to a folder above it is skipped.

    Args:
        temporary: yield the files being written instead of the finished ones.

    Raises:
        OSError: the root itself cannot be read. Folders below it are skipped and named.
    """
    if not stat.S_ISDIR(os.stat(root).st_mode):
        raise NotADirectoryError(20, os.strerror(20), str(root))
    folder = prefix.rpartition("/")[0]
    start = folder + "/" if folder else ""
    if folder and not os.path.isdir(root / folder):
        os.close(os.open(root, _FOLDER_FLAGS))
        return
    walker = _Walker(
        root, prefix.encode(), (start_after or "").encode(errors="surrogatepass"), skip, temporary
    )
    yield from walker.folder(start, ())


class _Walker:
    def __init__(
        self, root: Path, prefix: bytes, start_after: bytes, skip: Skip, temporary: bool
    ) -> None:
        self._root = root
        self._prefix = prefix
        self._after = start_after
        self._skip = skip
        self._temporary = temporary

    def folder(self, key: str, above: tuple[tuple[int, int], ...]) -> Iterator[FoundFile]:
        """Files below the folder ``key`` (empty, or ending in ``/``)."""
        path = self._root / key
        try:
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                self._skip(key, "symlink-loop")
                return
            entries = self._entries(key, path)
        except OSError as error:
            if key and isinstance(error, FileNotFoundError) and not path.is_symlink():
                return  # it was emptied and removed since the folder above was read
            if not key or key == self._prefix.decode().rpartition("/")[0] + "/":
                raise
            self._skip(key, _fault(error))
            return
        for entry in entries:
            name = key + entry.name
            if entry.is_folder:
                if len(name.encode()) >= MAX_KEY_BYTES:
                    self._skip(name, "bad-name")
                elif self._may_hold(f"{name}/".encode()):
                    yield from self.folder(f"{name}/", (*above, identity))
            elif self._wanted(name.encode()):
                yield from self._file(name)

    def _entries(self, key: str, path: Path) -> list[_Entry]:
        """The folder's entries in the order of the keys below them."""
        found: list[tuple[bytes, _Entry]] = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(TEMP_PREFIX) and not self._temporary:
                    continue
                try:
                    name = entry.name.encode()
                except UnicodeEncodeError:
                    self._skip(_printable(key + entry.name), "bad-name")
                    continue
                try:
                    is_folder = entry.is_dir()
                except OSError as error:
                    self._skip(key + entry.name, _fault(error))
                    continue
                # A folder sorts as the keys below it do: "a.mp4" comes before "a/x.mp4".
                order = name + b"/" if is_folder else name
                found.append((order, _Entry(entry.name, is_folder)))
        found.sort(key=lambda pair: pair[0])
        return [entry for _, entry in found]

    def _may_hold(self, folder: bytes) -> bool:
        """Whether any key below ``folder`` (ending in ``/``) can be wanted."""
        fits = folder.startswith(self._prefix) or self._prefix.startswith(folder)
        return fits and (folder > self._after or self._after.startswith(folder))

    def _wanted(self, key: bytes) -> bool:
        return key.startswith(self._prefix) and key > self._after

    def _file(self, key: str) -> Iterator[FoundFile]:
        if key.rpartition("/")[2].startswith(TEMP_PREFIX) is not self._temporary:
            return
        try:
            status = os.stat(self._root / key)
        except FileNotFoundError:
            if os.path.islink(self._root / key):
                self._skip(key, "dangling-link")
            return  # else deleted since the folder was read: it is simply not there
        except OSError as error:
            self._skip(key, _fault(error))
            return
        if stat.S_ISREG(status.st_mode):
            yield FoundFile(key, status)
        else:
            self._skip(key, "not-a-file")


def _fault(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "no-permission"
    if isinstance(error, FileNotFoundError):
        return "vanished"
    # ELOOP by number: a link that points at itself.
    return "symlink-loop" if error.errno == 40 else "unreadable"


def _printable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
