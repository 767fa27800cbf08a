"""NVDEC through PyNvVideoCodec: what the device can do, and sessions on it.

Written from the signatures of PyNvVideoCodec 2.2.4 and its published sources; see docs/gpu.md
for what has run on hardware. Nothing is imported before a decoder is asked for: the package
raises RuntimeError where there is no driver, and it starts CUDA, which no forked child survives.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from dstream.forks import renew_after_fork
from dstream.media.decoders.choice import DEPTHS, Capabilities, Limits
from dstream.media.decoders.pool import PoolState, SessionKey
from dstream.media.decoders.session_pool import SessionPool
from dstream.units import GIB

PACKAGE = "PyNvVideoCodec"
_DRIVER, _CUDA = "libnvcuvid.so.1", "libcuda.so.1"
_CODECS = {"h264": "H264", "hevc": "HEVC", "vp9": "VP9", "av1": "AV1"}
_POOL_BYTES = 4 * GIB

REMEDIES = {
    "not_installed": "pip install PyNvVideoCodec",
    "no_driver": "install NVIDIA's driver; in a container set "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
    "no_gpu": "look at nvidia-smi and CUDA_VISIBLE_DEVICES",
    "nvdec_unusable": "run dstream doctor",
    "nvdec_forked": "start processes by spawn, or open the loader in the child alone",
}
"""What to do where there is no NVDEC, by reason."""


class NvdecError(Exception):
    """The device, or what came out of it, is not as it should be."""


def package_absence() -> str | None:
    """Why NVDEC cannot be there, without starting CUDA: ``not_installed``, ``no_driver``; or None.

    The driver's own library says it: PyNvVideoCodec loads it by this name.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        return "not_installed"
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return "no_driver"
    return None


def visible_gpus() -> int:
    """How many GPUs CUDA shows to this process; 0 where it does not start.

    Asked of the driver before the package is: where CUDA does not start, PyNvVideoCodec 2.2.4
    ends the whole process, with exit code 1 and no exception.
    """
    count = ctypes.c_int(0)
    try:
        cuda = ctypes.CDLL(_CUDA)
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return 0
    except (OSError, AttributeError):
        return 0
    return count.value


def load_package() -> Any:
    """PyNvVideoCodec.

    Raises:
        Exception: RuntimeError where a part of the driver is missing, ImportError, and others.
    """
    return importlib.import_module(PACKAGE)


class NvdecDevice:
    """One GPU's decoders, shared by all threads of a process. Thread-safe.

    Args:
        gpu: its number.
        absence: why there is none, or None; see :func:`package_absence`.
        load: gives the package.
        gpus: how many there are.
        max_bytes: bound of the device memory of all sessions, by estimate.
    """

    def __init__(
        self,
        gpu: int,
        absence: Callable[[], str | None] = package_absence,
        load: Callable[[], Any] = load_package,
        gpus: Callable[[], int] = visible_gpus,
        max_bytes: int = _POOL_BYTES,
    ) -> None:
        self._gpu, self._load, self._gpus, self._max_bytes = gpu, load, gpus, max_bytes
        self._lock = threading.Lock()
        self.absence = absence()
        """Why it cannot be used, as a code of :data:`REMEDIES`; None: as far as is known it can."""
        self.failure = ""
        """What the package said when it could not be used."""
        self._package: Any = None
        self._has_started = False
        """CUDA was asked for in this process, or in the one that it was forked from."""
        self._formats: dict[tuple[str, int], Limits | None] = {}
        self._pool: SessionPool[NvdecSession] | None = None
        self._inherited: SessionPool[NvdecSession] | None = None
        self.engines = 0
        """How many it has; 0 before it was asked."""
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: CUDA cannot be used there once the parent did. Nothing is freed."""
        self._lock = threading.Lock()
        if self._has_started:
            self.absence = "nvdec_forked"
            self._inherited, self._pool = self._pool, None  # kept, so that nothing is closed

    def capabilities(self, codec: str) -> Capabilities | None:
        """What it does of a codec, asked once; None: it cannot be used, ``absence`` has why."""
        with self._lock:
            if self.absence is None and not self._has_started:
                self._has_started = True
                self.absence = None if self._gpus() > self._gpu else "no_gpu"
            if self.absence is not None:
                return None
            try:
                return self._capabilities(codec)
            except Exception as error:  # of CUDA, of the driver, of the package: all the same here
                self.absence, self.failure = "nvdec_unusable", f"{type(error).__name__}: {error}"
                return None

    def _capabilities(self, codec: str) -> Capabilities:
        if self._package is None:
            self._package = self._load()
        for depth in sorted(set(DEPTHS.values())) if codec in _CODECS else ():
            if (codec, depth) not in self._formats:
                self._formats[codec, depth] = self._ask(codec, depth)
        found = {name: limits for name, limits in self._formats.items() if limits is not None}
        return Capabilities(self.engines, found)

    def _ask(self, codec: str, depth: int) -> Limits | None:
        # The keys are those that the package's own source fills in (PyNvDecoder.cpp).
        nvc = self._package
        told = nvc.GetDecoderCaps(
            gpuid=self._gpu,
            codec=getattr(nvc.cudaVideoCodec, _CODECS[codec]),
            chromaformat=nvc.cudaVideoChromaFormat.__members__["420"],
            bitdepth=depth,
        )
        self.engines = max(self.engines, int(told["num_decoder_engines"]))
        if not told["supported"]:
            return None
        names = ("width_min", "width_max", "height_min", "height_max", "mb_num_max")
        return Limits(*(int(told[name]) for name in names))

    def pool(self) -> SessionPool[NvdecSession]:
        """Its sessions; ask for capabilities first."""
        with self._lock:
            if self._pool is None:
                state = PoolState(self.engines, self._max_bytes)
                self._pool = SessionPool(
                    state, lambda key: NvdecSession(self._package, self._gpu, key)
                )
            return self._pool

    @property
    def peak_bytes(self) -> int:
        """See :attr:`SessionPool.peak_bytes`; 0 before any session."""
        pool = self._pool
        return 0 if pool is None else pool.peak_bytes

    def close(self) -> None:
        """Close its sessions, see :meth:`SessionPool.close`."""
        if self._pool is not None:
            self._pool.close()

    def lose(self, thread: threading.Thread) -> None:
        """See :meth:`SessionPool.lose`."""
        if self._pool is not None:
            self._pool.lose(thread)


@cache
def nvdec_device(gpu: int) -> NvdecDevice:
    """The one of this process. Its sessions end with the process, while the driver is there."""
    device = NvdecDevice(gpu)
    atexit.register(device.close)
    return device


def _own_stream(gpu: int) -> Any:
    """A CUDA stream, by torch; None without it: then nothing is known to run on the default one."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch: Any = importlib.import_module("torch")
    return torch.cuda.Stream(gpu) if torch.cuda.is_available() else None


class NvdecSession:
    """One decoder. It serves one run after the other, each drained before the next begins.

    It works on a CUDA stream of its own. On the default one it would wait, with every frame, for
    the training steps that are queued there.

    Args:
        package: PyNvVideoCodec.
        gpu: the device's number.
        key: codec and picture.

    Raises:
        Exception: whatever the package raises.
    """

    def __init__(self, package: Any, gpu: int, key: SessionKey) -> None:
        self._nvc, self._key = package, key
        self._fed = 0
        self._stream = _own_stream(gpu)
        # bWaitForSessionWarmUp chooses the overload that has the choice of memory.
        self._decoder = package.CreateDecoder(
            gpuid=gpu,
            codec=getattr(package.cudaVideoCodec, _CODECS[key.codec]),
            cudastream=0 if self._stream is None else self._stream.cuda_stream,
            usedevicememory=key.on_device,
            bWaitForSessionWarmUp=False,
        )

    def close(self) -> None:
        """Free the decoder."""
        self._decoder = None

    def decode(self, packets: Sequence[bytes]) -> Iterator[tuple[int, Any]]:
        """All frames of a run, in display order, then the decoder is drained.

        Args:
            packets: of one run, as the hardware takes them.

        Yields:
            The number of a packet, and its frame as the package gives it, see
            :mod:`dstream.media.decoders.nvdec_surfaces`. It is valid until the next is asked for.

        Raises:
            NvdecError: a frame that no packet of the run can have given.
            Exception: whatever the package raises.
        """
        # Numbers instead of times: they survive any clock, and name one packet each of all runs,
        # so that a frame that an earlier run left behind is told. From 1 on, since a decoder may
        # take 0 for no time at all.
        first = self._fed + 1
        self._fed += len(packets)
        left = set(range(first, first + len(packets)))
        for number, data in enumerate(packets, first):
            for told, frame in self._feed(self._packet(number, data), left):
                yield told - first, frame
        end = self._nvc.PacketData()
        end.decode_flag = int(self._nvc.VideoPacketFlag.ENDOFSTREAM)
        for told, frame in self._feed(end, left):
            yield told - first, frame

    def _packet(self, number: int, data: bytes) -> Any:
        packet = self._nvc.PacketData()
        packet.bsl = len(data)
        packet.bsl_data = np.frombuffer(data, np.uint8).ctypes.data
        packet.pts = packet.dts = number
        packet.decode_flag = int(self._nvc.VideoPacketFlag.TIMESTAMP)
        return packet

    def _feed(self, packet: Any, left: set[int]) -> Iterator[tuple[int, Any]]:
        frames = self._decoder.Decode(packet)
        if frames and not self._key.on_device and self._stream is not None:
            self._stream.synchronize()  # copies to the host may still be on their way
        for frame in frames:
            number = int(frame.getPTS())
            if number not in left:
                raise NvdecError(f"a frame of packet {number}, which gave one already or never was")
            left.discard(number)
            yield number, frame
