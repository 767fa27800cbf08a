"""mp4, mov and relatives: everything from moov (and moofs), a few reads, no media data.

libav parses a file whose header boxes are real and whose media data are zeros. What it then
lists (places, sizes, times after the edit list, discard flags) is what it would list of the
whole file, because mp4 keeps all of that outside of the media data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dstream.errors import MediaError, MediaReason
from dstream.format.index import Access, IndexCost, PacketFlag, VideoIndex
from dstream.media.facts import (
    StreamFacts,
    refuse_new_configuration,
    stream_facts,
    video_streams,
    with_decoded,
)
from dstream.media.limits import KEYFRAME_TRIES, keyframe_pieces
from dstream.media.mp4_boxes import (
    Layout,
    Span,
    filled,
    track_headers,
)
from dstream.media.packet_rows import (
    NO_TIME,
    Row,
    gop_starts,
    gops_of_packets,
    make_table,
    timing_of,
)
from dstream.media.virtual import TABLE_OPTIONS, VirtualFile, demux_packets, open_libav
from dstream.media.window import Window

_BEYOND_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TrackRows:
    """One video track's packets and facts, as the header boxes tell them."""

    facts: StreamFacts
    rows: list[Row]


def index_progressive(window: Window, layout: Layout) -> list[VideoIndex]:
    """Index all video tracks of a file whose moov lists every packet.

    Raises:
        MediaError: no index; the reason says why.
    """
    tracks = list_packets(
        window.reader.name, window.size_bytes, layout.moov_bytes, header_spans(layout)
    )
    return index_tracks(window, tracks, full_pass=False)


def header_spans(layout: Layout) -> list[Span]:
    """What a parser needs before any media data."""
    return [(0, layout.ftyp), (layout.moov.start, layout.moov_bytes)]


def list_packets(name: str, size_bytes: int, moov: bytes, spans: Sequence[Span]) -> list[TrackRows]:
    """Packets of all video tracks, from a file of which only ``spans`` are known.

    Raises:
        MediaError: libav does not understand the boxes, or there is no video track.
    """
    # Longer than the file, so that packets beyond its end are listed whole, and recognised.
    virtual_bytes = size_bytes + _BEYOND_BYTES
    with open_libav(
        VirtualFile(virtual_bytes, filled(spans, virtual_bytes)),
        name,
        format_name="mov",
        options=TABLE_OPTIONS,
    ) as container:
        streams = video_streams(container)
        if not streams:
            raise MediaError(
                f"{name!r} has no video track", reason=MediaReason.NO_VIDEO_TRACK, name=name
            )
        headers = track_headers(moov)
        tracks: dict[int, TrackRows] = {}
        failure: MediaError | None = None
        for stream in streams:
            turn, mirrored = 0, False
            if stream.index < len(headers):
                turn = headers[stream.index].rotation_deg
                mirrored = headers[stream.index].mirrored
            try:
                facts = stream_facts(stream, "mp4", turn, mirrored)
            except MediaError as error:
                failure = error
                continue
            tracks[stream.index] = TrackRows(facts, [])
        if not tracks and failure is not None:
            raise failure
        wanted = [stream for stream in streams if stream.index in tracks]
        for packet in demux_packets(container, wanted):
            if packet.pts is not None and packet.pos is not None and not packet.is_corrupt:
                refuse_new_configuration(packet, tracks[packet.stream_index].facts)
                tracks[packet.stream_index].rows.append(
                    Row(
                        packet.pos,
                        packet.size,
                        packet.pts,
                        NO_TIME if packet.dts is None else packet.dts,
                        packet.duration or 0,
                        PacketFlag.KEY * packet.is_keyframe
                        | PacketFlag.DISCARD * packet.is_discard,
                    )
                )
    return list(tracks.values())


def index_tracks(window: Window, tracks: Sequence[TrackRows], full_pass: bool) -> list[VideoIndex]:
    """Packet-table indexes of those tracks that have usable frames.

    Raises:
        MediaError: none has; the first track's reason.
    """
    found: list[VideoIndex] = []
    failure: MediaError | None = None
    for track in tracks:
        try:
            found.append(_index_track(window, track))
        except MediaError as error:
            failure = failure or error
    if not found and failure is not None:
        raise failure
    reader = window.reader
    cost = IndexCost(reader.bytes_read, reader.runs, full_pass)
    return [replace(index, cost=cost) for index in found]


def _index_track(window: Window, source: TrackRows) -> VideoIndex:
    name, size_bytes = window.reader.name, window.size_bytes
    table = make_table(source.rows, name, size_bytes)
    starts = gop_starts(table)[:KEYFRAME_TRIES]
    places = [(int(table.offset_bytes[i]), int(table.size_bytes[i])) for i in starts]
    facts = with_decoded(source.facts, keyframe_pieces(window.get, places), name)
    timing = timing_of(table, facts.time_base, facts.nominal_rate)
    return VideoIndex(
        track=facts.track(timing, timing.frame_count, timing.vfr),
        access=Access.PACKETS,
        gops=gops_of_packets(table),
        packets=table,
        header=b"",
        size_bytes=size_bytes,
        cost=IndexCost(0, 0, False),
    )
