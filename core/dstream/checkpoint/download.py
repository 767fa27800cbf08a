"""Bringing files out of the repository: in parallel, in pieces, and checked by their hash."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing

from dstream.checkpoint.pool import run_groups
from dstream.checkpoint.progress import Tally
from dstream.checkpoint.tree import Tree, told, write_at, write_behind
from dstream.errors import CorruptDataError
from dstream.format.checkpoint import CheckpointFile
from dstream.measure import Meter, Purpose
from dstream.store.base import Store

PIECE_BYTES = 8 << 20
"""Larger files are fetched in pieces of this size, several at once."""

_AHEAD = 4
"""Pieces of one file that are on their way or wait to be written."""
_LARGE_AT_ONCE = 3
_READ_BYTES = 1 << 20


class Downloader:
    """Fills one folder with files. Memory: a few pieces, whatever the sizes."""

    def __init__(
        self, store: Store, into: Tree, *, threads: int, tally: Tally, meter: Meter, sync: bool
    ) -> None:
        self._store = store
        self._into = into
        self._threads = threads
        self._tally = tally
        self._meter = meter
        self._sync = sync
        self._behind = sync

    def run(self, files: Sequence[CheckpointFile]) -> None:
        """Fetch all files; those that are there already with the right bytes are kept.

        Raises:
            CorruptDataError: stored bytes have another hash than the manifest says.
            DstreamError: a read or a write failed.
        """
        large = [file for file in files if file.object.size_bytes > PIECE_BYTES]
        small = [file for file in files if file.object.size_bytes <= PIECE_BYTES]
        with ThreadPoolExecutor(self._threads, thread_name_prefix="fetch-piece") as pieces:
            try:
                run_groups(
                    [(large, min(_LARGE_AT_ONCE, self._threads)), (small, self._threads)],
                    lambda file: self._file(file, pieces),
                    "fetch",
                )
            finally:
                pieces.shutdown(wait=True, cancel_futures=True)

    def _file(self, file: CheckpointFile, pieces: ThreadPoolExecutor) -> None:
        if self._is_there(file):
            self._tally.add(files=1, size_bytes=file.object.size_bytes, kept=1)
            return
        digest = self._write(file, pieces)
        if digest != file.object.sha256:
            # Bytes that went wrong on their way are right the second time.
            self._meter.event("refetch", "checksum")
            digest = self._write(file, pieces)
        if digest != file.object.sha256:
            raise CorruptDataError(
                f"{file.path}: object {file.object.key} has SHA-256 {digest[:16]}…, the manifest "
                f"says {file.object.sha256[:16]}…: the stored bytes are damaged; `dstream verify "
                "--deep` lists all such objects",
                path=file.path,
                key=file.object.key,
            )
        self._tally.add(files=1, size_bytes=file.object.size_bytes)

    def _write(self, file: CheckpointFile, pieces: ThreadPoolExecutor) -> str:
        """Fetch a file's bytes to their place; their SHA-256."""
        digest = hashlib.sha256()
        descriptor = self._into.create(file.path, file.mode)
        try:
            with closing(self._pieces(file, descriptor, pieces)) as in_order:
                for data in in_order:
                    digest.update(data)
            if self._sync:
                with told(self._into.where / file.path):
                    os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return digest.hexdigest()

    def _pieces(
        self, file: CheckpointFile, descriptor: int, pool: ThreadPoolExecutor
    ) -> Generator[bytes]:
        """The file's bytes in order, written already, a few pieces ahead of whoever takes them."""
        starts = range(0, file.object.size_bytes, PIECE_BYTES)
        if len(starts) <= 1:
            yield from (self._piece(file, descriptor, start) for start in starts)
            return
        ahead: deque[Future[bytes]] = deque()
        try:
            for start in starts:
                ahead.append(pool.submit(self._piece, file, descriptor, start))
                if len(ahead) >= _AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            # After a failure: nobody may write to the descriptor once it is closed.
            wait([future for future in ahead if not future.cancel()])

    def _piece(self, file: CheckpointFile, descriptor: int, start_byte: int) -> bytes:
        """Bytes of one piece, after they were written by the thread that received them."""
        ref = file.object
        stop_byte = min(start_byte + PIECE_BYTES, ref.size_bytes)
        blob = self._store.get(ref.key, start_byte, stop_byte, purpose=Purpose.COPY)
        if blob.info.size_bytes != ref.size_bytes:
            raise CorruptDataError(
                f"object {ref.key} has {blob.info.size_bytes} bytes, the manifest says "
                f"{ref.size_bytes}",
                key=ref.key,
            )
        with told(self._into.where / file.path):
            write_at(descriptor, start_byte, blob.data)
        # One piece is about to be synced anyway.
        if self._behind and ref.size_bytes > PIECE_BYTES:
            if not write_behind(descriptor, start_byte, len(blob.data)):
                self._behind = False
                self._meter.event("fallback", "write-behind")
        return blob.data

    def _is_there(self, file: CheckpointFile) -> bool:
        descriptor = self._into.open_existing(file.path)
        if descriptor is None:
            return False
        with open(descriptor, "rb", buffering=0) as found:
            with told(self._into.where / file.path, "read"):
                if os.fstat(descriptor).st_size != file.object.size_bytes:
                    return False
                digest = hashlib.sha256()
                while data := found.read(_READ_BYTES):
                    digest.update(data)
        return digest.hexdigest() == file.object.sha256
