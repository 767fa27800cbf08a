"""Clips that were had one by one, put together as a batch: for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dstream.errors import InvalidInputError
from dstream.loader.batch import Batch, Clip, side_rows


def collate(clips: Sequence[Clip]) -> Batch:
    """A batch of clips, as ``DataLoader(clips, collate_fn=dstream.collate)`` needs it.

    ``positions`` are -1, since a sampler of somebody else chose the clips.

    Raises:
        InvalidInputError: there is no clip, or they differ in form.
    """
    if not clips:
        raise InvalidInputError("there is no clip to make a batch of")
    first = clips[0]
    for clip in clips:
        if (clip.video.shape, clip.video.dtype) != (first.video.shape, first.video.dtype):
            raise InvalidInputError(
                f"clips of different forms cannot share a batch: {_form(first)} and {_form(clip)} "
                "([T, C, H, W]); give resize=(height, width), or resize=N with "
                "crop=(height, width), or batch_size=1",
                samples=(first.key, clip.key),
            )
    side = side_rows([(clip.key, clip.side) for clip in clips])
    return Batch(
        video=_stacked([clip.video for clip in clips]),
        keys=[clip.key for clip in clips],
        start_s=np.array([clip.start_s for clip in clips], dtype=np.float64),
        pts_s=np.stack([clip.pts_s for clip in clips]),
        fps=np.array([clip.fps for clip in clips], dtype=np.float64),
        side={name: _stacked(arrays) for name, arrays in side.items()},
        slots=np.array([clip.slot for clip in clips], dtype=np.int64),
        positions=np.full(len(clips), -1, dtype=np.int64),
    )


def _stacked(arrays: Sequence[Any]) -> Any:
    if isinstance(arrays[0], np.ndarray):
        return np.stack(arrays)
    import torch

    return torch.stack(list(arrays))


def _form(clip: Clip) -> str:
    return f"{clip.video.dtype} {tuple(clip.video.shape)} (sample {clip.key!r})"
