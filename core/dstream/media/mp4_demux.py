"""Packets of mp4 fragments in memory."""

from __future__ import annotations

from collections.abc import Sequence

from dstream.format.index import VideoIndex
from dstream.media.mp4_boxes import Span, filled, parse_header
from dstream.media.packets import Bytes, Packet
from dstream.media.virtual import TABLE_OPTIONS, VirtualFile, demux_packets, open_libav


def demux_fragments(index: VideoIndex, parts: Sequence[tuple[int, Bytes]]) -> list[Packet]:
    """Packets of consecutive units, each given with its place in the file.

    The units lie at their true places in a file that otherwise holds only the header, because a
    fragment may name its samples by their places in the file.
    """
    spans: list[Span] = [(0, index.header)]
    spans += [(start, _without_indexes(data)) for start, data in parts]
    stop = parts[-1][0] + len(parts[-1][1])
    packets: list[Packet] = []
    with open_libav(
        VirtualFile(stop, filled(spans, stop)),
        "fragments",
        format_name="mov",
        options=TABLE_OPTIONS,
    ) as container:
        wanted = [s for s in container.streams.video if s.index == index.track.track_id]
        for packet in demux_packets(container, wanted):
            if packet.pts is not None:
                packets.append(
                    Packet(
                        bytes(packet),
                        packet.pts,
                        packet.dts,
                        packet.is_keyframe,
                        packet.is_discard,
                    )
                )
    return packets


def _without_indexes(data: Bytes) -> bytes:
    """The unit with its segment indexes renamed: libav would look for what they point at."""
    result = bytearray(data)
    position = 0
    while position + 8 <= len(result):
        box = parse_header(bytes(result[position : position + 16]), position, len(result))
        if box is None:
            break
        if box.kind == b"sidx":
            result[position + 4 : position + 8] = b"free"
        position = box.stop
    return bytes(result)
