"""torchcodec over a file that s3fs opens, as its tutorial on file-like objects shows.

s3fs reads 50 MiB ahead by itself, more than a video has; a mebibyte is kinder to random clips.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import s3fs

from peers.adapters.protocol import Seen, Task, answer
from peers.adapters.torch_loader import Place, RandomPlaces, as_seen, endless, stock_clips
from peers.adapters.torchcodec_clip import open_decoder, read_clip


class Files:
    """Clips by place; each worker has a file system of its own."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._files: Any = None

    def __getitem__(self, place: Place) -> tuple[str, int, Any]:
        if self._files is None:
            self._files = s3fs.S3FileSystem(
                client_kwargs={"endpoint_url": self._task.endpoint},
                config_kwargs={"s3": {"addressing_style": "path"}},
            )
        name, frame = place
        with self._files.open(f"{self._task.raw}/{name}", block_size=1 << 20) as file:
            decoder = open_decoder(file, self._task.size)
            return name, frame, read_clip(decoder, frame, self._task.frames)


def opened(task: Task) -> Iterator[Seen]:
    return as_seen(endless(Files(task), task, sampler=RandomPlaces(task)))


if __name__ == "__main__":
    answer(opened, stock_clips)
