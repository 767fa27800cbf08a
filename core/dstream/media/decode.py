"""From the bytes of a plan's GOPs to the frames of a clip, exactly those that were asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from dstream.clock import Clock, SystemClock
from dstream.errors import CorruptDataError, InvalidInputError, MediaError, MediaReason
from dstream.format.index import Access, PacketFlag, VideoIndex, VideoTrack
from dstream.measure.counters import Meter
from dstream.media.arrays import copy_rows
from dstream.media.clip import (
    ClipPlan,
    NeedMoreData,
    Packets,
    feed_range,
    need_earlier,
    resolve_targets,
    widen,
)
from dstream.media.codec import CodedPacket, DecodeTally
from dstream.media.decoders.contract import Outcome, Place, Run
from dstream.media.decoders.selection import DecoderChoice, Decoders
from dstream.media.demux import demux_segments
from dstream.media.h264 import is_gradual
from dstream.media.pixels import PixelSettings, output_dtype, output_shape
from dstream.media.row_form import ARRAY_CODEC
from dstream.media.vpx import is_hidden

Bytes = bytes | memoryview


@dataclass(frozen=True, slots=True, eq=False)
class DecodedClip:
    """The frames of one clip."""

    video: NDArray[np.generic]
    """[T, C, H, W], uint8 or uint16, or an array's rows [T, ...]; the caller's ``out`` where one
    was given. What was decoded on a device is a tensor there, and ``out`` is left alone."""
    pts: NDArray[np.int64]
    """[T] in the track's ticks."""
    pts_s: NDArray[np.float64]
    """[T] seconds from the track's first frame."""
    frame_index: NDArray[np.int64] | None
    """[T] positions in the file's display order; None without a packet table."""
    frames_decoded: int
    """Frames that the decoder put out in its run, pre-roll and other clips included."""
    frames_skipped: int
    """Packets of that run that gave no frame: unreferenced and not wanted, or never shown."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """One clip of those that are decoded together."""

    plan: ClipPlan
    """Of this clip alone: it says which frames are wanted."""
    out: NDArray[np.generic] | None = None
    """Array [T, C, H, W] to fill; None for a new one."""
    crop_at: tuple[float, float] | None = None
    """Where a random crop lies, see :meth:`FrameConverter.write`."""


class ClipDecoder:
    """Decodes clips of any tracks, one after the other. One per thread."""

    def __init__(
        self,
        pixels: PixelSettings,
        meter: Meter,
        *,
        clock: Clock | None = None,
        choice: DecoderChoice | None = None,
    ) -> None:
        self._pixels = pixels
        self._meter = meter
        self._clock = clock or SystemClock()
        self._decoders = Decoders(pixels, meter, self._clock, choice)
        self.convert_s = 0.0
        """Time spent converting frames since it was last set to 0."""

    def decode(
        self,
        index: VideoIndex,
        plan: ClipPlan,
        data: Sequence[Bytes],
        out: NDArray[np.generic] | None = None,
        *,
        crop_at: tuple[float, float] | None = None,
    ) -> DecodedClip:
        """The clip's frames.

        Args:
            index: of the track that ``plan`` was made for.
            plan: by ``plan_clip``, or from a :class:`NeedMoreData`.
            data: ``data[i]`` are the bytes of ``plan.extents[i]``.
            out: array [T, C, H, W] to fill; a new one is made without.
            crop_at: where a random crop lies, see :meth:`FrameConverter.write`.

        Raises:
            NeedMoreData: a neighbouring GOP is needed: read ``error.plan`` and decode that.
            CorruptDataError: bytes that contradict their length or checksum.
            MediaError: frames that cannot be decoded.
            InvalidInputError: the sample is too short for the clip, or ``out`` has a wrong shape.
        """
        return self.decode_many(index, plan, data, [Wanted(plan, out, crop_at)])[0]

    def decode_many(
        self, index: VideoIndex, plan: ClipPlan, data: Sequence[Bytes], clips: Sequence[Wanted]
    ) -> list[DecodedClip]:
        """Several clips of one track from one run of the decoder.

        Args:
            index: of the track.
            plan: covers all of ``clips``, see :func:`join_plans`.
            data: ``data[i]`` are the bytes of ``plan.extents[i]``.
            clips: one or more.

        Raises:
            As :meth:`decode`, for all of them together.
        """
        self._check(plan, data)
        if index.track.codec == ARRAY_CODEC:
            return [self._rows(index, plan, data, clip) for clip in clips]
        packets, arrays = packets_of(index, plan, data)
        try:
            targets = [
                resolve_targets(
                    index,
                    replace(plan, request=clip.plan.request, target_pts=clip.plan.target_pts),
                    arrays,
                )
                for clip in clips
            ]
            everything = targets[0] if len(targets) == 1 else np.unique(np.concatenate(targets))
            start, stop = feed_range(index, plan, arrays, everything)
            if index.track.codec == "h264" and is_gradual(
                packets[start].data, index.track.extradata
            ):
                wider = widen(index, plan)
                if wider is not None:
                    raise need_earlier(wider)
            return self._decode(index, plan, packets[start:stop], clips, targets)
        except NeedMoreData as need:
            self._meter.event("fallback", str(need.facts["side"]))
            raise

    def lose(self, thread: threading.Thread) -> None:
        """``thread`` hangs in here, and this decoder with it; see :meth:`Decoders.lose`."""
        self._decoders.lose(thread)

    def _check(self, plan: ClipPlan, data: Sequence[Bytes]) -> None:
        if len(data) != len(plan.extents):
            raise InvalidInputError(f"got {len(data)} byte strings for {len(plan.extents)} GOPs")
        for extent, got in zip(plan.extents, data, strict=True):
            if len(got) != extent.size_bytes:
                raise CorruptDataError(
                    f"GOP {extent.gop}: got {len(got)} bytes, expected {extent.size_bytes}",
                    gop=extent.gop,
                    size_bytes=len(got),
                )
            if extent.checksum is None:
                self._meter.add("bytes.unverified", len(got))
            elif xxhash.xxh3_64_intdigest(got) != extent.checksum:
                raise CorruptDataError(
                    f"GOP {extent.gop} (bytes {extent.offset_bytes} to "
                    f"{extent.offset_bytes + extent.size_bytes} of the video) does not match its "
                    "checksum: the stored bytes changed or rotted; verify the file",
                    gop=extent.gop,
                    offset_bytes=extent.offset_bytes,
                )

    def _decode(
        self,
        index: VideoIndex,
        plan: ClipPlan,
        packets: Sequence[CodedPacket],
        clips: Sequence[Wanted],
        targets: Sequence[NDArray[np.int64]],
    ) -> list[DecodedClip]:
        videos = [
            self._output(index, len(pts), clip.out)
            for clip, pts in zip(clips, targets, strict=True)
        ]
        places: dict[int, list[Place]] = {}
        for clip, video, wanted in zip(clips, videos, targets, strict=True):
            for frame, pts in zip(video, wanted.tolist(), strict=True):
                places.setdefault(pts, []).append((frame, clip.crop_at))
        outcome = self._run(Run(index.track, packets, places))
        if outcome.tally.skipped and outcome.tally.is_damaged:
            # What a decoder invents for lost data depends on all the frames that it saw.
            self._meter.event("fallback", "decode-all")
            outcome = self._run(Run(index.track, packets, places), skip=False)
        tally = outcome.tally
        if outcome.missing:
            raise self._lacking(index, plan, tally, outcome.missing)
        if outcome.elsewhere is not None:
            videos = outcome.elsewhere.clips([wanted.tolist() for wanted in targets])
        self._meter.add("frames.delivered", sum(map(len, targets)))
        return [
            _clip_of(index.track, video, pts, clip, tally.frames, tally.without_frame)
            for clip, video, pts in zip(clips, videos, targets, strict=True)
        ]

    def _rows(
        self, index: VideoIndex, plan: ClipPlan, data: Sequence[Bytes], clip: Wanted
    ) -> DecodedClip:
        """A clip of an array, whose bytes are its values."""
        pts, started_s = clip.plan.target_pts, self._clock.monotonic_s()
        if pts is None:
            raise MediaError("an array lacks its table of rows", reason=MediaReason.DAMAGED)
        video = self._output(index, len(pts), clip.out)
        copy_rows(index, plan.extents, data, pts, video)
        self._meter.add("seconds.decode", self._clock.monotonic_s() - started_s)
        self._meter.add("frames.decoded", len(pts))
        self._meter.add("frames.delivered", len(pts))
        return _clip_of(index.track, video, pts, clip, len(pts), 0)

    def _run(self, run: Run, *, skip: bool = True) -> Outcome:
        started_s = self._clock.monotonic_s()
        outcome = self._decoders.decode(run, skip=skip)
        self._count(outcome, self._clock.monotonic_s() - started_s)
        return outcome

    def _output(
        self, index: VideoIndex, frames: int, out: NDArray[np.generic] | None
    ) -> NDArray[np.generic]:
        shape = (frames, *output_shape(index.track, self._pixels))
        dtype = output_dtype(index.track, self._pixels)
        if out is None:
            return np.empty(shape, dtype)
        if out.shape != shape or out.dtype != dtype:
            raise InvalidInputError(
                f"the output array is {out.dtype} {out.shape}, the clip needs {dtype} {shape}",
                got=out.shape,
                expected=shape,
            )
        return out

    def _count(self, outcome: Outcome, wall_s: float) -> None:
        tally = outcome.tally
        self._meter.add("seconds.decode", wall_s - outcome.convert_s)
        self._meter.add("seconds.convert", outcome.convert_s)
        self.convert_s += outcome.convert_s
        self._meter.add("frames.decoded", tally.frames)
        self._meter.add("frames.skipped", tally.without_frame)
        if tally.invalid_packets:
            self._meter.event("decode", "invalid-packet", tally.invalid_packets)
        if tally.corrupt_frames:
            self._meter.event("decode", "corrupt-frame", tally.corrupt_frames)

    def _lacking(
        self, index: VideoIndex, plan: ClipPlan, tally: DecodeTally, missing: set[int]
    ) -> Exception:
        """A wider plan where that may help (video without clean keyframes), else the end."""
        wider = widen(index, plan)
        if wider is not None:
            return need_earlier(wider)
        pts = min(missing)
        return MediaError(
            f"{len(missing)} of the clip's frames do not come out of the {index.track.codec} "
            f"decoder, the first at pts {pts}; it rejected {tally.invalid_packets} of "
            f"{tally.packets} packets from GOP {plan.first_gop} on",
            reason=MediaReason.DAMAGED if tally.invalid_packets else MediaReason.UNDECODABLE,
            pts=pts,
            missing=len(missing),
            invalid_packets=tally.invalid_packets,
        )


def _clip_of(
    track: VideoTrack,
    video: NDArray[np.generic],
    pts: NDArray[np.int64],
    clip: Wanted,
    frames_decoded: int,
    frames_skipped: int,
) -> DecodedClip:
    pts_s = ((pts - track.start_pts) * float(track.time_base)).astype(np.float64)
    return DecodedClip(video, pts, pts_s, clip.plan.frame_index, frames_decoded, frames_skipped)


def packets_of(
    index: VideoIndex, plan: ClipPlan, data: Sequence[Bytes]
) -> tuple[list[CodedPacket], Packets]:
    """All packets of the plan's GOPs in decode order, as data and as columns."""
    if index.access is Access.PACKETS:
        return _sliced(index, plan, data)
    found, codec = demux_segments(index, plan.first_gop, data), index.track.codec
    columns = Packets(
        np.array([p.pts for p in found], np.int64),
        np.array([p.is_key for p in found], np.bool_),
        np.array(
            [p.is_discard or is_hidden(codec, p.data[:1], p.data[-1]) for p in found], np.bool_
        ),
    )
    return [CodedPacket(p.data, p.pts, p.dts, p.is_key) for p in found], columns


def _sliced(
    index: VideoIndex, plan: ClipPlan, data: Sequence[Bytes]
) -> tuple[list[CodedPacket], Packets]:
    table, gops = index.packets, index.gops
    if table is None:
        raise MediaError(
            "an index with packet access lacks its packet table", reason=MediaReason.DAMAGED
        )
    bounds = [int(b) for b in gops.first_packet[plan.first_gop : plan.stop_gop]]
    after = int(gops.first_packet[plan.stop_gop]) if plan.stop_gop < len(gops) else len(table)
    packets: list[CodedPacket] = []
    for extent, got, first, stop in zip(
        plan.extents, data, bounds, [*bounds[1:], after], strict=True
    ):
        view = memoryview(got)
        for i in range(first, stop):
            low = int(table.offset_bytes[i]) - extent.offset_bytes
            high = low + int(table.size_bytes[i])
            if low < 0 or high > len(view):
                raise CorruptDataError(
                    f"packet {i} lies outside its GOP {extent.gop}; index the file again",
                    packet=i,
                    gop=extent.gop,
                )
            is_key = bool(table.flags[i] & PacketFlag.KEY)
            packets.append(
                CodedPacket(view[low:high], int(table.pts[i]), int(table.dts[i]), is_key)
            )
    flags = table.flags[bounds[0] : after]
    columns = Packets(
        table.pts[bounds[0] : after],
        (flags & np.uint8(PacketFlag.KEY)) != 0,
        (flags & np.uint8(PacketFlag.DISCARD)) != 0,
    )
    return packets, columns
