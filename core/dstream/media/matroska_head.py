"""What stands before the clusters of a Matroska file, and where its Cues are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dstream.errors import MediaError, MediaReason
from dstream.media.ebml import (
    HEADER_BYTES,
    UNKNOWN_SIZE,
    Element,
    children,
    encode_element,
    parse_element,
    read_uint,
)
from dstream.media.facts import StreamFacts, stream_facts
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
from dstream.media.virtual import TABLE_OPTIONS, VirtualFile, open_libav
from dstream.media.window import Window

MAX_TABLE_BYTES = 64 << 20
"""Larger Info, Tracks and Cues are not parsed."""
CUES_GUESS_BYTES = 64 * 1024
_MAX_HEAD_ELEMENTS = 1000
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


def read_head(window: Window) -> Head:
    """Read everything up to the first cluster.

    Raises:
        MediaError: it is damaged, cut off or too large.
    """
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
    info_bytes = read_table(window, places.get(INFO), INFO, stop)
    tracks_bytes = read_table(window, places.get(TRACKS), TRACKS, stop)
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


def read_table(window: Window, at: int | None, kind: int, stop: int) -> bytes:
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


def header_facts(name: str, head: Head) -> dict[int, StreamFacts]:
    """Track number -> what libav makes of the header.

    Raises:
        MediaError: it makes nothing of any video track.
    """
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
