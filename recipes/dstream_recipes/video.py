"""``video``: every video file is one sample, from its first frame to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.recipe import ClipFacts, Label, SampleSpec, StreamSpan, VideoFile
from dstream_recipes.settings import as_params, with_params


def group_of(name: str, grouping: str) -> str:
    """The group of the file ``name``: itself, or the folder it lies in.

    >>> group_of("day1/cam/a.mp4", "file"), group_of("day1/cam/a.mp4", "folder")
    ('day1/cam/a.mp4', 'day1/cam')
    >>> group_of("a.mp4", "folder")
    '.'
    """
    return name if grouping == "file" else str(PurePosixPath(name).parent)


def whole_file(video: VideoFile) -> StreamSpan:
    """The whole of a video's best track."""
    track = video.tracks[0]
    return StreamSpan(track=0, start_pts=track.start_pts, end_pts=track.end_pts)


@dataclass(frozen=True, slots=True)
class VideoSettings:
    """Parameters of the recipe ``video``."""

    group: str = "file"
    """``file``: every file is its own group. ``folder``: files of one folder belong together."""
    split: str = "train"
    """The split that every sample is put into."""

    def __post_init__(self) -> None:
        check_group(self.group)


def check_group(group: str) -> None:
    """Raise ``InvalidInputError`` unless ``group`` is ``file`` or ``folder``."""
    if group not in ("file", "folder"):
        raise InvalidInputError(f"group={group}: expected file or folder", parameter="group")


@dataclass(frozen=True, slots=True)
class VideoRecipe:
    """One sample a file. Its key is the file's name in the source."""

    settings: VideoSettings = field(default_factory=VideoSettings)
    name: str = "video"
    needs_packets: bool = False

    @property
    def params(self) -> dict[str, Label]:
        """The settings by name."""
        return as_params(self.settings)

    def configured(self, params: Mapping[str, Label]) -> VideoRecipe:
        """This recipe with other settings. Raises ``InvalidInputError``."""
        return replace(self, settings=with_params(self.name, self.settings, params))

    def samples(self, video: VideoFile) -> Sequence[SampleSpec]:
        """The one sample of ``video``."""
        return [
            SampleSpec(
                key=video.name,
                group=group_of(video.name, self.settings.group),
                streams=(whole_file(video),),
                split=self.settings.split,
            )
        ]

    def side_data(
        self, facts: ClipFacts, side: Mapping[str, bytes]
    ) -> Mapping[str, NDArray[np.generic]]:
        """Nothing: a plain video has no side data."""
        return {}


RECIPE = VideoRecipe()
