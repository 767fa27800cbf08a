"""What the loader yields, and how it becomes a tensor."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.loader.buffers import allocate_plain
from dstream.loader.device_ring import CudaDevice, DeviceBatches
from dstream.loader.reader import ReadClip
from dstream.loader.settings import ArrayKind
from dstream.measure import Meter
from dstream.media.row_form import row_form

SideData = Mapping[str, Any]

_TENSOR_KINDS = "uifbc"
"""numpy's kinds of elements that torch has as well."""


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """One clip, by random access."""

    video: Any
    """uint8 [T, C, H, W] (uint16 for deep video with ``pixels="native"``), tensor or array. Of an
    array, its rows [T, ...]; types that numpy lacks (bfloat16) are their bits in a numpy array."""
    key: str
    """Which sample it shows."""
    start_s: float
    """Where it was asked to start, seconds from the sample's start. A clip that would cross the
    sample's end starts earlier; ``pts_s`` has the frames."""
    pts_s: NDArray[np.float64]
    """float64 [T] presentation time of each frame, seconds from the file's first frame."""
    fps: float
    """Frames per second of the clip; the average where the video's own rate varies."""
    frame_index: NDArray[np.int64] | None
    """int64 [T] position of each frame in the file's display order; None where unknown."""
    side: SideData = field(default_factory=dict)
    """What the recipe gives for these frames: arrays with T rows, by name."""
    slot: int = -1
    """Which slot it is; -1 for a clip that was asked for by key."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B clips. ``video`` and numeric ``side`` data are tensors where torch is used."""

    video: Any
    """uint8 [B, T, C, H, W] (uint16 for deep video with ``pixels="native"``); of arrays, their
    rows [B, T, ...], as :attr:`Clip.video`."""
    keys: list[str]
    """Sample of each clip."""
    start_s: NDArray[np.float64]
    """float64 [B] where each clip was drawn to start, seconds from its sample's start."""
    pts_s: NDArray[np.float64]
    """float64 [B, T] presentation time of each frame, seconds from its file's first frame."""
    fps: NDArray[np.float64]
    """float64 [B] frames per second of each clip."""
    side: SideData
    """What the recipe gives: arrays [B, T, ...] by name."""
    slots: NDArray[np.int64]
    """int64 [B] the slot of each clip; a replaced clip's is that of its substitute."""
    positions: NDArray[np.int64]
    """int64 [B] where each clip stands in the endless global order; -1 where it does not."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the frames."""
        height, width = self.video.shape[-2:]
        return int(height), int(width)

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """The same batch with ``video`` and numeric ``side`` data as tensors on a torch device.

        Args:
            device: as torch names it.
            non_blocking: return while copies from page-locked memory still run.

        Raises:
            InvalidInputError: torch is not installed.
        """
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; ``DataLoader(pin_memory=True)`` calls this."""
        return self._with_tensors(lambda tensor: tensor.pin_memory())

    def _with_tensors(self, change: Callable[[Any], Any]) -> Batch:
        torch = _import_torch(required=True, skip=False)

        def changed(array: Any) -> Any:
            if isinstance(array, np.ndarray):
                if array.dtype.kind not in _TENSOR_KINDS:
                    return array
                array = torch.from_numpy(np.ascontiguousarray(array))
            return change(array)

        side = {name: changed(array) for name, array in self.side.items()}
        return replace(self, video=changed(self.video), side=side)


class ArrayMaker:
    """Memory for batches, and their hand-over as arrays or tensors.

    Args:
        array: ``torch``, ``numpy``, or None: torch where it is installed.
        device: None, ``cpu``, ``cuda`` or ``cuda:N``.
        slots: buffers on the device that batches take turns in.
        meter: counts copies to the device and on it.

    Raises:
        InvalidInputError: torch or the device is not there.
    """

    def __init__(
        self,
        array: ArrayKind | None = None,
        device: str | None = None,
        *,
        slots: int = 0,
        meter: Meter | None = None,
    ) -> None:
        on_device = device not in (None, "cpu")
        if on_device and array == "numpy":
            raise InvalidInputError(f"device={device!r} needs array='torch', got 'numpy'")
        self._torch = _import_torch(required=array == "torch" or on_device, skip=array == "numpy")
        self._meter = meter or Meter()
        self._batches: DeviceBatches | None = None
        if on_device:
            self._check_device(str(device))
            cuda = CudaDevice(self._torch, str(device))
            self._batches = DeviceBatches(cuda, slots, self._meter)

    def _check_device(self, device: str) -> None:
        if not device.startswith("cuda"):
            raise InvalidInputError(f"device must be 'cpu' or 'cuda[:N]', got {device!r}")
        if not self._torch.cuda.is_available():
            raise InvalidInputError(
                f"device={device!r}: torch {self._torch.__version__} sees no CUDA device; install "
                "a CUDA build and a driver, or leave device out: batches then stay in the host's "
                "memory, and decoder='auto' decodes on the CPU"
            )

    @property
    def allocate(self) -> Callable[[int], NDArray[np.uint8]]:
        """Makes host memory for batches: page-locked when it will be copied to a GPU."""
        return allocate_plain if self._batches is None else self._allocate_pinned

    def _allocate_pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        pinned = self._torch.empty(size_bytes, dtype=self._torch.uint8, pin_memory=True)
        host: NDArray[np.uint8] = pinned.numpy()
        return host

    def stacked(self, rows: Sequence[Any]) -> Any:
        """All clips as one; those that are no tensors yet are brought to the others' device.

        On the copying stream: a plain copy would wait for the training steps that are queued.
        """
        device = next((row.device for row in rows if not isinstance(row, np.ndarray)), None)
        if device is None:
            return np.stack(rows)
        moved = [self.hand_over(row) if isinstance(row, np.ndarray) else row for row in rows]
        if device.type == "cuda":  # they were allocated by other threads
            for row in moved:
                row.record_stream(self._torch.cuda.current_stream(device))
        batch = self._torch.stack(moved)
        self._meter.add("bytes.on_device", batch.nbytes)
        return batch

    def hand_over(self, array: Any, bits_of: str | None = None, *, in_ring: bool = False) -> Any:
        """The array as the user gets it; a tensor shares the memory, or is a copy on the GPU.

        Args:
            array: in host memory; what is a tensor already stays where it is.
            bits_of: torch's name of the type whose bits these whole numbers are; None: numbers.
            in_ring: on a GPU, in one of the buffers that batches take turns in.

        Raises:
            InvalidInputError: this torch has no such type.
        """
        tensor = array
        if isinstance(array, np.ndarray):
            if self._torch is None or array.dtype.kind not in _TENSOR_KINDS:
                return array
            tensor = self._torch.from_numpy(array)
        if self._batches is not None and tensor is not array:
            moved = self._batches.put(array) if in_ring else self._batches.put_apart(array)
            tensor = moved.view(tensor.dtype).reshape(array.shape)
        if bits_of is None:
            return tensor
        if not hasattr(self._torch, bits_of):
            raise InvalidInputError(
                f"torch {self._torch.__version__} has no {bits_of}; use array='numpy' for its bits"
            )
        return tensor.view(getattr(self._torch, bits_of))


def device_name(device: object) -> str | None:
    """A device as threads can be told: ``cuda`` gets the number that it has for the caller.

    For every other thread it is ``cuda:0``, whatever ``torch.cuda.set_device`` was given.

    Args:
        device: a name, a ``torch.device``, or None.
    """
    name = None if device is None else str(device)
    torch = _import_torch(required=False, skip=name != "cuda")
    if torch is None or not torch.cuda.is_available():
        return name
    return f"cuda:{torch.cuda.current_device()}"


def _import_torch(required: bool, skip: bool) -> Any:
    if skip and not required:
        return None
    if importlib.util.find_spec("torch") is None:
        if required:
            raise InvalidInputError(
                "torch is not installed; install dstream[torch], or use array='numpy', device=None"
            )
        return None
    import torch

    return torch


def make_clip(read: ReadClip, fps: float, arrays: ArrayMaker, slot: int = -1) -> Clip:
    """One clip for the user."""
    decoded = read.decoded
    return Clip(
        video=arrays.hand_over(decoded.video, _bits_of(read)),
        key=read.planned.sample.key,
        start_s=read.planned.start_s,
        pts_s=decoded.pts_s,
        fps=fps,
        frame_index=decoded.frame_index,
        side={name: arrays.hand_over(array) for name, array in read.side.items()},
        slot=slot,
    )


def make_batch(
    video: Any, clips: Sequence[ReadClip], fps: Sequence[float], arrays: ArrayMaker
) -> Batch:
    """A batch for the user.

    Args:
        video: [B, T, C, H, W], already filled by the clips; a tensor is on the device already.
        clips: B clips.
        fps: frames per second of each.
        arrays: hands the arrays over.

    Raises:
        InvalidInputError: side arrays that do not fit together.
    """
    return Batch(
        video=arrays.hand_over(video, _bits_of(clips[0]), in_ring=True),
        keys=[clip.planned.sample.key for clip in clips],
        start_s=np.array([clip.planned.start_s for clip in clips], dtype=np.float64),
        pts_s=np.stack([clip.decoded.pts_s for clip in clips]),
        fps=np.array(fps, dtype=np.float64),
        side={name: arrays.hand_over(array) for name, array in _stacked_side(clips).items()},
        slots=np.array([clip.planned.draw.slot for clip in clips], dtype=np.int64),
        positions=np.array([clip.planned.draw.position for clip in clips], dtype=np.int64),
    )


def _bits_of(read: ReadClip) -> str | None:
    form = row_form(read.planned.sample.index.track.pix_fmt)
    return None if form is None else form.torch_only


def _stacked_side(clips: Sequence[ReadClip]) -> dict[str, NDArray[np.generic]]:
    rows = [(clip.planned.sample.key, clip.side) for clip in clips]
    return {name: np.stack(arrays) for name, arrays in side_rows(rows).items()}


def side_rows(clips: Sequence[tuple[str, SideData]]) -> dict[str, list[Any]]:
    """The side arrays of several clips by name, one for each clip.

    Args:
        clips: key and side arrays of each.

    Raises:
        InvalidInputError: they do not fit together.
    """
    rows: dict[str, list[Any]] = {}
    for name in sorted({name for _, side in clips for name in side}):
        first_key, first = next((key, side[name]) for key, side in clips if name in side)
        for key, side in clips:
            array = side.get(name)
            if array is None or (array.shape, array.dtype) != (first.shape, first.dtype):
                got = "none" if array is None else f"{array.dtype} {tuple(array.shape)}"
                raise InvalidInputError(
                    f"side data {name!r} do not fit into one batch: {first.dtype} "
                    f"{tuple(first.shape)} for sample {first_key!r}, {got} for {key!r}; make the "
                    "recipe give equal shapes, or use batch_size=1",
                    side=name,
                )
        rows[name] = [side[name] for _, side in clips]
    return rows
