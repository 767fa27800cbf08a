"""From the bytes of whole GOPs back to packets, for containers that scatter or wrap them."""

from __future__ import annotations

from collections.abc import Sequence

from dstream.errors import MediaError, MediaReason
from dstream.format.index import VideoIndex
from dstream.media.matroska_demux import demux_clusters
from dstream.media.mp4_demux import demux_fragments
from dstream.media.packets import Bytes, Packet
from dstream.media.ts_demux import demux_streams

__all__ = ["Bytes", "Packet", "demux_segments"]


def demux_segments(index: VideoIndex, first_gop: int, data: Sequence[Bytes]) -> list[Packet]:
    """The packets of consecutive GOPs, in decode order.

    Args:
        index: with ``Access.SEGMENTS``.
        first_gop: which GOP ``data[0]`` is.
        data: the bytes of each GOP, as the GOP table cuts them.

    Raises:
        MediaError: the bytes are not what was indexed.
    """
    demux = {
        "mp4": demux_fragments,
        "matroska": demux_clusters,
        "mpegts": demux_streams,
        "mpegps": demux_streams,
    }.get(index.track.container)
    if demux is None:
        raise MediaError(
            f"{index.track.container} is never read by segments", reason=MediaReason.DAMAGED
        )
    starts = [int(b) for b in index.gops.offset_bytes[first_gop : first_gop + len(data)]]
    packets = demux(index, list(zip(starts, data, strict=True)))
    first_key = next((i for i, packet in enumerate(packets) if packet.is_key), 0)
    return packets[first_key:]
