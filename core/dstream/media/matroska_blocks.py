"""Frames inside Matroska clusters: SimpleBlock and BlockGroup (RFC 9559 5.1.3 and 10)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from dstream.media.ebml import (
    HEADER_BYTES,
    UNKNOWN_SIZE,
    Element,
    parse_element,
    read_uint,
    read_vint,
)
from dstream.media.matroska_tracks import CLUSTER, TOP_LEVEL

GetBytes = Callable[[int, int], bytes]
"""(start, stop) -> the file's bytes there, fewer at its end."""

_TIMESTAMP, _SIMPLE_BLOCK, _BLOCK_GROUP = 0xE7, 0xA3, 0xA0
_BLOCK, _BLOCK_DURATION, _REFERENCE = 0xA1, 0x9B, 0xFB
_IN_CLUSTER = frozenset((_TIMESTAMP, _SIMPLE_BLOCK, _BLOCK_GROUP, 0xA7, 0xAB, 0x5854, 0xEC, 0xBF))
_RESYNC_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 1 << 30
_BLOCK_HEAD_BYTES = 12
"""Longest start of a block without lacing: track number, timestamp, flags."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a block; places in the file, times in ticks."""

    track: int
    cluster: int
    """Where its cluster starts."""
    offset: int
    size: int
    pts: int
    duration: int
    """0 where the block does not say."""
    is_key: bool
    lace: int
    """Which of the block's frames it is; only the first has a time of its own."""


def iter_frames(get: GetBytes, start: int, stop: int, tracks: frozenset[int]) -> Iterator[Frame]:
    """Frames of some tracks (by number), from the segment-level element at ``start`` on.

    Damaged parts are skipped up to the next cluster; what is cut off at ``stop`` is left out.
    """
    position = start
    while position < stop:
        element = parse_element(get(position, min(stop, position + HEADER_BYTES)), 0, position)
        if element is None or element.kind not in TOP_LEVEL | {0xEC, 0xBF}:
            position = _next_cluster(get, position + 1, stop)
            continue
        if element.kind != CLUSTER:
            if element.size == UNKNOWN_SIZE:
                position = _next_cluster(get, element.body, stop)
            else:
                position = element.stop
            continue
        cluster_stop = stop if element.size == UNKNOWN_SIZE else min(stop, element.stop)
        position = yield from _cluster_frames(get, element, cluster_stop, tracks)


def _next_cluster(get: GetBytes, start: int, stop: int) -> int:
    marker = CLUSTER.to_bytes(4, "big")
    position = start
    while position < stop:
        found = get(position, min(stop, position + _RESYNC_BYTES)).find(marker)
        if found >= 0:
            return position + found
        position += _RESYNC_BYTES - 3
    return stop


def _cluster_frames(
    get: GetBytes, cluster: Element, stop: int, tracks: frozenset[int]
) -> Generator[Frame, None, int]:
    """Frames of one cluster; returns where it ends (as the value of the generator)."""
    position = cluster.body
    timestamp = 0
    while position < stop:
        element = parse_element(get(position, min(stop, position + HEADER_BYTES)), 0, position)
        if element is None:
            return _next_cluster(get, position + 1, stop)
        if element.kind in TOP_LEVEL:
            return position  # an unknown-size cluster ends here
        if element.kind not in _IN_CLUSTER and cluster.size == UNKNOWN_SIZE:
            return _next_cluster(get, position + 1, stop)
        if element.size == UNKNOWN_SIZE or element.stop > stop:
            return _next_cluster(get, element.body, stop)
        if element.kind == _TIMESTAMP:
            timestamp = read_uint(get(element.body, element.stop)[:8])
        elif element.kind == _SIMPLE_BLOCK:
            yield from _block_frames(get, cluster.start, element, timestamp, tracks, None, 0)
        elif element.kind == _BLOCK_GROUP:
            yield from _group_frames(get, cluster.start, element, timestamp, tracks)
        position = element.stop
    return stop


def _group_frames(
    get: GetBytes, cluster: int, group: Element, timestamp: int, tracks: frozenset[int]
) -> Iterator[Frame]:
    block: Element | None = None
    duration, is_key = 0, True
    position = group.body
    while position < group.stop:
        element = parse_element(get(position, position + HEADER_BYTES), 0, position)
        if element is None or element.size == UNKNOWN_SIZE or element.stop > group.stop:
            break
        if element.kind == _BLOCK:
            block = element
        elif element.kind == _BLOCK_DURATION:
            duration = read_uint(get(element.body, min(element.stop, element.body + 8)))
        elif element.kind == _REFERENCE:
            is_key = False
        position = element.stop
    if block is not None:
        yield from _block_frames(get, cluster, block, timestamp, tracks, is_key, duration)


def _block_frames(
    get: GetBytes,
    cluster: int,
    block: Element,
    timestamp: int,
    tracks: frozenset[int],
    is_key: bool | None,
    duration: int,
) -> Iterator[Frame]:
    """Frames of one block; ``is_key`` None means that the block's own flag tells."""
    head = get(block.body, min(block.stop, block.body + _BLOCK_HEAD_BYTES))
    number = read_vint(head, 0)
    if number is None or number[0] not in tracks or len(head) < number[1] + 3:
        return
    flags_at = number[1] + 2
    flags = head[flags_at]
    pts = timestamp + int.from_bytes(head[number[1] : flags_at], "big", signed=True)
    if is_key is None:
        is_key = bool(flags & 0x80)
    payload = block.body + flags_at + 1
    sizes = [block.stop - payload]
    if flags & 0x06 and block.size <= _MAX_BLOCK_BYTES:
        laced = _lace_sizes(get(payload, block.stop), flags >> 1 & 3)
        if laced is None:
            return
        payload, sizes = payload + laced[0], laced[1]
    for lace, size in enumerate(sizes):
        if size:
            yield Frame(number[0], cluster, payload, size, pts, duration, is_key, lace)
        payload += size


def _lace_sizes(data: bytes, kind: int) -> tuple[int, list[int]] | None:
    """(bytes of the lacing header, sizes of the frames); None if they contradict the block."""
    if not data:
        return None
    count, at = data[0] + 1, 1
    sizes: list[int] = []
    if kind == 2:
        if (len(data) - 1) % count:
            return None
        return 1, [(len(data) - 1) // count] * count
    for i in range(count - 1):
        if kind == 1:
            size = 0
            while at < len(data):
                size += data[at]
                at += 1
                if data[at - 1] != 255:
                    break
        else:
            vint = read_vint(data, at)
            if vint is None:
                return None
            at += vint[1]
            size = vint[0] if i == 0 else sizes[-1] + vint[0] - ((1 << (7 * vint[1] - 1)) - 1)
        if size < 0:
            return None
        sizes.append(size)
    last = len(data) - at - sum(sizes)
    return (at, [*sizes, last]) if last >= 0 else None
