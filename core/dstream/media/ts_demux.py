"""Packets of MPEG transport and program stream ranges in memory."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from dstream.errors import MediaError, MediaReason
from dstream.format.index import PacketFlag, PacketTable, VideoIndex
from dstream.media.packets import Bytes, Packet
from dstream.media.virtual import demux_packets, open_libav

FORMATS = {"mpegts": "mpegts", "mpegps": "mpeg"}
"""Container -> libav's demuxer."""
CLOCK_WRAP = 1 << 33
"""Timestamps of these containers have 33 bits; the packet table counts on, a range cannot."""
_OPTIONS = {"analyzeduration": "1", "fpsprobesize": "0", "probesize": "2048"}


@dataclass(frozen=True, slots=True)
class RawPacket:
    """A packet as a range gives it, its time modulo the clock."""

    data: bytes
    pts: int | None


def demux_range(container: str, header: bytes, data: Bytes) -> list[list[RawPacket]]:
    """The packets of each video stream of a range, in decode order.

    Raises:
        MediaError: libav finds nothing that it understands.
    """
    file = io.BytesIO(header + bytes(data))
    found: dict[int, list[RawPacket]] = {}
    with open_libav(file, "range", format_name=FORMATS[container], options=_OPTIONS) as opened:
        for packet in demux_packets(opened, opened.streams.video):
            found.setdefault(packet.stream_index, []).append(RawPacket(bytes(packet), packet.pts))
    return list(found.values())


def align(
    candidates: Sequence[Sequence[RawPacket]], sizes: Sequence[int], pts: Sequence[int]
) -> list[RawPacket] | None:
    """The run of packets that has these sizes; None if there is none.

    A range may start with the end of a frame and end with the start of another. Such a rest of
    a frame takes the time of the next one, so times only decide between several runs.
    """
    fallback: list[RawPacket] | None = None
    for stream in candidates:
        found = [len(packet.data) for packet in stream]
        for first in range(len(stream) - len(sizes) + 1):
            if found[first] != sizes[0] or found[first : first + len(sizes)] != list(sizes):
                continue
            run = list(stream[first : first + len(sizes)])
            if _same_time(run[0].pts, pts[0]):
                return run
            fallback = fallback or run
    return fallback


def _same_time(raw: int | None, counted: int) -> bool:
    return raw is not None and (raw - counted) % CLOCK_WRAP == 0


def demux_streams(index: VideoIndex, parts: Sequence[tuple[int, Bytes]]) -> list[Packet]:
    """Packets of consecutive GOPs, each given with its place in the file.

    Times and flags are those of the table; the bytes must give packets of the same sizes.

    Raises:
        MediaError: they do not.
    """
    table = index.packets
    if table is None:
        raise MediaError(
            f"a {index.track.container} index has no packet table; index the file again",
            reason=MediaReason.DAMAGED,
        )
    first, stop = _packet_range(index, table, parts)
    data = b"".join(
        bytes(part[: following - start])
        for (start, part), following in zip(parts, [p for p, _ in parts[1:]], strict=False)
    ) + bytes(parts[-1][1])
    run = align(
        demux_range(index.track.container, index.header, data),
        table.size_bytes[first:stop].tolist(),
        table.pts[first:stop].tolist(),
    )
    if run is None:
        raise MediaError(
            f"bytes from {parts[0][0]} on do not hold packets {first} to {stop - 1} of the index;"
            " index the file again",
            reason=MediaReason.DAMAGED,
        )
    return [
        Packet(
            packet.data,
            int(table.pts[i]),
            int(table.dts[i]),
            bool(table.flags[i] & PacketFlag.KEY),
            bool(table.flags[i] & PacketFlag.DISCARD),
        )
        for i, packet in enumerate(run, first)
    ]


def _packet_range(
    index: VideoIndex, table: PacketTable, parts: Sequence[tuple[int, Bytes]]
) -> tuple[int, int]:
    gops = index.gops
    first_gop = int(gops.offset_bytes.searchsorted(parts[0][0]))
    stop_gop = first_gop + len(parts)
    stop = int(gops.first_packet[stop_gop]) if stop_gop < len(gops) else len(table)
    return int(gops.first_packet[first_gop]), stop
