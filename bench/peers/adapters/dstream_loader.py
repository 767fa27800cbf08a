"""dstream: the loader over an artifact that was ingested in place."""

from __future__ import annotations

from collections.abc import Iterator

import dstream
from bench_repo import NAME
from dstream.loader.concurrency import FIRST
from dstream.loader.settings import default_prefetch
from peers.adapters.protocol import Seen, Task, answer


def opened(task: Task) -> Iterator[Seen]:
    repo = dstream.open(task.prepared)
    clips = repo.clips(NAME, frames=task.frames, stride=1, seed=task.seed, resize=task.size)
    loader = clips.loader(1, workers=task.cores, epochs=None)

    def stream() -> Iterator[Seen]:
        for batch in loader:
            frame = round(float(batch.pts_s[0, 0]) * task.rate)
            yield Seen(batch.keys[0], frame, batch.video[0])

    return stream()


def stock_clips(task: Task) -> int:
    """Decoded ahead, being decoded, and fetched ahead."""
    return default_prefetch(1, task.cores) + task.cores + FIRST


if __name__ == "__main__":
    answer(opened, stock_clips)
