"""Made videos as runs of a decoder, with the truth about every frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dstream.format.index import VideoIndex
from dstream.media.clip import ClipPlan, ClipRequest, plan_clip
from dstream.media.decode import packets_of
from dstream.media.decoders.contract import Place, Run
from dstream.media.index import index_video
from dstream.media.reader import FileReader
from made_video import make_video
from sequential import all_frames, upright_rgb

FRAMES = 40


class Video:
    """A made video, every frame of it in RGB, and runs over its packets."""

    def __init__(self, path: Path, **options: Any) -> None:
        make_video(path, **{"frames": FRAMES, "gop": 10, **options})
        self._data = path.read_bytes()
        with FileReader(path) as reader:
            self.index: VideoIndex = index_video(reader)[0]
        frames = list(all_frames(path, 0))
        self.pts: list[int] = [frame.pts for frame in frames if frame.pts is not None]
        self.truth = dict(zip(self.pts, map(upright_rgb, frames), strict=True))

    def run(
        self, places: dict[int, list[Place]] | None = None, first: int = 0, frames: int = 1
    ) -> Run:
        """Over the GOPs of some frames; without places all of these are wanted."""
        if places is None:
            places = {pts: [(self.out(), None)] for pts in self.pts[first : first + frames]}
        track = self.index.track
        tick_s = float(track.time_base)
        plan: ClipPlan = plan_clip(
            self.index,
            ClipRequest(
                start_s=(self.pts[first] - self.pts[0]) * tick_s,
                frames=frames,
                stride=1,
                start_pts=track.start_pts,
                end_pts=track.end_pts,
            ),
        )
        pieces = [self._data[e.offset_bytes : e.offset_bytes + e.size_bytes] for e in plan.extents]
        return Run(track, packets_of(self.index, plan, pieces)[0], places)

    def out(self) -> NDArray[np.generic]:
        return np.zeros_like(self.truth[self.pts[0]])
