"""libav behind PyNvVideoCodec's calls: no GPU, and no statement about one.

It has the shapes of calls that dstream uses (checked against the wheel 2.2.4) and decodes Annex B
in software, so that what lies around the hardware can be tested: conversion, feeding, the end of
a stream, pts, sessions and their failures. Surfaces are overwritten by the next call, as they may
be on a device.
"""

from __future__ import annotations

import ctypes
import enum
import weakref
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
from av.codec.context import ThreadType
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dstream.media.decoders.nvdec import NvdecDevice
from dstream.media.pixels import frame_planes

_CODECS = {"H264": "h264", "HEVC": "hevc", "VP9": "vp9", "AV1": "libdav1d"}
ALL_FORMATS = frozenset((codec, depth) for codec in _CODECS for depth in (8, 10))


class _VideoPacketFlag(enum.IntEnum):
    ENDOFSTREAM = 1
    TIMESTAMP = 2


class _PacketData:
    def __init__(self) -> None:
        self.bsl = self.bsl_data = self.pts = self.dts = self.decode_flag = 0


class _Frame:
    def __init__(self, frame: Any) -> None:
        deep = frame.format.name.endswith("10le")
        self.format = SimpleNamespace(name="P016" if deep else "NV12")
        luma, u, v = frame_planes(frame)
        chroma = np.stack((u, v), axis=-1).reshape(u.shape[0], -1)
        surface = np.concatenate((luma, chroma))
        self.memory: NDArray[Any] = surface << 6 if deep else surface
        self._pts = frame.pts

    def getPTS(self) -> int:
        return int(self._pts)

    def framesize(self) -> int:
        return self.memory.nbytes

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        lent = self.memory
        if lent.dtype == np.uint16:  # the strides that the package tells of P016
            lent = as_strided(lent, strides=(lent.strides[0], 2 * lent.itemsize))
        return lent.__dlpack__(**options)

    def GetPtrToPlane(self, plane: int) -> int:
        assert plane == 0
        return int(self.memory.ctypes.data)


class _Decoder:
    def __init__(self, package: StandIn, codec: str) -> None:
        self._package, self._codec = package, codec
        self._lent: list[_Frame] = []
        self._begin()

    def _begin(self) -> None:
        context: Any = av.CodecContext.create(_CODECS[self._codec], "r")
        context.thread_count, context.thread_type = 1, ThreadType.SLICE
        context.open(strict=False)
        context.reorder_depth = 16
        self._context = context

    def Decode(self, packet: _PacketData) -> list[_Frame]:
        for frame in self._lent:
            frame.memory[:] = 0xEE
        self._package.on_decode()
        coded = None
        if packet.bsl:
            assert packet.decode_flag == _VideoPacketFlag.TIMESTAMP
            data = ctypes.string_at(packet.bsl_data, packet.bsl)
            coded = av.Packet(len(data))
            coded.update(data)
            coded.pts = coded.dts = packet.pts
        frames = self._context.decode(coded)
        if coded is None:
            self._begin()
        late, self._package.late = self._package.late, []
        late += [frame for frame in frames if frame.pts != self._package.withholds]
        self._lent = [_Frame(frame) for frame in late]
        return list(self._lent)


class StandIn:
    """The package. ``on_decode`` is called with every packet, and may raise."""

    cudaVideoCodec = SimpleNamespace(**{name: name for name in _CODECS})
    cudaVideoChromaFormat = SimpleNamespace(__members__={"420": "420"})
    VideoPacketFlag = _VideoPacketFlag
    PacketData = _PacketData

    def __init__(
        self,
        formats: Collection[tuple[str, int]] = ALL_FORMATS,
        engines: int = 2,
        largest: tuple[int, int] = (4096, 4096),
    ) -> None:
        self._formats, self._engines, self._largest = formats, engines, largest
        self.on_decode: Callable[[], None] = lambda: None
        self.withholds: int | None = None
        """The pts of a frame that never comes out."""
        self.late: list[Any] = []
        """Frames of libav that come out with the next packet."""
        self.opened = 0
        self.alive: weakref.WeakSet[_Decoder] = weakref.WeakSet()
        self.asked = 0

    def device(self) -> NvdecDevice:
        """A GPU with this package."""
        return NvdecDevice(0, lambda: None, lambda: self, lambda: 1)

    def GetDecoderCaps(
        self, *, gpuid: int, codec: str, chromaformat: str, bitdepth: int
    ) -> dict[str, int]:
        self.asked += 1
        width, height = self._largest
        return {
            "supported": int((codec, bitdepth) in self._formats),
            "num_decoder_engines": self._engines,
            "width_min": 48,
            "width_max": width,
            "height_min": 16,
            "height_max": height,
            "mb_num_max": width * height // 256,
        }

    def CreateDecoder(
        self,
        *,
        gpuid: int,
        codec: str,
        cudastream: int,
        usedevicememory: bool,
        bWaitForSessionWarmUp: bool,
    ) -> _Decoder:
        decoder = _Decoder(self, codec)
        self.opened += 1
        self.alive.add(decoder)
        return decoder
