"""Local disk for files in flight and shards being built; gone when the ingest ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import xxhash

from dstream.errors import StorageError
from dstream.measure import Meter, Purpose
from dstream.store.base import ObjectInfo, Store

PIECE_BYTES = 16 << 20
"""A source file is copied by ranges of this size: one request each."""


_PREFIX = "dstream-spool-"


class SpoolError(StorageError):
    """The local disk failed. Finished shards are safe; running again goes on from there."""


@contextmanager
def _spooling(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpoolError(
            f"cannot write to the spool folder {folder}: {error.strerror or error}; free space "
            "there or choose another folder (TMPDIR, or spool_folder), then run again: finished "
            "shards are kept",
            path=str(folder),
            errno=error.errno,
            retry=False,
        ) from error


def _sweep(where: Path, meter: Meter | None) -> None:
    """Remove spool folders that nobody holds: of processes that were killed."""
    for folder in where.glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # another's, or gone meanwhile
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            if meter is not None:
                meter.event("spool-swept", "left-by-a-killed-process")
        except OSError:
            continue  # in use
        finally:
            os.close(descriptor)


class Spool:
    """A temporary folder. A context manager; for many threads.

    It is locked while it is in use, so that a later ingest can tell folders that a killed
    process left behind, and removes them.
    """

    def __init__(self, parent: Path | None = None, meter: Meter | None = None) -> None:
        where = parent or Path(tempfile.gettempdir())
        with _spooling(where):
            # Under its final name only once it is locked: else a sweep could take it for dead.
            fresh = Path(tempfile.mkdtemp(prefix=".dstream-new-", dir=where))
            self._lock = os.open(fresh, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = where / fresh.name.replace(".dstream-new-", _PREFIX)
            fresh.rename(self.path)
        _sweep(where, meter)

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def fetch(self, source: Store, info: ObjectInfo) -> SpooledFile:
        """Copy one source object here, and checksum it on the way.

        Raises:
            SourceChangedError: it is no longer the object that was listed.
            SpoolError: the local disk is full, or fails.
        """
        with _spooling(self.path):
            descriptor, name = tempfile.mkstemp(dir=self.path)
        path = Path(name)
        state = xxhash.xxh3_64()
        try:
            with open(descriptor, "wb", buffering=0) as out:
                for start in range(0, info.size_bytes, PIECE_BYTES):
                    blob = source.get(
                        info.key,
                        start,
                        min(start + PIECE_BYTES, info.size_bytes),
                        expect_etag=info.etag,
                        version=info.version,
                        purpose=Purpose.COPY,
                    )
                    state.update(blob.data)
                    with _spooling(self.path):
                        write_all(out, blob.data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return SpooledFile(path, info.size_bytes, f"xxh3:{state.hexdigest()}")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Translate this disk's errors in the block."""
        with _spooling(self.path):
            yield

    def new_file(self) -> tuple[Path, BinaryIO]:
        """An empty file, open for writing."""
        with _spooling(self.path):
            descriptor, name = tempfile.mkstemp(dir=self.path)
        return Path(name), open(descriptor, "wb", buffering=0)


class SpooledFile:
    """A source object's copy."""

    def __init__(self, path: Path, size_bytes: int, checksum: str) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.checksum = checksum
        """As the file table has it: ``xxh3:`` and 16 hex digits."""

    def read(self) -> bytes:
        """All its bytes."""
        return self.path.read_bytes()

    def discard(self) -> None:
        """Delete it; more than once is fine."""
        self.path.unlink(missing_ok=True)


class HashingFile:
    """Hands writes on to a file and hashes what passes."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._state = xxhash.xxh3_128()

    def write(self, data: bytes) -> int:
        """Write all of ``data``."""
        write_all(self._target, data)
        self._state.update(data)
        return len(data)

    def flush(self) -> None:
        """Hand on."""
        self._target.flush()

    def hexdigest(self) -> str:
        """xxh3_128 of everything written."""
        return self._state.hexdigest()


def write_all(out: BinaryIO, data: bytes) -> None:
    """Write every byte to an unbuffered file."""
    view = memoryview(data)
    while view:
        written = out.write(view)
        if not written:
            raise OSError(28, os.strerror(28))
        view = view[written:]
