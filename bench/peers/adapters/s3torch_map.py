"""s3torchconnector: a map-style data set whose reader fetches ranges, decoded by torchcodec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from s3torchconnector import S3ClientConfig, S3MapDataset, S3ReaderConstructor

from peers.adapters.protocol import Seen, Task, answer
from peers.adapters.torch_loader import Place, RandomPlaces, as_seen, endless, stock_clips
from peers.adapters.torchcodec_clip import open_decoder, read_clip


class Objects:
    """Clips by place. The connector gives an object's reader by its number."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._numbers = {name: number for number, name in enumerate(task.videos)}
        self._objects: Any = S3MapDataset.from_objects(
            [f"{task.raw}/{name}" for name in task.videos],
            region="us-east-1",
            endpoint=task.endpoint,
            s3client_config=S3ClientConfig(force_path_style=True),
            reader_constructor=S3ReaderConstructor.range_based(),
        )

    def __getitem__(self, place: Place) -> tuple[str, int, Any]:
        name, frame = place
        decoder = open_decoder(self._objects[self._numbers[name]], self._task.size)
        return name, frame, read_clip(decoder, frame, self._task.frames)


def opened(task: Task) -> Iterator[Seen]:
    return as_seen(endless(Objects(task), task, sampler=RandomPlaces(task)))


if __name__ == "__main__":
    answer(opened, stock_clips)
