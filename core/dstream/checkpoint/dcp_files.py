"""Writing the items of one rank to files in the repository, a bounded piece of disk at a time."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import xxhash

from dstream.catalog import Session
from dstream.checkpoint.torch_api import WriteItemType, torch
from dstream.errors import InvalidInputError
from dstream.measure import Purpose
from dstream.store.base import Store

FILE_BYTES = 512 << 20
"""Items are put together in files of about this size."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file that one rank stored."""

    path: str
    key: str
    size_bytes: int
    sha256: str
    base_seq: int
    """Of the rank's upload session: what the fence is held to."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where one item went; travels to the coordinator as ``WriteResult.storage_data``."""

    file: RankFile
    offset_bytes: int
    size_bytes: int
    xxh3: str


class FileWriter:
    """Writes the items of one rank in one save."""

    def __init__(
        self,
        store: Store,
        session: Session,
        *,
        rank: int,
        new_id: Callable[[], str],
        threads: int,
        file_bytes: int,
        spool_dir: str | None,
    ) -> None:
        self._store = store
        self._session = session
        self._rank = rank
        self._new_id = new_id
        self._threads = max(1, threads)
        self._file_bytes = file_bytes
        self._spool_dir = spool_dir

    def write(
        self, items: Iterable[Any], resolve: Callable[[Any], Any]
    ) -> list[tuple[Any, Stored]]:
        """Store all items; at most ``threads`` + 1 files lie on the local disk at a time.

        Args:
            items: the plan's write items.
            resolve: item -> tensor, or bytes in memory.

        Returns:
            Each item with where it went.
        """
        results: list[tuple[Any, Stored]] = []
        pending: deque[Future[list[tuple[Any, Stored]]]] = deque()
        with (
            tempfile.TemporaryDirectory(prefix="dstream-save-", dir=self._spool_dir) as folder,
            ThreadPoolExecutor(self._threads, thread_name_prefix="save") as pool,
        ):
            for number, group in enumerate(groups(items, self._file_bytes)):
                spooled = self._spool(Path(folder) / str(number), number, group, resolve)
                pending.append(pool.submit(self._send, spooled))
                if len(pending) > self._threads:
                    results += pending.popleft().result()
            while pending:
                results += pending.popleft().result()
        return results

    def _spool(
        self, path: Path, number: int, items: list[Any], resolve: Callable[[Any], Any]
    ) -> _Spooled:
        try:
            with open(path, "xb") as file:
                sink = _Sink(file)
                places = [(item, *sink.item(item, resolve(item))) for item in items]
        except OSError as error:
            raise InvalidInputError(
                f"cannot write {path}: {error.strerror}; name another folder by spool_dir, with "
                f"room for {self._threads + 1} files of {self._file_bytes} bytes or the largest "
                "tensor"
            ) from error
        name = f"__{self._rank}_{number}.distcp"
        return _Spooled(path, name, sink.size_bytes, sink.sha256.hexdigest(), places)

    def _send(self, spooled: _Spooled) -> list[tuple[Any, Stored]]:
        key = f"{self._session.data_prefix}{self._new_id()}"
        self._store.upload(key, spooled.path, purpose=Purpose.COPY)
        os.unlink(spooled.path)
        file = RankFile(
            spooled.name, key, spooled.size_bytes, spooled.sha256, self._session.base_seq
        )
        return [
            (item, Stored(file, offset, size, checksum))
            for item, offset, size, checksum in spooled.places
        ]


@dataclass(frozen=True, slots=True)
class _Spooled:
    """A file that waits to be sent."""

    path: Path
    name: str
    size_bytes: int
    sha256: str
    places: list[tuple[Any, int, int, str]]
    """(item, offset, size, xxh3)."""


class _Sink:
    """Counts and hashes what is written to a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size_bytes = 0
        self.sha256 = hashlib.sha256()
        self._item = xxhash.xxh3_64()

    def write(self, data: Any) -> int:
        """What torch calls."""
        self._file.write(data)
        self.sha256.update(data)
        self._item.update(data)
        count = memoryview(data).nbytes
        self.size_bytes += count
        return count

    def flush(self) -> None:
        """What torch may call."""
        self._file.flush()

    def item(self, item: Any, value: Any) -> tuple[int, int, str]:
        """Write one item; (offset, size, xxh3) of its bytes."""
        offset, self._item = self.size_bytes, xxhash.xxh3_64()
        if item.type == WriteItemType.BYTE_IO:
            self.write(value.getbuffer())
        else:
            torch.save(_compact(value), self)
        return offset, self.size_bytes - offset, self._item.hexdigest()


def _compact(tensor: Any) -> Any:
    """The tensor in main memory, without the rest of a larger storage that it is a view of."""
    tensor = tensor.detach().cpu()
    if tensor.untyped_storage().size() != tensor.nbytes:
        tensor = tensor.clone()
    return tensor


def groups(items: Iterable[Any], file_bytes: int) -> Iterator[list[Any]]:
    """Items in their order, put together up to ``file_bytes``; a larger one stands alone."""
    group: list[Any] = []
    size_bytes = 0
    for item in items:
        next_bytes = _size_of(item)
        if group and size_bytes + next_bytes > file_bytes:
            yield group
            group, size_bytes = [], 0
        group.append(item)
        size_bytes += next_bytes
    if group:
        yield group


def _size_of(item: Any) -> int:
    if item.tensor_data is None:
        return 0 if item.bytes_io_data is None else int(item.bytes_io_data.nbytes)
    count = 1
    for length in item.tensor_data.chunk.sizes:
        count *= int(length)
    return count * int(torch.empty(0, dtype=item.tensor_data.properties.dtype).element_size())
