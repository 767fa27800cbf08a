"""Fragmented mp4: by its segment index (sidx) or random access table (mfra), or by every moof."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dstream.errors import MediaError, MediaReason
from dstream.format.index import Access, GopTable, IndexCost, PacketFlag, VideoIndex
from dstream.media.facts import with_decoded
from dstream.media.limits import check_budget, encrypted, keyframe_pieces
from dstream.media.mp4 import (
    TrackRows,
    header_spans,
    index_tracks,
    list_packets,
)
from dstream.media.mp4_boxes import (
    HOP_BYTES,
    Box,
    Layout,
    Span,
    children,
    find_all,
    is_encrypted,
    parse_header,
    track_headers,
)
from dstream.media.packet_rows import Timing, make_table, timing_of
from dstream.media.window import Window

MAX_FRAGMENTS = 1_000_000
MAX_MOOF_BYTES = 64 << 20
MAX_MFRA_BYTES = 64 << 20
STRIDE_BYTES = 1 << 20
"""Media data shorter than this between two moofs are read through, longer ones jumped over."""
_LAST_UNIT_HOPS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Byte ranges that each start with a sync sample; arrays of equal length."""

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    time: NDArray[np.int64]
    """Of the sync sample, from an origin of its own."""
    timescale: int | None
    """Ticks of ``time`` in a second; None for the track's own ticks."""
    end_time: int | None
    """Where the last unit's presentation ends; None where the table does not say."""


def is_fragmented(layout: Layout) -> bool:
    """Whether moov announces fragments."""
    moov = layout.moov_bytes
    return any(True for _ in find_all(moov, (b"mvex",), 8, len(moov)))


def index_fragmented(
    window: Window, layout: Layout, *, need_packets: bool, max_index_bytes: int | None
) -> list[VideoIndex]:
    """Index the video tracks of a fragmented file.

    Raises:
        MediaError: no index; the reason says why.
    """
    whole = window.has(0, window.size_bytes)
    if not need_packets and not whole:
        found = _by_units(window, layout)
        if found:
            return found
    spans = header_spans(layout)
    spans += _read_moofs(window, layout, max_index_bytes)
    tracks = list_packets(window.reader.name, window.size_bytes, layout.moov_bytes, spans)
    return index_tracks(window, tracks, full_pass=not whole)


def _read_moofs(window: Window, layout: Layout, max_index_bytes: int | None) -> list[Span]:
    """All moof boxes, read through or jumped to, whichever is less."""
    result: list[Span] = []
    walker = _Walker(window, layout.moov.stop, max_index_bytes)
    video = _video_ids(layout)
    for box in walker:
        if box.kind != b"moof":
            continue
        if box.stop > window.size_bytes:
            break  # the file is cut here
        data = walker.body(box)
        if _moof_encrypted(data, video):
            raise encrypted(window.reader.name)
        result.append((box.start, data))
    return result


def _video_ids(layout: Layout) -> frozenset[int]:
    return frozenset(
        header.track_id for header in track_headers(layout.moov_bytes) if header.handler == b"vide"
    )


def _moof_encrypted(moof: bytes, video: frozenset[int]) -> bool:
    for traf in find_all(moof, (b"traf",), 8, len(moof)):
        for tfhd in find_all(moof, (b"tfhd",), traf.body, traf.stop):
            track_id = int.from_bytes(moof[tfhd.body + 4 : tfhd.body + 8], "big")
            if track_id in video and is_encrypted(moof, traf.body, traf.stop):
                return True
    return False


class _Walker:
    """Iterates over top-level boxes, holding one chunk of the file at a time."""

    def __init__(self, window: Window, start: int, max_index_bytes: int | None) -> None:
        self._window = window
        self._position = start
        self._limit_bytes = max_index_bytes
        self._chunk_start = 0
        self._chunk = window.known(0, window.size_bytes)

    def __iter__(self) -> Iterator[Box]:
        for _ in range(MAX_FRAGMENTS):
            if self._position + 8 > self._window.size_bytes:
                return
            header = self._get(self._position, self._position + 16)
            box = parse_header(header, self._position, self._window.size_bytes)
            if box is None:
                return
            yield box
            self._position = box.stop

    def body(self, box: Box) -> bytes:
        """The whole box."""
        if box.stop - box.start > MAX_MOOF_BYTES:
            raise MediaError(
                f"{self._window.reader.name!r}: a moof of {box.stop - box.start} bytes at"
                f" {box.start} is more than the {MAX_MOOF_BYTES} that are parsed",
                reason=MediaReason.DAMAGED,
            )
        return self._get(box.start, box.stop)

    def _get(self, start: int, stop: int) -> bytes:
        stop = min(stop, self._window.size_bytes)
        known_until = self._chunk_start + len(self._chunk)
        if not (self._chunk_start <= start and stop <= known_until):
            near = self._chunk_start <= start <= known_until + STRIDE_BYTES
            fetch_from = known_until if near and start >= known_until else start
            ahead = STRIDE_BYTES if near else HOP_BYTES
            self._fetch(fetch_from, min(self._window.size_bytes, stop + ahead))
        return self._chunk[start - self._chunk_start : stop - self._chunk_start]

    def _fetch(self, start: int, stop: int) -> None:
        reader = self._window.reader
        check_budget(window=self._window, more_bytes=stop - start, limit_bytes=self._limit_bytes)
        self._chunk = reader.read(start, stop)
        self._chunk_start = start


def _by_units(window: Window, layout: Layout) -> list[VideoIndex]:
    """Indexes without packet tables; empty where the file has no table that can be trusted."""
    video = _video_ids(layout)
    units = _sidx_units(window, layout) or _mfra_units(window, video)
    if not video or not video <= units.keys():
        return []
    found = []
    for ordinal, header in enumerate(track_headers(layout.moov_bytes)):
        if header.track_id not in video:
            continue
        index = _unit_index(window, layout, units[header.track_id], ordinal)
        if index is None:
            return []
        found.append(index)
    cost = IndexCost(window.reader.bytes_read, window.reader.runs, False)
    return [replace(index, cost=cost) for index in found]


def _unit_index(
    window: Window, layout: Layout, units: Units, stream_index: int
) -> VideoIndex | None:
    """One track's index, its times tied to those of the first (and last) unit's packets."""
    name = window.reader.name
    spans = _moofs_between(window, int(units.start[0]), int(units.stop[0]))
    if not spans or not _is_placeable(spans, _video_ids(layout)):
        return None
    if units.end_time is None and len(units.start) > 1:
        last = _moofs_between(window, int(units.start[-1]), int(units.stop[-1]))
        if not last:
            return None
        spans += last
    tracks = list_packets(name, window.size_bytes, layout.moov_bytes, header_spans(layout) + spans)
    track = next((t for t in tracks if t.facts.track_id == stream_index), None)
    if track is None or not track.rows:
        return None
    return _tied_index(window, layout, units, track)


def _tied_index(
    window: Window, layout: Layout, units: Units, track: TrackRows
) -> VideoIndex | None:
    name = window.reader.name
    first = [row for row in track.rows if row.offset < units.stop[0]]
    if not first or not first[0].flags & PacketFlag.KEY:
        return None
    table = make_table(first, name, window.size_bytes)
    key = first[0]
    pieces = keyframe_pieces(window.get, [(key.offset, key.size)])
    facts = with_decoded(track.facts, pieces, name)
    timing = timing_of(table, facts.time_base, facts.nominal_rate)
    ticks_a_unit = 1 / (facts.time_base * units.timescale) if units.timescale else Fraction(1)
    shift = key.pts - round(int(units.time[0]) * ticks_a_unit)
    key_pts = np.array([round(int(t) * ticks_a_unit) + shift for t in units.time], np.int64)
    if np.any(np.diff(key_pts) <= 0):
        return None
    if units.end_time is not None:
        end_pts = round(units.end_time * ticks_a_unit) + shift
    else:
        whole = timing_of(make_table(track.rows, name, window.size_bytes), facts.time_base, None)
        end_pts = whole.end_pts
    timing = Timing(
        start_pts=timing.start_pts,
        end_pts=max(end_pts, timing.end_pts),
        frame_count=0,
        rate=timing.rate,
        vfr=False,
        reorder_depth=max(timing.reorder_depth, facts.reorder_depth),
    )
    unknown = np.full(len(key_pts), -1, np.int64)
    return VideoIndex(
        track=facts.track(timing, None, None),
        access=Access.SEGMENTS,
        gops=GopTable(units.start, units.stop - units.start, key_pts, unknown, unknown),
        packets=None,
        header=layout.ftyp + layout.moov_bytes,
        size_bytes=window.size_bytes,
        cost=IndexCost(0, 0, False),
    )


def _is_placeable(spans: Sequence[Span], video: frozenset[int]) -> bool:
    """Whether fragments tell their own time (tfdt) and hold clear samples."""
    for _, moof in spans:
        if _moof_encrypted(moof, video):
            return False
        for traf in find_all(moof, (b"traf",), 8, len(moof)):
            if not any(True for _ in find_all(moof, (b"tfdt",), traf.body, traf.stop)):
                return False
    return True


def _moofs_between(window: Window, start: int, stop: int) -> list[Span]:
    """The moofs of one unit, in a few reads; empty where there are too many."""
    result: list[Span] = []
    position = start
    for _ in range(_LAST_UNIT_HOPS * 4):
        if position + 8 > stop:
            return result
        header = window.get(position, position + 16, ahead_bytes=HOP_BYTES)
        box = parse_header(header, position, window.size_bytes)
        if box is None or box.stop > window.size_bytes:
            return []
        if box.kind == b"moof":
            if box.stop - box.start > MAX_MOOF_BYTES:
                return []
            result.append((box.start, window.get(box.start, box.stop)))
        position = box.stop
    return []


def _sidx_units(window: Window, layout: Layout) -> Mapping[int, Units]:
    """Track id -> units, from the segment indexes between moov and the first moof."""
    result: dict[int, Units] = {}
    position = layout.moov.stop
    for _ in range(64):
        header = window.get(position, position + 16, ahead_bytes=HOP_BYTES)
        box = parse_header(header, position, window.size_bytes)
        if box is None or box.kind == b"moof" or box.stop > window.size_bytes:
            break
        if box.kind == b"sidx" and box.stop - box.start <= MAX_MFRA_BYTES:
            data = window.get(box.body, box.stop)
            parsed = parse_sidx(data, box.stop)
            if parsed is not None and _covers_file(window, int(parsed[1].stop[-1])):
                result.setdefault(*parsed)
        position = box.stop
    return result


def _covers_file(window: Window, stop: int) -> bool:
    """Whether only a random access table, or nothing, follows the last segment."""
    if stop >= window.size_bytes:
        return stop == window.size_bytes
    box = parse_header(window.get(stop, stop + 16), stop, window.size_bytes)
    return box is not None and box.kind in (b"mfra", b"free") and box.stop == window.size_bytes


def parse_sidx(data: bytes, anchor: int) -> tuple[int, Units] | None:
    """(track id, units) of a segment index box (ISO/IEC 14496-12 8.16.3), or None.

    Args:
        data: the box behind its header.
        anchor: where the box ends in the file.
    """
    if len(data) < 24:
        return None
    wide = data[0] == 1
    layout = ">IIQQHH" if wide else ">IIIIHH"
    if len(data) < 4 + struct.calcsize(layout):
        return None
    track_id, timescale, time, first_offset, _, count = struct.unpack_from(layout, data, 4)
    entries_at = 4 + struct.calcsize(layout)
    if not count or timescale == 0 or len(data) < entries_at + 12 * count:
        return None
    entries = np.frombuffer(data, ">u4", 3 * count, entries_at).reshape(count, 3).astype(np.int64)
    size, kind = entries[:, 0] & 0x7FFFFFFF, entries[:, 0] >> 31
    duration, sap = entries[:, 1], entries[:, 2]
    if kind.any() or not size.all() or not sap[0] >> 31:
        return None  # an index of indexes, or segments that start anywhere
    bounds = anchor + first_offset + np.concatenate([[0], np.cumsum(size)])
    times = time + np.concatenate([[0], np.cumsum(duration)])
    keep = np.flatnonzero(sap >> 31)
    delta = np.where((sap >> 28 & 7) > 0, sap & 0xFFFFFFF, 0)
    starts = bounds[keep]
    stops = np.concatenate([starts[1:], bounds[-1:]])
    key_times = (times[:-1] + delta)[keep]
    return track_id, Units(starts, stops, key_times, timescale, int(times[-1]))


def _mfra_units(window: Window, video: frozenset[int]) -> Mapping[int, Units]:
    """Track id -> units, from the movie fragment random access box at the end of the file."""
    size = window.size_bytes
    tail = window.get(max(0, size - HOP_BYTES), size)
    if len(tail) < 16 or tail[-12:-8] != b"mfro":
        return {}
    mfra_bytes = int.from_bytes(tail[-4:], "big")
    if not 16 <= mfra_bytes <= min(size, MAX_MFRA_BYTES):
        return {}
    start = size - mfra_bytes
    data = window.get(start, size)
    box = parse_header(data[:16], 0, len(data))
    if box is None or box.kind != b"mfra" or box.stop != len(data):
        return {}
    result: dict[int, Units] = {}
    for tfra in children(data, box.body, box.stop):
        if tfra.kind != b"tfra":
            continue
        parsed = parse_tfra(data[tfra.body : tfra.stop], start)
        if parsed is not None and parsed[0] in video:
            result.setdefault(*parsed)
    return result


def parse_tfra(data: bytes, media_stop: int) -> tuple[int, Units] | None:
    """(track id, units) of a track fragment random access box (8.8.10), or None."""
    if len(data) < 16:
        return None
    wide = data[0] == 1
    track_id, lengths, count = struct.unpack_from(">III", data, 4)
    tail = (lengths >> 4 & 3) + (lengths >> 2 & 3) + (lengths & 3) + 3
    step = (16 if wide else 8) + tail
    if not count or len(data) < 16 + step * count:
        return None
    raw = np.frombuffer(data, np.uint8, step * count, 16).reshape(count, step)
    word = 8 if wide else 4
    time = raw[:, :word].copy().view(f">u{word}")[:, 0].astype(np.int64)
    offset = raw[:, word : 2 * word].copy().view(f">u{word}")[:, 0].astype(np.int64)
    starts, first = np.unique(offset, return_index=True)
    if starts[-1] >= media_stop or starts[0] < 0:
        return None
    stops = np.concatenate([starts[1:], [media_stop]])
    return track_id, Units(starts, stops, time[first], None, None)
