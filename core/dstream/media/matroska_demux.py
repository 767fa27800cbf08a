"""Packets of Matroska clusters in memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from dstream.errors import MediaError, MediaReason
from dstream.format.index import VideoIndex
from dstream.media.ebml import children, parse_element
from dstream.media.limits import MAX_KEYFRAME_BYTES, keyframe_pieces
from dstream.media.matroska_blocks import Frame, iter_frames
from dstream.media.matroska_tracks import (
    INFO,
    TRACKS,
    SegmentInfo,
    TrackEntry,
    parse_info,
    parse_tracks,
    usual_ticks,
)
from dstream.media.packets import Bytes, Packet

MAX_FRAME_BYTES = 256 << 20


def frame_pts(frame: Frame, usual_ticks: int) -> int:
    """Presentation time of a frame; only the first of a laced block has its own.

    Raises:
        MediaError: a later one, and no usual duration to count on with.
    """
    if frame.lace and not usual_ticks:
        raise MediaError(
            "frames share a block and the track has no DefaultDuration, so they have no times",
            reason=MediaReason.TIMESTAMPS,
        )
    return frame.pts + frame.lace * usual_ticks


def frame_bytes(track: TrackEntry, stored: bytes) -> bytes:
    """What the decoder gets: stored bytes with the track's compression undone.

    Raises:
        MediaError: a compression that is not known, or damaged bytes.
    """
    if track.stripped is not None:
        return track.stripped + stored
    if not track.is_zlib:
        raise MediaError(
            "the track's frames are compressed with bzip2 or LZO, which is not read",
            reason=MediaReason.UNSUPPORTED_CODEC,
        )
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(stored, MAX_FRAME_BYTES)
    except zlib.error as error:
        raise MediaError(
            f"a compressed frame is damaged: {error}", reason=MediaReason.DAMAGED
        ) from error
    if inflater.unconsumed_tail:
        raise MediaError(
            f"a compressed frame is larger than {MAX_FRAME_BYTES} bytes",
            reason=MediaReason.DAMAGED,
        )
    return data


def keyframes(
    track: TrackEntry, get: Callable[[int, int], bytes], frames: Sequence[Frame]
) -> Iterator[bytes]:
    """Some frames for the decoder to learn the picture format from, the first parts first."""
    if track.is_zlib:
        for frame in frames:
            if frame.size <= MAX_KEYFRAME_BYTES:
                yield frame_bytes(track, get(frame.offset, frame.offset + frame.size))
        return
    for piece in keyframe_pieces(get, [(frame.offset, frame.size) for frame in frames]):
        yield frame_bytes(track, piece)


@lru_cache(maxsize=256)
def _read_header(header: bytes) -> tuple[SegmentInfo, tuple[TrackEntry, ...]]:
    ebml = parse_element(header, 0, 0)
    segment = None if ebml is None else parse_element(header, ebml.stop, ebml.stop)
    info = SegmentInfo(1_000_000, None)
    tracks: tuple[TrackEntry, ...] = ()
    if segment is not None:
        for element in children(header, segment.body, len(header)):
            content = header[element.body : element.stop]
            if element.kind == INFO:
                info = parse_info(content)
            elif element.kind == TRACKS:
                tracks = tuple(parse_tracks(content))
    return info, tracks


def demux_clusters(index: VideoIndex, parts: Sequence[tuple[int, Bytes]]) -> list[Packet]:
    """Packets of consecutive ranges, each given with its place in the file.

    Each range starts at a cluster; ranges may overlap, a frame is given once.
    """
    info, tracks = _read_header(index.header)
    track = next((t for t in tracks if t.stream_index == index.track.track_id), None)
    if track is None:
        raise MediaError(
            "the index's header does not hold its track; index the file again",
            reason=MediaReason.DAMAGED,
        )
    usual = usual_ticks(info, track)
    packets: dict[int, Packet] = {}
    for start, data in parts:
        raw = bytes(data)

        def get(first: int, last: int, raw: bytes = raw, start: int = start) -> bytes:
            return raw[first - start : last - start]

        for frame in iter_frames(get, start, start + len(raw), frozenset((track.number,))):
            if frame.offset not in packets:
                stored = get(frame.offset, frame.offset + frame.size)
                packets[frame.offset] = Packet(
                    frame_bytes(track, stored), frame_pts(frame, usual), None, frame.is_key, False
                )
    return [packets[offset] for offset in sorted(packets)]
