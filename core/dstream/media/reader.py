"""Where the indexer's bytes come from: any byte range of one file, counted.

A run is one contiguous range asked for at once: one request on a store.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Protocol

from dstream.errors import InvalidInputError, NotFoundError, ShortReadError, StorageError
from dstream.measure import Purpose
from dstream.store.base import ObjectInfo, Store


class RandomReader(Protocol):
    """Byte ranges of one file of known size. Not shared between threads."""

    @property
    def name(self) -> str:
        """What messages call the file."""
        ...

    @property
    def size_bytes(self) -> int:
        """Length of the whole file."""
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes delivered so far, repeated ones counted again."""
        ...

    @property
    def runs(self) -> int:
        """Reads so far."""
        ...

    def read(self, start_byte: int, stop_byte: int) -> bytes:
        """Exactly the bytes ``[start_byte, stop_byte)``.

        Raises:
            InvalidInputError: the range is not inside the file.
            ShortReadError: the file ends before ``stop_byte``.
        """
        ...


class _Counted(ABC):
    """Checks and counts shared by the readers."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.bytes_read = 0
        self.runs = 0

    def read(self, start_byte: int, stop_byte: int) -> bytes:
        """Exactly the bytes ``[start_byte, stop_byte)``; raises ShortReadError otherwise."""
        if not 0 <= start_byte <= stop_byte <= self.size_bytes:
            raise InvalidInputError(
                f"bytes [{start_byte}, {stop_byte}) are not inside {self.name!r}"
                f" of {self.size_bytes} bytes",
                name=self.name,
            )
        if start_byte == stop_byte:
            return b""
        data = self._fetch(start_byte, stop_byte)
        if len(data) != stop_byte - start_byte:
            raise ShortReadError(
                f"{self.name!r} gave {len(data)} bytes of [{start_byte}, {stop_byte}); the file"
                " is shorter than when it was listed",
                name=self.name,
            )
        self.runs += 1
        self.bytes_read += len(data)
        return data

    @abstractmethod
    def _fetch(self, start_byte: int, stop_byte: int) -> bytes:
        """The bytes of a range that is inside the file; fewer where it has become shorter."""


class StoreReader(_Counted):
    """Ranges of one object; every read insists on the listed ETag."""

    def __init__(
        self,
        store: Store,
        info: ObjectInfo,
        purpose: Purpose = Purpose.INDEX,
        version: str | None = None,
    ) -> None:
        super().__init__(info.key, info.size_bytes)
        self._store = store
        self._etag = info.etag
        self._version = version
        self._purpose = purpose

    def _fetch(self, start_byte: int, stop_byte: int) -> bytes:
        blob = self._store.get(
            self.name,
            start_byte,
            stop_byte,
            expect_etag=self._etag,
            version=self._version,
            purpose=self._purpose,
        )
        return blob.data


class BytesReader(_Counted):
    """Ranges of bytes in memory."""

    def __init__(self, data: bytes, name: str = "bytes") -> None:
        super().__init__(name, len(data))
        self._data = data

    def _fetch(self, start_byte: int, stop_byte: int) -> bytes:
        return self._data[start_byte:stop_byte]


class FileReader(_Counted):
    """Ranges of a slice of a local file, for example a video inside a spooled shard.

    Args:
        path: the local file.
        offset_bytes: where the video starts in it.
        size_bytes: length of the video; the rest of the file by default.

    Raises:
        NotFoundError: no such file.
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path, offset_bytes: int = 0, size_bytes: int | None = None) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            whole_bytes = os.fstat(self._descriptor).st_size
        except FileNotFoundError as error:
            raise NotFoundError(f"no file {str(path)!r}", name=str(path)) from error
        except OSError as error:
            raise StorageError(f"cannot open {str(path)!r}: {error}", name=str(path)) from error
        if size_bytes is None:
            size_bytes = max(0, whole_bytes - offset_bytes)
        super().__init__(str(path), size_bytes)
        self._offset_bytes = offset_bytes

    def _fetch(self, start_byte: int, stop_byte: int) -> bytes:
        pieces: list[bytes] = []
        while start_byte < stop_byte:
            try:
                piece = os.pread(
                    self._descriptor, stop_byte - start_byte, self._offset_bytes + start_byte
                )
            except OSError as error:
                raise StorageError(f"cannot read {self.name!r}: {error}", name=self.name) from error
            if not piece:
                break
            pieces.append(piece)
            start_byte += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the file. Further reads fail."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FileReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
