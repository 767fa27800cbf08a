"""From rows of packets to the tables of an index, and the facts that only a table tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dstream.errors import MediaError, MediaReason
from dstream.format.index import GopTable, PacketFlag, PacketTable

NO_TIME = -(2**62)
"""Stands for an absent dts in a :class:`Row`."""
_MAX_TICKS = 2**61


@dataclass(frozen=True, slots=True)
class Row:
    """One packet as a demuxer gives it."""

    offset: int
    size: int
    pts: int
    dts: int
    duration: int
    flags: int


@dataclass(frozen=True, slots=True)
class Timing:
    """What the table says of the presentation; ticks of the track."""

    start_pts: int
    end_pts: int
    frame_count: int
    rate: Fraction
    vfr: bool
    reorder_depth: int


def make_table(rows: Sequence[Row], name: str, size_bytes: int) -> PacketTable:
    """The packet table of ``rows``, in decode order, checked.

    Packets that lie beyond the file's end are left out: the file was cut short, and what is
    there stays usable.

    Raises:
        MediaError: no packet is left, or places or times are impossible.
    """
    if not rows:
        raise MediaError(
            f"{name!r} has a video track without frames", reason=MediaReason.NO_FRAMES, name=name
        )
    columns = np.array(
        [(r.offset, r.size, r.pts, r.dts, r.duration, r.flags) for r in rows], dtype=np.int64
    )
    offset, size, pts, dts, duration, flags = columns.T
    if (offset < 0).any() or (np.abs(pts) > _MAX_TICKS).any():
        raise MediaError(
            f"{name!r} has packets at impossible places or times", reason=MediaReason.DAMAGED
        )
    inside = offset + size <= size_bytes
    if not inside.any():
        raise MediaError(
            f"{name!r} ends before its first frame: the file is truncated",
            reason=MediaReason.TRUNCATED,
            name=name,
        )
    columns = columns[inside]
    offset, size, pts, dts, duration, flags = (np.ascontiguousarray(c) for c in columns.T)
    kinds = _hide_unstarted(flags.astype(np.uint8))
    if not ((kinds & PacketFlag.DISCARD) == 0).any():
        raise MediaError(
            f"{name!r}: the edit list shows none of the track's frames",
            reason=MediaReason.NO_FRAMES,
            name=name,
        )
    if (dts <= NO_TIME).any():
        dts = decode_times(pts)
    return PacketTable(offset, size, pts, dts, _filled(duration, pts, kinds), kinds)


def _hide_unstarted(flags: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Packets before the first keyframe cannot be decoded: they are not shown."""
    keys = np.flatnonzero(flags & PacketFlag.KEY)
    if len(keys):
        flags[: keys[0]] |= np.uint8(PacketFlag.DISCARD)
    return flags


def decode_times(pts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rising dts, none later than its pts, for containers that store no dts."""
    in_order = np.sort(pts)
    return in_order - int(np.max(in_order - pts))


def _filled(
    duration: NDArray[np.int64], pts: NDArray[np.int64], flags: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Durations with the absent ones taken from the usual distance of frames."""
    if (duration > 0).all():
        return duration
    shown = np.unique(pts[(flags & PacketFlag.DISCARD) == 0])
    usual = int(np.median(np.diff(shown))) if len(shown) > 1 else 0
    known = duration[duration > 0]
    if usual <= 0:
        usual = int(np.median(known)) if len(known) else 1
    return np.where(duration > 0, duration, usual)


def gop_starts(table: PacketTable) -> NDArray[np.int64]:
    """Packets that GOPs start at: the keyframes, or the first packet if there is no keyframe."""
    keys = np.flatnonzero(table.flags & PacketFlag.KEY).astype(np.int64)
    return keys if len(keys) else np.zeros(1, np.int64)


def gops_of_packets(table: PacketTable) -> GopTable:
    """GOPs whose byte ranges just hold their packets."""
    starts = gop_starts(table)
    ends = table.offset_bytes + table.size_bytes
    low = np.minimum.reduceat(table.offset_bytes, starts)
    high = np.maximum.reduceat(ends, starts)
    return GopTable(
        offset_bytes=low,
        size_bytes=high - low,
        key_pts=table.pts[starts],
        first_packet=starts,
        payload_bytes=np.add.reduceat(table.size_bytes, starts),
    )


def reorder_depth(pts: NDArray[np.int64]) -> int:
    """Most packets that precede one in decode order and follow it in presentation."""
    order = np.argsort(pts, kind="stable")
    return int(max(0, np.max(order - np.arange(len(pts)))))


def timing_of(table: PacketTable, time_base: Fraction, nominal_rate: Fraction | None) -> Timing:
    """Start, end, rate and regularity of what is shown.

    Args:
        table: of one track.
        time_base: seconds per tick.
        nominal_rate: what the container claims; believed where the table agrees within 0.5 %.
    """
    is_shown = (table.flags & PacketFlag.DISCARD) == 0
    shown = np.unique(table.pts[is_shown])
    last = table.pts == shown[-1]
    end = int(shown[-1]) + max(1, int(table.duration[last & is_shown].max()))
    steps = np.diff(shown)
    vfr = bool(len(steps) and steps.max() - steps.min() > 1)
    rate = Fraction(len(shown)) / ((end - int(shown[0])) * time_base)
    if nominal_rate and not vfr and abs(nominal_rate / rate - 1) < Fraction(1, 200):
        rate = nominal_rate
    elif nominal_rate and len(shown) == 1:
        rate = nominal_rate
    return Timing(
        start_pts=int(shown[0]),
        end_pts=end,
        frame_count=len(shown),
        rate=rate.limit_denominator(1_000_000),
        vfr=vfr,
        reorder_depth=reorder_depth(table.pts),
    )
