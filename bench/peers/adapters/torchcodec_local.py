"""torchcodec over local files, kept open by two threads: what its decoding alone allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from local_peers import Place, in_threads, kept_open
from peers.adapters.protocol import Seen, Task, answer
from peers.adapters.torch_loader import RandomPlaces
from peers.adapters.torchcodec_clip import open_decoder, read_clip


def opened(task: Task) -> Iterator[Seen]:
    decoder = kept_open(lambda path: open_decoder(path, task.size))

    def one(place: Place) -> Seen:
        clip = read_clip(decoder(place.path), place.frame, task.frames)
        return Seen(place.path.name, place.frame, clip)

    places = (Place(Path(task.local) / name, frame) for name, frame in RandomPlaces(task))
    return in_threads(one, task.cores)(places)


def stock_clips(task: Task) -> int:
    return 2 * task.cores


if __name__ == "__main__":
    answer(opened, stock_clips)
