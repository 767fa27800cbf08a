"""What the operating system's errors mean: the one place where ``OSError`` is translated."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from dstream.errors import (
    DstreamError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StorageError,
)

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_SHAPE = {
    errno.EISDIR: "there is a folder of that name",
    errno.ENOTDIR: "a part of the name is a file, not a folder",
    errno.EEXIST: "a part of the name is a file, not a folder",
    errno.ENAMETOOLONG: "a part of the name is longer than the file system allows",
    errno.ENOTEMPTY: "there is a folder of that name",
    errno.EILSEQ: "the file system refuses the characters of the name",
    errno.EINVAL: "the file system refuses the name",
}


@contextmanager
def translated(operation: str, key: str, root: Path, *, writing: bool = False) -> Iterator[None]:
    """Turn an ``OSError`` of the block into this library's error of the same meaning."""
    try:
        yield
    except OSError as error:
        raise translate(error, operation, key, root, writing=writing) from error


def translate(
    error: OSError, operation: str, key: str, root: Path, *, writing: bool = False
) -> DstreamError:
    """The library's error for one of the operating system. Pure.

    Errors that another attempt cannot mend carry ``retry=False``.
    """
    code = errno.errorcode.get(error.errno or 0, "unknown")
    where = str(root / key) if key else str(root)
    if error.errno in _DENIED:
        return PermissionDeniedError(
            f"no permission to {operation} {where} ({code}); check the owner and mode of the "
            "file and of its folders, and whether the file system is read-only",
            operation=operation,
            key=key,
            code=code,
        )
    if error.errno in _FULL:
        return StorageError(
            f"cannot {operation} {where}: {_FULL[error.errno]}; free some space and try again",
            operation=operation,
            key=key,
            code=code,
            retry=False,
        )
    if not writing and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
        what = "folder or file" if operation == "list" else "file"
        return NotFoundError(f"there is no {what} {where}", key=key, code=code)
    if error.errno in _SHAPE:
        return InvalidInputError(
            f"cannot {operation} {where}: {_SHAPE[error.errno]}", key=key, code=code
        )
    return StorageError(
        f"cannot {operation} {where}: {error.strerror or error} ({code})",
        operation=operation,
        key=key,
        code=code,
    )


@contextmanager
def source_opened(path: Path) -> Iterator[BinaryIO]:
    """A local file to upload, opened for reading.

    Raises:
        InvalidInputError: there is no such regular file.
        PermissionDeniedError: it must not be read.
    """
    try:
        # Non-blocking, so that a named pipe cannot hang the upload.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        found = translate(error, "read", str(path), Path(), writing=True)
        if isinstance(found, PermissionDeniedError):
            raise found from error
        raise InvalidInputError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInputError(f"{path} is not a regular file", path=str(path))
    with open(descriptor, "rb", buffering=0) as reader:
        yield cast(BinaryIO, reader)
