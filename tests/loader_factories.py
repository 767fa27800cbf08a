"""Loaders of several makes, for tests of what measures them."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import numpy as np


def batch(size: int = 4) -> dict[str, Any]:
    return {"video": np.zeros((size, 2, 3, 8, 8), np.uint8), "name": ["a"] * size}


def generator(batches: int = 20, size: int = 4) -> Iterator[Any]:
    for _ in range(batches):
        yield batch(size)


def noisy() -> Iterator[Any]:
    """Prints here, and in a process of its own."""
    print("printed here", flush=True)
    subprocess.run(["echo", "printed there"], check=True)
    return generator()


def endless() -> Iterator[Any]:
    return itertools.repeat(batch())


def untold(batches: int = 10) -> list[object]:
    return [object()] * batches


def failing(after: int) -> Iterator[Any]:
    yield from generator(after)
    raise OSError("the disk is gone")


def broken() -> None:
    raise RuntimeError("no such bucket")


def number() -> int:
    return 3


class Closable:
    """Remembers that it was closed."""

    closed = 0

    def __iter__(self) -> Iterator[Any]:
        return generator()

    def close(self) -> None:
        Closable.closed += 1


class Burning:
    """A data set whose items take CPU time and no other."""

    def __init__(self, items: int, item_s: float) -> None:
        self._items, self._item_s = items, item_s

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, place: int) -> Any:
        until_s = time.thread_time() + self._item_s
        while time.thread_time() < until_s:
            pass
        return np.zeros((3, 8, 8), np.uint8)


def torch_loader(items: int, item_s: float, workers: int) -> Any:
    from torch.utils.data import DataLoader

    data: Any = Burning(items, item_s)
    return DataLoader(data, batch_size=2, num_workers=workers)


def own_loader(source: str, clips: int = 40) -> Any:
    import dstream

    return dstream.clips(source, frames=2, clips_per_file=clips).loader(2, workers=1)


class Unclosable(Closable):
    """Cannot be closed."""

    def close(self) -> None:
        raise OSError("a worker is gone")


def leaving() -> Iterator[Any]:
    """Ends the process, as a script without a guard does that parses arguments."""
    yield batch()
    raise SystemExit(7)
