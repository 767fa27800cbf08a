"""Putting a finished folder where readers look: by one rename, so that they never see half."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import stat
from contextlib import suppress

from dstream.checkpoint.tree import Tree, os_error, told
from dstream.errors import ConflictError, RefusedError
from dstream.measure import Meter

OLD_PREFIX = ".dstream-old-"
_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def open_staging(root: Tree, name: str) -> Tree:
    """The folder ``name`` in ``root``, made where missing, and locked for this process.

    Raises:
        ConflictError: another process is filling it.
        RefusedError: it is a link, or somebody else's.
    """
    while True:
        with told(root.where / name), suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=root.descriptor)
        staging = root.folder(name)
        try:
            _lock(staging)
            # Whoever had the lock before may have moved the folder to its place.
            if _is_same(root.status(name), os.fstat(staging.descriptor)):
                return staging
        except BaseException:
            staging.close()
            raise
        staging.close()


def _lock(staging: Tree) -> None:
    if os.fstat(staging.descriptor).st_uid != os.geteuid():
        raise RefusedError(
            f"{staging.where} belongs to another user; choose another destination, or remove it",
            path=str(staging.where),
        )
    try:
        fcntl.flock(staging.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConflictError(
            f"another process is fetching the same generation to the same place ({staging.where})",
            reason="busy",
        ) from error


def _is_same(one: os.stat_result | None, other: os.stat_result) -> bool:
    return one is not None and (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def is_free(parent: Tree, name: str) -> bool:
    """Whether a folder may be renamed to ``name``: nothing is there, or an empty folder.

    Raises:
        RefusedError: there is a link, or something that is no folder.
    """
    status = parent.status(name)
    if status is None:
        return True
    if not stat.S_ISDIR(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no folder"
        raise RefusedError(
            f"{parent.where / name} is {kind}; fetch writes to a folder of its own and follows no "
            "link",
            path=str(parent.where / name),
        )
    with parent.folder(name) as there, told(there.where, "list"):
        return not os.listdir(there.descriptor)


def put_in_place(
    root: Tree, staging: str, parent: Tree, name: str, *, replace: bool, meter: Meter
) -> None:
    """Rename the finished folder ``root/staging`` to ``parent/name``.

    Args:
        root: holds the finished folder.
        staging: its name there.
        parent: holds the destination.
        name: the destination's name.
        replace: exchange it with what is there; that is deleted afterwards.
        meter: counts where two renames had to do, with a moment of nothing between them.

    Raises:
        ConflictError: somebody else put something there meanwhile.
    """
    if replace and not is_free(parent, name):
        if _exchange(root, staging, parent, name):
            retire(root, staging)
            return
        meter.event("fallback", "rename-exchange")
        retire(parent, name, into=root)
    try:
        os.rename(staging, name, src_dir_fd=root.descriptor, dst_dir_fd=parent.descriptor)
    except OSError as error:
        if error.errno in _TAKEN:
            raise ConflictError(
                f"{parent.where / name} was made by somebody else meanwhile; what was fetched "
                "is kept, and a second fetch with --replace puts it there",
                path=str(parent.where / name),
            ) from error
        raise os_error(error, parent.where / name) from error
    with told(parent.where):
        os.fsync(parent.descriptor)


def retire(folder: Tree, name: str, into: Tree | None = None) -> None:
    """Give what is at ``name`` a name that says it may be deleted."""
    old = f"{OLD_PREFIX}{secrets.token_hex(8)}"
    into = into or folder
    with told(folder.where / name), suppress(FileNotFoundError):
        os.rename(name, old, src_dir_fd=folder.descriptor, dst_dir_fd=into.descriptor)


def sweep(root: Tree, meter: Meter) -> None:
    """Delete what was replaced, also by fetches that were killed. Failures are counted."""
    with told(root.where, "list"):
        names = [name for name in os.listdir(root.descriptor) if name.startswith(OLD_PREFIX)]
    for name in names:
        try:
            shutil.rmtree(name, dir_fd=root.descriptor)
        except FileNotFoundError:
            continue  # another fetch deletes it too
        except OSError as error:
            meter.event("fetch-left", errno.errorcode.get(error.errno or 0, "unknown"))


def _exchange(root: Tree, staging: str, parent: Tree, name: str) -> bool:
    """Swap two names in one step; False where the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    done = call(
        root.descriptor, os.fsencode(staging), parent.descriptor, os.fsencode(name), _EXCHANGE
    )
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise os_error(OSError(code, os.strerror(code)), parent.where / name)
