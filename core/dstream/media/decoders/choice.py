"""Which tracks NVDEC is given: a function of what the stream is and what the device can do.

The reasons are codes; they count in ``report()`` under ``fallbacks``, and ``dstream doctor``
names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dstream.format.index import VideoTrack
from dstream.media.av1_size import av1_keeps_size
from dstream.media.parameter_sets import is_progressive, sequence_sets, starts_at_corner
from dstream.media.vp9_size import vp9_sizes

NVDEC_CODECS = ("h264", "hevc", "vp9", "av1")
"""What is given to NVDEC at all. The rest is decoded on the CPU, whatever the device says."""

DEPTHS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10, "yuv420p12le": 12}
"""Bits of each pixel format that is given to NVDEC: 4:2:0 only."""

_PROFILES = {
    ("h264", "yuv420p10le"): "high10",
    ("h264", "yuv422p"): "high422",
    ("h264", "yuv422p10le"): "high422",
    ("h264", "yuv444p"): "high444",
    ("hevc", "yuv420p10le"): "main10",
    ("hevc", "yuv420p12le"): "main12",
}
_MACROBLOCK = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device decodes of one codec at one bit depth, in pixels."""

    min_width: int
    max_width: int
    min_height: int
    max_height: int
    max_macroblocks: int
    """Of 16 x 16 pixels in a picture; it may refuse pictures within both sides' limits."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device says that it can do."""

    engines: int
    formats: Mapping[tuple[str, int], Limits]
    """(codec, bit depth) of 4:2:0 video -> limits; what is not there is not decoded."""


@dataclass(frozen=True, slots=True)
class Coding:
    """What a decoder has to be able to do for a stream."""

    codec: str
    pix_fmt: str
    width: int
    height: int
    is_interlaced: bool = False
    """Or may be: field pictures come out of NVDEC deinterlaced, unlike those of a CPU."""
    starts_at_corner: bool = True
    """Nothing is cropped off left and top: PyNvVideoCodec copies from the first coded sample."""
    is_constant: bool = True
    """No keyframe after the first brings another sequence parameter set, no frame of VP9 and AV1
    another size: PyNvVideoCodec would scale pictures of another size to that of the first."""


def coding_of(
    track: VideoTrack, packets: Sequence[bytes], sets: Sequence[bytes], later: Sequence[bytes] = ()
) -> Coding:
    """What a run of a track needs.

    Args:
        track: says codec, pixels and size.
        packets: of the run, as they are fed.
        sets: the parameter sets that its first packet comes with.
        later: those that other keyframes of the run come with.
    """
    coding = Coding(track.codec, track.pix_fmt, track.width, track.height)
    if track.codec not in ("h264", "hevc"):
        return replace(coding, is_constant=_keeps_size(track.codec, packets))
    return replace(
        coding,
        is_interlaced=not is_progressive(track.codec, sets),
        starts_at_corner=starts_at_corner(track.codec, sets),
        is_constant=sequence_sets(track.codec, later) <= sequence_sets(track.codec, sets),
    )


def _keeps_size(codec: str, packets: Sequence[bytes]) -> bool:
    """False as well where a packet cannot be read."""
    try:
        if codec == "vp9":
            return len({size for packet in packets for size in vp9_sizes(packet)}) == 1
        return codec != "av1" or av1_keeps_size(packets)
    except ValueError:
        return False


def refusal(coding: Coding, device: Capabilities) -> str | None:
    """Why NVDEC is not given a stream; None where it is.

    >>> hd = Limits(48, 4096, 16, 4096, 65536)
    >>> h100 = Capabilities(7, {("h264", 8): hd, ("hevc", 8): hd, ("hevc", 10): hd})
    >>> refusal(Coding("h264", "yuv420p", 1920, 1080), h100)
    >>> refusal(Coding("h264", "yuv420p10le", 1920, 1080), h100)
    'nvdec_no_h264_high10'
    >>> refusal(Coding("av1", "yuv420p10le", 1920, 1080), h100)
    'nvdec_no_av1'
    """
    codec, formats = coding.codec, device.formats
    if codec not in NVDEC_CODECS or not any(name == codec for name, _ in formats):
        return f"nvdec_no_{codec}"
    limits = formats.get((codec, DEPTHS.get(coding.pix_fmt, 0)))
    if limits is None:
        return f"nvdec_no_{codec}_{_PROFILES.get((codec, coding.pix_fmt), coding.pix_fmt)}"
    if coding.is_interlaced:
        return "nvdec_interlaced"
    if not coding.starts_at_corner:
        return "nvdec_cropped"
    if not coding.is_constant:
        return "nvdec_changes"
    width, height = coding.width, coding.height
    if width % 2 or height % 2:
        return "nvdec_odd_size"
    if width < limits.min_width or height < limits.min_height:
        return "nvdec_too_small"
    blocks = -(-width // _MACROBLOCK) * -(-height // _MACROBLOCK)
    if width > limits.max_width or height > limits.max_height or blocks > limits.max_macroblocks:
        return "nvdec_too_large"
    return None
