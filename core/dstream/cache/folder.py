"""A cache's directory: what is in it, who uses it, and who may change it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dstream.cache.layout import (
    DATA,
    FORMAT_VERSION,
    INDEX,
    LOCK,
    MARKER,
    SEGMENTS,
    USERS,
    SegmentName,
    decode_marker,
    encode_marker,
    parse_segment,
    scope_of,
)
from dstream.clock import Clock
from dstream.errors import FormatVersionError, InvalidInputError

_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.005
_LABEL_BYTES = 4096
_NUMBER_DIGITS = 10
_LAST_NUMBER = 10**_NUMBER_DIGITS - 1


class BusyError(Exception):
    """Another process holds the lock for longer than one waits."""


class CacheFolder:
    """The directory of a cache. No state but its path, so it is every process's own.

    Args:
        directory: made when it is needed.
        clock: for the short waits on the lock.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self.segments = directory / SEGMENTS
        self._clock = clock

    def has_segments(self) -> bool:
        """There is something to read. Where one may not look, there is not."""
        try:
            return self.segments.is_dir()
        except OSError:
            return False

    def prepare(self) -> None:
        """Make what is missing.

        Raises:
            InvalidInputError: the path is a file.
            OSError: it cannot be made.
        """
        for folder in (self.directory, self.segments, self.directory / USERS):
            try:
                # Cached bytes are as private as the bucket's.
                folder.mkdir(mode=0o700, parents=folder == self.directory, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise InvalidInputError(
                    f"the cache directory {str(self.directory)!r} is, or lies in, a file; name a "
                    "directory",
                    directory=str(self.directory),
                ) from error

    def budget_bytes(self) -> int | None:
        """The budget that was set last; None where none is set, or it cannot be read.

        Raises:
            FormatVersionError: a newer dstream made the cache.
        """
        try:
            marker = decode_marker((self.directory / MARKER).read_bytes())
        except OSError:
            return None
        if marker is not None and marker[0] > FORMAT_VERSION:
            raise FormatVersionError(
                f"the cache in {self.directory} has format {marker[0]}, this dstream reads "
                f"{FORMAT_VERSION}; name another directory, or upgrade",
                directory=str(self.directory),
            )
        return None if marker is None else marker[1]

    def set_budget(self, budget_bytes: int) -> None:
        """Set the budget for all processes. Call it under the lock.

        Raises:
            OSError: it cannot be written.
        """
        if self.budget_bytes() == budget_bytes:
            return
        draft = self.directory / f"{MARKER}.new"
        draft.write_bytes(encode_marker(budget_bytes))
        draft.replace(self.directory / MARKER)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to make and delete segments.

        Raises:
            BusyError: somebody else has held it for a tenth of a second.
            OSError: the lock's file cannot be opened.
        """
        descriptor = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take(descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # By name: a child forked meanwhile has the file open too, and would keep it.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int, kind: int) -> None:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._clock.sleep(_LOCK_PAUSE_S)
        raise BusyError(str(self.directory))

    def list(self) -> list[SegmentName]:
        """All segments, oldest first.

        Raises:
            OSError: the directory is gone or cannot be read.
        """
        names = {parse_segment(entry) for entry in os.listdir(self.segments)}
        return sorted(name for name in names if name is not None)

    def next_number(self) -> int:
        """A number that no segment ever had. Call it under the lock, which remembers it.

        Raises:
            OSError: it cannot be remembered.
        """
        path = self.directory / LOCK
        text = path.read_bytes()[:_NUMBER_DIGITS]
        last = int(text) if text.isdigit() and int(text) < _LAST_NUMBER else 0
        number = max([last, *(name.number for name in self.list())]) + 1
        with path.open("r+b") as file:
            file.write(b"%0*d" % (_NUMBER_DIGITS, number))
        return number

    def delete(self, names: Iterable[SegmentName]) -> int:
        """Delete segments; returns the bytes that this frees. Call it under the lock."""
        freed = 0
        for name in names:
            for suffix in (DATA, INDEX):
                path = self.segments / f"{name}{suffix}"
                with suppress(FileNotFoundError):
                    freed += path.stat().st_size
                    path.unlink()
        return freed

    def use(self, label: str) -> int:
        """Tell others that this process uses the data set ``label``, until the file is closed.

        Raises:
            BusyError: somebody looks whether it is used, for longer than one waits.
            OSError: it cannot be told.
        """
        path = self.directory / USERS / scope_of(label)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            descriptor = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError):  # read-only, or full: the file itself is what counts
                if not os.fstat(descriptor).st_size:
                    os.pwrite(descriptor, label.encode("utf-8", "replace")[:_LABEL_BYTES], 0)
            self._take(descriptor, fcntl.LOCK_SH)  # one who looks holds it for a moment
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def label(self, scope: str) -> str:
        """What people call a scope; the scope itself where that cannot be read."""
        try:
            text = (self.directory / USERS / scope).read_bytes()[:_LABEL_BYTES]
        except OSError:
            return scope
        return text.decode("utf-8", "replace") or scope

    def leaving(self, scopes: Iterable[str]) -> set[str]:
        """Those of ``scopes`` that no process uses."""
        return {scope for scope in set(scopes) if not self.is_used(scope)}

    def is_used(self, scope: str) -> bool:
        """Whether some process uses a scope now. Unknown counts as used."""
        try:
            descriptor = os.open(self.directory / USERS / scope, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
