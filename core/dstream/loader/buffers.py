"""Batch memory that is used again only when nobody can see it any more.

Fresh output memory costs more than the conversion into it (page faults), so batches are written
into a few long-lived arrays. numpy makes every view of a view point at the array that owns the
memory; torch tensors and DLPack capsules hold a view. So the owner's reference count says
whether anyone still looks, and ``list(loader)`` simply gets new memory each time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dstream.forks import renew_after_fork

ALIGNMENT_BYTES = 64


def allocate_plain(size_bytes: int) -> NDArray[np.uint8]:
    """Ordinary memory."""
    return np.empty(size_bytes, dtype=np.uint8)


class BufferPool:
    """Raw arrays for batches; keeps at most ``capacity`` of them.

    Args:
        capacity: arrays to keep. More may exist while consumers hold them.
        allocate: makes an array that owns ``size_bytes`` bytes.
    """

    def __init__(
        self, capacity: int, allocate: Callable[[int], NDArray[np.uint8]] = allocate_plain
    ) -> None:
        self._capacity = max(1, capacity)
        self._allocate = allocate
        self._lock = threading.Lock()
        self._owners: list[NDArray[np.uint8]] = []
        self.allocated = 0
        """How many arrays were ever made."""
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child, where a thread of the parent may hold it."""
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
        """A writable array over memory that nobody else sees. Its content is arbitrary."""
        kind = np.dtype(dtype)
        size_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        with self._lock:
            owner = self._free_owner(size_bytes)
            if owner is None:
                owner = self._add_owner(size_bytes)
            return owner[:size_bytes].view(kind).reshape(shape)

    def _free_owner(self, size_bytes: int) -> NDArray[np.uint8] | None:
        for position in range(len(self._owners)):
            if self._owners[position].nbytes != _rounded(size_bytes):
                continue
            if _references(self._owners, position) == _UNSEEN:
                owner = self._owners.pop(position)
                self._owners.append(owner)
                return owner
        return None

    def _add_owner(self, size_bytes: int) -> NDArray[np.uint8]:
        owner = self._allocate(_rounded(size_bytes))
        self.allocated += 1
        self._owners.append(owner)
        if len(self._owners) > self._capacity:
            # The longest in use: its holders keep it alive, and it goes when they do.
            del self._owners[0]
        return owner


def _references(owners: list[NDArray[np.uint8]], position: int) -> int:
    return sys.getrefcount(owners[position])


_UNSEEN = _references([np.empty(1, dtype=np.uint8)], 0)
"""What an array counts that only the pool's list holds, on this interpreter."""


def _rounded(size_bytes: int) -> int:
    return max(1, -(-size_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
