"""Checksums of every frame of a video, made once, to hold delivered clips against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import av

from peers.adapters.protocol import rows_sum, whole_sum


@dataclass(frozen=True)
class FrameSums:
    """By the frame's number."""

    whole: Sequence[int]
    rows: Sequence[int]

    def holds(self, frame: int, sums: Sequence[int]) -> bool:
        """Whether the frames from ``frame`` on have these whole checksums."""
        return list(self.whole[frame : frame + len(sums)]) == list(sums)


def frame_sums(video: Path) -> FrameSums:
    """Of a decode from the file's start. They lie beside the video from then on."""
    kept = video.with_suffix(".sums.json")
    if not kept.exists():
        whole, rows = [], []
        with av.open(str(video)) as container:
            container.streams.video[0].thread_count = 0
            for frame in container.decode(video=0):
                picture = frame.to_ndarray(format="rgb24").transpose(2, 0, 1)
                whole.append(whole_sum(picture))
                rows.append(rows_sum(picture))
        unfinished = kept.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(FrameSums(whole, rows))))
        unfinished.rename(kept)
    return FrameSums(**json.loads(kept.read_text()))
