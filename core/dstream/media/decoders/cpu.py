"""Decoding on the CPU, by libav: every codec, bit-exact, straight into the batch's rows."""

from __future__ import annotations

from dstream.clock import Clock
from dstream.media.codec import decode_packets, open_decoder
from dstream.media.decoders.contract import FrameSink, Outcome, Run
from dstream.media.pixels import FrameConverter, PixelSettings


class CpuBackend:
    """A fresh libav decoder for each run."""

    def __init__(self, pixels: PixelSettings, clock: Clock) -> None:
        self._clock = clock
        self._converter = FrameConverter(pixels)

    def decode(self, run: Run, *, skip: bool = True) -> Outcome:
        """See :meth:`Backend.decode`."""
        sink = FrameSink(run, self._converter, self._clock)
        tally = sink.outcome.tally
        for frame in decode_packets(
            open_decoder(run.track), run.track, run.packets, run.places.keys(), tally, skip=skip
        ):
            if frame.pts is not None and sink.wants(frame.pts):
                sink.put(frame.pts, frame)
        return sink.outcome
