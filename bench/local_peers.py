"""Loaders of local clips that ``speed_cpu.py`` compares with, each as its own docs advise."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import av
import numpy as np

from bench_videos import RATE

FRAMES, CORES = 16, 2


@dataclass(frozen=True)
class Place:
    """One clip to read: a file and a frame in it."""

    path: Path
    frame: int


Stream = Callable[[Iterator[Place]], Generator[object]]
"""Reads the places in order for as long as it is asked; dstream's draws places of its own."""


@dataclass
class Contender:
    """Something that reads clips, and what it did in each round."""

    name: str
    stream: Stream
    kind: str
    """``ours``, ``kept`` (files stay open), ``opened`` (for each clip) or ``several`` (ours,
    several clips a GOP)."""
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


Clip = TypeVar("Clip")


def in_threads(
    one: Callable[[Place], Clip], workers: int = CORES
) -> Callable[[Iterator[Place]], Generator[Clip]]:
    """Read with ``workers`` threads, as many clips ahead."""

    def stream(places: Iterator[Place]) -> Generator[Clip]:
        running: deque[Future[Clip]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            try:
                for place in places:
                    running.append(pool.submit(one, place))
                    if len(running) > 2 * workers:
                        yield running.popleft().result()
            finally:
                for left in running:
                    left.cancel()

    return stream


def kept_open(opened: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """``opened``, once for each file and thread."""
    local = threading.local()

    def get(path: Path) -> Any:
        known = local.__dict__.setdefault("known", {})
        if path not in known:
            known[path] = opened(path)
        return known[path]

    return get


def torchcodec_contenders(size: tuple[int, int] | None) -> list[Contender]:
    from peers.adapters.torchcodec_clip import open_decoder, read_clip

    def one(opened: Callable[[Path], Any]) -> Callable[[Place], object]:
        return lambda place: read_clip(opened(place.path), place.frame, FRAMES)

    def opening(mode: str, threads: int = 1) -> Callable[[Path], Any]:
        return lambda path: open_decoder(path, size, mode=mode, threads=threads)

    found = []
    for mode in ("approximate", "exact"):
        kept = one(kept_open(opening(mode)))
        found += [
            Contender(f"torchcodec {mode}, kept open, 2 threads", in_threads(kept), "kept"),
            Contender(
                f"torchcodec {mode}, kept open, 2 workers",
                in_workers(mode, size, keep=True),
                "kept",
            ),
            Contender(
                f"torchcodec {mode}, opened, 2 threads", in_threads(one(opening(mode))), "opened"
            ),
        ]
    two = one(kept_open(opening("approximate", threads=2)))
    return [
        *found,
        Contender(
            "torchcodec approximate, kept open, 1x2 FFmpeg threads", in_threads(two, 1), "kept"
        ),
        Contender(
            "torchcodec approximate, opened, 2 workers",
            in_workers("approximate", size, keep=False),
            "opened",
        ),
    ]


class WorkerClips:
    """torchcodec as a map-style data set for DataLoader's processes."""

    def __init__(self, mode: str, size: tuple[int, int] | None, *, keep: bool) -> None:
        self._mode, self._size, self._keep = mode, size, keep
        self._known: dict[Path, Any] = {}

    def __getitem__(self, place: Place) -> Any:
        from peers.adapters.torchcodec_clip import open_decoder, read_clip

        decoder = self._known.get(place.path) or open_decoder(
            place.path, self._size, mode=self._mode
        )
        if self._keep:
            self._known[place.path] = decoder
        return read_clip(decoder, place.frame, FRAMES)


def in_workers(mode: str, size: tuple[int, int] | None, *, keep: bool) -> Stream:
    """DataLoader with two processes that live for the whole run."""
    from torch.utils.data import DataLoader

    places: list[Iterator[Place]] = []

    class Current:
        def __iter__(self) -> Iterator[Place]:
            return places[-1]

    clips: Any = WorkerClips(mode, size, keep=keep)
    loader: Any = DataLoader(
        clips,
        batch_size=None,
        sampler=Current(),
        num_workers=CORES,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )

    def stream(given: Iterator[Place]) -> Generator[object]:
        places.append(given)
        yield from loader

    return stream


def decord_contenders(size: tuple[int, int] | None) -> list[Contender]:
    import decord

    height, width = size or (-1, -1)

    def opened(path: Path) -> Any:
        return decord.VideoReader(str(path), width=width, height=height, num_threads=1)

    def one(get: Callable[[Path], Any]) -> Callable[[Place], object]:
        return lambda place: get(place.path).get_batch(
            list(range(place.frame, place.frame + FRAMES))
        )

    return [
        Contender("decord, kept open, 2 threads", in_threads(one(kept_open(opened))), "kept"),
        Contender("decord, opened, 2 threads", in_threads(one(opened)), "opened"),
    ]


def pyav_contenders(size: tuple[int, int] | None) -> list[Contender]:
    def opened(path: Path) -> av.container.InputContainer:
        container = av.open(str(path))
        container.streams.video[0].thread_count = 1
        return container

    def one(get: Callable[[Path], av.container.InputContainer]) -> Callable[[Place], object]:
        def read(place: Place) -> object:
            container = get(place.path)
            stream = container.streams.video[0]
            if stream.time_base is None:
                raise SystemExit(f"{place.path} has no time base")
            ticks = round(1 / RATE / stream.time_base)
            first = (stream.start_time or 0) + place.frame * ticks
            container.seek(first, stream=stream)
            pictures = []
            for frame in container.decode(stream):
                if frame.pts is not None and frame.pts >= first:
                    if size:
                        frame = frame.reformat(width=size[1], height=size[0], format="rgb24")
                    pictures.append(frame.to_ndarray(format="rgb24"))
                    if len(pictures) == FRAMES:
                        break
            return np.stack(pictures)

        return read

    return [
        Contender("PyAV, kept open, seek, 2 threads", in_threads(one(kept_open(opened))), "kept"),
        Contender("PyAV, opened, 2 threads", in_threads(one(opened)), "opened"),
    ]
