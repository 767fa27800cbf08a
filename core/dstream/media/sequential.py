"""Containers that keep no index of their packets: one pass with libav's demuxer."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from av.packet import Packet as AvPacket
from av.video.stream import VideoStream

from dstream.errors import MediaError, MediaReason
from dstream.format.index import Access, GopTable, IndexCost, PacketFlag, VideoIndex
from dstream.media.display_order import DisplayOrder
from dstream.media.facts import (
    StreamFacts,
    refuse_new_configuration,
    stream_facts,
    video_streams,
    with_decoded,
)
from dstream.media.limits import KEYFRAME_TRIES, check_budget, encrypted
from dstream.media.packet_rows import NO_TIME, Row, gops_of_packets, make_table, timing_of
from dstream.media.stream_ranges import RangeFinder
from dstream.media.virtual import ReaderFile, demux_packets, open_libav
from dstream.media.window import Window

_LOCATE_SLACK_BYTES = 512
"""Where a packet's payload may start behind the place that the demuxer names."""
_UNORDERED_CODECS = frozenset(("h264", "hevc"))
"""libav gives these decode times for presentation times where the container has only those."""


@dataclass(slots=True)
class _Collected:
    """One video stream while its packets go by."""

    facts: StreamFacts
    finder: RangeFinder | None
    rows: list[Row] = field(default_factory=list)
    keyframes: list[bytes] = field(default_factory=list)
    cursor: int = 0
    """One past the last packet's payload in the file."""
    is_contiguous: bool = True
    order: DisplayOrder | None = None
    """Where the container has no presentation times."""


def index_by_pass(
    window: Window,
    container: str,
    format_name: str,
    header: bytes | None,
    max_index_bytes: int | None,
    scrambled: Callable[[int], bool] | None = None,
) -> list[VideoIndex]:
    """Index all video tracks by reading the whole file once.

    Args:
        window: the file.
        container: what the index calls the container.
        format_name: libav's demuxer.
        header: bytes to put before a GOP where packets are scattered; None where they must lie
            in one piece.
        max_index_bytes: refuse larger files.
        scrambled: tells from a stream's id whether it is encrypted.

    Raises:
        MediaError: no index; the reason says why.
    """
    reader = window.reader
    check_budget(window, reader.size_bytes, max_index_bytes)
    file = ReaderFile(window)
    with open_libav(file, reader.name, format_name=format_name) as opened:
        streams = video_streams(opened)
        if not streams:
            raise MediaError(
                f"{reader.name!r} has no video track",
                reason=MediaReason.NO_VIDEO_TRACK,
                name=reader.name,
            )
        if scrambled is not None and any(scrambled(stream.id) for stream in streams):
            raise encrypted(reader.name)
        collected = {
            stream.index: _Collected(
                stream_facts(stream, container),
                None
                if header is None
                else RangeFinder(container, header, file.get, reader.size_bytes),
            )
            for stream in streams
        }
        for track in collected.values():
            if container == "avi" and track.facts.codec in _UNORDERED_CODECS:
                track.order = DisplayOrder(track.facts)
        for packet in demux_packets(opened, streams):
            _take(collected[packet.stream_index], packet, file, reader.name)
    return _finish(window, list(collected.values()), header)


def _take(track: _Collected, packet: AvPacket[VideoStream], file: ReaderFile, name: str) -> None:
    if packet.pts is None:
        raise MediaError(
            f"{name!r}: packet {len(track.rows)} of track {track.facts.track_id} has no"
            " presentation time",
            reason=MediaReason.TIMESTAMPS,
            name=name,
        )
    refuse_new_configuration(packet, track.facts)
    data = bytes(packet)
    is_key = packet.is_keyframe
    if is_key and len(track.keyframes) < KEYFRAME_TRIES:
        track.keyframes.append(data)
    offset = track.rows[-1].offset if packet.pos is None and track.rows else (packet.pos or 0)
    if track.finder is None:
        place = _locate(file, data, offset, track.cursor)
        if place is None:
            track.is_contiguous = False
        else:
            offset, track.cursor = place, place + len(data)
    row = Row(
        offset,
        len(data),
        packet.pts,
        NO_TIME if packet.dts is None else packet.dts,
        packet.duration or 0,
        PacketFlag.KEY * is_key | PacketFlag.DISCARD * packet.is_discard,
    )
    track.rows.append(row)
    if track.order is not None:
        track.order.add(data)
    if track.finder is not None:
        track.finder.add(row, data, is_key)


def _locate(file: ReaderFile, data: bytes, hint: int, cursor: int) -> int | None:
    """Where the payload lies in the file as it is, near the hint or behind the last packet."""
    for start in (hint, cursor):
        found = file.get(start, start + len(data) + _LOCATE_SLACK_BYTES).find(data)
        if found >= 0:
            return start + found
    return None


def _finish(window: Window, tracks: list[_Collected], header: bytes | None) -> list[VideoIndex]:
    found: list[VideoIndex] = []
    failure: MediaError | None = None
    for track in tracks:
        try:
            found.append(_track_index(window, track, header))
        except MediaError as error:
            failure = failure or error
    if not found and failure is not None:
        raise failure
    reader = window.reader
    cost = IndexCost(reader.bytes_read, reader.runs, True)
    return [replace(index, cost=cost) for index in found]


def _track_index(window: Window, track: _Collected, header: bytes | None) -> VideoIndex:
    name = window.reader.name
    if track.rows and not track.is_contiguous:
        raise MediaError(
            f"{name!r}: packets of this {track.facts.container} file do not lie in one piece,"
            " so they cannot be read by range",
            reason=MediaReason.UNSUPPORTED_CODEC,
            name=name,
        )
    rows = track.rows
    table = make_table(rows, name, window.size_bytes)
    facts = with_decoded(track.facts, track.keyframes, name)
    if track.order is not None:
        table = track.order.apply(table, name)
    gops: GopTable = gops_of_packets(table)
    access = Access.PACKETS
    if track.finder is not None:
        track.finder.finish()
        gops, access = track.finder.gops(table), Access.SEGMENTS
    timing = timing_of(table, facts.time_base, facts.nominal_rate)
    return VideoIndex(
        track=facts.track(timing, timing.frame_count, timing.vfr),
        access=access,
        gops=gops,
        packets=table,
        header=(header or b"") if access is Access.SEGMENTS else b"",
        size_bytes=window.size_bytes,
        cost=IndexCost(0, 0, True),
    )


_REST_IN_ONE_PIECE = "asf,gxf,ivf,mxf,mxf_opatom,nut,ogg,wtv,rm,dv"
_RAW_VIDEO = "h264,hevc,vvc,m4v,mpegvideo,av1,obu,evc,avs2,avs3,dirac,vc1,h263,h261"
_AUDIO = "mp3,wav,flac,aac,ac3,eac3,aiff,amr,dts,dtshd,truehd,caf,au,ape,tta,wv,w64,mp2,loas"


def index_rest(window: Window, max_index_bytes: int | None) -> list[VideoIndex]:
    """Index a file of a rarer kind, if libav knows it and its packets lie in one piece.

    Only named demuxers are tried: some of libav's open other files that a file names.

    Raises:
        MediaError: the file is no media, has no times, or its packets are scattered.
    """
    reader = window.reader
    head = window.get(0, 1 << 20)
    options = {"format_whitelist": ",".join((_REST_IN_ONE_PIECE, _RAW_VIDEO, _AUDIO))}
    try:
        with open_libav(io.BytesIO(head), reader.name, options=options) as opened:
            kind = opened.format.name
    except MediaError as error:
        raise MediaError(
            f"{reader.name!r} is no media file that is known",
            reason=MediaReason.NOT_MEDIA,
            name=reader.name,
        ) from error
    if kind in _RAW_VIDEO.split(","):
        raise MediaError(
            f"{reader.name!r} is raw {kind} without a container: its frames have no times; put it"
            " into an mp4 first",
            reason=MediaReason.TIMESTAMPS,
            name=reader.name,
        )
    if kind in _AUDIO.split(","):
        raise MediaError(
            f"{reader.name!r} is audio only", reason=MediaReason.NO_VIDEO_TRACK, name=reader.name
        )
    return index_by_pass(window, kind, kind, None, max_index_bytes)
