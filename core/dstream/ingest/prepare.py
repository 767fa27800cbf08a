"""One video: find its packets, try its first frame, ask the recipe for its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from dstream.errors import (
    CorruptDataError,
    DstreamError,
    InvalidInputError,
    MediaError,
    MediaReason,
)
from dstream.format.index import PacketFlag, PacketTable, VideoIndex
from dstream.ingest.settings import IngestSettings
from dstream.media.clip import ClipPlan, ClipRequest, NeedMoreData, plan_clip
from dstream.media.decode import ClipDecoder
from dstream.media.index import index_video
from dstream.media.reader import RandomReader
from dstream.recipe import Recipe, SampleSpec, SideFile, VideoFile, files_of

_PIECE_BYTES = 8 << 20

ReadRange = Callable[[int, int], bytes]
"""(start, stop) -> exactly those bytes of the video."""


@dataclass(frozen=True, slots=True)
class PreparedVideo:
    """What ingest stores of one video."""

    indexes: tuple[VideoIndex, ...]
    """Its tracks, the best first."""
    samples: tuple[SampleSpec, ...]


def prepare_video(
    name: str,
    reader: RandomReader,
    read_media: ReadRange,
    side: Mapping[str, SideFile],
    *,
    recipe: Recipe,
    settings: IngestSettings,
    decoder: ClipDecoder,
    checksums: bool,
) -> PreparedVideo:
    """Index a video and make its samples.

    Args:
        name: path relative to the source.
        reader: the video, for its index.
        read_media: the video, for frames and checksums.
        side: its side files by suffix.
        recipe: says what its samples are.
        settings: how.
        decoder: this thread's.
        checksums: read every GOP and record its checksum.

    Raises:
        MediaError: the video cannot be used; the reason says why.
        InvalidInputError: the recipe gave samples that cannot be stored.
    """
    files = files_of(recipe)
    if files is not None:
        indexes = files.index(reader)
    else:
        indexes = index_video(
            reader, need_packets=recipe.needs_packets, max_index_bytes=settings.max_index_bytes
        )
    if not indexes or not len(indexes[0].gops):
        raise MediaError(f"{name} has no frames", reason=MediaReason.NO_FRAMES, name=name)
    for index in indexes:
        _check_bounds(name, index, reader.size_bytes)
    if checksums:
        indexes = [with_checksums(index, read_media) for index in indexes]
    if settings.decode_check:
        check_first_frame(name, indexes[0], read_media, decoder)
    return PreparedVideo(tuple(indexes), tuple(_samples(name, indexes, side, recipe)))


def with_checksums(index: VideoIndex, read_media: ReadRange) -> VideoIndex:
    """The index with the checksum of every GOP's bytes."""
    gops = index.gops
    sums = [
        _checksum(int(start), int(start) + int(size), read_media)
        for start, size in zip(gops.offset_bytes, gops.size_bytes, strict=True)
    ]
    return replace(index, gops=replace(gops, checksum=np.array(sums, dtype=np.uint64)))


def _checksum(start: int, stop: int, read_media: ReadRange) -> int:
    state = xxhash.xxh3_64()
    for at in range(start, stop, _PIECE_BYTES):
        state.update(read_media(at, min(at + _PIECE_BYTES, stop)))
    return state.intdigest()


def check_first_frame(
    name: str, index: VideoIndex, read_media: ReadRange, decoder: ClipDecoder
) -> None:
    """Decode the first frame, from as few bytes as can be; on failure from its whole GOP.

    Raises:
        MediaError: there is no frame to be had.
    """
    track = index.track
    if track.end_pts <= track.start_pts:
        raise MediaError(f"{name} shows nothing", reason=MediaReason.NO_FRAMES, name=name)
    request = ClipRequest(
        start_s=0.0, frames=1, stride=1, start_pts=track.start_pts, end_pts=track.end_pts
    )
    plan = _plan(name, index, request)
    opening = _opening(index, plan)
    if opening is not None:
        try:
            _decode(opening, _plan(name, opening, request), read_media, decoder)
            return
        except (MediaError, NeedMoreData, InvalidInputError):
            pass  # decided by the whole GOP below
    try:
        _decode(index, plan, read_media, decoder)
    except InvalidInputError as error:
        raise MediaError(f"{name}: {error}", reason=MediaReason.NO_FRAMES, name=name) from error


def _plan(name: str, index: VideoIndex, request: ClipRequest) -> ClipPlan:
    try:
        return plan_clip(index, request)
    except InvalidInputError as error:
        raise MediaError(f"{name}: {error}", reason=MediaReason.NO_FRAMES, name=name) from error


def _decode(index: VideoIndex, plan: ClipPlan, read: ReadRange, decoder: ClipDecoder) -> None:
    while True:
        data = [read(e.offset_bytes, e.offset_bytes + e.size_bytes) for e in plan.extents]
        try:
            decoder.decode(index, plan, data)
            return
        except NeedMoreData as need:
            plan = need.plan  # each one is wider; the last failure is a MediaError


def _opening(index: VideoIndex, plan: ClipPlan) -> VideoIndex | None:
    """The index cut off after the first shown frame's packet; None where that saves nothing."""
    packets = index.packets
    if packets is None or plan.target_pts is None or plan.stop_gop != plan.first_gop + 1:
        return None
    shown = (packets.flags & PacketFlag.DISCARD) == 0
    found = np.flatnonzero(shown & (packets.pts == plan.target_pts[0]))
    first = int(index.gops.first_packet[plan.first_gop])
    if len(found) != 1 or first < 0 or int(found[0]) < first:
        return None
    stop = int(found[0]) + 1
    end = int((packets.offset_bytes[first:stop] + packets.size_bytes[first:stop]).max())
    gops = index.gops
    kept = slice(0, plan.stop_gop)
    sizes = gops.size_bytes[kept].copy()
    sizes[-1] = end - int(gops.offset_bytes[plan.first_gop])
    if not 0 < sizes[-1] < int(gops.size_bytes[plan.first_gop]):
        return None
    cut = replace(
        gops,
        offset_bytes=gops.offset_bytes[kept],
        size_bytes=sizes,
        key_pts=gops.key_pts[kept],
        first_packet=gops.first_packet[kept],
        payload_bytes=gops.payload_bytes[kept],
        checksum=None,
    )
    return replace(index, gops=cut, packets=_first(packets, stop))


def _first(packets: PacketTable, stop: int) -> PacketTable:
    return PacketTable(
        packets.offset_bytes[:stop],
        packets.size_bytes[:stop],
        packets.pts[:stop],
        packets.dts[:stop],
        packets.duration[:stop],
        packets.flags[:stop],
    )


def _check_bounds(name: str, index: VideoIndex, size_bytes: int) -> None:
    gops = index.gops
    if len(gops) and (
        int(gops.offset_bytes.min()) < 0
        or int(gops.size_bytes.min()) <= 0
        or int((gops.offset_bytes + gops.size_bytes).max()) > size_bytes
    ):
        raise MediaError(
            f"{name}: its index points outside its {size_bytes} bytes",
            reason=MediaReason.TRUNCATED,
            name=name,
        )


def _samples(
    name: str, indexes: Sequence[VideoIndex], side: Mapping[str, SideFile], recipe: Recipe
) -> Sequence[SampleSpec]:
    best = indexes[0]
    video = VideoFile(
        name=name,
        tracks=[index.track for index in indexes],
        frame_pts_s=None if best.packets is None else lambda: _frame_pts_s(best),
        side=side,
    )
    try:
        samples = recipe.samples(video)
    except DstreamError:
        raise
    except Exception as error:  # a user's code may raise anything; say whose it was
        raise InvalidInputError(
            f"recipe {recipe.name} failed on {name}: {type(error).__name__}: {error}",
            recipe=recipe.name,
            name=name,
        ) from error
    for spec in samples:
        fault = _fault(spec, indexes, side)
        if fault is not None:
            raise InvalidInputError(
                f"recipe {recipe.name} gave {name} the sample {spec.key!r:.200}: {fault}",
                recipe=recipe.name,
                name=name,
            )
    return samples


def _frame_pts_s(index: VideoIndex) -> NDArray[np.float64]:
    if index.packets is None:
        raise CorruptDataError("no packet table")
    shown = (index.packets.flags & PacketFlag.DISCARD) == 0
    pts = np.unique(index.packets.pts[shown])
    return (pts - pts[0]) * float(index.track.time_base) if len(pts) else pts.astype(np.float64)


def _fault(
    spec: SampleSpec, indexes: Sequence[VideoIndex], side: Mapping[str, SideFile]
) -> str | None:
    if not spec.key or not spec.streams:
        return "a sample needs a key and at least one stream"
    for span in spec.streams:
        if not 0 <= span.track < len(indexes):
            return f"there is no track {span.track}, only {len(indexes)}"
        track = indexes[span.track].track
        if not track.start_pts <= span.start_pts < span.end_pts <= track.end_pts:
            return (
                f"its span [{span.start_pts}, {span.end_pts}) is not inside the track's "
                f"[{track.start_pts}, {track.end_pts})"
            )
    missing = [suffix for suffix in spec.side if suffix not in side]
    return f"there are no side files {missing}" if missing else None
