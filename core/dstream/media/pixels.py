"""From a decoded frame to an array: resize, crop, turn upright, planar RGB.

Colours follow the frame's own tags: matrix (BT.601, BT.709, BT.2020 ...) and range. Untagged
video is read as FFmpeg reads it: BT.601, limited range (full for ``yuvj`` formats). Transfer
curves and primaries are left as they are: HDR stays PQ or HLG coded.

Without ``resize`` pixels are as stored, also where they are not square (``VideoTrack.sar``).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, SupportsIndex

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from dstream.errors import InvalidInputError, MediaError, MediaReason
from dstream.format.index import VideoTrack
from dstream.media.row_form import row_form

_DEPTHS = (9, 10, 12, 14, 16)
_RESERVED_MATRIX = 3
_BT601 = 5
_SCALABLE = ("yuv", "gray", "gbr")
_FAST_FORMATS = ("yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuva420p", "yuva422p")


@dataclass(frozen=True, slots=True)
class PixelSettings:
    """What the pixels of a clip look like.

    Raises:
        InvalidInputError: for sizes or names that mean nothing.
    """

    resize: int | tuple[int, int] | None = None
    """An int is the shorter side of the picture as displayed, at its display aspect ratio (the
    longer side is rounded to an even number); a pair is (height, width), whatever the aspect."""
    crop: tuple[int, int] | None = None
    """(height, width) cut out after resizing."""
    crop_mode: str = "center"
    """``center``, or ``random``: then each clip is given where."""
    pixels: str = "rgb"
    """``rgb``: uint8 [T, 3, H, W]. ``native``: more than 8 bits stay uint16 at their own depth,
    grey stays [T, 1, H, W] with its stored values."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "resize", _sizes("resize", self.resize, (1, 2)))
        object.__setattr__(self, "crop", _sizes("crop", self.crop, (2,)))
        if self.crop_mode not in ("center", "random"):
            raise InvalidInputError(f"crop_mode is center or random, got {self.crop_mode!r}")
        if self.pixels not in ("rgb", "native"):
            raise InvalidInputError(f"pixels is rgb or native, got {self.pixels!r}")


def _sizes(name: str, given: Any, counts: tuple[int, ...]) -> int | tuple[int, ...] | None:
    """Sizes as Python's own numbers: a list, and numpy's integers, are as good as a tuple."""
    if given is None:
        return None
    single = isinstance(given, SupportsIndex)
    try:
        sizes = tuple(operator.index(size) for size in ((given,) if single else given))
    except TypeError:
        sizes = ()
    if len(sizes) not in counts or (len(sizes) == 1) != single:
        wanted = "(height, width)" if counts == (2,) else "a number or (height, width)"
        raise InvalidInputError(f"{name} must be {wanted}, got {given!r}")
    if min(sizes) < 1:
        raise InvalidInputError(f"{name} must be positive, got {given!r}")
    return sizes[0] if single else sizes


def resized_shape(track: VideoTrack, settings: PixelSettings) -> tuple[int, int]:
    """(height, width) as displayed, after resizing and before cropping."""
    height, width = track.display_size
    if settings.resize is None:
        return height, width
    if isinstance(settings.resize, tuple):
        return settings.resize
    sar = track.sar if track.rotation_deg in (0, 180) else 1 / track.sar
    aspect = Fraction(width, height) * sar
    short = settings.resize
    long = max(2, 2 * round(short * max(aspect, 1 / aspect) / 2))
    return (short, max(long, short)) if aspect >= 1 else (max(long, short), short)


def output_shape(track: VideoTrack, settings: PixelSettings) -> tuple[int, ...]:
    """(channels, height, width) of each frame of a clip; of an array, the shape of a row.

    Raises:
        InvalidInputError: when the crop is larger than the picture, or rows are to be resized.
    """
    form = row_form(track.pix_fmt)
    if form is not None:
        if settings.resize is not None or settings.crop is not None:
            raise InvalidInputError(
                f"resize and crop are for pictures, and the rows are {form}: leave them out"
            )
        return form.shape
    height, width = resized_shape(track, settings)
    if settings.crop is not None:
        crop_height, crop_width = settings.crop
        if crop_height > height or crop_width > width:
            raise InvalidInputError(
                f"a crop of {crop_height}x{crop_width} does not fit into a picture of "
                f"{height}x{width} (height x width); resize first, or crop less",
                crop=settings.crop,
                picture=(height, width),
            )
        height, width = settings.crop
    channels = 1 if _target_format(track.pix_fmt, settings).startswith("gray") else 3
    return channels, height, width


def output_dtype(track: VideoTrack, settings: PixelSettings) -> np.dtype[np.generic]:
    """uint8, or uint16 for deep pixels kept ``native``; of an array, that of its rows."""
    form = row_form(track.pix_fmt)
    if form is not None:
        return form.memory_dtype
    deep = _target_format(track.pix_fmt, settings) not in ("gbrp", "gray")
    return np.dtype(np.uint16 if deep else np.uint8)


def _target_format(pix_fmt: str, settings: PixelSettings) -> str:
    """The planar format that a frame is converted to."""
    if settings.pixels == "rgb":
        return "gbrp"
    try:
        bits = av.VideoFormat(pix_fmt).components[0].bits
    except ValueError as error:
        raise MediaError(
            f"unknown pixel format {pix_fmt!r}", reason=MediaReason.UNDECODABLE, pix_fmt=pix_fmt
        ) from error
    kind = "gray" if pix_fmt.startswith(("gray", "ya", "mono")) else "gbrp"
    deeper = next((depth for depth in _DEPTHS if depth >= bits), _DEPTHS[-1])
    return kind if bits <= 8 else f"{kind}{deeper}le"


class FrameConverter:
    """Writes frames of any track into arrays; one per thread, it caches scaler contexts."""

    def __init__(self, settings: PixelSettings) -> None:
        self._settings = settings
        self._scale = VideoReformatter()
        self._convert = VideoReformatter()
        self._padded = av.VideoFrame()

    def write(
        self,
        frame: av.VideoFrame,
        track: VideoTrack,
        out: NDArray[np.generic],
        crop_at: tuple[float, float] | None = None,
    ) -> None:
        """Fill ``out`` [C, H, W], shaped by :func:`output_shape`, with ``frame``.

        Args:
            frame: as decoded, not turned.
            track: says how the picture is turned and what the output is.
            out: of :func:`output_dtype`.
            crop_at: where a random crop lies, as fractions [0, 1) of the room below and right.

        Raises:
            MediaError: when the frame's size or colours are not the track's, or unsupported.
        """
        if (frame.width, frame.height) != (track.width, track.height):
            raise MediaError(
                f"the picture changes from {track.width}x{track.height} to "
                f"{frame.width}x{frame.height} at pts {frame.pts}; such a video gives no clips",
                reason=MediaReason.UNDECODABLE,
                width=frame.width,
                height=frame.height,
            )
        height, width = resized_shape(track, self._settings)
        top, left = crop_offset(self._settings, (height, width), out.shape[1:], crop_at)
        if track.rotation_deg in (90, 270):
            height, width = width, height
        planes = [
            p[:height, :width] for p in frame_planes(self._reformat(frame, track, height, width))
        ]
        order = (2, 0, 1) if len(planes) == 3 else (0,)
        for channel, plane in zip(out, order, strict=True):
            shown = planes[plane][:, ::-1] if track.mirrored else planes[plane]
            shown = np.rot90(shown, -track.rotation_deg // 90)
            np.copyto(channel, shown[top : top + channel.shape[0], left : left + channel.shape[1]])

    def _reformat(
        self, frame: av.VideoFrame, track: VideoTrack, height: int, width: int
    ) -> av.VideoFrame:
        target = _target_format(track.pix_fmt, self._settings)
        matrix = _BT601 if frame.colorspace == _RESERVED_MATRIX else None
        try:
            if (frame.height, frame.width) != (height, width):
                shrinks = height <= frame.height and width <= frame.width
                frame = self._scale.reformat(
                    frame,
                    width,
                    height,
                    # Scaling before the matrix touches half the samples of 4:2:0 video.
                    frame.format.name if frame.format.name.startswith(_SCALABLE) else target,
                    interpolation=Interpolation.AREA if shrinks else Interpolation.BICUBIC,
                    src_colorspace=matrix,
                    threads=1,
                )
            return self._convert.reformat(
                self._pad(frame) if target == "gbrp" else frame,
                format=target,
                src_colorspace=matrix,
                threads=1,
            )
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise MediaError(
                f"no conversion from {frame.format.name} with colour matrix {frame.colorspace} "
                f"to {target}: {error}",
                reason=MediaReason.UNDECODABLE,
                pix_fmt=frame.format.name,
                color_space=frame.colorspace,
            ) from error

    def _pad(self, frame: av.VideoFrame) -> av.VideoFrame:
        """The frame at a width that swscale converts whole.

        Its fast path from 4:2:0 and 4:2:2 to planar RGB works on 16 columns at a time and leaves
        the rest of a row unwritten (whatever the memory held before). Odd heights, which it
        converts by another, slower way, are padded too, so that all sizes look the same.
        """
        name = frame.format.name
        width, height = -frame.width % 16 + frame.width, frame.height % 2 + frame.height
        if (width, height) == (frame.width, frame.height) or name not in _FAST_FORMATS:
            return frame
        padded = self._padded
        if (padded.width, padded.height, padded.format.name) != (width, height, name):
            padded = self._padded = av.VideoFrame(width, height, name)
        padded.colorspace, padded.color_range = frame.colorspace, frame.color_range
        for target, source in zip(frame_planes(padded), frame_planes(frame), strict=True):
            np.copyto(target[: source.shape[0], : source.shape[1]], source)
        return padded


def frame_planes(frame: av.VideoFrame) -> list[NDArray[np.generic]]:
    """Views of the planes [H, W], valid while the frame lives; padding cut off."""
    dtype = np.dtype(np.uint16 if frame.format.name.endswith("le") else np.uint8)
    return [
        np.frombuffer(memoryview(plane), dtype).reshape(-1, plane.line_size // dtype.itemsize)[
            : plane.height, : plane.width
        ]
        for plane in frame.planes
    ]


def crop_offset(
    settings: PixelSettings,
    picture: tuple[int, int],
    crop: tuple[int, ...],
    crop_at: tuple[float, float] | None,
) -> tuple[int, int]:
    """(top, left) of the crop in a picture, both as (height, width).

    Raises:
        InvalidInputError: a random crop that is not told where it lies.
    """
    room = picture[0] - crop[0], picture[1] - crop[1]
    if settings.crop is None or settings.crop_mode == "center":
        return room[0] // 2, room[1] // 2
    if crop_at is None or not all(0 <= fraction < 1 for fraction in crop_at):
        raise InvalidInputError(f"a random crop needs crop_at fractions in [0, 1), got {crop_at}")
    return int(crop_at[0] * (room[0] + 1)), int(crop_at[1] * (room[1] + 1))
