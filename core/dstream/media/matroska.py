"""Matroska and WebM: keyframes from Cues by two small reads, or all packets by one pass."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dstream.errors import MediaError, MediaReason
from dstream.format.index import Access, GopTable, IndexCost, PacketFlag, PacketTable, VideoIndex
from dstream.media.display_order import DisplayOrder
from dstream.media.facts import StreamFacts, with_decoded
from dstream.media.limits import KEYFRAME_TRIES, check_budget, encrypted
from dstream.media.matroska_blocks import Frame, GetBytes, iter_frames
from dstream.media.matroska_cues import index_by_cues
from dstream.media.matroska_demux import frame_bytes, frame_pts, keyframes
from dstream.media.matroska_head import Head, header_facts, read_head
from dstream.media.matroska_tracks import (
    TrackEntry,
    nominal_rate,
    usual_ticks,
)
from dstream.media.packet_rows import (
    NO_TIME,
    Row,
    gop_starts,
    gops_of_packets,
    make_table,
    timing_of,
)
from dstream.media.virtual import ReaderFile
from dstream.media.vpx import is_hidden
from dstream.media.window import Window


def index_matroska(
    window: Window, *, need_packets: bool, max_index_bytes: int | None
) -> list[VideoIndex]:
    """Index all video tracks of a Matroska or WebM file.

    Raises:
        MediaError: no index; the reason says why.
    """
    name = window.reader.name
    head = read_head(window)
    if not head.video:
        raise MediaError(
            f"{name!r} has no video track", reason=MediaReason.NO_VIDEO_TRACK, name=name
        )
    if any(track.is_encrypted for track in head.video):
        raise encrypted(name)
    facts = header_facts(name, head)
    whole = window.has(0, window.size_bytes)
    if not need_packets and not whole:
        found = index_by_cues(window, head, facts)
        if found:
            return found
    return _by_pass(window, head, facts, whole, max_index_bytes)


def _by_pass(
    window: Window,
    head: Head,
    facts: dict[int, StreamFacts],
    whole: bool,
    max_index_bytes: int | None,
) -> list[VideoIndex]:
    """Indexes with packet tables, from every block's header."""
    reader = window.reader
    get: GetBytes = window.get
    if not whole:
        check_budget(window, reader.size_bytes, max_index_bytes)
        get = ReaderFile(window).get
    tracks = {track.number: track for track in head.video if track.number in facts}
    frames: dict[int, list[Frame]] = {number: [] for number in tracks}
    wanted = frozenset(tracks)
    orders = {n: DisplayOrder(facts[n]) for n, track in tracks.items() if track.is_decode_timed}
    hidden: set[int] = set()
    for frame in iter_frames(get, head.first_cluster, head.segment_stop, wanted):
        frames[frame.track].append(frame)
        if frame.track in orders:
            stored = get(frame.offset, frame.offset + frame.size)
            orders[frame.track].add(frame_bytes(tracks[frame.track], stored))
        if tracks[frame.track].is_plain and _is_hidden(get, facts[frame.track].codec, frame):
            hidden.add(frame.offset)
    found: list[VideoIndex] = []
    failure: MediaError | None = None
    for number, track in tracks.items():
        try:
            found.append(
                _pass_index(
                    window, head, facts[number], track, frames[number], hidden, orders.get(number)
                )
            )
        except MediaError as error:
            failure = failure or error
    if not found and failure is not None:
        raise failure
    cost = IndexCost(reader.bytes_read, reader.runs, not whole)
    return [replace(index, cost=cost) for index in found]


def _pass_index(
    window: Window,
    head: Head,
    facts: StreamFacts,
    track: TrackEntry,
    frames: Sequence[Frame],
    hidden: Set[int],
    order: DisplayOrder | None,
) -> VideoIndex:
    name = window.reader.name
    usual = usual_ticks(head.info, track)
    rows = [
        Row(
            frame.offset,
            frame.size,
            frame_pts(frame, usual),
            NO_TIME,
            frame.duration or usual,
            PacketFlag.KEY * frame.is_key | PacketFlag.DISCARD * (frame.offset in hidden),
        )
        for frame in frames
    ]
    table = make_table(rows, name, window.size_bytes)
    if order is not None:
        table = order.apply(table, name)
    keys = [frames[i] for i in gop_starts(table)[:KEYFRAME_TRIES]]
    facts = with_decoded(facts, keyframes(track, window.get, keys), name)
    timing = timing_of(table, facts.time_base, nominal_rate(track))
    gops, access, header = gops_of_packets(table), Access.PACKETS, b""
    if not track.is_plain:
        clusters = np.array([frames[i].cluster for i in gops.first_packet], np.int64)
        gops = _cluster_gops(table, gops, clusters)
        access, header = Access.SEGMENTS, head.header
    return VideoIndex(
        track=facts.track(timing, timing.frame_count, timing.vfr),
        access=access,
        gops=gops,
        packets=table,
        header=header,
        size_bytes=window.size_bytes,
        cost=IndexCost(0, 0, True),
    )


def _is_hidden(get: GetBytes, codec: str, frame: Frame) -> bool:
    if codec not in ("vp8", "vp9"):
        return False
    last = frame.offset + frame.size - 1
    head, tail = get(frame.offset, frame.offset + 1), get(last, last + 1)
    return bool(tail) and is_hidden(codec, head, tail[0])


def _cluster_gops(table: PacketTable, gops: GopTable, clusters: NDArray[np.int64]) -> GopTable:
    """The same GOPs with ranges that start at their clusters; ranges may overlap."""
    stops = gops.offset_bytes + gops.size_bytes
    return GopTable(clusters, stops - clusters, gops.key_pts, gops.first_packet, gops.payload_bytes)
