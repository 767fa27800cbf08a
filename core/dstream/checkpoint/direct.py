"""Tensors of a checkpoint on a local file system, straight into a GPU's memory.

``torch.save`` puts a tensor's bytes into an archive as they are. Which ones, torch's own loader
tells without reading them: under ``FakeTensorMode`` it notes each storage's place, and reads the
archive's directory and the description of the tensor only, as ``weights_only``.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstream.checkpoint.torch_api import FakeTensorMode, torch
from dstream.errors import InvalidInputError, NotFoundError, ShortReadError, StorageError
from dstream.measure import Meter
from dstream.store.device_read import DeviceReader, probe_kvikio

LEAST_BYTES = 1 << 20
"""Smaller items are read together with their neighbours, through the host."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a saved tensor's bytes are in a file, and how they make it up."""

    start_byte: int
    stop_byte: int
    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def tensor_place(path: Path, start_byte: int, size_bytes: int) -> TensorPlace | None:
    """Where the bytes of the tensor are that was saved at ``start_byte`` of a file.

    Returns None for what is no plain tensor with a storage of its own, or where this torch does
    not tell.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        try:
            with FakeTensorMode():
                found = torch.load(_Window(file, start_byte, size_bytes), weights_only=True)
            storage = found.untyped_storage()
            place = start_byte + int(storage._checkpoint_offset)
        except (RuntimeError, pickle.UnpicklingError, AttributeError, TypeError, ValueError):
            return None
        if found.storage_offset() or place + storage.nbytes() > start_byte + size_bytes:
            return None
        if storage.nbytes() != found.nbytes:
            return None
        shape, stride = tuple(found.shape), tuple(found.stride())
        return TensorPlace(place, place + int(storage.nbytes()), found.dtype, shape, stride)


class _Window(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: Any, start_byte: int, size_bytes: int) -> None:
        self._file, self._start_byte, self._size_bytes = file, start_byte, size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}
        self._at = max(0, bases[whence] + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        left = max(0, self._size_bytes - self._at)
        self._file.seek(self._start_byte + self._at)
        got: int = self._file.readinto(memoryview(buffer)[: min(left, len(buffer))])
        self._at += got
        return got


class DirectTensors:
    """Reads tensors of a local repository. Thread-safe.

    Args:
        reader: of the device.
        root: the repository's folder.
        meter: counts what goes through the host, as ``fallback`` by reason.
    """

    def __init__(self, reader: DeviceReader, root: Path, meter: Meter) -> None:
        self._reader, self._root, self._meter = reader, root, meter

    def read(self, key: str, start_byte: int, size_bytes: int) -> Any:
        """The tensor that was saved in an object, on the device; None: the host is to read it."""
        path = self._root / key
        try:
            place = None
            if size_bytes >= LEAST_BYTES:
                place = tensor_place(path, start_byte, size_bytes)
            if place is None:
                reason = "direct_small" if size_bytes < LEAST_BYTES else "direct_layout"
                self._meter.event("fallback", reason)
                return None
            memory = self._reader.read(path, place.start_byte, place.stop_byte)
        except (OSError, NotFoundError, ShortReadError, StorageError):
            self._meter.event("fallback", "direct_unreadable")
            return None  # the store says what is wrong
        self._meter.add("bytes.unverified", place.stop_byte - place.start_byte)
        return self._reader.as_dtype(memory, place.dtype).as_strided(place.shape, place.stride)


def direct_tensors(device: str, url: str, meter: Meter) -> DirectTensors:
    """Direct reads of a repository into a GPU's memory.

    Raises:
        InvalidInputError: there is no GPU, or the repository is not on a local file system.
    """
    if not str(device).startswith("cuda") or not torch.cuda.is_available():
        raise InvalidInputError(f"direct={device!r}: torch sees no such CUDA device; leave it out")
    root = Path(url)
    if not root.is_absolute():
        raise InvalidInputError(
            f"direct={device!r} reads from a local file system, the repository is at {url}; fetch "
            "the checkpoint, or leave it out"
        )
    return DirectTensors(DeviceReader(str(device), meter, probe_kvikio(has_gpu=True)), root, meter)


def device_reads(meter: Meter) -> dict[str, int]:
    """What direct reads counted, by how they went."""
    counts = meter.snapshot()
    gds = int(counts.sums.get("reads.gds", 0))
    return counts.event("fallback") | ({"gds": gds} if gds else {})
