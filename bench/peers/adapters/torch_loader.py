"""torch's DataLoader over random places without an end, for the map-style peers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from peers.adapters.protocol import Seen, Task

PREFETCH = 2
"""Batches that each worker makes ahead: torch's own number."""

Place = tuple[str, int]
"""A video's name and the clip's first frame."""


class RandomPlaces:
    """A sampler of clips of all videos, each frame as likely as another to be the first."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __iter__(self) -> Iterator[Place]:
        generator, videos = random.Random(self._task.seed), self._task.videos
        names, weights = list(videos), list(videos.values())
        while True:
            name = generator.choices(names, weights)[0]
            yield name, generator.randrange(videos[name] - self._task.frames + 1)


def endless(dataset: Any, task: Task, *, start: str = "fork", **more: Any) -> Iterator[Any]:
    """What ``dataset`` gives, from ``task.workers`` processes, without batching by default.

    ``start="forkserver"`` is for what must not be forked once it is in use.
    """
    settings = {
        "batch_size": None,
        "num_workers": task.workers,
        "prefetch_factor": PREFETCH,
        "multiprocessing_context": start,
        **more,
    }
    return iter(DataLoader(dataset, **settings))


def stock_clips(task: Task, batch: int = 1) -> int:
    """What DataLoader's workers can hold, and the batch that is being handed over."""
    return task.workers * PREFETCH * batch + batch


def as_seen(items: Iterator[tuple[str, int, Any]]) -> Iterator[Seen]:
    for key, frame, video in items:
        yield Seen(key, int(frame), video)
