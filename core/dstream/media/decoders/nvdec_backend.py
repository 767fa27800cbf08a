"""Runs on NVDEC."""

from __future__ import annotations

from dataclasses import dataclass, replace

import xxhash

from dstream.clock import Clock
from dstream.measure.counters import Meter
from dstream.media.annexb import annexb_of
from dstream.media.decoders.choice import DEPTHS, Coding, coding_of
from dstream.media.decoders.contract import Outcome, Run
from dstream.media.decoders.nvdec import NvdecDevice
from dstream.media.decoders.nvdec_surfaces import Output
from dstream.media.decoders.pool import SessionKey
from dstream.media.parameter_sets import parameter_sets

_AV1C_HEAD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Feed:
    """A run as the hardware takes it."""

    coding: Coding
    packets: tuple[bytes, ...]
    pts: tuple[int, ...]
    """Of each packet."""
    key: SessionKey


def feed_of(run: Run) -> Feed:
    """The packets of a run behind start codes, with parameter sets in front.

    Raises:
        MediaError: lengths that reach past their packet, damaged parameter sets.
    """
    track = run.track
    if track.codec in ("h264", "hevc"):
        converter = annexb_of(track.codec, track.extradata)
        converted = [converter.convert(packet.data) for packet in run.packets]
        header = converter.header
    else:
        converted = [bytes(packet.data) for packet in run.packets]
        # av1C (AV1 in ISO base media, 2.3.3): four bytes, then the sequence header.
        header = track.extradata[_AV1C_HEAD_BYTES:] if track.codec == "av1" else b""
    # A packet without bytes, or with empty units alone, would be taken for the stream's end.
    fed = [(packet, data) for packet, data in zip(run.packets, converted, strict=True) if data]
    packets = [data for _, data in fed]
    if packets and header not in packets[0]:
        # H.264 may start at a recovery point, where FFmpeg's filter inserts nothing.
        packets[0] = header + packets[0]
    sets = parameter_sets(track.codec, packets[0] if packets else b"")
    key = SessionKey(
        track.codec,
        DEPTHS.get(track.pix_fmt, 0),
        track.width,
        track.height,
        xxhash.xxh3_64_intdigest(b"".join(sets)),
    )
    keyframes = (data for packet, data in fed[1:] if packet.is_key)
    later = [unit for data in keyframes for unit in parameter_sets(track.codec, data)]
    pts = tuple(packet.pts for packet, _ in fed)
    return Feed(coding_of(track, packets, sets, later), tuple(packets), pts, key)


class NvdecBackend:
    """Decodes on the device. One per thread; sessions are the device's."""

    def __init__(self, output: Output, meter: Meter, clock: Clock, device: NvdecDevice) -> None:
        self._output, self._meter, self._clock = output, meter, clock
        self._device = device

    def decode(self, run: Run, *, skip: bool = True) -> Outcome:
        """See :meth:`Backend.decode`; nothing is left out, whatever ``skip`` says."""
        return self.decode_feed(run, feed_of(run))

    def decode_feed(self, run: Run, feed: Feed) -> Outcome:
        """The same for a run that is prepared already.

        Raises:
            PoolFullError: the device's memory never has room for such a session.
            Exception: whatever goes wrong on the device; the session is closed then.
        """
        key = replace(feed.key, on_device=self._output.on_device)
        sink = self._output.sink(run, key)
        tally = sink.outcome.tally
        with self._device.pool().session(key, self._meter) as session:
            began_s = self._clock.monotonic_s()
            for number, frame in session.decode(feed.packets):
                tally.frames += 1
                if sink.wants(feed.pts[number]):
                    sink.put(feed.pts[number], frame)
            busy_s = self._clock.monotonic_s() - began_s - sink.outcome.convert_s
        tally.packets = len(feed.packets)
        self._meter.add("bytes.to_device", sum(map(len, feed.packets)))
        if not key.on_device:
            self._meter.add("bytes.from_device", tally.frames * key.picture_bytes)
        self._meter.add("frames.nvdec", tally.frames)
        self._meter.add("seconds.nvdec", busy_s)
        return sink.outcome
