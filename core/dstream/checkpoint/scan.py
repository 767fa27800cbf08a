"""Which files of a local folder make a checkpoint. Looks, and reads nothing.

The rules: regular files count, hidden ones too. A symbolic link is refused unless links are
followed; then a link to a regular file counts as that file, and a link to a folder is still
refused. Sockets, pipes and devices are refused. Empty folders are left out, since a store has
none. The note that ``fetch`` leaves is left out, so that a fetched folder can be published.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dstream.errors import InvalidInputError
from dstream.format.paths import MARKER_NAME, path_clash, path_fault
from dstream.store.local_errors import translate


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What changes when a file's bytes do."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Fingerprint:
        """From what the operating system says of a file."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file to publish."""

    path: str
    """In the checkpoint: relative, with ``/``."""
    source: Path
    fingerprint: Fingerprint
    mode: int

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.fingerprint.size_bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """Everything below one path."""

    files: tuple[LocalFile, ...]
    """Sorted by path."""
    empty_folders: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(file.size_bytes for file in self.files)


def scan(root: Path, *, follow: bool = False) -> Scan:
    """The files at ``root``: those below it, or itself where it is a file.

    Args:
        root: a folder or a regular file; it may itself be reached by a symbolic link.
        follow: let links to regular files count as those files.

    Raises:
        InvalidInputError: there is nothing there, or something that cannot be published; the
            file is named.
        PermissionDeniedError: a folder must not be listed.
    """
    try:
        status = root.stat()
        if stat.S_ISDIR(status.st_mode):
            entries = sorted(_walk(root, "", follow), key=lambda entry: entry[0])
        else:
            entries = [(root.name, _file(root.name, root, status))]
    except FileNotFoundError as error:
        raise InvalidInputError(
            f"there is no {error.filename}, or no more", path=str(error.filename)
        ) from error
    except OSError as error:
        where = str(getattr(error, "filename", None) or root)
        raise translate(error, "read", where, Path(), writing=True) from error
    files = tuple(file for _, file in entries if file is not None)
    empty = tuple(path for path, file in entries if file is None)
    for file in files:
        fault = path_fault(file.path)
        if fault is not None:
            raise InvalidInputError(f"cannot publish {str(file.source)!r}: {fault}", path=file.path)
    clash = path_clash(file.path for file in files)
    if clash is not None:
        raise InvalidInputError(
            f"cannot publish both {clash[0]!r} and {clash[1]!r} of {root}: some file systems "
            "take these names for the same; rename one",
            path=clash[1],
        )
    if not files:
        raise InvalidInputError(f"there is no file in {root}", path=str(root))
    return Scan(files, empty)


def _walk(folder: Path, prefix: str, follow: bool) -> Iterator[tuple[str, LocalFile | None]]:
    """(path, file) of each file, (path, None) of each empty folder."""
    pending = [(folder, prefix)]
    while pending:
        folder, prefix = pending.pop()
        with os.scandir(folder) as listing:
            entries = [e for e in listing if prefix or e.name != MARKER_NAME]
        if not entries and prefix:
            yield prefix.rstrip("/"), None
        for entry in entries:
            path, source = prefix + entry.name, Path(entry.path)
            if entry.is_symlink():
                yield path, _link(path, source, follow)
            elif entry.is_dir(follow_symlinks=False):
                pending.append((source, f"{path}/"))
            else:
                yield path, _file(path, source, entry.stat(follow_symlinks=False))


def _link(path: str, source: Path, follow: bool) -> LocalFile:
    if not follow:
        raise InvalidInputError(
            f"{source} is a symbolic link; publish what it points at by following links "
            "(--follow), or remove it",
            path=path,
        )
    try:
        status = source.stat()
    except FileNotFoundError as error:
        raise InvalidInputError(f"{source} is a symbolic link to nothing", path=path) from error
    if stat.S_ISDIR(status.st_mode):
        raise InvalidInputError(
            f"{source} is a symbolic link to a folder; links to folders are not followed",
            path=path,
        )
    return _file(path, source, status)


def _file(path: str, source: Path, status: os.stat_result) -> LocalFile:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInputError(
            f"{source} is no regular file but a pipe, socket or device", path=path
        )
    return LocalFile(path, source, Fingerprint.of(status), stat.S_IMODE(status.st_mode) & 0o777)
