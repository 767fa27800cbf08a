"""What libav's demuxer says of a whole file: the reference that indexes are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from dstream.format.index import PacketFlag, VideoIndex
from dstream.media.demux import demux_segments


@dataclass(frozen=True)
class ReferencePacket:
    size: int
    pts: int | None
    is_key: bool
    is_discard: bool
    data: bytes


def reference_packets(path: Path, track_id: int) -> list[ReferencePacket]:
    """Every packet of a track in decode order, by one sequential demux."""
    with av.open(str(path), metadata_errors="replace") as container:
        stream = next(s for s in container.streams.video if s.index == track_id)
        return [
            ReferencePacket(p.size, p.pts, p.is_keyframe, p.is_discard, bytes(p))
            for p in container.demux(stream)
            if p.size
        ]


def table_rows(index: VideoIndex) -> list[tuple[int, int, bool]]:
    """(size, pts, is key) of each packet of an index."""
    table = index.packets
    assert table is not None
    keys = (table.flags & np.uint8(PacketFlag.KEY)) != 0
    return list(zip(table.size_bytes.tolist(), table.pts.tolist(), keys.tolist(), strict=True))


def gop_bytes(index: VideoIndex, data: bytes) -> list[bytes]:
    """The bytes of every GOP, cut from the file as the GOP table says."""
    gops = index.gops
    return [
        data[int(start) : int(start + size)]
        for start, size in zip(gops.offset_bytes, gops.size_bytes, strict=True)
    ]


def demuxed(index: VideoIndex, first_gop: int, parts: Sequence[bytes]) -> list[ReferencePacket]:
    """The packets of consecutive GOPs as the library demuxes them."""
    return [
        ReferencePacket(len(p.data), p.pts, p.is_key, p.is_discard, bytes(p.data))
        for p in demux_segments(index, first_gop, parts)
    ]
