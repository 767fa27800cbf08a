"""What is known of one video after indexing: values only, no I/O and no bytes layout.

All numbers that count time are integers in the track's time base. All byte ranges are
half-open and relative to the video file's first byte, whatever object it lies in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray


class Access(StrEnum):
    """How packets are had from the bytes of a GOP."""

    PACKETS = "packets"
    """``bytes[offset:offset+size]`` of the file is the packet: no demuxer at read time."""
    SEGMENTS = "segments"
    """A GOP's bytes are container syntax: they are demuxed from memory behind ``header``."""


class PacketFlag(IntFlag):
    """Bits of ``PacketTable.flags``."""

    KEY = 1
    DISCARD = 2
    """Outside the edit list: decoded, never shown."""


@dataclass(frozen=True, slots=True)
class VideoTrack:
    """Facts of one video track that hold for the whole file."""

    container: str
    """``mp4``, ``matroska``, ``mpegts``, ``mpegps``, ``flv`` or ``avi``."""
    track_id: int
    """Which track: libav's stream index in the file."""
    codec: str
    """libav's codec name: ``h264``, ``hevc``, ``av1``, ``vp9`` ..."""
    profile: str | None
    extradata: bytes
    """Codec configuration for the decoder; empty where the packets carry it."""
    width: int
    """Coded picture width in pixels, before rotation."""
    height: int
    rotation_deg: int
    """Clockwise turn that shows the picture upright: 0, 90, 180 or 270."""
    mirrored: bool
    """Flipped left to right before the turn."""
    sar: Fraction
    """Width over height of one pixel; 1 where unknown."""
    pix_fmt: str
    """libav's name, for example ``yuv420p`` or ``yuv420p10le``."""
    color_range: int
    """libav's AVCOL_RANGE value: 0 unknown, 1 limited, 2 full."""
    color_space: int
    """AVCOL_SPC: 1 BT.709, 2 unknown, 5 and 6 BT.601, 9 BT.2020 ..."""
    color_primaries: int
    color_trc: int
    time_base: Fraction
    """Seconds per tick of every pts in the index."""
    start_pts: int
    """Presentation time of the first shown frame."""
    end_pts: int
    """Where the presentation ends; ``end_pts - start_pts`` is the track's duration."""
    rate: Fraction
    """Average frames per second; an estimate where the header states none."""
    frame_count: int | None
    """Shown frames; None where only a full pass would tell."""
    vfr: bool | None
    """Frame durations differ by more than one tick; None where unknown."""
    reorder_depth: int
    """Frames that the decoder must hold back for B-frames."""

    @property
    def duration_s(self) -> float:
        """Length of the presentation in seconds."""
        return float((self.end_pts - self.start_pts) * self.time_base)

    @property
    def display_size(self) -> tuple[int, int]:
        """(height, width) of a frame as shown, rotation applied, pixels not rescaled."""
        if self.rotation_deg in (90, 270):
            return self.width, self.height
        return self.height, self.width


@dataclass(frozen=True, slots=True, eq=False)
class PacketTable:
    """Every coded packet of the track in decode order; arrays of equal length N."""

    offset_bytes: NDArray[np.int64]
    """PACKETS: the packet's first byte. SEGMENTS: where its container unit starts."""
    size_bytes: NDArray[np.int64]
    """Bytes of the packet's payload."""
    pts: NDArray[np.int64]
    dts: NDArray[np.int64]
    duration: NDArray[np.int64]
    flags: NDArray[np.uint8]
    """Bits of :class:`PacketFlag`."""

    def __len__(self) -> int:
        return len(self.pts)


@dataclass(frozen=True, slots=True, eq=False)
class GopTable:
    """Groups of pictures in decode order; arrays of equal length G.

    A GOP runs from one keyframe up to the next in decode order. Its byte range holds all its
    packets, and whatever the container interleaves with them.
    """

    offset_bytes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    key_pts: NDArray[np.int64]
    """Presentation time of the keyframe."""
    first_packet: NDArray[np.int64]
    """Index of the keyframe in the packet table; -1 where there is no packet table."""
    payload_bytes: NDArray[np.int64]
    """Sum of the packets' sizes: what a perfect read would cost. -1 where unknown."""
    checksum: NDArray[np.uint64] | None = None
    """xxh3_64 of the byte range; None where the bytes were never read as a whole."""

    def __len__(self) -> int:
        return len(self.key_pts)


@dataclass(frozen=True, slots=True)
class IndexCost:
    """What it cost to learn all this."""

    bytes_read: int
    runs: int
    """Contiguous ranges read, each one request on a store."""
    full_pass: bool
    """The file had to be read from end to end."""


@dataclass(frozen=True, slots=True, eq=False)
class VideoIndex:
    """One video track, ready to plan reads."""

    track: VideoTrack
    access: Access
    gops: GopTable
    packets: PacketTable | None
    """None where the container's own index names only keyframes (Cues, sidx, mfra)."""
    header: bytes
    """SEGMENTS: container bytes to put before a GOP's bytes; else empty."""
    size_bytes: int
    """Size of the indexed file."""
    cost: IndexCost
