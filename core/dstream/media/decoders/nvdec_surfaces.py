"""What NVDEC puts out, read where it lies, and converted into the places of a run.

A surface is NV12: luma [height, width] uint8, and below it U and V in turn [height / 2, width]; or
P016, the same in uint16 with the samples in the high bits. PyNvVideoCodec may write the next frame
over it, so it is done with before the next is asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import av
import numpy as np
from numpy.typing import NDArray

from dstream.clock import Clock
from dstream.format.index import VideoTrack
from dstream.measure.counters import Meter
from dstream.media.decoders.choice import DEPTHS
from dstream.media.decoders.contract import FrameSink, Run
from dstream.media.decoders.nvdec import NvdecError
from dstream.media.decoders.pool import SessionKey
from dstream.media.device_pixels import DeviceConverter, Surface, luma_shares
from dstream.media.pixels import FrameConverter, PixelSettings, frame_planes

_P016_BITS = 16
_DTYPES: dict[str, np.dtype[Any]] = {"NV12": np.dtype(np.uint8), "P016": np.dtype(np.uint16)}


class Output(Protocol):
    """Where the frames of a thread's runs go."""

    on_device: bool

    def sink(self, run: Run, key: SessionKey) -> FrameSink:
        """Takes surfaces of one run as the package gives them."""
        ...


class HostOutput:
    """Into the batch's rows: the pixels of a CPU's decoder, by the same conversion."""

    on_device = False

    def __init__(self, pixels: PixelSettings, clock: Clock) -> None:
        self.converter, self.clock = FrameConverter(pixels), clock
        self._picture = av.VideoFrame()

    def sink(self, run: Run, key: SessionKey) -> FrameSink:
        """See :class:`Output`."""
        return _HostSink(self, run, key)

    def picture(self, track: VideoTrack, surface: NDArray[np.generic]) -> av.VideoFrame:
        """The surface as the CPU's decoder would have put it out; valid until the next."""
        frame = self._picture
        wanted = (track.width, track.height, track.pix_fmt)
        if (frame.width, frame.height, frame.format.name) != wanted:
            frame = self._picture = av.VideoFrame(*wanted)
        frame.colorspace, frame.color_range = track.color_space, track.color_range
        luma, chroma = surface[: track.height], surface[track.height :]
        sources = luma, chroma[:, 0::2], chroma[:, 1::2]
        for target, source in zip(frame_planes(frame), sources, strict=True):
            if surface.dtype == np.uint16:
                np.right_shift(source, _P016_BITS - DEPTHS[track.pix_fmt], out=target)
            else:
                np.copyto(target, source)
        return frame


class _HostSink(FrameSink):
    def __init__(self, output: HostOutput, run: Run, key: SessionKey) -> None:
        super().__init__(run, output.converter, output.clock)
        self._output, self._key = output, key

    def put(self, pts: int, frame: Any) -> None:
        dtype = _checked(frame, self._key)
        size_bytes = _samples(self._key) * dtype.itemsize
        memory = (ctypes.c_ubyte * size_bytes).from_address(int(frame.GetPtrToPlane(0)))
        surface = np.frombuffer(memoryview(memory), dtype).reshape(-1, self._key.width)
        super().put(pts, self._output.picture(self.run.track, surface))


class DeviceOutput:
    """Into tensors on the device, which the run's outcome holds; its places are left alone.

    On a stream of its own, which each frame is waited for on, by the decoding thread alone: the
    surface is written over next. So what the outcome holds is finished.

    Args:
        pixels: what frames look like.
        clock: measures.
        device: as torch names it.
        meter: counts what is copied there.
    """

    on_device = True

    def __init__(self, pixels: PixelSettings, clock: Clock, device: str, meter: Meter) -> None:
        import torch

        self.meter = meter

        self.torch: Any = torch
        self.device = torch.device(device)
        self.converter, self.clock = DeviceConverter(pixels), clock
        self._stream: Any = None
        if self.device.type == "cuda":
            self._stream = self.torch.cuda.Stream(self.device)

    def sink(self, run: Run, key: SessionKey) -> FrameSink:
        """See :class:`Output`."""
        return _DeviceSink(self, run, key)

    def finished(self, work: Callable[[], Any]) -> Any:
        """What ``work()`` gives, once the device has done it."""
        if self._stream is None:
            return work()
        with self.torch.cuda.stream(self._stream):
            result = work()
        self._stream.synchronize()
        return result


class _DeviceSink(FrameSink):
    def __init__(self, output: DeviceOutput, run: Run, key: SessionKey) -> None:
        super().__init__(run, output.converter, output.clock)
        luma_shares(run.track.color_space)  # refused before a session could be poisoned by it
        self._output, self._key = output, key
        self._frames = DeviceFrames(output)
        self.outcome.elsewhere = self._frames

    def put(self, pts: int, frame: Any) -> None:
        self.outcome.missing.discard(pts)
        begun_s = self.clock.monotonic_s()
        _checked(frame, self._key)
        self._frames.by_pts[pts] = self._output.finished(lambda: self._made(pts, frame))
        self.outcome.convert_s += self.clock.monotonic_s() - begun_s

    def _made(self, pts: int, frame: Any) -> list[Any]:
        torch, key = self._output.torch, self._key
        # Rows lie without gaps. The strides that come along are not to be trusted: of P016 the
        # package's source (PyNvVideoCodecUtils.hpp) says (width, 2), in elements.
        shape = key.height * 3 // 2, key.width
        surface = torch.from_dlpack(frame).as_strided(shape, (key.width, 1))
        luma, chroma = surface[: key.height], surface[key.height :]
        picture = Surface(luma, chroma.reshape(key.height // 2, -1, 2), key.bit_depth)
        made = []
        for place, crop_at in self.run.places[pts]:
            kind = torch.from_numpy(np.empty(0, place.dtype)).dtype
            out = torch.empty(place.shape, dtype=kind, device=self._output.device)
            self._output.converter.write(picture, self.run.track, out, crop_at)
            made.append(out)
        return made


class DeviceFrames:
    """Frames of one run on the device: see :attr:`Outcome.elsewhere`."""

    def __init__(self, output: DeviceOutput) -> None:
        self._output = output
        self.by_pts: dict[int, list[Any]] = {}
        """As many tensors [C, H, W] as the run has places for it, in their order."""

    def clips(self, wanted: Sequence[Sequence[int]]) -> list[Any]:
        """See :meth:`Elsewhere.clips`."""
        frames = {pts: iter(tensors) for pts, tensors in self.by_pts.items()}
        return [self._stacked([next(frames[pts]) for pts in clip]) for clip in wanted]

    def _stacked(self, frames: list[Any]) -> Any:
        clip = self._output.finished(lambda: self._output.torch.stack(frames))
        self._output.meter.add("bytes.on_device", clip.nbytes)
        return clip


def _checked(frame: Any, key: SessionKey) -> np.dtype[Any]:
    """The type of a surface's samples.

    Raises:
        NvdecError: it is not of the form that the session is for.
    """
    name, size_bytes = frame.format.name, int(frame.framesize())
    dtype = _DTYPES.get(name)
    if dtype is None or (dtype.itemsize == 1) != (key.bit_depth == 8):
        raise NvdecError(f"a surface of format {name} for {key.bit_depth} bits")
    if size_bytes != _samples(key) * dtype.itemsize:
        raise NvdecError(f"a surface of {size_bytes} bytes, {name}, for {key.width}x{key.height}")
    return dtype


def _samples(key: SessionKey) -> int:
    return key.width * key.height * 3 // 2
