"""Batch memory is used again, and never while anybody can see it."""

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dstream
from dstream import Clips
from dstream.loader.buffers import BufferPool
from dstream.store.opening import open_store
from loader_data import batch_hash, fill, new_url, videos

SHAPE = (2, 3, 5)


def fresh(pool: BufferPool) -> int:
    """Address of the memory that is given next; nobody holds it afterwards."""
    return int(pool.take(SHAPE, np.uint8).ctypes.data)


def test_memory_is_used_again() -> None:
    pool = BufferPool(3)
    assert len({fresh(pool) for _ in range(10)}) == 1
    assert pool.allocated == 1


def test_memory_in_use_is_not_given() -> None:
    pool = BufferPool(2)
    held = [pool.take(SHAPE, np.uint16) for _ in range(10)]
    assert len({array.ctypes.data for array in held}) == 10
    for number, array in enumerate(held):
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(held))


def test_every_kind_of_view_holds_the_memory() -> None:
    pool = BufferPool(2)
    views: list[Callable[[Any], object]] = [
        lambda array: array[0, 1:],
        lambda array: array.reshape(-1)[::2].T,
        lambda array: memoryview(array),
        lambda array: np.from_dlpack(array),
        lambda array: array.base,
        lambda array: array.view(np.int8)[1:],
    ]
    for view in views:
        array = pool.take(SHAPE, np.uint8)
        place = array.ctypes.data
        held = view(array)
        del array
        gc.collect()
        assert place not in {fresh(pool) for _ in range(4)}
        del held


def test_a_pool_forgets_what_others_keep() -> None:
    pool = BufferPool(2)
    held = [pool.take(SHAPE, np.uint8) for _ in range(6)]
    del held
    assert len({fresh(pool) for _ in range(8)}) <= 2
    assert pool.allocated == 6


def test_sizes_do_not_mix() -> None:
    pool = BufferPool(4)
    large = pool.take((1000,), np.float32)
    assert large.shape == (1000,)
    del large
    small = pool.take((3,), np.uint8)
    assert small.nbytes == 3


def test_tensors_and_their_views_hold_the_memory() -> None:
    torch = pytest.importorskip("torch")
    pool = BufferPool(2)
    views: list[Callable[[Any], object]] = [
        torch.from_numpy,
        lambda array: torch.from_numpy(array)[0, 1:].T,
        lambda array: torch.from_dlpack(array),
        lambda array: torch.utils.dlpack.to_dlpack(torch.from_numpy(array)),
        lambda array: torch.from_numpy(array).permute(2, 0, 1).numpy(),
    ]
    for view in views:
        array = pool.take(SHAPE, np.uint8)
        place = array.ctypes.data
        held = view(array)
        del array
        gc.collect()
        assert place not in {fresh(pool) for _ in range(4)}
        del held


@pytest.fixture
def clips(tmp_path: Path) -> Clips:
    source = new_url()
    fill(open_store(source), videos(tmp_path, 3, frames=48))
    return dstream.clips(source, frames=4, clips_per_file=8, array="numpy")


def test_a_list_of_batches_is_right(clips: Clips) -> None:
    with clips.loader(2) as loader:
        at_delivery = [batch_hash(batch) for batch in loader]
    with clips.loader(2) as loader:
        kept = list(loader)
    assert [batch_hash(batch) for batch in kept] == at_delivery
    assert len({batch.video.ctypes.data for batch in kept}) == len(kept) == 12


def test_batches_that_are_dropped_share_memory(clips: Clips) -> None:
    with clips.loader(2, epochs=4, prefetch=2) as loader:
        places = {batch.video.ctypes.data for batch in loader}
    assert len(places) <= 2 + 2


def test_a_kept_view_is_never_overwritten(clips: Clips) -> None:
    with clips.loader(2, epochs=3) as loader:
        first = next(loader)
        kept = first.video[1, 2]
        before = kept.copy()
        del first
        for batch in loader:
            assert batch.video.ctypes.data != kept.base.ctypes.data
    np.testing.assert_array_equal(kept, before)


def test_batches_are_tensors_where_torch_is(clips: Clips) -> None:
    torch = pytest.importorskip("torch")
    with clips.loader(2, array="torch") as loader, clips.loader(2, array="numpy") as other:
        for batch, expected in zip(loader, other, strict=True):
            assert isinstance(batch.video, torch.Tensor)
            assert batch.video.dtype == torch.uint8
            assert batch.size == expected.size
            np.testing.assert_array_equal(batch.video.numpy(), expected.video)
            through = np.from_dlpack(batch.video)
            assert through.ctypes.data == batch.video.data_ptr()
            del batch
            np.testing.assert_array_equal(through, expected.video)
    if not torch.cuda.is_available():
        with pytest.raises(dstream.InvalidInputError, match="no CUDA device"):
            clips.loader(2, device="cuda", array="torch")
    with pytest.raises(dstream.InvalidInputError, match="array='torch'"):
        clips.loader(2, device="cuda", array="numpy")


def test_what_dlpack_consumers_hold_is_never_overwritten(clips: Clips) -> None:
    torch = pytest.importorskip("torch")
    takers: list[Callable[[Any], Any]] = [
        lambda batch: np.from_dlpack(batch.video)[1:],
        lambda batch: torch.from_dlpack(batch.video),
        lambda batch: torch.utils.dlpack.to_dlpack(batch.video),
        lambda batch: batch.video[0, :, 1].permute(0, 2, 1),
        lambda batch: batch.video.numpy().view(np.int8),
        lambda batch: batch.to("cpu").video.detach(),
    ]
    with clips.loader(2, epochs=2, array="torch") as loader:
        kept = []
        for number, batch in enumerate(loader):
            held = takers[number % len(takers)](batch)
            kept.append((batch_hash(batch), batch.video.data_ptr(), held))
            del batch
    assert len({place for _, place, _ in kept}) == len(kept) == 24
    with clips.loader(2, epochs=2, array="torch") as loader:
        for (_, _, held), batch in zip(kept, loader, strict=True):
            kind = type(held).__name__
            if kind == "PyCapsule":
                assert torch.equal(torch.utils.dlpack.from_dlpack(held), batch.video)
            elif np.asarray(held).shape == tuple(batch.video.shape):
                assert (np.asarray(held).view(np.uint8) == batch.video.numpy()).all()


def test_memory_returns_when_its_holders_go(clips: Clips) -> None:
    with clips.loader(2, epochs=None) as loader:
        size_bytes = next(loader).video.nbytes
        tracemalloc.start()
        try:
            kept = [next(loader) for _ in range(40)]
            held_bytes, _ = tracemalloc.get_traced_memory()
            assert held_bytes > 35 * size_bytes
            views = [batch.video[0, 0] for batch in kept[:3]]
            del kept
            for _ in range(8):  # the pool notices when it is asked
                next(loader)
            gc.collect()
            left_bytes, _ = tracemalloc.get_traced_memory()
            # Those in the making, in hand and in the pool, and what the views hold.
            assert left_bytes < (len(views) + 8) * size_bytes
        finally:
            tracemalloc.stop()
