"""What libav says of a track, and what only decoding its first keyframe tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

import av
import av.error
from av.codec.context import ThreadType
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from dstream.errors import MediaError, MediaReason
from dstream.format.index import VideoTrack
from dstream.media.cut_units import close_cut_unit
from dstream.media.packet_rows import Timing

DECODERS = {"av1": "libdav1d"}
"""Codec name -> decoder, where libav's decoder of that name needs hardware."""
MAX_SIDE_PIXELS = 32768
ATTACHED_PICTURES = 0x400 | 0x800  # AV_DISPOSITION_ATTACHED_PIC, _TIMED_THUMBNAILS
UNKNOWN_COLOR = 2
"""AVCOL_SPC_UNSPECIFIED, and the same for primaries and transfer."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A track's facts as far as its header tells."""

    container: str
    track_id: int
    codec: str
    profile: str | None
    extradata: bytes
    width: int
    height: int
    rotation_deg: int
    mirrored: bool
    sar: Fraction
    pix_fmt: str
    color_range: int
    color_space: int
    color_primaries: int
    color_trc: int
    time_base: Fraction
    nominal_rate: Fraction | None
    reorder_depth: int
    is_default: bool

    def track(self, timing: Timing, frame_count: int | None, vfr: bool | None) -> VideoTrack:
        """The track of an index."""
        return VideoTrack(
            container=self.container,
            track_id=self.track_id,
            codec=self.codec,
            profile=self.profile,
            extradata=self.extradata,
            width=self.width,
            height=self.height,
            rotation_deg=self.rotation_deg,
            mirrored=self.mirrored,
            sar=self.sar,
            pix_fmt=self.pix_fmt,
            color_range=self.color_range,
            color_space=self.color_space,
            color_primaries=self.color_primaries,
            color_trc=self.color_trc,
            time_base=self.time_base,
            start_pts=timing.start_pts,
            end_pts=timing.end_pts,
            rate=timing.rate,
            frame_count=frame_count,
            vfr=vfr,
            reorder_depth=timing.reorder_depth,
        )


def stream_facts(
    stream: VideoStream, container: str, rotation_deg: int = 0, mirrored: bool = False
) -> StreamFacts:
    """The facts of one of libav's streams.

    Raises:
        MediaError: the codec is unknown, or the track has no time base.
    """
    context = stream.codec_context
    if context is None:
        raise MediaError(
            f"track {stream.index} has a codec that this build of libav cannot decode",
            reason=MediaReason.UNSUPPORTED_CODEC,
            track_id=stream.index,
        )
    if not stream.time_base:
        raise MediaError(f"track {stream.index} has no time base", reason=MediaReason.TIMESTAMPS)
    rate = stream.average_rate or stream.guessed_rate
    sar = stream.sample_aspect_ratio or context.sample_aspect_ratio
    return StreamFacts(
        container=container,
        track_id=stream.index,
        codec=context.codec.canonical_name,
        profile=stream.profile,
        extradata=bytes(context.extradata or b""),
        width=context.width,
        height=context.height,
        rotation_deg=rotation_deg,
        mirrored=mirrored,
        sar=Fraction(sar) if sar else Fraction(1),
        pix_fmt=context.pix_fmt or "",
        color_range=int(context.color_range),
        color_space=int(context.colorspace),
        color_primaries=int(context.color_primaries),
        color_trc=int(context.color_trc),
        time_base=stream.time_base,
        nominal_rate=Fraction(rate) if rate and rate > 0 else None,
        reorder_depth=context.reorder_depth,
        is_default=bool(int(stream.disposition) & 1),
    )


def video_streams(container: av.container.InputContainer) -> list[VideoStream]:
    """The video tracks, without cover pictures."""
    return [s for s in container.streams.video if not int(s.disposition) & ATTACHED_PICTURES]


def with_decoded(facts: StreamFacts, keyframes: Iterable[bytes], name: str) -> StreamFacts:
    """Complete the facts by decoding one keyframe; a cut one still tells its picture format.

    Args:
        facts: from the container.
        keyframes: bytes of keyframes, tried in turn until one is understood.
        name: the file, for messages.

    Raises:
        MediaError: no decoder, or none of the keyframes is understood.
    """
    decoder = DECODERS.get(facts.codec, facts.codec)
    for data in keyframes:
        learned = _decode_one(facts, decoder, data)
        if learned is not None:
            return learned
    raise MediaError(
        f"{name!r}: its {facts.codec} keyframes cannot be decoded, so not even the picture format"
        " is known",
        reason=MediaReason.UNDECODABLE,
        name=name,
        codec=facts.codec,
    )


def _decode_one(facts: StreamFacts, decoder: str, data: bytes) -> StreamFacts | None:
    try:
        context = av.CodecContext.create(decoder, "r")
    except (ValueError, av.error.FFmpegError) as error:
        raise MediaError(
            f"this build has no decoder for {facts.codec}: {error}",
            reason=MediaReason.UNSUPPORTED_CODEC,
            codec=facts.codec,
        ) from error
    if not isinstance(context, VideoCodecContext):
        return None
    frame: av.VideoFrame | None = None
    try:
        if facts.extradata:
            context.extradata = facts.extradata
        context.thread_count = 1
        context.thread_type = ThreadType.SLICE
        context.width, context.height = facts.width, facts.height
        context.color_range = facts.color_range
        context.colorspace = facts.color_space
        context.color_primaries = facts.color_primaries
        context.color_trc = facts.color_trc
        data = close_cut_unit(data, facts.codec, facts.extradata)
        packet = av.Packet(len(data))
        packet.update(data)
        packet.pts = 0
        frames = context.decode(packet) + context.decode(None)
        frame = frames[0] if frames else None
    except av.error.FFmpegError:
        frame = None  # a cut or damaged picture; its headers may have been understood
    return _learned(facts, context, frame)


def _learned(
    facts: StreamFacts, context: VideoCodecContext, frame: av.VideoFrame | None
) -> StreamFacts | None:
    pix_fmt = frame.format.name if frame is not None else context.pix_fmt
    width = frame.width if frame is not None else context.width
    height = frame.height if frame is not None else context.height
    if not pix_fmt or not (0 < width <= MAX_SIDE_PIXELS and 0 < height <= MAX_SIDE_PIXELS):
        return None
    learned = replace(
        facts,
        pix_fmt=pix_fmt,
        width=width,
        height=height,
        profile=context.profile or facts.profile,
        color_range=int(frame.color_range if frame is not None else context.color_range),
        color_space=int(frame.colorspace if frame is not None else context.colorspace),
        color_primaries=int(context.color_primaries),
        color_trc=int(context.color_trc),
        reorder_depth=max(facts.reorder_depth, context.reorder_depth),
    )
    if learned.sar == 1 and context.sample_aspect_ratio:
        learned = replace(learned, sar=Fraction(context.sample_aspect_ratio))
    if frame is not None and not facts.rotation_deg and not facts.mirrored and frame.rotation:
        # An orientation told by the bitstream itself (H.264 and HEVC have a message for it).
        learned = replace(learned, rotation_deg=-round(frame.rotation / 90) * 90 % 360)
    return learned


def refuse_new_configuration(packet: Packet[VideoStream], facts: StreamFacts) -> None:
    """Refuse tracks whose decoder would have to be set up anew in the middle.

    Raises:
        MediaError: the packet brings another codec configuration than the track's.
    """
    if not packet.has_sidedata("new_extradata"):
        return
    if bytes(packet.get_sidedata("new_extradata")) != facts.extradata:
        raise MediaError(
            f"track {facts.track_id} changes its codec configuration at pts {packet.pts}; split it"
            " there",
            reason=MediaReason.UNSUPPORTED_CODEC,
            track_id=facts.track_id,
            pts=packet.pts,
        )
