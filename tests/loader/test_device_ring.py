"""The ring of device buffers: its states, and that no schedule of two streams reads wrong bytes."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from dstream.loader.batch import ArrayMaker
from dstream.loader.device_ring import DeviceBatches, Ring, SlotState
from dstream.measure import Meter

SLOTS = 3


class RingMachine(RuleBasedStateMachine):
    """Against a model: each slot's state, and the event of what was done to it last."""

    def __init__(self) -> None:
        super().__init__()
        self.ring, self.events = Ring(SLOTS), 0
        self.model = dict.fromkeys(range(SLOTS), SlotState.FREE)
        self.last: dict[int, object] = dict.fromkeys(range(SLOTS))
        self.freed = deque(range(SLOTS))

    def event(self) -> int:
        self.events += 1
        return self.events

    def one_in(self, state: SlotState, pick: int) -> int:
        found = [slot for slot, now in self.model.items() if now is state]
        return found[pick % len(found)]

    def has(self, state: SlotState) -> bool:
        return state in self.model.values()

    @rule()
    def take(self) -> None:
        taken = self.ring.take()
        if not self.freed:
            assert taken is None
            return
        slot = self.freed.popleft()
        assert taken == (slot, self.last[slot])
        self.model[slot] = SlotState.FILLING

    @precondition(lambda self: self.has(SlotState.FILLING))
    @rule(pick=st.integers(0, SLOTS))
    def fill(self, pick: int) -> None:
        slot = self.one_in(SlotState.FILLING, pick)
        self.last[slot] = self.event()
        self.ring.fill(slot, self.last[slot])
        self.model[slot] = SlotState.READY

    @precondition(lambda self: self.has(SlotState.FILLING))
    @rule(pick=st.integers(0, SLOTS))
    def abandon(self, pick: int) -> None:
        slot = self.one_in(SlotState.FILLING, pick)
        self.last[slot] = self.event()
        self.ring.abandon(slot, self.last[slot])
        self.model[slot] = SlotState.FREE
        self.freed.append(slot)

    @precondition(lambda self: self.has(SlotState.READY))
    @rule(pick=st.integers(0, SLOTS))
    def hold(self, pick: int) -> None:
        slot = self.one_in(SlotState.READY, pick)
        assert self.ring.hold(slot) == self.last[slot]
        self.model[slot] = SlotState.HELD

    @precondition(lambda self: self.has(SlotState.HELD))
    @rule(pick=st.integers(0, SLOTS))
    def release(self, pick: int) -> None:
        slot = self.one_in(SlotState.HELD, pick)
        self.last[slot] = self.event()
        self.ring.release(slot, self.last[slot])
        self.model[slot] = SlotState.FREE
        self.freed.append(slot)

    @invariant()
    def agrees(self) -> None:
        if self.events % 2:  # so that releases also wait for the next take
            assert self.ring.states() == list(self.model.values())


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=40, stateful_step_count=30)


@pytest.mark.parametrize("step", ["fill", "hold", "abandon"])
def test_a_step_out_of_turn_is_an_error(step: str) -> None:
    ring = Ring(1)
    arguments = (0,) if step == "hold" else (0, None)
    with pytest.raises(RuntimeError, match="slot 0 is free"):
        getattr(ring, step)(*arguments)


class Tensor:
    """What a consumer holds: memory, until the last reference goes."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.memory = memory


class TwoStreams:
    """A device whose streams run when they are told to; events are places in a stream."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Any]] = {"copy": [], "train": []}
        self.done = {"copy": 0, "train": 0}
        self.allocated = 0

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        self.allocated += 1
        return np.zeros(size_bytes, np.uint8)

    def copy(self, target: Any, host: NDArray[np.generic], after: object) -> object:
        self.queues["copy"].append(after)
        self.queues["copy"].append(lambda: np.copyto(target[: host.nbytes], host))
        return self.last_use("copy")

    def give(self, event: object) -> object:
        self.queues["train"].append(event)
        return "train"

    def last_use(self, stream: Any) -> object:
        return stream, len(self.queues[stream])

    def expose(self, memory: Any, size_bytes: int, let_go: Callable[[], None]) -> Tensor:
        tensor = Tensor(memory[:size_bytes])
        weakref.finalize(tensor, let_go)
        return tensor

    def read(self, tensor: Tensor, into: list[bytes]) -> None:
        memory = tensor.memory  # as a kernel that is queued: it holds no reference to the tensor
        self.queues["train"].append(lambda: into.append(memory.tobytes()))

    def step(self, stream: str) -> bool:
        """Run a stream's next entry; False where there is none or it has to wait."""
        queue, at = self.queues[stream], self.done[stream]
        if at == len(queue):
            return False
        entry = queue[at]
        if callable(entry):
            entry()
        elif entry is not None and self.done[entry[0]] < entry[1]:
            return False
        self.done[stream] += 1
        return True


@given(st.lists(st.sampled_from(["put", "drop", "copy", "train"]), max_size=60), st.data())
def test_no_schedule_reads_another_batchs_bytes(steps: list[str], data: st.DataObject) -> None:
    device, meter = TwoStreams(), Meter()
    batches = DeviceBatches(device, 2, meter)
    held: list[Tensor] = []
    expected: list[bytes] = []
    seen: list[bytes] = []
    for number, step in enumerate(steps):
        if step == "put":
            host = np.full(8, number, np.uint8)
            tensor = batches.put(host)
            tensor = tensor if isinstance(tensor, Tensor) else Tensor(tensor)
            device.read(tensor, seen)
            expected.append(host.tobytes())
            held.append(tensor)
            del tensor
        elif step == "drop" and held:
            del held[data.draw(st.integers(0, len(held) - 1))]
        elif step in device.queues:
            device.step(step)
    first, second = data.draw(st.sampled_from([("copy", "train"), ("train", "copy")]))
    while device.step(first) or device.step(second):
        pass
    assert seen == expected


def test_buffers_are_used_again_and_only_when_nobody_looks() -> None:
    device, meter = TwoStreams(), Meter()
    batches = DeviceBatches(device, 2, meter)
    for number in range(10):
        batches.put(np.full(8, number, np.uint8))
        gc.collect()
    assert device.allocated == 2
    held = [batches.put(np.full(8, number, np.uint8)) for number in range(4)]
    assert device.allocated == 4
    assert meter.snapshot().event("fallback") == {"device_ring_full": 2}
    assert meter.snapshot().sums["bytes.to_device"] == 14 * 8
    del held


def test_a_copy_that_fails_gives_its_slot_back() -> None:
    class Failing(TwoStreams):
        def copy(self, target: Any, host: NDArray[np.generic], after: object) -> object:
            raise MemoryError

    batches = DeviceBatches(Failing(), 1, Meter())
    for _ in range(3):
        with pytest.raises(MemoryError):
            batches.put(np.zeros(8, np.uint8))


class HostMemory:
    """Torch's memory of the host as the device, with one stream for all."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def allocate(self, size_bytes: int) -> Any:
        return self._torch.zeros(size_bytes, dtype=self._torch.uint8)

    def copy(self, target: Any, host: NDArray[np.generic], after: object) -> object:
        target[: host.nbytes] = self._torch.from_numpy(host.reshape(-1).view(np.uint8))
        return after

    def give(self, event: object) -> object:
        return event

    def last_use(self, stream: object) -> object:
        return stream

    def expose(self, memory: Any, size_bytes: int, let_go: Callable[[], None]) -> Any:
        return memory[:size_bytes]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_clips_of_both_decoders_join_on_the_copying_stream(dtype: str) -> None:
    torch: Any = pytest.importorskip("torch")
    arrays, meter = ArrayMaker("torch"), Meter()
    arrays._batches = DeviceBatches(HostMemory(torch), 2, meter)
    clips = np.arange(48, dtype=dtype).reshape(3, 2, 8)
    joined = arrays.stacked([clips[0], torch.from_numpy(clips[1]), clips[2]])
    np.testing.assert_array_equal(joined.numpy(), clips)
    assert meter.snapshot().sums["bytes.to_device"] == clips[0].nbytes * 2
