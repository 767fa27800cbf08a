"""libav decoders fed with bare packets: no container, no seek.

The traps that this keeps in one place, all of them measured:

* a packet built around foreign bytes lacks the padding that decoders read past, and MPEG-4 then
  gives wrong pixels: packets are copied into padded memory;
* H.264 without a reorder hint in its headers silently drops B-frames: the depth is given;
* libav's frame threads and Python's logging can deadlock: one thread, always drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

import av
from av.codec.context import ThreadType
from av.stream import Stream
from av.video.codeccontext import VideoCodecContext

from dstream.errors import MediaError, MediaReason
from dstream.format.index import VideoTrack

_DECODERS = {"av1": "libdav1d"}
"""libav's own ``av1`` decoder works only with hardware."""

_SKIPS_UNREFERENCED = frozenset({"h264", "hevc", "mpeg4", "mpeg2video"})
"""Codecs whose unreferenced frames can be left out with the rest bit-exact; AV1 loses frames."""


@dataclass(frozen=True, slots=True)
class CodedPacket:
    """One packet as the decoder takes it."""

    data: bytes | memoryview
    pts: int
    dts: int | None
    is_key: bool


@dataclass(slots=True)
class DecodeTally:
    """What one run of a decoder did."""

    packets: int = 0
    frames: int = 0
    skipped: int = 0
    """Packets whose frame was left out if nothing refers to it."""
    invalid_packets: int = 0
    corrupt_frames: int = 0

    @property
    def without_frame(self) -> int:
        """Packets that gave no frame."""
        return max(self.packets - self.frames, 0)

    @property
    def is_damaged(self) -> bool:
        """The decoder met data that it could not read, or had to invent."""
        return self.invalid_packets > 0 or self.corrupt_frames > 0


def open_decoder(track: VideoTrack) -> VideoCodecContext:
    """A fresh decoder for the track; opening one takes microseconds, so none is kept.

    Raises:
        MediaError: with reason ``unsupported-codec``.
    """
    name = _DECODERS.get(track.codec, track.codec)
    try:
        context = av.CodecContext.create(name, "r")
        if not isinstance(context, VideoCodecContext):
            raise ValueError(f"{name} is no video codec")
        if track.extradata:
            context.extradata = track.extradata
        context.thread_count = 1
        context.thread_type = ThreadType.SLICE
        context.width, context.height = track.width, track.height
        context.pix_fmt = track.pix_fmt
        # The container's colours; the bitstream's own override them while decoding.
        context.color_range = track.color_range
        context.colorspace = track.color_space
        context.color_primaries = track.color_primaries
        context.color_trc = track.color_trc
        context.open(strict=False)
    except (ValueError, av.error.FFmpegError) as error:
        raise MediaError(
            f"this build has no working decoder for {track.codec}: {error}",
            reason=MediaReason.UNSUPPORTED_CODEC,
            codec=track.codec,
        ) from error
    context.reorder_depth = track.reorder_depth
    return context


def decode_packets(
    context: VideoCodecContext,
    track: VideoTrack,
    packets: Iterable[CodedPacket],
    wanted_pts: Set[int],
    tally: DecodeTally,
    *,
    skip: bool = True,
) -> Iterator[av.VideoFrame]:
    """All frames of the packets in display order; then the decoder is drained.

    With ``skip``, frames that are not wanted are left out where nothing refers to them. A packet
    that the decoder rejects is counted and passed over, as in a decode of the whole file; the
    caller checks that its frames came.
    """
    economical = skip and track.codec in _SKIPS_UNREFERENCED
    for coded in packets:
        if not coded.data:  # libav would take it for the end of the stream
            continue
        packet = av.Packet(len(coded.data))
        packet.update(coded.data)  # type: ignore[arg-type]  # it takes any buffer
        packet.pts, packet.dts = coded.pts, coded.dts
        packet.time_base = track.time_base
        packet.is_keyframe = coded.is_key
        if economical:
            unwanted = coded.pts not in wanted_pts
            context.skip_frame = "NONREF" if unwanted else "DEFAULT"
            tally.skipped += unwanted
        tally.packets += 1
        yield from _frames(context, packet, tally)
    yield from _frames(context, None, tally)


def _frames(
    context: VideoCodecContext, packet: av.Packet[Stream] | None, tally: DecodeTally
) -> Iterator[av.VideoFrame]:
    try:
        frames = context.decode(packet)
    except av.error.EOFError:
        return
    except av.error.FFmpegError:
        tally.invalid_packets += 1
        return
    tally.frames += len(frames)
    for frame in frames:
        tally.corrupt_frames += frame.is_corrupt
        yield frame
