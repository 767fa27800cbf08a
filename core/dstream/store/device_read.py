"""Bytes of a local file into a device's memory: by kvikio's ``CuFile``, or through the host.

GPUDirect Storage moves whole blocks of 4,096 bytes, so a range is widened to blocks, and what
was asked for is a view of what came (kvikio's own advice). What kvikio calls compatibility mode
goes through the host's memory, as do its reads below ``gds_threshold``: both count under names of
their own, never as GDS. Facts of kvikio 26.10, read from its wheel; none has run on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dstream.errors import NotFoundError, ShortReadError, StorageError
from dstream.measure import Meter

BLOCK_BYTES = 4096
_NVIDIA_FS = Path("/proc/driver/nvidia-fs/stats")


@dataclass(frozen=True, slots=True)
class Cover:
    """The blocks that hold a range of bytes."""

    start_byte: int
    """A multiple of 4,096."""
    stop_byte: int
    """A multiple of 4,096, or the file's end."""
    lead_bytes: int
    """What comes before the range."""


def cover(start_byte: int, stop_byte: int, file_bytes: int) -> Cover:
    """The blocks that hold ``[start_byte, stop_byte)`` of a file.

    >>> cover(4224, 8320, 10000)
    Cover(start_byte=4096, stop_byte=10000, lead_bytes=128)
    """
    start = start_byte // BLOCK_BYTES * BLOCK_BYTES
    stop = -(-stop_byte // BLOCK_BYTES) * BLOCK_BYTES
    return Cover(start, min(stop, file_bytes), start_byte - start)


@dataclass(frozen=True, slots=True)
class Support:
    """What kvikio can do on this machine."""

    absence: str | None = None
    """Why it cannot be used: ``no_gpu``, ``no_kvikio``, ``kvikio_broken``; None where it can."""
    is_compat: bool = True
    """Bytes go through the host's memory."""
    gds_threshold_bytes: int = 0
    """Shorter reads go through the host's memory too."""


def reason_of(support: Support, size_bytes: int) -> str:
    """How a read of a local file goes; the name that it counts under.

    Args:
        support: of this machine.
        size_bytes: of the blocks that are read.

    >>> reason_of(Support("no_kvikio"), 1 << 20), reason_of(Support(None, False, 16384), 1 << 20)
    ('no_kvikio', 'gds')
    """
    if support.absence is not None:
        return support.absence
    if support.is_compat:
        return "gds_compat"
    return "gds_small" if size_bytes < support.gds_threshold_bytes else "gds"


def probe_kvikio(has_gpu: bool, driver_stats: Path = _NVIDIA_FS) -> Support:
    """What this machine's kvikio says of itself, believed only where the kernel's driver agrees.

    Args:
        has_gpu: torch sees a CUDA device; without one nothing is imported.
        driver_stats: exists where the nvidia-fs driver is loaded.
    """
    if not has_gpu:
        return Support("no_gpu")
    if importlib.util.find_spec("kvikio") is None:
        return Support("no_kvikio")
    try:
        defaults = importlib.import_module("kvikio.defaults")
        driver = importlib.import_module("kvikio.cufile_driver")
        is_gds = bool(driver.get("is_gds_available")) and driver_stats.exists()
        is_compat = not is_gds or bool(defaults.is_compat_mode_preferred())
        return Support(None, is_compat, int(defaults.get("gds_threshold")))
    except Exception:  # it raises errors of its own where libraries are missing
        return Support("kvikio_broken")


def open_cufile(path: Path) -> Any:
    """kvikio's handle of a file, a context manager with ``pread``."""
    return importlib.import_module("kvikio").CuFile(path, "r")


class DeviceReader:
    """Reads ranges of local files into memory of a device. Thread-safe.

    Blocks the calling thread until the bytes are there, and nobody else.

    Args:
        device: as torch names it.
        meter: counts reads by GPUDirect Storage, and the others as ``fallback`` by reason.
        support: of this machine.
        opened: opens a file as kvikio does.
    """

    def __init__(
        self,
        device: str,
        meter: Meter,
        support: Support,
        opened: Callable[[Path], Any] = open_cufile,
    ) -> None:
        import torch

        self._torch: Any = torch
        self._device = torch.device(device)
        self._meter, self._support, self._opened = meter, support, opened

    def read(self, path: Path, start_byte: int, stop_byte: int) -> Any:
        """uint8 tensor [stop_byte - start_byte] on the device.

        Raises:
            NotFoundError: there is no such file.
            ShortReadError: it ends before ``stop_byte``.
            StorageError: it cannot be read.
        """
        try:
            file_bytes = os.stat(path).st_size
            self._require(path, file_bytes, stop_byte)
            blocks = cover(start_byte, stop_byte, file_bytes)
            reason = reason_of(self._support, blocks.stop_byte - blocks.start_byte)
            if self._support.absence is None:
                try:
                    found = self._by_kvikio(path, blocks, stop_byte - start_byte)
                    self._count(reason)
                    return found
                except RuntimeError:  # what kvikio raises, whatever it was
                    reason = "kvikio_failed"
            found = self._through_host(path, start_byte, stop_byte)
        except FileNotFoundError as error:
            raise NotFoundError(f"no file {str(path)!r}", name=str(path)) from error
        except OSError as error:
            raise StorageError(f"cannot read {str(path)!r}: {error}", name=str(path)) from error
        self._count(reason)
        return found

    def _count(self, reason: str) -> None:
        if reason == "gds":
            self._meter.add("reads.gds", 1)
        else:
            self._meter.event("fallback", reason)

    def joined(self, pieces: Sequence[Any]) -> Any:
        """Pieces one after another, copied on the device."""
        return self._torch.cat(list(pieces))

    def typed(self, memory: Any, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Any:
        """The bytes as elements of a type of numpy's."""
        return self.as_dtype(memory, self._torch.from_numpy(np.empty(0, dtype)).dtype).reshape(
            shape
        )

    def as_dtype(self, memory: Any, dtype: Any) -> Any:
        """The bytes as elements; moved on the device where they lie across elements' borders."""
        if memory.storage_offset() % dtype.itemsize:
            memory = memory.clone()
        return memory.view(dtype)

    def _by_kvikio(self, path: Path, blocks: Cover, size_bytes: int) -> Any:
        wanted = blocks.stop_byte - blocks.start_byte
        memory = self._torch.empty(wanted, dtype=self._torch.uint8, device=self._device)
        if self._device.type == "cuda":
            # cuFile knows no streams: what used this memory before must have ended.
            self._torch.cuda.current_stream(self._device).synchronize()
        with self._opened(path) as file:
            got = file.pread(memory, wanted, blocks.start_byte).get()
        stop = blocks.lead_bytes + size_bytes
        self._require(path, blocks.start_byte + got, blocks.start_byte + stop)
        return memory[blocks.lead_bytes : stop]

    def _through_host(self, path: Path, start_byte: int, stop_byte: int) -> Any:
        host = np.fromfile(path, np.uint8, stop_byte - start_byte, offset=start_byte)
        self._require(path, start_byte + len(host), stop_byte)
        return self._torch.from_numpy(host).to(self._device)

    def _require(self, path: Path, has_bytes: int, stop_byte: int) -> None:
        if has_bytes < stop_byte:
            raise ShortReadError(
                f"{str(path)!r} gives {has_bytes} bytes, expected {stop_byte}", name=str(path)
            )
