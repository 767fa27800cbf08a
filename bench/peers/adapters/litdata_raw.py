"""litdata: StreamingRawDataset gives whole objects, decoded by torchcodec in the transform."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from litdata import StreamingRawDataset
from litdata.raw.indexer import FileIndexer
from litdata.streaming import downloader

from peers.adapters.protocol import Seen, Task, answer
from peers.adapters.torch_loader import as_seen, endless, stock_clips
from peers.adapters.torchcodec_clip import random_clip

# obstore, which fetches for litdata, refuses plain HTTP unless told; litdata has no option for it.
# Here, so that workers, which import this module, do it too.
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


class RandomClip:
    """From an object's bytes to a clip; the data set does not say which object it was."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, data: bytes) -> tuple[str, int, Any]:
        frame, video = random_clip(data, self._task.size, self._task.frames, random.random())
        return "", frame, video


class Shuffled:
    """Numbers of objects, without an end."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed

    def __iter__(self) -> Iterator[int]:
        generator = random.Random(self._seed)
        while True:
            yield from generator.sample(range(self._count), self._count)


def opened(task: Task) -> Iterator[Seen]:
    dataset = StreamingRawDataset(
        task.raw,
        cache_dir=task.scratch,
        indexer=FileIndexer(extensions=[".mp4"]),
        storage_options={"endpoint_url": task.endpoint},
        transform=RandomClip(task),
        # It looks ahead in sequential order only, and with that on it keeps what the transform made
        # by the object's number: a clip of each object, again and again.
        max_prefetch=0,
    )
    items = endless(
        dataset,
        task,
        start="forkserver",
        batch_size=1,
        sampler=Shuffled(len(dataset), task.seed),
        collate_fn=only_item,
    )
    return as_seen(items)


def only_item(items: list[Any]) -> Any:
    return items[0]


if __name__ == "__main__":
    answer(opened, stock_clips)
