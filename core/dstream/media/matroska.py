"""Matroska and WebM: keyframes from Cues by two small reads, or all packets by one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dstream.errors import MediaError, MediaReason
from dstream.format.index import Access, GopTable, IndexCost, PacketFlag, PacketTable, VideoIndex
from dstream.media.ebml import (
    HEADER_BYTES,
    UNKNOWN_SIZE,
    Element,
    children,
    encode_element,
    parse_element,
    read_uint,
)
from dstream.media.facts import StreamFacts, stream_facts, with_decoded
from dstream.media.matroska_blocks import Frame, GetBytes, iter_frames
from dstream.media.matroska_demux import frame_bytes, frame_pts
from dstream.media.matroska_tracks import (
    CLUSTER,
    CUES,
    EBML_HEAD,
    INFO,
    SEEK_HEAD,
    SEGMENT,
    TOP_LEVEL,
    TRACKS,
    SegmentInfo,
    TrackEntry,
    parse_info,
    parse_tracks,
    tick_of,
)
from dstream.media.mp4 import KEYFRAME_BYTES, KEYFRAME_TRIES, encrypted
from dstream.media.mp4_fragments import check_budget
from dstream.media.packet_rows import (
    NO_TIME,
    Row,
    Timing,
    gop_starts,
    gops_of_packets,
    make_table,
    reorder_depth,
    timing_of,
)
from dstream.media.virtual import TABLE_OPTIONS, ReaderFile, VirtualFile, open_libav
from dstream.media.vpx import is_hidden
from dstream.media.window import Window

MAX_TABLE_BYTES = 64 << 20
"""Larger Info, Tracks and Cues are not parsed."""
CUES_GUESS_BYTES = 64 * 1024
_MAX_HEAD_ELEMENTS = 1000
_NEAR_FRONT_BYTES = 64
"""A cue this near to its cluster's start has nothing of the track before it."""
_LEAST_DEPTH = {"h264": 4, "hevc": 4}
"""Reorder depth to assume where no table tells; more than needed does no harm."""
_OPEN_SEGMENT = bytes.fromhex("1853806701ffffffffffffff")


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the clusters, and where the rest is."""

    ebml: bytes
    segment_body: int
    segment_stop: int
    info_bytes: bytes
    tracks_bytes: bytes
    info: SegmentInfo
    video: tuple[TrackEntry, ...]
    first_cluster: int
    cues_at: int | None
    after_clusters: tuple[int, ...]
    """Places of elements that may follow the clusters."""

    @property
    def header(self) -> bytes:
        """Enough to understand a cluster: EBML head, open segment, Info, Tracks."""
        return (
            self.ebml
            + _OPEN_SEGMENT
            + encode_element(INFO, self.info_bytes)
            + encode_element(TRACKS, self.tracks_bytes)
        )


def index_matroska(
    window: Window, *, need_packets: bool, max_index_bytes: int | None
) -> list[VideoIndex]:
    """Index all video tracks of a Matroska or WebM file.

    Raises:
        MediaError: no index; the reason says why.
    """
    name = window.reader.name
    head = _read_head(window)
    if not head.video:
        raise MediaError(
            f"{name!r} has no video track", reason=MediaReason.NO_VIDEO_TRACK, name=name
        )
    if any(track.is_encrypted for track in head.video):
        raise encrypted(name)
    facts = _facts(name, head)
    whole = window.has(0, window.size_bytes)
    if not need_packets and not whole:
        found = _by_cues(window, head, facts)
        if found:
            return found
    return _by_pass(window, head, facts, whole, max_index_bytes)


def _read_head(window: Window) -> Head:
    name = window.reader.name
    ebml = parse_element(window.get(0, HEADER_BYTES), 0, 0)
    if ebml is None or ebml.kind != EBML_HEAD or not 0 <= ebml.size <= 4096:
        raise MediaError(f"{name!r} has a damaged EBML head", reason=MediaReason.DAMAGED)
    segment = parse_element(window.get(ebml.stop, ebml.stop + HEADER_BYTES), 0, ebml.stop)
    if segment is None or segment.kind != SEGMENT:
        raise MediaError(
            f"{name!r} has no Matroska segment", reason=MediaReason.NO_FRAMES, name=name
        )
    stop = window.size_bytes
    if segment.size != UNKNOWN_SIZE:
        stop = min(stop, segment.stop)
    places: dict[int, int] = {}
    first_cluster = stop
    for element in _walk(window, segment.body, stop):
        if element.kind == CLUSTER:
            first_cluster = element.start
            break
        places.setdefault(element.kind, element.start)
        if element.kind == SEEK_HEAD:
            content = _content(window, element, SEEK_HEAD)
            for kind, at in _seek_entries(content):
                if segment.body + at < stop:
                    places.setdefault(kind, segment.body + at)
    info_bytes = _table(window, places.get(INFO), INFO, stop)
    tracks_bytes = _table(window, places.get(TRACKS), TRACKS, stop)
    tracks = parse_tracks(tracks_bytes)
    return Head(
        ebml=window.get(0, ebml.stop),
        segment_body=segment.body,
        segment_stop=stop,
        info_bytes=info_bytes,
        tracks_bytes=tracks_bytes,
        info=parse_info(info_bytes),
        video=tuple(track for track in tracks if track.is_video),
        first_cluster=first_cluster,
        cues_at=places.get(CUES),
        after_clusters=tuple(sorted(p for p in places.values() if p > first_cluster)),
    )


def _walk(window: Window, start: int, stop: int) -> Iterator[Element]:
    """Segment-level elements up to the first bad one."""
    position = start
    for _ in range(_MAX_HEAD_ELEMENTS):
        if position >= stop:
            return
        header = window.get(position, position + HEADER_BYTES, ahead_bytes=CUES_GUESS_BYTES)
        element = parse_element(header, 0, position)
        if element is None or element.kind not in TOP_LEVEL | {0xEC, 0xBF}:
            return
        yield element
        if element.size == UNKNOWN_SIZE:
            return
        position = element.stop


def _seek_entries(data: bytes) -> Iterator[tuple[int, int]]:
    """(element id, place relative to the segment's content) of a SeekHead."""
    for seek in children(data, 0, len(data)):
        kind = at = -1
        for element in children(data, seek.body, seek.stop):
            if element.kind == 0x53AB:
                kind = read_uint(data[element.body : element.stop])
            elif element.kind == 0x53AC:
                at = read_uint(data[element.body : element.stop])
        if seek.kind == 0x4DBB and kind >= 0 and at >= 0:
            yield kind, at


def _table(window: Window, at: int | None, kind: int, stop: int) -> bytes:
    """Content of the element of that kind at a place; empty where it is not."""
    if at is None or at >= stop:
        return b""
    header = window.get(at, at + HEADER_BYTES, ahead_bytes=CUES_GUESS_BYTES)
    element = parse_element(header, 0, at)
    if element is None or element.kind != kind:
        return b""
    return _content(window, element, kind)


def _content(window: Window, element: Element, kind: int) -> bytes:
    name = window.reader.name
    if element.size == UNKNOWN_SIZE or element.stop > window.size_bytes:
        raise MediaError(
            f"{name!r} ends inside its element {kind:X}: the file is truncated",
            reason=MediaReason.TRUNCATED,
            name=name,
        )
    if element.size > MAX_TABLE_BYTES:
        raise MediaError(
            f"{name!r}: an element {kind:X} of {element.size} bytes is more than the"
            f" {MAX_TABLE_BYTES} that are parsed",
            reason=MediaReason.INDEX_TOO_LARGE,
            name=name,
        )
    return window.get(element.body, element.stop)


def _facts(name: str, head: Head) -> dict[int, StreamFacts]:
    """Track number -> what libav makes of the header."""
    tick = tick_of(head.info)
    result: dict[int, StreamFacts] = {}
    # libav looks for the first cluster before it opens a file: it gets an empty one.
    data = head.header + encode_element(CLUSTER, bytes.fromhex("e78100"))
    with open_libav(
        VirtualFile(len(data), [(0, data)]),
        name,
        format_name="matroska",
        options=TABLE_OPTIONS,
    ) as container:
        streams = {stream.index: stream for stream in container.streams.video}
        failure: MediaError | None = None
        for track in head.video:
            stream = streams.get(track.stream_index)
            if stream is None:
                continue
            try:
                facts = stream_facts(stream, "matroska", track.rotation_deg, track.mirrored)
            except MediaError as error:
                failure = error
                continue
            if facts.time_base == tick:
                result[track.number] = facts
    if not result:
        raise failure or MediaError(
            f"{name!r} has no video track that is understood",
            reason=MediaReason.NO_VIDEO_TRACK,
            name=name,
        )
    return result


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
    hidden: set[int] = set()
    for frame in iter_frames(get, head.first_cluster, head.segment_stop, wanted):
        frames[frame.track].append(frame)
        if tracks[frame.track].is_plain and _is_hidden(get, facts[frame.track].codec, frame):
            hidden.add(frame.offset)
    found: list[VideoIndex] = []
    failure: MediaError | None = None
    for number, track in tracks.items():
        try:
            found.append(_pass_index(window, head, facts[number], track, frames[number], hidden))
        except MediaError as error:
            failure = failure or error
    if not found and failure is not None:
        raise failure
    cost = IndexCost(reader.bytes_read, reader.runs, not whole)
    return [
        VideoIndex(i.track, i.access, i.gops, i.packets, i.header, i.size_bytes, cost)
        for i in found
    ]


def _pass_index(
    window: Window,
    head: Head,
    facts: StreamFacts,
    track: TrackEntry,
    frames: Sequence[Frame],
    hidden: Set[int],
) -> VideoIndex:
    name = window.reader.name
    usual = _usual_ticks(head.info, track)
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
    keys = [frames[i] for i in gop_starts(table)[:KEYFRAME_TRIES]]
    facts = with_decoded(facts, _keyframes(window, track, keys), name)
    timing = timing_of(table, facts.time_base, _nominal_rate(track))
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


def _keyframes(window: Window, track: TrackEntry, frames: Sequence[Frame]) -> Iterator[bytes]:
    for frame in frames:
        size = frame.size if track.is_zlib else min(frame.size, KEYFRAME_BYTES)
        yield frame_bytes(track, window.get(frame.offset, frame.offset + size))


def _usual_ticks(info: SegmentInfo, track: TrackEntry) -> int:
    """Ticks of a frame, from DefaultDuration; 0 without."""
    return (
        max(1, round(track.default_duration_ns / info.scale_ns))
        if (track.default_duration_ns)
        else 0
    )


def _nominal_rate(track: TrackEntry) -> Fraction | None:
    """Frames per second, from DefaultDuration; the usual NTSC rates are made exact."""
    if not track.default_duration_ns:
        return None
    rate = Fraction(1_000_000_000, track.default_duration_ns)
    for exact in (Fraction(round(rate)), Fraction(round(rate * Fraction(1001, 1000)) * 1000, 1001)):
        if exact and abs(exact / rate - 1) < Fraction(1, 1_000_000):
            return exact
    return rate.limit_denominator(1_000_000)


def _by_cues(window: Window, head: Head, facts: dict[int, StreamFacts]) -> list[VideoIndex]:
    """Indexes without packet tables; empty where Cues or Duration are missing or cannot be so."""
    if head.info.duration_ticks is None or head.first_cluster >= head.segment_stop:
        return []
    content = _table(window, head.cues_at, CUES, head.segment_stop)
    frames = _first_frames(window, head, frozenset(facts))
    found: list[VideoIndex] = []
    for track in head.video:
        if track.number not in facts:
            continue
        own = [frame for frame in frames if frame.track == track.number]
        gops = _cue_gops(parse_cues(content, track.number), head, own)
        if gops is None:
            return []
        found.append(_cue_index(window, head, facts[track.number], track, own, gops))
    cost = IndexCost(window.reader.bytes_read, window.reader.runs, False)
    return [
        VideoIndex(i.track, i.access, i.gops, i.packets, i.header, i.size_bytes, cost)
        for i in found
    ]


def _first_frames(window: Window, head: Head, numbers: frozenset[int]) -> list[Frame]:
    """Frames whose headers lie in the first part of the first cluster."""
    start = head.first_cluster
    known = len(window.get(start, start + KEYFRAME_BYTES))
    frames: list[Frame] = []

    def get(first: int, last: int) -> bytes:
        return window.known(first, min(last, start + known))

    for frame in iter_frames(get, start, head.segment_stop, numbers):
        frames.append(frame)
        if frame.offset + frame.size > start + known:
            break
    return frames


def _cue_index(
    window: Window,
    head: Head,
    facts: StreamFacts,
    track: TrackEntry,
    frames: Sequence[Frame],
    gops: GopTable,
) -> VideoIndex:
    known_stop = head.first_cluster + KEYFRAME_BYTES
    keys = [frame for frame in frames if frame.is_key][:1]
    if track.is_zlib:
        keys = [frame for frame in keys if frame.offset + frame.size <= known_stop]
    facts = with_decoded(facts, _known_keyframes(window, track, keys), window.reader.name)
    pts = np.array([frame.pts for frame in frames], np.int64)
    rate = _nominal_rate(track)
    if rate is None:
        spread = int(pts.max() - pts.min())
        rate = Fraction(len(pts) - 1, spread) / facts.time_base if spread else Fraction(25)
        rate = rate.limit_denominator(1000)
    depth = max(facts.reorder_depth, reorder_depth(pts), _LEAST_DEPTH.get(facts.codec, 0))
    last_frame = max(1, round(1 / (rate * facts.time_base)))
    timing = Timing(
        start_pts=int(pts.min()),
        end_pts=max(round(head.info.duration_ticks or 0), int(gops.key_pts[-1]) + last_frame),
        frame_count=0,
        rate=rate,
        vfr=False,
        reorder_depth=depth,
    )
    return VideoIndex(
        track=facts.track(timing, None, None),
        access=Access.SEGMENTS,
        gops=gops,
        packets=None,
        header=head.header,
        size_bytes=window.size_bytes,
        cost=IndexCost(0, 0, False),
    )


def _known_keyframes(window: Window, track: TrackEntry, frames: Sequence[Frame]) -> Iterator[bytes]:
    for frame in frames:
        size = min(frame.size, KEYFRAME_BYTES)
        yield frame_bytes(track, window.known(frame.offset, frame.offset + size))


def parse_cues(data: bytes, track: int) -> NDArray[np.int64]:
    """[N, 3] int64: time in ticks, the cluster's place in the segment, the block's place in it.

    The last is -1 where the file does not say.
    """
    rows: list[tuple[int, int, int]] = []
    for point in children(data, 0, len(data)):
        time = -1
        if point.kind != 0xBB:
            continue
        for element in children(data, point.body, point.stop):
            if element.kind == 0xB3:
                time = read_uint(data[element.body : element.stop])
            elif element.kind == 0xB7:
                number = cluster = relative = -1
                for part in children(data, element.body, element.stop):
                    value = read_uint(data[part.body : part.stop])
                    if part.kind == 0xF7:
                        number = value
                    elif part.kind == 0xF1:
                        cluster = value
                    elif part.kind == 0xF0:
                        relative = value
                if number == track and 0 <= time < 2**61 and 0 <= cluster < 2**61:
                    rows.append((time, cluster, min(relative, 2**61)))
    return np.array(sorted(rows), np.int64).reshape(-1, 3)


def _cue_gops(cues: NDArray[np.int64], head: Head, frames: Sequence[Frame]) -> GopTable | None:
    """Ranges from one cued cluster to the next; None where they cannot be right."""
    if not len(cues) or not frames or not frames[0].is_key:
        return None
    place = cues[:, 1] + head.segment_body
    _, first = np.unique(place, return_index=True)
    time, start, relative = cues[first, 0], place[first], cues[first, 2]
    if frames[0].cluster < start[0]:
        time = np.concatenate([[frames[0].pts], time])
        start = np.concatenate([[frames[0].cluster], start])
        relative = np.concatenate([[0], relative])
    if start[0] != frames[0].cluster or start[-1] + HEADER_BYTES > head.segment_stop:
        return None
    if np.any(np.diff(time) <= 0):
        return None
    last_stop = min((p for p in head.after_clusters if p > start[-1]), default=head.segment_stop)
    # Frames that stand in a cluster before its keyframe belong to the GOP before: its range
    # reaches into the cluster up to there.
    into = np.where(relative[1:] > _NEAR_FRONT_BYTES, relative[1:] + HEADER_BYTES, 0)
    stops = np.concatenate([np.minimum(start[1:] + into, last_stop), [last_stop]])
    unknown = np.full(len(start), -1, np.int64)
    return GopTable(start, stops - start, time, unknown, unknown)
