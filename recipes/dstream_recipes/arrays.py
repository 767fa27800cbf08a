"""``arrays``: every npy or safetensors file is one sample; its rows are the frames of a clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError, MediaError, MediaReason
from dstream.media.arrays import ALIGN_BYTES, index_arrays
from dstream.recipe import ClipFacts, FileKind, Label, SampleSpec, StreamSpan, VideoFile
from dstream_recipes.settings import as_params, with_params
from dstream_recipes.video import check_group, group_of


@dataclass(frozen=True, slots=True)
class ArraySettings:
    """Parameters of the recipe ``arrays``."""

    rows: str = "leading"
    """``leading``: a row is one place of the leading axis. ``whole``: the array is one row."""
    tensor: str = ""
    """Take only the tensor of this name; all of them by default."""
    group: str = "file"
    """As in the recipe ``video``."""
    split: str = "train"

    def __post_init__(self) -> None:
        check_group(self.group)
        if self.rows not in ("leading", "whole"):
            raise InvalidInputError(f"rows={self.rows}: leading or whole", parameter="rows")


@dataclass(frozen=True, slots=True)
class ArraysRecipe:
    """One sample a file, one stream an array. Its key is the file's name in the source."""

    settings: ArraySettings = field(default_factory=ArraySettings)
    name: str = "arrays"
    needs_packets: bool = True

    @property
    def files(self) -> FileKind:
        """What it reads instead of videos."""
        index = partial(index_arrays, whole=self.settings.rows == "whole")
        return FileKind(frozenset({".npy", ".safetensors"}), index, ALIGN_BYTES)

    @property
    def params(self) -> dict[str, Label]:
        """The settings by name."""
        return as_params(self.settings)

    def configured(self, params: Mapping[str, Label]) -> ArraysRecipe:
        """This recipe with other settings. Raises ``InvalidInputError``."""
        return replace(self, settings=with_params(self.name, self.settings, params))

    def samples(self, video: VideoFile) -> Sequence[SampleSpec]:
        """The one sample of a file.

        Raises:
            MediaError: the file lacks the tensor that was asked for.
        """
        wanted = self.settings.tensor
        spans = tuple(
            StreamSpan(number, track.start_pts, track.end_pts, track.profile or "array")
            for number, track in enumerate(video.tracks)
            if not wanted or track.profile == wanted
        )
        if not spans:
            raise MediaError(
                f"{video.name}: it has no tensor {wanted!r}", reason=MediaReason.BAD_ARRAY
            )
        group = group_of(video.name, self.settings.group)
        return [SampleSpec(video.name, group, spans, self.settings.split)]

    def side_data(
        self, facts: ClipFacts, side: Mapping[str, bytes]
    ) -> Mapping[str, NDArray[np.generic]]:
        """Nothing: all is in the array."""
        return {}


RECIPE = ArraysRecipe()
