"""The seam for kinds of data: what a sample is, and what rides along with a clip.

A recipe is an object with the attributes and methods of :class:`Recipe`. It is found by an
installed entry point of the group ``dstream.recipes``, or in a Python file given by path that
defines ``RECIPE``. Ingest asks it for the samples of each video; the loader asks it for the
arrays of each clip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dstream.format.index import VideoTrack

Label = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file that shares a video's folder and stem: ``run7.actions.jsonl`` of ``run7.mp4``."""

    name: str
    """Path relative to the source."""
    suffix: str
    """What follows the stem, with its dots: ``.actions.jsonl``."""
    size_bytes: int
    read: Callable[[], bytes]
    """Fetches the whole file."""


@dataclass(frozen=True, slots=True)
class VideoFile:
    """One indexed video, as a recipe sees it at ingest."""

    name: str
    """Path relative to the source."""
    tracks: Sequence[VideoTrack]
    """Its video tracks, the best first."""
    frame_pts_s: Callable[[], NDArray[np.float64]] | None
    """float64 [N] seconds from the first frame of ``tracks[0]``, display order; None where
    the index has no packet table."""
    side: Mapping[str, SideFile]
    """Side files by suffix."""


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """The part ``[start_pts, end_pts)`` of one track, in the track's ticks."""

    track: int
    """Position in ``VideoFile.tracks``."""
    start_pts: int
    end_pts: int
    name: str = "video"


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One sample to be written to the sample table."""

    key: str
    """Unique in the artifact."""
    group: str
    """Session, scene or recording that it belongs to."""
    streams: tuple[StreamSpan, ...]
    split: str = "train"
    side: tuple[str, ...] = ()
    """Suffixes of the side files that its clips need."""
    labels: Mapping[str, Label] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """Which frames a clip shows, for looking up what belongs to them."""

    sample_key: str
    pts_s: NDArray[np.float64]
    """float64 [T] seconds from the first frame of the file."""
    frame_index: NDArray[np.int64] | None
    """int64 [T] position of each frame in the file's display order; None where unknown."""


class Recipe(Protocol):
    """What ingest and the loader ask of a kind of data."""

    @property
    def name(self) -> str:
        """Short name, recorded in the manifest."""
        ...

    @property
    def needs_packets(self) -> bool:
        """True when samples or side data need frame numbers of every file (a full index)."""
        ...

    def samples(self, video: VideoFile) -> Sequence[SampleSpec]:
        """The samples of one video file.

        Raises:
            MediaError: with reason ``bad-side-file``; the video is quarantined.
        """
        ...

    def side_data(
        self, facts: ClipFacts, side: Mapping[str, bytes]
    ) -> Mapping[str, NDArray[np.generic]]:
        """Arrays whose first axis is the clip's T frames, by name.

        Args:
            facts: the clip's frames.
            side: bytes of the sample's side files by suffix.

        Raises:
            MediaError: with reason ``bad-side-file``.
        """
        ...
