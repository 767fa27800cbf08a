"""What an adapter is asked and what it answers: one JSON object a line.

Asked, in ``argv[1]``: a :class:`Task`. Answered on stdout: ``{"event": "ready"}`` once the data
set is open, ``{"event": "warm", "seen": [...]}`` after the clips that are not counted,
``{"event": "done", "clips": n, "seconds": s}``. The process is then ended from outside.

Only the standard library and what the peer itself brings are imported here and in the adapters.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """What to read, and how much of it."""

    raw: str
    """``s3://`` prefix of the videos as they are."""
    prepared: str
    """``s3://`` prefix of what the peer's ``prepare`` made."""
    endpoint: str
    frames: int
    rate: int
    """Frames a second of every video."""
    size: tuple[int, int] | None
    """(height, width) of the frames; None for the video's own."""
    cores: int
    workers: int
    """Processes of a DataLoader: more than cores, since theirs wait for the network."""
    seed: int
    warm_clips: int
    clips: int
    limit_s: float
    scratch: str
    """An empty folder of this turn's own, for peers that keep a cache."""
    videos: dict[str, int]
    """Frames of each video by its name below ``raw``, as a table of samples would say."""


@dataclass(frozen=True)
class Seen:
    """One delivered clip."""

    key: str
    """The video, or the piece of one, that it was taken from."""
    frame: int
    video: Any
    """uint8 [T, C, H, W] or [T, H, W, C], an array or a tensor."""


Clips = Callable[[Task], Iterator[Seen]]
"""Opens the data set at once (no generator), and gives an iterator without an end."""


def _crc(video: Any) -> int:
    array = video.numpy() if hasattr(video, "numpy") else video
    if array.shape[-1] == 3:
        array = array.transpose(0, 3, 1, 2)
    return zlib.crc32(array.tobytes())


def _say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def answer(opened: Clips) -> None:
    """Be the adapter: time the clips between the last uncounted one and the end."""
    asked = json.loads(sys.argv[1])
    size = asked.pop("size")
    task = Task(size=tuple(size) if size else None, **asked)
    clips = opened(task)
    _say("ready")
    first_s = time.perf_counter()
    seen = []
    for number in range(task.warm_clips):
        clip = next(clips)
        if number == 0:
            first_s = time.perf_counter() - first_s
        seen.append((clip.key, clip.frame, tuple(clip.video.shape), _crc(clip.video)))
    _say("warm", seen=seen, first_clip_s=first_s)
    began_s, count = time.perf_counter(), 0
    while count < task.clips and time.perf_counter() - began_s < task.limit_s:
        next(clips)
        count += 1
    _say("done", clips=count, seconds=time.perf_counter() - began_s)
    # Some peers wait for their workers for ever; the turn is over.
    sys.stdout.flush()
    os._exit(0)
