"""Which frames a clip shows: decided in exact integer and rational arithmetic, without I/O.

A frame is shown from its pts until the next frame's. The frame shown at time t is the last one
with pts <= t + half a tick, so that a time written as a rounded float finds the frame it names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dstream.errors import DstreamError, InvalidInputError
from dstream.format.index import PacketFlag, PacketTable

_HALF = Fraction(1, 2)
_MAX_RATE_DENOMINATOR = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRequest:
    """The frames that are wanted of one sample.

    Exactly one of ``stride`` and ``fps`` is given. With ``stride`` the clip begins at the frame
    shown at ``start_s`` and takes every ``stride``-th frame from there. With ``fps`` frame i is
    the one shown at ``start_s + i / fps``; on slow video a frame may come more than once.

    The clip never crosses the sample's end. With ``stride``, a first frame that has too few
    frames after it moves back to the last one that has enough. With ``fps``, the start moves
    back until the last instant, ``start + (frames - 1) / fps``, is one tick before ``end_pts``.

    Raises:
        InvalidInputError: for values that no video can satisfy.
    """

    start_s: float
    """Seconds from the sample's start, zero or more."""
    frames: int
    stride: int | None = None
    fps: float | Fraction | None = None
    """Frames a second. A float is read as the nearest fraction with a denominator of at most
    a million, so ``30000 / 1001`` means exactly that."""
    start_pts: int
    """The sample's span ``[start_pts, end_pts)`` in ticks of the track's time base."""
    end_pts: int

    def __post_init__(self) -> None:
        if (self.stride is None) == (self.fps is None):
            raise InvalidInputError("give exactly one of stride and fps for a clip")
        if self.frames < 1:
            raise InvalidInputError(f"a clip has at least one frame, got frames={self.frames}")
        if self.stride is not None and self.stride < 1:
            raise InvalidInputError(f"stride counts frames from 1 up, got {self.stride}")
        if self.fps is not None and not (math.isfinite(self.fps) and self.fps >= 1e-6):
            raise InvalidInputError(f"fps is a positive number of frames a second, got {self.fps}")
        if not (math.isfinite(self.start_s) and self.start_s >= 0):
            raise InvalidInputError(f"a clip starts at zero seconds or later, got {self.start_s}")
        if self.end_pts <= self.start_pts:
            raise InvalidInputError(
                f"the sample's span [{self.start_pts}, {self.end_pts}) is empty",
                start_pts=self.start_pts,
                end_pts=self.end_pts,
            )

    @property
    def span_frames(self) -> int:
        """Consecutive frames from the clip's first to its last, with ``stride``."""
        return (self.frames - 1) * (self.stride or 1) + 1

    def start_tick(self, time_base: Fraction) -> Fraction:
        """The wanted start on the track's time line."""
        return self.start_pts + Fraction(self.start_s) / time_base

    def step_ticks(self, time_base: Fraction) -> Fraction:
        """Ticks between two instants of an ``fps`` clip."""
        rate = Fraction(self.fps or 1).limit_denominator(_MAX_RATE_DENOMINATOR)
        return 1 / (rate * time_base)


@dataclass(frozen=True, slots=True, eq=False)
class KnownFrames:
    """The frames of one sample as far as the packets at hand tell them."""

    pts: NDArray[np.int64]
    """Distinct pts of shown frames inside the sample, ascending, without holes."""
    from_start: bool
    """No frame of the sample lies before ``pts[0]``."""
    sure_until: int
    """No unknown frame of the sample has a pts of at most this; at least ``pts[-1]``."""


class FramesMissingError(DstreamError):
    """The frames at hand do not decide the clip.

    Facts: ``earlier`` (bool: frames before them are needed, else frames after them) and
    ``frames`` (how many are missing, at least 1).
    """


def shown_pts(pts: NDArray[np.int64], is_discard: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Distinct pts of the shown frames in ascending order, from arrays in decode order."""
    shown = pts[~is_discard]
    if len(shown) > 1 and not np.all(shown[1:] > shown[:-1]):
        shown = np.unique(shown)
    return shown


@dataclass(frozen=True, slots=True, eq=False)
class DisplayOrder:
    """The shown frames of a packet table in ascending order of pts; arrays of equal length."""

    pts: NDArray[np.int64]
    """Distinct."""
    first_packet: NDArray[np.int64]
    """Position in the packet table; of the first packet where several have one pts."""
    last_packet: NDArray[np.int64]


@lru_cache(maxsize=32)
def display_order(packets: PacketTable) -> DisplayOrder:
    """The table's frames as shown. The last few tables' are kept: it costs a sort."""
    positions = np.flatnonzero((packets.flags & np.uint8(PacketFlag.DISCARD)) == 0)
    pts = packets.pts[positions]
    if np.all(pts[1:] > pts[:-1]):
        return DisplayOrder(pts, positions, positions)
    order = np.argsort(pts, kind="stable")
    pts, positions = pts[order], positions[order]
    starts = np.flatnonzero(np.concatenate([[True], pts[1:] != pts[:-1]]))
    last = np.concatenate([starts[1:], [len(pts)]]) - 1
    return DisplayOrder(pts[starts], positions[starts], positions[last])


def within(shown: NDArray[np.int64], start_pts: int, end_pts: int) -> NDArray[np.int64]:
    """The part of ascending ``shown`` that lies in ``[start_pts, end_pts)``."""
    low, high = np.searchsorted(shown, (start_pts, end_pts))
    return shown[low:high]


def round_tick(tick: Fraction) -> int:
    """The greatest integer pts that is at most ``tick`` plus half a tick."""
    return math.floor(tick + _HALF)


def instants(request: ClipRequest, time_base: Fraction) -> list[int]:
    """For each frame of an ``fps`` clip, the greatest pts that it may have.

    Raises:
        InvalidInputError: when the sample is shorter than the clip.
    """
    step = request.step_ticks(time_base)
    latest = request.end_pts - 1 - (request.frames - 1) * step
    if latest < request.start_pts:
        span_s = float((request.end_pts - request.start_pts) * time_base)
        raise InvalidInputError(
            f"a clip of {request.frames} frames at {float(request.fps or 0):g} fps does not fit "
            f"into a sample of {span_s:.3f} s; ask for fewer frames or a higher fps",
            frames=request.frames,
            fps=request.fps,
            sample_s=span_s,
        )
    start = min(request.start_tick(time_base), latest)
    return [round_tick(start + i * step) for i in range(request.frames)]


def choose_frames(
    request: ClipRequest, time_base: Fraction, known: KnownFrames
) -> NDArray[np.int64]:
    """The pts of the clip's frames.

    Returns:
        int64 [frames], ascending; an ``fps`` clip may hold a pts more than once.

    Raises:
        FramesMissingError: when ``known`` does not decide it.
        InvalidInputError: when the whole sample is known and too short.
    """
    positions = (
        _every_nth(request, time_base, known)
        if request.stride is not None
        else _at_instants(request, time_base, known)
    )
    return known.pts[positions]


def _at_instants(
    request: ClipRequest, time_base: Fraction, known: KnownFrames
) -> NDArray[np.int64]:
    limits = instants(request, time_base)
    if limits[-1] > known.sure_until:
        raise _missing(earlier=False, frames=1)
    positions = np.searchsorted(known.pts, limits, side="right").astype(np.int64) - 1
    if positions[0] < 0:
        if not known.from_start:
            raise _missing(earlier=True, frames=1)
        if not len(known.pts):
            raise _no_first_frame(request, known)
    return np.maximum(positions, 0)


def _every_nth(request: ClipRequest, time_base: Fraction, known: KnownFrames) -> NDArray[np.int64]:
    count, needed = len(known.pts), request.span_frames
    to_end = known.sure_until >= request.end_pts - 1
    limit = min(round_tick(request.start_tick(time_base)), request.end_pts - 1)
    if limit > known.sure_until:
        raise _missing(earlier=False, frames=1)
    first = int(np.searchsorted(known.pts, limit, side="right")) - 1
    if first < 0:
        if not known.from_start:
            raise _missing(earlier=True, frames=1)
        first = 0
    if first + needed > count:
        if not to_end:
            raise _missing(earlier=False, frames=first + needed - count)
        first = count - needed
        if first < 0 and not known.from_start:
            raise _missing(earlier=True, frames=-first)
        if first < 0:
            raise InvalidInputError(
                f"a clip of {request.frames} frames with stride {request.stride} spans {needed} "
                f"frames, but the sample has {count}; ask for fewer frames or a smaller stride",
                frames=request.frames,
                stride=request.stride,
                needed_frames=needed,
                sample_frames=count,
            )
    return first + np.arange(request.frames, dtype=np.int64) * (request.stride or 1)


def _missing(*, earlier: bool, frames: int) -> FramesMissingError:
    side = "before" if earlier else "after"
    return FramesMissingError(
        f"frames {side} those at hand are needed to decide the clip", earlier=earlier, frames=frames
    )


def _no_first_frame(request: ClipRequest, known: KnownFrames) -> DstreamError:
    if known.sure_until < request.end_pts - 1:
        return _missing(earlier=False, frames=1)
    return InvalidInputError(
        f"the sample's span [{request.start_pts}, {request.end_pts}) shows no frame",
        start_pts=request.start_pts,
        end_pts=request.end_pts,
    )
