"""Matroska's GOPs from Cues: two small reads, no packet table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dstream.format.index import Access, GopTable, IndexCost, VideoIndex
from dstream.media.ebml import (
    HEADER_BYTES,
    children,
    read_uint,
)
from dstream.media.facts import StreamFacts, with_decoded
from dstream.media.limits import KEYFRAME_BYTES
from dstream.media.matroska_blocks import Frame, iter_frames
from dstream.media.matroska_demux import keyframes
from dstream.media.matroska_head import Head, read_table
from dstream.media.matroska_tracks import (
    CUES,
    TrackEntry,
    nominal_rate,
)
from dstream.media.packet_rows import (
    Timing,
    reorder_depth,
)
from dstream.media.window import Window

_BLOCK_START_BYTES = 64
"""What usually stands in a cluster before its first frame."""
_NEAR_FRONT_BYTES = 64
"""A cue this near to its cluster's start has nothing of the track before it."""
_LEAST_DEPTH = {"h264": 4, "hevc": 4}
"""Reorder depth to assume where no table tells; more than needed does no harm."""


def index_by_cues(window: Window, head: Head, facts: dict[int, StreamFacts]) -> list[VideoIndex]:
    """Indexes without packet tables; empty where Cues or Duration are missing or cannot be so."""
    if any(track.is_decode_timed for track in head.video):
        return []
    if head.info.duration_ticks is None or head.first_cluster >= head.segment_stop:
        return []
    content = read_table(window, head.cues_at, CUES, head.segment_stop)
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
    return [replace(index, cost=cost) for index in found]


def _first_frames(window: Window, head: Head, numbers: frozenset[int]) -> list[Frame]:
    """Frames whose headers lie in the first part of the first cluster."""
    start = head.first_cluster
    known = len(window.get(start, start + KEYFRAME_BYTES + _BLOCK_START_BYTES))
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
    keys = [frame for frame in frames if frame.is_key][:1]
    facts = with_decoded(facts, keyframes(track, window.get, keys), window.reader.name)
    pts = np.array([frame.pts for frame in frames], np.int64)
    rate = nominal_rate(track)
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
