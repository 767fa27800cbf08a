"""What every decoder does: packets in, the wanted frames into their places.

A backend gets the packets of one run in decode order, the track's codec parameters, and for each
wanted pts the places that its frame goes to, in host memory. What decodes into a device's memory
leaves them alone and hands tensors of the same shapes instead. It keeps nothing from one run to
the next that could change a frame, and it never puts a frame anywhere but under its own pts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dstream.clock import Clock
from dstream.format.index import VideoTrack
from dstream.media.codec import CodedPacket, DecodeTally

Place = tuple[NDArray[np.generic], tuple[float, float] | None]
"""Where a frame goes, [C, H, W], and its crop."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run of a decoder: it begins at a keyframe, and ends drained."""

    track: VideoTrack
    packets: Sequence[CodedPacket]
    """In decode order."""
    places: Mapping[int, Sequence[Place]]
    """pts -> where its frame goes, one place or more."""


class Elsewhere(Protocol):
    """Frames that a backend left where they came out: on a device."""

    def clips(self, wanted: Sequence[Sequence[int]]) -> list[Any]:
        """Tensors [T, C, H, W], finished, of the pts of each clip, in the order of the places.

        To be asked once.
        """
        ...


@dataclass(slots=True)
class Outcome:
    """What one run gave."""

    missing: set[int]
    """The pts that did not come out."""
    tally: DecodeTally = field(default_factory=DecodeTally)
    convert_s: float = 0.0
    """Time spent on writing frames into their places."""
    elsewhere: Elsewhere | None = None
    """Has the frames where they are not in their places, which then were not written."""


class Backend(Protocol):
    """A decoder. One per thread."""

    def decode(self, run: Run, *, skip: bool = True) -> Outcome:
        """Fill the places of a run.

        Args:
            run: packets, and which frames are wanted.
            skip: frames that are not wanted may be left out, where nothing refers to them.

        Raises:
            MediaError: the track cannot be decoded, or a frame does not fit its place.
        """
        ...


class Converter(Protocol):
    """Writes a decoded frame into its place."""

    def write(
        self,
        frame: Any,
        track: VideoTrack,
        out: NDArray[np.generic],
        crop_at: tuple[float, float] | None = None,
    ) -> None:
        """Fill ``out`` [C, H, W], see :meth:`dstream.media.pixels.FrameConverter.write`."""
        ...


class FrameSink:
    """Takes the frames of one run as they come out, in any order, and keeps the wanted ones."""

    def __init__(self, run: Run, converter: Converter, clock: Clock) -> None:
        self.run, self.clock, self._converter = run, clock, converter
        self.outcome = Outcome(set(run.places))

    def wants(self, pts: int | None) -> bool:
        """Whether this frame is still missing; of two with one pts the first counts."""
        return pts in self.outcome.missing

    def put(self, pts: int, frame: Any) -> None:
        """Write a wanted frame into all of its places."""
        self.outcome.missing.discard(pts)
        begun_s = self.clock.monotonic_s()
        write, track = self._converter.write, self.run.track
        (first, first_crop), *others = self.run.places[pts]
        write(frame, track, first, first_crop)
        for other, crop_at in others:
            if crop_at == first_crop:
                np.copyto(other, first)
            else:
                write(frame, track, other, crop_at)
        self.outcome.convert_s += self.clock.monotonic_s() - begun_s
