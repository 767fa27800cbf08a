"""Presentation order where a container stores only decode order: what the decoder puts out."""

from __future__ import annotations

from dataclasses import replace

import av
import av.error
import numpy as np
from av.codec.context import ThreadType
from av.video.codeccontext import VideoCodecContext

from dstream.errors import MediaError, MediaReason
from dstream.format.index import PacketFlag, PacketTable
from dstream.media.facts import DECODERS, StreamFacts
from dstream.media.packet_rows import decode_times

_DEEPEST_REORDER = 16
_ORDER_ONLY = {"skip_loop_filter": "all", "skip_idct": "all"}
"""The pictures do not matter here, only their order."""


class DisplayOrder:
    """Decodes a track's packets as they go by, to learn in which order they are shown.

    AVI numbers its frames in decode order. The n-th frame that the decoder puts out gets the
    n-th of those numbers; packets that give no frame are marked as not shown.
    """

    def __init__(self, facts: StreamFacts) -> None:
        context = av.CodecContext.create(DECODERS.get(facts.codec, facts.codec), "r")
        if not isinstance(context, VideoCodecContext):
            raise MediaError(f"{facts.codec} is no video codec", reason=MediaReason.DAMAGED)
        if facts.extradata:
            context.extradata = facts.extradata
        context.thread_count = 1
        context.thread_type = ThreadType.SLICE
        context.options = dict(_ORDER_ONLY)
        context.width, context.height = facts.width, facts.height
        context.open(strict=False)
        context.reorder_depth = _DEEPEST_REORDER
        self._context = context
        self._packets = 0
        self._order: dict[int, None] = {}

    def add(self, data: bytes) -> None:
        """The next packet in decode order."""
        packet = av.Packet(len(data))
        packet.update(data)
        packet.pts = packet.dts = self._packets
        self._packets += 1
        self._decode(packet)

    def _decode(self, packet: av.Packet | None) -> None:  # type: ignore[type-arg]
        try:
            frames = self._context.decode(packet)
        except av.error.FFmpegError:
            return  # as in a decode of the whole file, the packet gives no frame
        for frame in frames:
            if frame.pts is not None:
                self._order.setdefault(frame.pts)

    def apply(self, table: PacketTable, name: str) -> PacketTable:
        """The table of the packets, with presentation times in the order of presentation.

        Raises:
            MediaError: no frame comes out.
        """
        self._decode(None)
        shown = np.array([number for number in self._order if number < len(table)], np.int64)
        if not len(shown):
            raise MediaError(
                f"{name!r}: no frame can be decoded, so their order is unknown",
                reason=MediaReason.UNDECODABLE,
                name=name,
            )
        ticks = np.sort(table.dts)
        pts = np.empty_like(table.pts)
        flags = table.flags.copy()
        silent = np.setdiff1d(np.arange(len(pts)), shown)
        pts[shown] = ticks[: len(shown)]
        # Times before all others, so that these packets never stand for a frame.
        pts[silent] = ticks[0] - len(silent) + np.arange(len(silent))
        flags[silent] |= np.uint8(PacketFlag.DISCARD)
        return replace(table, pts=pts, dts=decode_times(pts), flags=flags)
