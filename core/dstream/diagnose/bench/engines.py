"""What NVDEC's engines gave while decoding alone, and what NVIDIA publishes of one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dstream.measure import Snapshot

_TURING = {("h264", 8): 771, ("hevc", 8): 1316, ("hevc", 10): 1158, ("vp9", 8): 932}
_GA10X = {
    ("h264", 8): 748, ("hevc", 8): 1415, ("hevc", 10): 1299, ("vp9", 8): 1075, ("av1", 8): 790,
}  # fmt: skip
_ADA = {
    ("h264", 8): 903, ("hevc", 8): 1641, ("hevc", 10): 1520, ("vp9", 8): 1290, ("av1", 8): 1018,
}  # fmt: skip
_BLACKWELL = {
    ("h264", 8): 2172, ("hevc", 8): 1872, ("hevc", 10): 1818, ("vp9", 8): 1445, ("av1", 8): 1119,
}  # fmt: skip
_BY_CAPABILITY = {
    (7, 5): _TURING, (8, 0): _TURING, (9, 0): _TURING, (8, 6): _GA10X, (8, 9): _ADA,
    (10, 0): _BLACKWELL, (12, 0): _BLACKWELL,
}  # fmt: skip
_PIXELS = 1920 * 1080


def published_frames_per_second(
    capability: tuple[int, int], codec: str, bit_depth: int, pixels: int
) -> float | None:
    """Of one engine at top video clock; None where nothing is known.

    NVIDIA's NVDEC application note, Video Codec SDK 13.0, section 3, has it for 1080p 4:2:0; GA100
    and Hopper have Turing's engines. Other sizes are taken to cost by their pixels, which the note
    does not say.

    Args:
        capability: CUDA's compute capability of the GPU.
        codec: libav's name.
        bit_depth: of the samples.
        pixels: of a picture.

    >>> published_frames_per_second((9, 0), "h264", 8, 1920 * 1080)
    771.0
    >>> published_frames_per_second((9, 0), "av1", 8, 1920 * 1080)
    """
    rate = _BY_CAPABILITY.get(capability, {}).get((codec, bit_depth))
    return None if rate is None or pixels <= 0 else rate * _PIXELS / pixels


@dataclass(frozen=True, slots=True)
class Engines:
    """A GPU's engines, decoding alone."""

    count: int
    frames_per_second: float
    """Of one, while a session is at work on it."""
    clips_per_second: float
    """Of all, were they never idle."""
    decodes_all: bool
    """No frame was decoded on the CPU."""
    published: float | None = None
    """See :func:`published_frames_per_second`."""

    @property
    def told(self) -> str:
        """For people: the rate, and its limit."""
        of = "" if self.published is None else f" of {self.published:,.0f} that NVIDIA publishes"
        return f"{self.count} NVDEC engines decode {self.frames_per_second:,.0f} frames/s each{of}"


def engines_of(counts: Snapshot, clips: int, count: int, published: float | None) -> Engines | None:
    """The engines by what was counted while decoding alone; None where they did nothing.

    Args:
        counts: of the measurement.
        clips: that were decoded.
        count: engines of the GPU.
        published: frames/s of one for these videos.
    """
    frames, seconds = (counts.sums.get(f"{name}.nvdec", 0.0) for name in ("frames", "seconds"))
    if not (frames and seconds and count):
        return None
    decodes_all = frames >= counts.sums.get("frames.decoded", 0.0)
    return Engines(count, frames / seconds, count * clips / seconds, decodes_all, published)
