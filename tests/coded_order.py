"""Indexes without media: packets of GOPs in decode order, for tests of planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dstream.format.index import (
    Access,
    GopTable,
    IndexCost,
    PacketFlag,
    PacketTable,
    VideoIndex,
    VideoTrack,
)
from dstream.media.clip import ClipPlan, Packets

PACKET_BYTES = 100

TRACK = VideoTrack(
    container="matroska",
    track_id=0,
    codec="h264",
    profile=None,
    extradata=b"",
    width=64,
    height=48,
    rotation_deg=0,
    mirrored=False,
    sar=Fraction(1),
    pix_fmt="yuv420p",
    color_range=0,
    color_space=2,
    color_primaries=2,
    color_trc=2,
    time_base=Fraction(1, 1000),
    start_pts=0,
    end_pts=1,
    rate=Fraction(25),
    frame_count=None,
    vfr=None,
    reorder_depth=2,
)


@dataclass(frozen=True)
class Coded:
    """Packets by GOP: each a list of (pts, is_discard), the keyframe first."""

    gops: Sequence[Sequence[tuple[int, bool]]]
    index: VideoIndex

    def without_packets(self) -> VideoIndex:
        """What Cues would tell of the same file."""
        gops = self.index.gops
        unknown = np.full(len(gops), -1)
        return replace(
            self.index,
            access=Access.SEGMENTS,
            packets=None,
            gops=replace(gops, first_packet=unknown, payload_bytes=unknown),
        )

    def read(self, plan: ClipPlan) -> Packets:
        """The packets that the plan's bytes hold."""
        rows = [
            (pts, position == 0, discard)
            for gop in self.gops[plan.first_gop : plan.stop_gop]
            for position, (pts, discard) in enumerate(gop)
        ]
        pts, keys, discards = zip(*rows, strict=True)
        return Packets(np.array(pts, np.int64), np.array(keys), np.array(discards))


def coded(gops: Sequence[Sequence[tuple[int, bool]]], end_pts: int, codec: str = "h264") -> Coded:
    """An index with a packet table for the given GOPs; every packet has ``PACKET_BYTES``."""
    rows = [
        (pts, (PacketFlag.KEY if position == 0 else 0) | (PacketFlag.DISCARD if discard else 0))
        for gop in gops
        for position, (pts, discard) in enumerate(gop)
    ]
    pts = np.array([row[0] for row in rows], np.int64)
    flags = np.array([row[1] for row in rows], np.uint8)
    first = np.cumsum([0, *[len(gop) for gop in gops][:-1]])
    count = np.array([len(gop) for gop in gops])
    shown = pts[(flags & PacketFlag.DISCARD) == 0]
    numbers = np.arange(len(rows))
    track = replace(TRACK, start_pts=int(shown.min()), end_pts=end_pts, codec=codec)
    index = VideoIndex(
        track,
        Access.PACKETS,
        GopTable(
            1000 + first * PACKET_BYTES,
            count * PACKET_BYTES,
            np.array([gop[0][0] for gop in gops]),
            first,
            count * PACKET_BYTES,
        ),
        PacketTable(
            1000 + numbers * PACKET_BYTES,
            np.full(len(rows), PACKET_BYTES),
            pts,
            numbers * 40,
            np.full(len(rows), 40),
            flags,
        ),
        b"",
        1000 + len(rows) * PACKET_BYTES,
        IndexCost(1000, 1, False),
    )
    return Coded(gops, index)


def open_gops(times: Sequence[int], gop: int, leading: int) -> list[list[tuple[int, bool]]]:
    """Frames at ``times`` in GOPs of ``gop`` frames; the keyframe of each but the first is
    followed in decode order by the ``leading`` frames shown before it."""
    order: list[list[tuple[int, bool]]] = []
    for start in range(0, len(times), gop):
        stop = min(start + gop, len(times))
        key = start if start == 0 else min(start + leading, stop - 1)
        numbers = [key, *range(start, key), *range(key + 1, stop)]
        order.append([(times[n], False) for n in numbers])
    return order
