"""MosaicML Streaming: MDS shards of eight-second pieces, one clip of each piece."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from peers.adapters.protocol import Seen, Task, answer
from peers.adapters.torch_loader import as_seen, endless
from peers.adapters.torch_loader import stock_clips as loader_stock_clips
from peers.adapters.torchcodec_clip import random_clip

PREDOWNLOAD = 8
"""Pieces that each worker downloads ahead: its own number for batches of one."""


def prepare(manifest: dict[str, Any], folder: str) -> None:
    """Write the shards of all pieces, of the default size, below ``folder``."""
    with MDSWriter(out=folder, columns={"key": "str", "mp4": "bytes"}) as shards:
        for name, path in manifest["pieces"].items():
            with open(path, "rb") as file:
                shards.write({"key": name, "mp4": file.read()})


def clip_of(task: Task, samples: list[dict[str, Any]]) -> tuple[str, int, Any]:
    """Collates a batch of one, in the worker."""
    (sample,) = samples
    frame, video = random_clip(sample["mp4"], task.size, task.frames, random.random())
    return sample["key"], frame, video


def opened(task: Task) -> Iterator[Seen]:
    os.environ["S3_ENDPOINT_URL"] = task.endpoint
    clean_stale_shared_memory()  # the turn before was ended from outside
    dataset = StreamingDataset(
        remote=task.prepared,
        local=task.scratch + "/mds",
        shuffle=True,
        shuffle_seed=task.seed,
        batch_size=1,
        predownload=PREDOWNLOAD,
    )

    def epochs() -> Iterator[Any]:
        while True:
            yield from endless(dataset, task, batch_size=1, collate_fn=partial(clip_of, task))

    return as_seen(epochs())


def stock_clips(task: Task) -> int:
    """DataLoader's, and a clip of each piece that was downloaded ahead."""
    return loader_stock_clips(task) + task.workers * (PREDOWNLOAD + 1)


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        with open(sys.argv[2]) as given:
            prepare(json.load(given), sys.argv[3])
    else:
        answer(opened, stock_clips)
