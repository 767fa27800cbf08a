"""An index built by libav's own demuxer, for tests that must not depend on ours."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
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


def plain_index(path: Path) -> VideoIndex:
    """PACKETS access, for containers whose packets lie in one piece (mp4, mov, avi)."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        first = next(container.decode(stream))
        rotation = -first.rotation % 360
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        found = [p for p in container.demux(stream) if p.size and p.pts is not None]
        rows = [
            (p.pos, p.size, p.pts, p.dts, p.duration or 0, p.is_keyframe, p.is_discard)
            for p in found
        ]
        offset, size, pts, dts, duration = (
            np.array([row[i] for row in rows], np.int64) for i in range(5)
        )
        flags = np.array(
            [PacketFlag.KEY * row[5] | PacketFlag.DISCARD * row[6] for row in rows], np.uint8
        )
        keys = np.flatnonzero(flags & PacketFlag.KEY)
        stops = [*keys[1:], len(rows)]
        ends = offset + size
        lows = np.array([offset[a:b].min() for a, b in zip(keys, stops, strict=True)])
        highs = np.array([ends[a:b].max() for a, b in zip(keys, stops, strict=True)])
        shown = np.unique(pts[(flags & PacketFlag.DISCARD) == 0])
        track = VideoTrack(
            container="mp4",
            track_id=stream.index,
            codec=context.name.removeprefix("lib").replace("dav1d", "av1"),
            profile=context.profile,
            extradata=context.extradata or b"",
            width=first.width,
            height=first.height,
            rotation_deg=rotation,
            mirrored=False,
            sar=context.sample_aspect_ratio or Fraction(1),
            pix_fmt=first.format.name,
            color_range=context.color_range,
            color_space=context.colorspace,
            color_primaries=context.color_primaries,
            color_trc=context.color_trc,
            time_base=stream.time_base or Fraction(1, 1000),
            start_pts=int(shown[0]),
            end_pts=int(shown[-1] + max(1, duration[np.argmax(pts)])),
            rate=stream.average_rate or Fraction(25),
            frame_count=len(shown),
            vfr=None,
            reorder_depth=context.reorder_depth,
        )
    return VideoIndex(
        track,
        Access.PACKETS,
        GopTable(
            lows,
            highs - lows,
            pts[keys],
            keys.astype(np.int64),
            np.array([size[a:b].sum() for a, b in zip(keys, stops, strict=True)]),
        ),
        PacketTable(offset, size, pts, dts, duration, flags),
        b"",
        path.stat().st_size,
        IndexCost(path.stat().st_size, 1, True),
    )
