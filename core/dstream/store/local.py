"""A local directory as a store: pread, temp-fsync-rename, and ``link`` for put-if-absent."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dstream.clock import Clock, SystemClock
from dstream.errors import (
    AlreadyExistsError,
    DstreamError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    ShortReadError,
    SourceChangedError,
    UnsafeStoreError,
)
from dstream.measure import Meter, Purpose
from dstream.store.base import Blob, Capabilities, ObjectInfo, Upload, check_key
from dstream.store.local_errors import source_opened, translate, translated
from dstream.store.local_walk import TEMP_PREFIX, Skip, walk
from dstream.store.ranges import check_prefix, check_range, stop_within

# Non-blocking, so that a named pipe among the files cannot hang a reader.
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_COPY_BYTES = 1024 * 1024
_FOLDER_ATTEMPTS = 1000
"""How often a folder is made that others remove: each time they had deleted all that was in it."""
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class LocalStore:
    """Files below ``root``. The folder is made by the first write.

    A folder that does not exist is like a bucket that does not: listing it raises
    ``NotFoundError``. Entries that a listing leaves out (unreadable folders, dangling links,
    names that are not UTF-8) are counted as ``("list-skip", reason)`` and given to ``on_skip``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        meter: Meter | None = None,
        clock: Clock | None = None,
        on_skip: Skip | None = None,
    ) -> None:
        self._root = Path(os.path.abspath(os.path.expanduser(root)))
        self._meter = meter
        self._clock: Clock = clock or SystemClock()
        self.on_skip = on_skip

    @property
    def url(self) -> str:
        """The folder's absolute path."""
        return str(self._root)

    @property
    def capabilities(self) -> Capabilities:
        """Conditional and ordered; old bytes are gone once replaced."""
        return Capabilities(conditional_put=True, ordered_list=True)

    def head(
        self, key: str, *, version: str | None = None, purpose: Purpose = Purpose.OTHER
    ) -> ObjectInfo:
        """Facts of one file."""
        self._refuse_version(key, version)
        path = self._path(key)
        with translated("read", key, self._root):
            status = os.stat(path)
        self._require_file(key, status)
        return self._info(key, status)

    def get(
        self,
        key: str,
        start_byte: int = 0,
        stop_byte: int | None = None,
        *,
        expect_etag: str | None = None,
        version: str | None = None,
        purpose: Purpose = Purpose.OTHER,
    ) -> Blob:
        """Bytes ``[start_byte, stop_byte)`` of a file.

        With ``expect_etag`` the file is looked at before and after the read, so that bytes
        overwritten in place meanwhile are noticed.
        """
        check_range(key, start_byte, stop_byte)
        self._refuse_version(key, version)
        path = self._path(key)
        with translated("read", key, self._root):
            descriptor = os.open(path, _READ_FLAGS)
            try:
                status = os.fstat(descriptor)
                self._require_file(key, status)
                _require_etag(key, status, expect_etag)
                stop = stop_within(key, start_byte, stop_byte, status.st_size)
                data = _read_exactly(descriptor, key, start_byte, stop)
                if expect_etag is not None:
                    _require_etag(key, os.fstat(descriptor), expect_etag)
            finally:
                os.close(descriptor)
        return Blob(data, self._info(key, status))

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        """Write or replace one file: a temporary one, fsync, rename, fsync of the folder."""
        path = self._path(key)
        with translated("write", key, self._root, writing=True):
            with self._written(path, lambda out: _write_all(out, data)) as (temporary, status):
                _replace(temporary, path)
        return self._info(key, status)

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        """Create one file, or raise ``AlreadyExistsError``.

        ``link`` is atomic and never replaces. On a network file system its answer may be lost:
        then two names for the temporary file prove that it was ours.
        """
        path = self._path(key)
        with translated("write", key, self._root, writing=True):
            with self._written(path, lambda out: _write_all(out, data)) as (temporary, status):
                self._link(key, temporary, path)
                try:
                    _sync_folder(path.parent)
                except OSError as error:
                    raise OutcomeUnknownError(
                        f"{path} was created, but its folder could not be made durable: {error}",
                        key=key,
                    ) from error
        return self._info(key, status)

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        """Copy a local file in, by way of a temporary file as in :meth:`put`."""
        target = self._path(key)
        with source_opened(path) as source:

            def copy(descriptor: int) -> None:
                while piece := source.read(_COPY_BYTES):
                    _write_all(descriptor, piece)

            with translated("write", key, self._root, writing=True):
                with self._written(target, copy) as (temporary, status):
                    _replace(temporary, target)
        return self._info(key, status)

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        """Regular files, recursively, in byte order of their keys; see :class:`LocalStore`."""
        check_prefix(prefix)
        left = limit
        if left == 0:
            return
        with translated("list", prefix, self._root):
            for found in walk(self._root, prefix, start_after, self._skip):
                try:
                    check_key(found.key)
                except InvalidInputError:
                    self._skip(found.key, "bad-name")
                    continue
                yield self._info(found.key, found.status)
                left = None if left is None else left - 1
                if left == 0:
                    return

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        """Delete files; missing ones are no error. Folders that this empties go as well."""
        failed: dict[str, str] = {}
        for key, _ in keys:
            path = self._path(key)
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                failed[key] = str(translate(error, "delete", key, self._root, writing=True))
            else:
                self._prune(path.parent)
        return failed

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        """Temporary files: of writes in progress, and of processes that died meanwhile."""
        check_prefix(prefix)
        with translated("list", prefix, self._root):
            for found in walk(self._root, prefix, None, self._skip, temporary=True):
                yield Upload(found.key, found.key, found.status.st_mtime)

    def abort_upload(self, upload: Upload) -> None:
        """Delete one temporary file."""
        name = check_key(upload.upload_id).rpartition("/")[2]
        if not name.startswith(TEMP_PREFIX):
            raise InvalidInputError(
                f"{upload.upload_id!r} is no unfinished upload of a local store",
                upload_id=upload.upload_id,
            )
        with translated("delete", upload.upload_id, self._root, writing=True):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._root / upload.upload_id)
                self._prune((self._root / upload.upload_id).parent)

    def close(self) -> None:
        """Nothing to do: no file stays open between calls."""

    def __getstate__(self) -> dict[str, object]:
        # A callback belongs to the process that gave it.
        return {**self.__dict__, "on_skip": None}

    def _path(self, key: str) -> Path:
        check_key(key)
        if any(part.startswith(TEMP_PREFIX) for part in key.split("/")):
            raise InvalidInputError(
                f"unusable object name {key!r}: {TEMP_PREFIX!r} marks files being written", key=key
            )
        return self._root / key

    def _skip(self, name: str, reason: str) -> None:
        if self._meter is not None:
            self._meter.event("list-skip", reason)
        if self.on_skip is not None:
            self.on_skip(name, reason)

    def _refuse_version(self, key: str, version: str | None) -> None:
        if version is not None:
            raise NotFoundError(
                f"{self._root}/{key}: folders keep no versions, {version!r} was asked for",
                key=key,
                version=version,
            )

    def _require_file(self, key: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise NotFoundError(f"{self._root / key} is not a regular file", key=key)

    def _info(self, key: str, status: os.stat_result) -> ObjectInfo:
        return ObjectInfo(
            key,
            status.st_size,
            _etag(status),
            last_modified_s=status.st_mtime,
            server_date_s=self._clock.now_s(),
        )

    @contextlib.contextmanager
    def _written(
        self, path: Path, fill: Callable[[int], None]
    ) -> Iterator[tuple[Path, os.stat_result]]:
        """A filled and durable temporary file beside ``path``; gone when the block ends."""
        temporary = path.parent / f"{TEMP_PREFIX}{secrets.token_hex(12)}"
        descriptor = _create(temporary)
        try:
            try:
                fill(descriptor)
                os.fsync(descriptor)
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            yield temporary, status
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _prune(self, folder: Path) -> None:
        """Remove a folder and those above it, up to the root, as far as they are empty.

        ``rmdir`` never removes a folder that holds anything, so a writer that came first keeps
        it, and one that comes later makes it again.
        """
        while folder != self._root and self._root in folder.parents:
            try:
                os.rmdir(folder)
            except OSError:
                return
            folder = folder.parent

    def _link(self, key: str, temporary: Path, path: Path) -> None:
        try:
            os.link(temporary, path)
        except OSError as error:
            if os.stat(temporary).st_nlink == 2:
                return  # it did happen, only the answer was lost
            if isinstance(error, FileExistsError):
                raise AlreadyExistsError(f"{path} exists already", key=key) from error
            if isinstance(error, FileNotFoundError):
                raise
            raise self._no_links(key, error) from error

    def _no_links(self, key: str, error: OSError) -> DstreamError:
        translation = translate(error, "write", key, self._root, writing=True)
        if translation.facts.get("code") not in ("EPERM", "ENOTSUP", "EOPNOTSUPP", "ENOSYS"):
            return translation
        return UnsafeStoreError(
            f"the file system of {self._root} has no hard links ({error.strerror}), so that "
            "concurrent commits could overwrite each other; use another folder",
            url=self.url,
        )


def _etag(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


def _require_etag(key: str, status: os.stat_result, expect_etag: str | None) -> None:
    if expect_etag is not None and expect_etag != _etag(status):
        raise SourceChangedError(
            f"{key}: size and modification time are {_etag(status)}, expected {expect_etag}: "
            "the file was changed or replaced since it was indexed",
            key=key,
            etag=_etag(status),
            expected_etag=expect_etag,
        )


def _read_exactly(descriptor: int, key: str, start_byte: int, stop_byte: int) -> bytes:
    parts: list[bytes] = []
    at = start_byte
    while at < stop_byte:
        part = os.pread(descriptor, stop_byte - at, at)
        if not part:
            raise ShortReadError(
                f"{key}: the file ended at byte {at} while [{start_byte}, {stop_byte}) was read: "
                "it is being truncated",
                key=key,
                received_bytes=at - start_byte,
            )
        parts.append(part)
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _create(path: Path) -> int:
    """A new file, open for writing, and the folders that it needs.

    Who deletes the last object of a folder removes the folder too, perhaps just before the file
    is there. Once it is there the folder stays.
    """
    for _ in range(_FOLDER_ATTEMPTS):
        try:
            _make_folders(path.parent)
            return os.open(path, _CREATE_FLAGS, 0o666)
        except FileNotFoundError as error:
            vanished = error
    raise vanished


def _replace(temporary: Path, path: Path) -> None:
    """Give a file its name for good."""
    os.replace(temporary, path)
    # Without a folder to sync the file was deleted again since, by somebody else.
    with contextlib.suppress(FileNotFoundError):
        _sync_folder(path.parent)


def _make_folders(folder: Path) -> None:
    """Make a folder and those above it, each durable in the folder that holds it."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    if folder.is_symlink() and not folder.exists():  # it leads nowhere, and did not vanish
        raise NotADirectoryError(20, os.strerror(20), str(folder))
    if not stat.S_ISDIR(os.stat(folder).st_mode):
        raise NotADirectoryError(20, os.strerror(20), str(folder))
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
