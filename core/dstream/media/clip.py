"""From the frames that are wanted to the bytes that must be read: values in, values out.

With a packet table a plan is exact before anything is read. Where the container's own index
names only keyframes, the plan covers the wanted time, and the frames are chosen from the packets
that the bytes turn out to hold; :class:`NeedMoreData` then names the wider plan if they do not
decide it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dstream.errors import DstreamError, MediaError, MediaReason
from dstream.format.index import Access, GopTable, PacketTable, VideoIndex, VideoTrack
from dstream.media.frames import (
    ClipRequest,
    FramesMissingError,
    KnownFrames,
    choose_frames,
    display_order,
    instants,
    round_tick,
    shown_pts,
    within,
)

__all__ = [
    "ClipPlan", "ClipRequest", "Extent", "NeedMoreData", "Packets",
    "coalesce", "feed_range", "gop_extent", "join_plans", "need_earlier", "plan_clip",
    "resolve_targets", "widen",
]  # fmt: skip

MAX_BACKED_UP = 2
"""GOPs that a clip may start early before a missing frame counts as undecodable."""

_NO_LEADING_PICTURES = frozenset(
    {
        "vp8", "vp9", "av1", "libdav1d", "mjpeg", "prores", "ffv1", "dnxhd", "h263", "flv1",
        "huffyuv", "ffvhuff", "utvideo", "magicyuv", "rawvideo", "png", "jpeg2000", "dvvideo",
        "theora", "cinepak", "svq1", "qtrle", "rpza", "v210", "hap",
    }
)  # fmt: skip
"""Codecs whose frames after a keyframe in decode order are never shown before it."""


@dataclass(frozen=True, slots=True)
class Extent:
    """One whole GOP's bytes: the unit of reading, caching and checking."""

    gop: int
    """Position in the GOP table."""
    offset_bytes: int
    size_bytes: int
    checksum: int | None
    """xxh3_64 of the bytes, or None where it was never computed."""


@dataclass(frozen=True, slots=True, eq=False)
class ClipPlan:
    """The GOPs to read for one clip."""

    request: ClipRequest
    first_gop: int
    """GOPs ``[first_gop, stop_gop)`` are read, one extent each."""
    stop_gop: int
    extents: tuple[Extent, ...]
    target_pts: NDArray[np.int64] | None
    """int64 [frames] pts of the clip's frames; None when only the packets will tell."""
    payload_bytes: int
    """Bytes of the packets that the decoder needs; -1 where unknown."""
    frame_index: NDArray[np.int64] | None = None
    """int64 [frames] positions in the file's display order; None without a packet table."""
    backed_up: int = 0
    """How many GOPs earlier than usual decoding starts."""


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """What planning needs of consecutive packets in decode order; arrays of equal length."""

    pts: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    is_discard: NDArray[np.bool_]


class NeedMoreData(DstreamError):
    """The bytes at hand do not suffice; read those of ``plan`` and decode again.

    Fact ``side`` is ``next-gop`` or ``earlier-gop``.
    """

    @property
    def plan(self) -> ClipPlan:
        """The wider plan."""
        plan = self.facts["plan"]
        if not isinstance(plan, ClipPlan):
            raise TypeError(f"fact 'plan' is a {type(plan).__name__}, not a ClipPlan")
        return plan


def plan_clip(index: VideoIndex, request: ClipRequest) -> ClipPlan:
    """The GOPs to read for ``request``.

    Raises:
        InvalidInputError: when the sample is too short for the clip. Without a packet table
            this may come only from decoding.
        MediaError: when the index holds no GOP, or contradicts itself.
    """
    if not len(index.gops):
        raise MediaError(
            "the video's index holds no keyframe, so nothing of it can be decoded",
            reason=MediaReason.NO_FRAMES,
        )
    if index.packets is None:
        return _plan_by_time(index, request)
    order = display_order(index.packets)
    shown = within(order.pts, request.start_pts, request.end_pts)
    known = KnownFrames(shown, True, request.end_pts - 1)
    targets = choose_frames(request, index.track.time_base, known)
    return _plan_by_table(index, index.packets, request, targets, backed_up=0)


def join_plans(index: VideoIndex, plans: Sequence[ClipPlan]) -> ClipPlan:
    """One plan that reads what several clips of one track need, all GOPs between them included.

    Its request is the first one's; each clip's own plan still says which frames are its.
    """
    first, stop = min(p.first_gop for p in plans), max(p.stop_gop for p in plans)
    targets = [plan.target_pts for plan in plans if plan.target_pts is not None]
    if index.packets is None or len(targets) < len(plans):
        return _plan_gops(index, plans[0].request, first, stop)
    wanted = np.unique(np.concatenate(targets))
    return _plan_by_table(index, index.packets, plans[0].request, wanted, backed_up=0)


def resolve_targets(index: VideoIndex, plan: ClipPlan, packets: Packets) -> NDArray[np.int64]:
    """The clip's frames, chosen from the packets of the plan's GOPs.

    The result is proven to be what a full packet table would give: H.264, HEVC and MPEG frames
    shown just before a keyframe may be stored after it, so frames between the last known one and
    the next GOP's keyframe are ruled out by the codec, by a gap of at most 1.5 frame intervals,
    or by reading on.

    Raises:
        NeedMoreData: when a neighbouring GOP is needed to decide.
        InvalidInputError: when the sample is too short for the clip.
    """
    if plan.target_pts is not None:
        return plan.target_pts
    known = _known_frames(index, plan, packets)
    try:
        return choose_frames(plan.request, index.track.time_base, known)
    except FramesMissingError as missing:
        earlier = bool(missing.facts["earlier"])
        per_gop = max(1, len(packets.pts) // (plan.stop_gop - plan.first_gop))
        gops = -(-int(str(missing.facts["frames"])) // per_gop)
        raise _need_more(index, plan, earlier=earlier, gops=gops) from missing


def feed_range(
    index: VideoIndex, plan: ClipPlan, packets: Packets, targets: NDArray[np.int64]
) -> tuple[int, int]:
    """Which of the plan's packets the decoder needs, as a half-open range of positions.

    Raises:
        NeedMoreData: when decoding has to start before the plan's first GOP.
        MediaError: when a target has no packet.
    """
    is_wanted = np.isin(packets.pts, targets) & ~packets.is_discard
    wanted = np.flatnonzero(is_wanted)
    absent = ~np.isin(targets, packets.pts[is_wanted])
    if absent.any():
        raise MediaError(
            f"the packets of GOPs {plan.first_gop} to {plan.stop_gop - 1} lack the frame with "
            f"pts {int(targets[absent][0])} that the index promises; index the file again",
            reason=MediaReason.DAMAGED,
            pts=int(targets[absent][0]),
        )
    keys = np.flatnonzero(packets.is_key)
    usable = (keys <= wanted[0]) & (packets.pts[keys] <= targets.min())
    position = int(np.flatnonzero(usable)[-1]) if usable.any() else -1
    position -= plan.backed_up
    if position < 0 and plan.first_gop > 0:
        raise _need_more(index, plan, earlier=True, gops=1)
    start = int(keys[max(position, 0)]) if len(keys) else 0
    return min(start, int(wanted[0])), int(wanted[-1]) + 1


def widen(index: VideoIndex, plan: ClipPlan) -> ClipPlan | None:
    """The plan that starts one GOP earlier to find missing frames, or None after enough tries."""
    if plan.first_gop == 0 or plan.backed_up >= MAX_BACKED_UP:
        return None
    backed_up = plan.backed_up + 1
    if index.packets is not None and plan.target_pts is not None:
        return _plan_by_table(index, index.packets, plan.request, plan.target_pts, backed_up)
    return replace(
        _plan_gops(index, plan.request, plan.first_gop - 1, plan.stop_gop), backed_up=backed_up
    )


def need_earlier(wider: ClipPlan) -> NeedMoreData:
    """The error that asks for ``wider``, a plan by :func:`widen`."""
    return NeedMoreData(
        "frames of the clip need the GOP before to be decoded", plan=wider, side="earlier-gop"
    )


def coalesce(extents: Iterable[Extent], max_gap_bytes: int = 0) -> list[tuple[int, int]]:
    """Byte ranges ``[start, stop)`` that cover the extents, ascending and apart.

    Args:
        extents: in any order; they may overlap.
        max_gap_bytes: ranges at most this far apart become one.
    """
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((e.offset_bytes, e.offset_bytes + e.size_bytes) for e in extents):
        if merged and start - merged[-1][1] <= max_gap_bytes:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _plan_by_table(
    index: VideoIndex,
    packets: PacketTable,
    request: ClipRequest,
    targets: NDArray[np.int64],
    backed_up: int,
) -> ClipPlan:
    """Start at the last keyframe stored and shown no later than all targets.

    The second condition is for open GOPs: frames shown before a keyframe but stored after it
    need the GOP before.
    """
    gops, order = index.gops, display_order(packets)
    numbers = np.searchsorted(order.pts, targets).astype(np.int64)
    low = int(order.first_packet[numbers].min())
    high = int(order.last_packet[numbers].max())
    first = int(np.searchsorted(gops.first_packet, low, side="right")) - 1
    while first > 0 and gops.key_pts[first] > targets[0]:
        first -= 1
    first = max(first - backed_up, 0)
    last = int(np.searchsorted(gops.first_packet, high, side="right")) - 1
    plan = _plan_gops(index, request, first, max(last, first) + 1)
    needed = packets.size_bytes[max(int(gops.first_packet[first]), 0) : high + 1]
    return replace(
        plan,
        target_pts=targets,
        frame_index=numbers,
        payload_bytes=int(needed.sum()),
        backed_up=backed_up,
    )


def _plan_by_time(index: VideoIndex, request: ClipRequest) -> ClipPlan:
    keys = index.gops.key_pts
    if index.access is not Access.SEGMENTS:
        raise MediaError(
            f"an index with {index.access} access must have a packet table; index the file again",
            reason=MediaReason.DAMAGED,
        )
    if np.any(keys[1:] <= keys[:-1]):
        raise MediaError(
            "the keyframes' times do not rise, so no clip can be found by time; index the file "
            "with its packets",
            reason=MediaReason.TIMESTAMPS,
        )
    low, high = _wanted_span(index.track, request)
    first = max(int(np.searchsorted(keys, low, side="right")) - 1, 0)
    stop = max(int(np.searchsorted(keys, high, side="right")), first + 1)
    return _plan_gops(index, request, first, stop)


def _wanted_span(track: VideoTrack, request: ClipRequest) -> tuple[int, int]:
    """First and last tick that the clip's frames probably need; exact with ``fps``."""
    if request.fps is not None:
        limits = instants(request, track.time_base)
        return limits[0], limits[-1]
    interval = 1 / (track.rate * track.time_base) if track.rate > 0 else Fraction(1)
    latest = request.end_pts - request.span_frames * interval
    start = max(min(request.start_tick(track.time_base), latest), Fraction(request.start_pts))
    # Half a frame more, so that a rounded last pts does not cost a second request.
    last = start + (request.span_frames - 1) * interval + interval / 2
    return round_tick(start), min(round_tick(last), request.end_pts - 1)


def _plan_gops(index: VideoIndex, request: ClipRequest, first: int, stop: int) -> ClipPlan:
    gops = index.gops
    payload = gops.payload_bytes[first:stop]
    return ClipPlan(
        request,
        first,
        stop,
        tuple(gop_extent(gops, gop) for gop in range(first, stop)),
        target_pts=None,
        payload_bytes=-1 if (payload < 0).any() else int(payload.sum()),
    )


def gop_extent(gops: GopTable, gop: int) -> Extent:
    """The bytes of one GOP of a table."""
    checksum = None if gops.checksum is None else int(gops.checksum[gop])
    return Extent(gop, int(gops.offset_bytes[gop]), int(gops.size_bytes[gop]), checksum)


def _known_frames(index: VideoIndex, plan: ClipPlan, packets: Packets) -> KnownFrames:
    request, keys = plan.request, index.gops.key_pts
    shown = shown_pts(packets.pts, packets.is_discard)
    first_key = int(keys[plan.first_gop])
    if plan.first_gop > 0:
        # Leading pictures of the first GOP: their neighbours in the GOP before are not at hand.
        shown = shown[np.searchsorted(shown, first_key) :]
    sure_until = request.end_pts - 1
    if plan.stop_gop < len(index.gops):
        next_key = int(keys[plan.stop_gop])
        last = int(packets.pts.max()) if len(packets.pts) else first_key
        sure = max(next_key - 1, last) if _is_closed(index.track, shown, last, next_key) else last
        sure_until = min(sure, sure_until)
    return KnownFrames(
        within(shown, request.start_pts, request.end_pts),
        plan.first_gop == 0 or first_key <= request.start_pts,
        sure_until,
    )


def _is_closed(track: VideoTrack, shown: NDArray[np.int64], last: int, next_key: int) -> bool:
    """True when no frame can lie between the last known one and the next GOP's keyframe."""
    if track.codec in _NO_LEADING_PICTURES:
        return True
    return len(shown) > 1 and 2 * (next_key - last) <= 3 * int(np.diff(shown).min())


def _need_more(index: VideoIndex, plan: ClipPlan, *, earlier: bool, gops: int) -> NeedMoreData:
    first = max(plan.first_gop - gops, 0) if earlier else plan.first_gop
    stop = plan.stop_gop if earlier else min(plan.stop_gop + gops, len(index.gops))
    if (first, stop) == (plan.first_gop, plan.stop_gop):
        raise MediaError(
            "the video's index promises frames that its packets do not hold; index it again",
            reason=MediaReason.DAMAGED,
            first_gop=plan.first_gop,
            stop_gop=plan.stop_gop,
        )
    wider = replace(_plan_gops(index, plan.request, first, stop), backed_up=plan.backed_up)
    side = "earlier-gop" if earlier else "next-gop"
    return NeedMoreData(f"the clip needs the {side.replace('-', ' ')} too", plan=wider, side=side)
