"""Bringing local files into the repository: hashed while they are sent, and only if they are new.

Small files are read once: the same bytes are hashed and sent. Large ones are sent in parts by
the store and hashed by another thread at the same time, so that their second reading comes from
the page cache. In both cases the file must be the same before and after.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from dstream.catalog import Session
from dstream.checkpoint.pool import run_groups
from dstream.checkpoint.progress import Tally
from dstream.checkpoint.scan import Fingerprint, LocalFile
from dstream.clock import Clock
from dstream.errors import SourceChangedError
from dstream.format.checkpoint import CheckpointFile
from dstream.format.refs import ObjectRef
from dstream.measure import Purpose
from dstream.store.base import Store
from dstream.store.local_errors import translate

SMALL_BYTES = 8 << 20
"""Files up to this size are read into memory and sent by one request."""

_READ_BYTES = 4 << 20
_LARGE_AT_ONCE = 3
_SETTLE_S = 0.05
"""File times advance in steps; a file this young could change again without showing it."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Where one file's bytes are now."""

    file: CheckpointFile
    is_new: bool
    """False where an object of the previous generation has the same bytes."""


class Stager:
    """Stages the files of one publish."""

    def __init__(
        self,
        store: Store,
        session: Session,
        *,
        new_id: Callable[[], str],
        clock: Clock,
        threads: int,
        tally: Tally,
    ) -> None:
        self._store = store
        self._session = session
        self._new_id = new_id
        self._clock = clock
        self._threads = threads
        self._tally = tally

    def stage(self, files: Iterable[LocalFile], known: Iterable[ObjectRef]) -> list[Staged]:
        """Bring all files in; those whose bytes are in ``known`` are only named again.

        Returns:
            One for each file, in the same order.

        Raises:
            SourceChangedError: a file changed while it was read; it is named.
            DstreamError: a file could not be read, or not be stored.
        """
        files = list(files)
        objects: dict[int, dict[str, ObjectRef]] = defaultdict(dict)
        for reference in known:
            objects[reference.size_bytes].setdefault(reference.sha256, reference)
        large = [file for file in files if file.size_bytes > SMALL_BYTES]
        small = [file for file in files if file.size_bytes <= SMALL_BYTES]
        done: dict[str, Staged] = {}
        with ThreadPoolExecutor(_LARGE_AT_ONCE, thread_name_prefix="hash") as hashing:

            def one(file: LocalFile) -> None:
                candidates = objects.get(file.size_bytes, {})
                if file.size_bytes <= SMALL_BYTES:
                    done[file.path] = self._small(file, candidates)
                else:
                    done[file.path] = self._large(file, candidates, hashing)

            run_groups(
                [(large, min(_LARGE_AT_ONCE, self._threads)), (small, self._threads)],
                one,
                "publish",
            )
        return [done[file.path] for file in files]

    def _small(self, file: LocalFile, known: dict[str, ObjectRef]) -> Staged:
        self._settle(file)
        with _opened(file) as source:
            data = source.read(file.size_bytes + 1)
            while len(data) <= file.size_bytes and (more := source.read(_READ_BYTES)):
                data += more
        if len(data) != file.size_bytes:
            raise _changed(file)
        digest = hashlib.sha256(data).hexdigest()
        if digest in known:
            return self._kept(file, known[digest])
        key = self._key()
        self._store.put(key, data, purpose=Purpose.COPY)
        self._tally.add(files=1, size_bytes=len(data))
        return _staged(file, ObjectRef(key, len(data), digest), is_new=True)

    def _large(
        self, file: LocalFile, known: dict[str, ObjectRef], hashing: ThreadPoolExecutor
    ) -> Staged:
        self._settle(file)
        if known:
            digest = self._hash(file, told=False)
            if digest in known:
                return self._kept(file, known[digest])
        key = self._key()
        hashed = hashing.submit(self._hash, file)
        with _opened(file):
            info = self._store.upload(key, file.source, purpose=Purpose.COPY)
        digest = hashed.result()
        if info.size_bytes != file.size_bytes:
            raise _changed(file)
        self._tally.add(files=1)
        return _staged(file, ObjectRef(key, file.size_bytes, digest), is_new=True)

    def _kept(self, file: LocalFile, reference: ObjectRef) -> Staged:
        self._tally.add(files=1, size_bytes=file.size_bytes, kept=1)
        return _staged(file, reference, is_new=False)

    def _hash(self, file: LocalFile, told: bool = True) -> str:
        digest, read_bytes = hashlib.sha256(), 0
        buffer = memoryview(bytearray(_READ_BYTES))
        with _opened(file) as source:
            while count := source.readinto(buffer):  # type: ignore[attr-defined]
                digest.update(buffer[:count])
                read_bytes += count
                if told:
                    self._tally.add(size_bytes=count)
        if read_bytes != file.size_bytes:
            raise _changed(file)
        return digest.hexdigest()

    def _key(self) -> str:
        return f"{self._session.data_prefix}{self._new_id()}"

    def _settle(self, file: LocalFile) -> None:
        newest_s = max(file.fingerprint.mtime_ns, file.fingerprint.ctime_ns) / 1e9
        if -_SETTLE_S < self._clock.now_s() - newest_s < _SETTLE_S:
            self._clock.sleep(_SETTLE_S)


@contextmanager
def _opened(file: LocalFile) -> Iterator[BinaryIO]:
    """The file, checked to be the one that was scanned, before the block and after it."""
    try:
        # Non-blocking, so that a pipe put in the file's place cannot hang the publish.
        descriptor = os.open(file.source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _changed(file) from error
    except OSError as error:
        raise translate(error, "read", str(file.source), Path(), writing=True) from error
    with open(descriptor, "rb", buffering=0) as source:
        try:
            _require_same(file, os.fstat(descriptor))
            yield cast(BinaryIO, source)
            _require_same(file, os.fstat(descriptor))
        except OSError as error:
            raise translate(error, "read", str(file.source), Path(), writing=True) from error


def _require_same(file: LocalFile, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or Fingerprint.of(status) != file.fingerprint:
        raise _changed(file)


def _changed(file: LocalFile) -> SourceChangedError:
    return SourceChangedError(
        f"{file.source} changed while it was being published; nothing was committed. Publish "
        "when its writer is done",
        path=file.path,
    )


def _staged(file: LocalFile, reference: ObjectRef, *, is_new: bool) -> Staged:
    return Staged(CheckpointFile(file.path, reference, file.mode), is_new)
