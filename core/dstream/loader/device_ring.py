"""Batches in a ring of device buffers: who may touch which, as values; and the buffers.

A slot goes free -> filling -> ready -> held -> free. Who fills it waits, on the copying stream,
for the event of its last use; who is given it waits, on the training stream, for the event of its
filling. Waits are queued on streams: no thread ever waits for the device.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dstream.measure import Meter


class SlotState(StrEnum):
    """What a slot's buffer is used for."""

    FREE = "free"
    FILLING = "filling"
    READY = "ready"
    HELD = "held"


class Ring:
    """The states of ``slots`` buffers. Events are opaque: it only hands them on. Thread-safe."""

    def __init__(self, slots: int) -> None:
        self._states = [SlotState.FREE] * slots
        self._events: list[object] = [None] * slots
        # Those that were released first come first: their last use has most likely ended.
        self._free = deque(range(slots))
        self._released: deque[tuple[int, object]] = deque()
        self._lock = threading.Lock()

    def states(self) -> list[SlotState]:
        """Of all slots."""
        with self._lock:
            self._settle()
            return list(self._states)

    def take(self) -> tuple[int, object] | None:
        """A slot to fill, and the event to wait for before writing; None when none is free."""
        with self._lock:
            self._settle()
            if not self._free:
                return None
            slot = self._free.popleft()
            return slot, self._move(slot, SlotState.FREE, SlotState.FILLING, None)

    def fill(self, slot: int, event: object) -> None:
        """The slot's bytes are there after ``event``."""
        with self._lock:
            self._move(slot, SlotState.FILLING, SlotState.READY, event)

    def hold(self, slot: int) -> object:
        """Give the slot to the consumer; returns the event to wait for before reading."""
        with self._lock:
            return self._move(slot, SlotState.READY, SlotState.HELD, None)

    def abandon(self, slot: int, event: object) -> None:
        """Filling failed; writes that were begun have ended after ``event``."""
        with self._lock:
            self._settle()
            self._move(slot, SlotState.FILLING, SlotState.FREE, event)
            self._free.append(slot)

    def release(self, slot: int, event: object) -> None:
        """Nobody sees the slot any more; reads that were begun have ended after ``event``.

        Takes no lock: a garbage collector may call it in the middle of any other method.
        """
        self._released.append((slot, event))

    def _settle(self) -> None:
        while self._released:
            slot, event = self._released.popleft()
            self._move(slot, SlotState.HELD, SlotState.FREE, event)
            self._free.append(slot)

    def _move(self, slot: int, before: SlotState, after: SlotState, event: object) -> object:
        """Change a slot's state and event; returns the event that it had."""
        if self._states[slot] is not before:
            raise RuntimeError(f"slot {slot} is {self._states[slot]}, not {before}")
        self._states[slot] = after
        had, self._events[slot] = self._events[slot], event
        return had


class Device(Protocol):
    """What the ring asks of a device. Nothing here waits for it."""

    def allocate(self, size_bytes: int) -> Any:
        """Memory on the device, uint8 [size_bytes]."""
        ...

    def copy(self, target: Any, host: NDArray[np.generic], after: object) -> object:
        """Queue a copy on the copying stream after an event (None: at once); returns its event.

        ``host`` is page-locked, and is kept alive until the copy is done.
        """
        ...

    def give(self, event: object) -> object:
        """Have the caller's current stream wait for an event; returns that stream."""
        ...

    def last_use(self, stream: object) -> object:
        """An event after all that is queued on a stream so far."""
        ...

    def expose(self, memory: Any, size_bytes: int, let_go: Callable[[], None]) -> Any:
        """A tensor uint8 [size_bytes] over memory; ``let_go`` is called with its last view."""
        ...


class DeviceBatches:
    """Puts batches into a ring of device buffers.

    A buffer comes back when the last view of its tensor is gone, DLPack capsules included. A
    consumer that uses a batch on other streams than the one that it was given it on makes that
    one wait for them, as with any tensor. When all slots are held, a batch gets memory of its
    own, counted as the fallback ``device_ring_full``.
    """

    def __init__(self, device: Device, slots: int, meter: Meter) -> None:
        self._device, self._meter = device, meter
        self._ring = Ring(slots)
        self._memory: list[Any] = [None] * slots
        self._size_bytes = [0] * slots

    def put(self, host: NDArray[np.generic]) -> Any:
        """The array's bytes on the device, uint8 [nbytes], readable on the current stream.

        Args:
            host: C order, page-locked; its memory is left alone until the copy is done.
        """
        taken = self._ring.take()
        if taken is None:
            self._meter.event("fallback", "device_ring_full")
            return self.put_apart(host)
        slot, after = taken
        try:
            if self._size_bytes[slot] < host.nbytes:
                self._memory[slot] = self._device.allocate(host.nbytes)
                self._size_bytes[slot] = host.nbytes
            event = self._device.copy(self._memory[slot], host, after)
        except BaseException:  # an interrupt as well: or the slot would be lost
            self._ring.abandon(slot, after)
            raise
        self._ring.fill(slot, event)
        self._meter.add("bytes.to_device", host.nbytes)
        stream = self._device.give(self._ring.hold(slot))
        ring, device = self._ring, self._device
        return self._device.expose(
            self._memory[slot],
            host.nbytes,
            lambda: ring.release(slot, device.last_use(stream)),
        )

    def put_apart(self, host: NDArray[np.generic]) -> Any:
        """The same in memory of its own."""
        memory = self._device.allocate(host.nbytes)
        self._device.give(self._device.copy(memory, host, None))
        self._meter.add("bytes.to_device", host.nbytes)
        return memory


class _Exposed:
    """Device memory as CUDA's array interface tells it; a tensor over it keeps it alive."""

    def __init__(self, memory: Any, size_bytes: int) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (memory.data_ptr(), False),
            "strides": None,
            "version": 3,
        }


class CudaDevice:
    """A CUDA device through torch, with a stream of its own for copies."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, torch.device(device)
        self._stream = torch.cuda.Stream(self._device)
        # Host memory of copies that may still be running.
        self._copying: deque[tuple[Any, NDArray[np.generic]]] = deque()

    def allocate(self, size_bytes: int) -> Any:
        """See :class:`Device`. Memory that is freed early stays until queued work is done."""
        memory = self._torch.empty(size_bytes, dtype=self._torch.uint8, device=self._device)
        memory.record_stream(self._stream)
        return memory

    def copy(self, target: Any, host: NDArray[np.generic], after: object) -> object:
        """See :class:`Device`."""
        source = self._torch.from_numpy(host.reshape(-1).view(np.uint8))
        if after is None:  # fresh memory: what used it before was queued on this stream
            self._stream.wait_stream(self._torch.cuda.current_stream(self._device))
        else:
            self._stream.wait_event(after)
        with self._torch.cuda.stream(self._stream):
            target[: host.nbytes].copy_(source, non_blocking=True)
        event = self.last_use(self._stream)
        self._copying.append((event, host))
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        return event

    def give(self, event: object) -> object:
        """See :class:`Device`."""
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        return stream

    def last_use(self, stream: Any) -> object:
        """See :class:`Device`."""
        event = self._torch.cuda.Event()
        event.record(stream)
        return event

    def expose(self, memory: Any, size_bytes: int, let_go: Callable[[], None]) -> Any:
        """See :class:`Device`."""
        owner = _Exposed(memory, size_bytes)
        weakref.finalize(owner, let_go).atexit = False
        return self._torch.as_tensor(owner, device=self._device)
