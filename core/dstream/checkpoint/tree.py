"""A local folder that is written without ever following a link.

Everything is reached by descriptors of opened folders, so a link or another folder that somebody
puts in the place of ours is refused, or is not reached at all.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dstream.errors import DstreamError, RefusedError
from dstream.store.local_errors import translate

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LINK_ERRORS = (errno.ELOOP, errno.ENOTDIR)
_WRITE_OUT = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h


@contextmanager
def told(where: Path, verb: str = "write") -> Iterator[None]:
    """Turn an ``OSError`` of the block into this library's error."""
    try:
        yield
    except OSError as error:
        raise os_error(error, where, verb) from error


def os_error(error: OSError, where: Path, verb: str = "write") -> DstreamError:
    """This library's error for one of the operating system."""
    if error.errno in _LINK_ERRORS:
        return RefusedError(
            f"{where} is a symbolic link or no folder, and will not be followed; remove it, or "
            "choose another destination",
            path=str(where),
        )
    return translate(error, verb, str(where), Path(), writing=True)


class Tree:
    """An opened folder. Close it, or use it as a context manager."""

    def __init__(self, descriptor: int, where: Path) -> None:
        self.descriptor = descriptor
        self.where = where
        """For messages."""

    @classmethod
    def at(cls, path: Path) -> Tree:
        """A folder that the caller named; links on the way to it are the caller's business."""
        with told(path, "open"):
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)

    def status(self, name: str) -> os.stat_result | None:
        """What ``name`` in this folder is, links not followed; None where there is nothing."""
        with told(self.where / name, "look at"):
            with suppress(FileNotFoundError):
                return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        return None

    def folder(self, path: str, *, make: bool = False) -> Tree:
        """The folder at ``path`` below; made where it is missing, if wanted.

        Raises:
            RefusedError: a part of the path is a link, or no folder; it is named.
        """
        where, descriptor = self.where, os.dup(self.descriptor)
        try:
            for part in filter(None, path.split("/")):
                where = where / part
                with told(where):
                    if make:
                        with suppress(FileExistsError):
                            os.mkdir(part, 0o777, dir_fd=descriptor)
                    below = os.open(part, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
        except BaseException:
            os.close(descriptor)
            raise
        return Tree(descriptor, where)

    def create(self, path: str, mode: int) -> int:
        """Descriptor of a new file at ``path``; what was there is removed, not written into.

        ``mode`` is narrowed by the process's umask; the owner can always read and write.
        """
        folder, _, name = path.rpartition("/")
        with self.folder(folder, make=True) as parent, told(self.where / path):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent.descriptor)
            return os.open(name, _CREATE, mode & 0o777 | 0o600, dir_fd=parent.descriptor)

    def open_existing(self, path: str) -> int | None:
        """Descriptor of a regular file for reading; None where there is none.

        Raises:
            RefusedError: a part of the path is a link.
        """
        folder, _, name = path.rpartition("/")
        try:
            with self.folder(folder) as parent, told(self.where / path, "read"):
                descriptor = os.open(name, _READ, dir_fd=parent.descriptor)
        except DstreamError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        status = os.fstat(descriptor)
        # Another name for the file means that it is not ours alone.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(descriptor)
            return None
        return descriptor

    def files(self) -> Iterator[str]:
        """Paths of everything below that is no folder.

        Raises:
            RefusedError: there is a link, a pipe or a device; it is named.
        """
        with told(self.where, "list"):
            for top, _, names, descriptor in os.fwalk(
                ".", dir_fd=self.descriptor, onerror=_raise, follow_symlinks=False
            ):
                prefix = "" if top == "." else top.removeprefix("./") + "/"
                for name in names:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        raise RefusedError(
                            f"{self.where / prefix / name} is a symbolic link, a pipe or a device "
                            "in a folder that fetch was filling; remove it, after asking who put "
                            "it there",
                            path=prefix + name,
                        )
                    yield prefix + name

    def remove(self, path: str) -> None:
        """Delete one file."""
        folder, _, name = path.rpartition("/")
        with self.folder(folder) as parent, told(self.where / path, "delete"):
            os.unlink(name, dir_fd=parent.descriptor)

    def sync(self) -> None:
        """Make the names in this folder and below durable."""
        with told(self.where):
            for *_, descriptor in os.fwalk(".", dir_fd=self.descriptor, follow_symlinks=False):
                os.fsync(descriptor)


def write_at(descriptor: int, start_byte: int, data: bytes) -> None:
    """Write every byte, the first of them at ``start_byte``."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, start_byte)
        view, start_byte = view[count:], start_byte + count


def write_behind(descriptor: int, start_byte: int, size_bytes: int) -> bool:
    """Let the disk begin with bytes that were written; a later fsync then waits for the rest only.

    A hint: it makes nothing durable, and an error of the disk is that fsync's to tell.

    Returns:
        Whether the system did it.
    """
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return False
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return bool(call(descriptor, start_byte, size_bytes, _WRITE_OUT) == 0)


def _raise(error: OSError) -> None:
    raise error
