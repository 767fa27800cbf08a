"""Whether clips fit into one batch: equal picture sizes and pixel types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from dstream.errors import InvalidInputError, MediaError
from dstream.format.index import VideoTrack
from dstream.media.pixels import PixelSettings, output_dtype, output_shape
from dstream.media.row_form import row_form


@dataclass(frozen=True, slots=True)
class Picture:
    """Form of one frame as delivered."""

    shape: tuple[int, ...]
    """(channels, height, width), or that of an array's row."""
    dtype: np.dtype[np.generic]
    elements: str = ""
    """Type of an array's elements, which numpy may lack; empty for pictures."""
    rows: str = field(default="", compare=False)
    """How the array's rows are stored, in which order of bytes too; empty for pictures."""


def picture_of(track: VideoTrack, settings: PixelSettings) -> Picture:
    """The form of the frames that a track gives."""
    form = row_form(track.pix_fmt)
    elements, rows = ("", "") if form is None else (form.dtype, str(form))
    return Picture(output_shape(track, settings), output_dtype(track, settings), elements, rows)


def check_same(one: Picture, one_key: str, other: Picture, other_key: str) -> None:
    """Raise InvalidInputError, naming the option that helps, unless both fit into one batch."""
    if one == other:
        return
    facts = {"samples": (one_key, other_key), "sizes": (one.shape[1:], other.shape[1:])}
    if one.rows or other.rows:
        raise InvalidInputError(
            f"rows of different forms cannot share a batch: {one.rows or 'pictures'} (sample "
            f"{one_key!r}) and {other.rows or 'pictures'} (sample {other_key!r}); choose with "
            f"where=\"pix_fmt = '{one.rows or other.rows}'\", or give batch_size=1",
            **facts,
        )
    if one.shape[1:] != other.shape[1:]:
        height, width = one.shape[1:]
        other_height, other_width = other.shape[1:]
        raise InvalidInputError(
            f"pictures of different sizes cannot share a batch: {height}x{width} (sample "
            f"{one_key!r}) and {other_height}x{other_width} (sample {other_key!r}), height x "
            "width; give resize=(height, width), or resize=N with crop=(height, width), or "
            "batch_size=1",
            **facts,
        )
    raise InvalidInputError(
        f"pixels of different kinds cannot share a batch: {one.shape[0]} x {one.dtype} (sample "
        f"{one_key!r}) and {other.shape[0]} x {other.dtype} (sample {other_key!r}); give "
        "pixels='rgb' instead of 'native', or batch_size=1",
        **facts,
    )


def check_all_same(tracks: Iterable[tuple[str, VideoTrack]], settings: PixelSettings) -> None:
    """Raise InvalidInputError when tracks known beforehand cannot share batches."""
    first: tuple[Picture, str] | None = None
    for key, track in tracks:
        try:
            picture = picture_of(track, settings)
        except MediaError:
            continue  # such a sample fails by itself, under on_error
        if first is None:
            first = picture, key
        check_same(*first, picture, key)
