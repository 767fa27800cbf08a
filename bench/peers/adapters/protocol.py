"""What an adapter is asked and what it answers: one JSON object a line.

Asked, in ``argv[1]``: a :class:`Task`. Answered on stdout: ``{"event": "ready"}`` once the data
set is open, ``{"event": "counting", ...}`` with the last clip that does not count, and
``{"event": "done", ...}`` with the last that does. The process is then ended from outside.

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

from peers.adapters.window import Progress, Rule, may_begin, may_end

WHOLE_CLIPS = 4
"""The first ones, of which every frame's whole checksum is told."""
_ROWS_APART = 45


@dataclass(frozen=True)
class Task:
    """What to read, and how much of it."""

    raw: str
    """``s3://`` prefix of the videos as they are."""
    local: str
    """A folder with the same videos as files."""
    prepared: str
    """``s3://`` prefix of what the peer's ``prepare`` made."""
    endpoint: str
    frames: int
    rate: int
    """Frames a second of every video."""
    size: tuple[int, int] | None
    """(height, width) of the frames; None for the video's own."""
    full_size: tuple[int, int]
    """(height, width) of the video's own."""
    cores: int
    workers: int
    """Processes of a DataLoader: more than cores, since theirs wait for the network."""
    seed: int
    window_s: float
    least_clips: int
    settle_limit_s: float
    limit_s: float
    """See :class:`~peers.adapters.window.Rule` for these four."""
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


def whole_sum(picture: Any) -> int:
    """CRC-32 of uint8 [C, H, W]."""
    return zlib.crc32(picture.tobytes())


def rows_sum(picture: Any) -> int:
    """CRC-32 of every 45th row of uint8 [C, H, W]: cheap enough for each clip."""
    return zlib.crc32(picture[:, ::_ROWS_APART].tobytes())


def pictures(video: Any) -> Any:
    """An array [T, C, H, W] of a clip in either layout, without a copy."""
    array = video.numpy() if hasattr(video, "numpy") else video
    return array.transpose(0, 3, 1, 2) if array.shape[-1] == 3 else array


class _Consumer:
    """Takes clips as fast as they come, and looks at each."""

    def __init__(self, clips: Iterator[Seen], task: Task) -> None:
        self._clips = clips
        self._shape = (task.frames, 3, *(task.size or task.full_size))
        self._since_s, self._count = time.perf_counter(), 0

    def restart(self) -> None:
        """Count from the clip that came last."""
        self._since_s, self._count = self._arrived_s, 0

    def take(self) -> tuple[Seen, Any, Progress]:
        """The next clip, its pictures [T, C, H, W], and how far this is."""
        asked_s = time.perf_counter()
        clip = next(self._clips)
        self._arrived_s = time.perf_counter()
        self._count += 1
        array = pictures(clip.video)
        if tuple(array.shape) != self._shape:
            raise ValueError(f"a clip of shape {array.shape}, not {self._shape}")
        passed_s, waited_s = self._arrived_s - self._since_s, self._arrived_s - asked_s
        return clip, array, Progress(self._count, passed_s, waited_s)


def _say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def answer(opened: Clips, stock_clips: Callable[[Task], int]) -> None:
    """Be the adapter: let its stock pass, then time clips from one arrival to another.

    ``stock_clips`` says from the adapter's own settings how many clips can be made or being made
    when the first arrives.
    """
    asked = json.loads(sys.argv[1])
    for name in ("size", "full_size"):
        asked[name] = asked[name] and tuple(asked[name])
    task = Task(**asked)
    rule = Rule(
        stock_clips(task), task.window_s, task.least_clips, task.settle_limit_s, task.limit_s
    )
    clips = opened(task)
    _say("ready")
    consumer, whole = _Consumer(clips, task), []
    clip, array, first = consumer.take()
    whole.append((clip.key, clip.frame, [whole_sum(picture) for picture in array]))
    consumer.restart()
    while True:
        clip, array, now = consumer.take()
        if may_begin(rule, now):
            break
        if len(whole) < WHOLE_CLIPS:
            whole.append((clip.key, clip.frame, [whole_sum(picture) for picture in array]))
    consumer.restart()
    _say(
        "counting",
        first_clip_s=first.seconds,
        whole=whole,
        passed_clips=now.clips,
        stock_clips=rule.stock_clips,
    )
    counted = []
    while True:
        clip, array, now = consumer.take()
        counted.append((clip.key, clip.frame, rows_sum(array[-1]), now.seconds))
        if may_end(rule, now):
            break
    _say("done", counted=counted)
    # Some peers wait for their workers for ever; the turn is over.
    sys.stdout.flush()
    os._exit(0)
