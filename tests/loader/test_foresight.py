"""When GOPs are read again: against all positions that a node takes, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dstream
from dstream.loader.foresight import Foresight, NodeReads, is_foreseen, upcoming
from dstream.loader.gop_layout import GopLayout
from dstream.loader.partitions import partition_settings
from dstream.loader.plan import Last, Order, Window
from dstream.loader.ranks import node_ranks
from dstream.loader.reader import ClipReader
from dstream.loader.steps import Ranks, steps
from dstream.store.opening import open_store
from loader_data import fill, publish, videos


def read_here(order: Order, reads: NodeReads, stop: int) -> list[int]:
    """The positions of a node up to ``stop``, in increasing order."""
    ranks = reads.ranks
    here: set[int] = set()
    for rank in reads.local:
        own = Ranks(ranks.batch_size, rank, ranks.world_size, ranks.last, ranks.replicas)
        for step in steps(reads.begin, stop, reads.epoch_size, order, own):
            here.update(step.positions)
    return sorted(here)


@settings(max_examples=60)
@given(
    videos=st.integers(1, 4),
    seconds=st.sampled_from([3.0, 10.4, 31.0]),
    gop_frames=st.sampled_from([10, 50, 250]),
    window=st.sampled_from([Window(16, 1), Window(5, 3), Window(12, fps=7.0)]),
    sampling=st.sampled_from(["uniform", "grid", "keyframe"]),
    nodes=st.integers(1, 3),
    each=st.integers(1, 3),
    batch=st.integers(1, 3),
    last=st.sampled_from(["wrap", "drop", "short"]),
    begin=st.integers(0, 40),
    replicate=st.booleans(),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_uses_are_those_that_the_steps_of_the_nodes_ranks_take(
    videos: int,
    seconds: float,
    gop_frames: int,
    window: Window,
    sampling: Any,
    nodes: int,
    each: int,
    batch: int,
    last: Last,
    begin: int,
    replicate: bool,
    seed: int,
    data: st.DataObject,
) -> None:
    layout = GopLayout.even(
        videos=videos,
        seconds=seconds,
        rate=25,
        gop_frames=gop_frames,
        bytes_per_s=1000,
        window=window,
        sampling=sampling,
    )
    order = Order(layout.slots.total, seed, sampling)
    epoch_size = max(data.draw(st.integers(1, 2 * order.total)), nodes * each * batch)
    node = data.draw(st.integers(0, nodes - 1))
    ranks = Ranks(batch, node * each, nodes * each, last, each if replicate else 1)
    reads = NodeReads(ranks, range(node * each, node * each + each), epoch_size, begin)
    here = read_here(order, reads, begin + 5 * order.total + 3 * epoch_size)
    draws = order.draw_many(here)
    first, stop = layout.gops_of(draws)
    now = data.draw(st.integers(begin, begin + 2 * order.total))
    gops = np.arange(len(layout.key_s))
    found = upcoming(order, layout, reads, gops, np.full(len(gops), now))
    end = (now // order.total + 2) * order.total
    soon = (draws.positions > now) & (draws.positions < end)
    for gop in gops.tolist():
        needed = soon & (first <= gop) & (gop <= stop)
        assert found[gop] == draws.positions[needed].tolist()
    assert reads.readers == (1 if replicate else each)


def test_a_position_is_where_its_slot_comes() -> None:
    for shuffle in ("global", None):
        order = Order(101, 3, shuffle=shuffle)
        draws = order.draw_many(range(202, 303))
        again = order.draw_slots(2, draws.slots)
        assert again.positions.tolist() == draws.positions.tolist()
        assert again.drawn.tolist() == draws.drawn.tolist()


def test_orders_that_keep_clips_together_are_not_foreseen() -> None:
    layout = GopLayout.even(
        videos=2, seconds=60, rate=25, gop_frames=50, bytes_per_s=1, window=Window(16, 1)
    )
    for is_affine, together in ((True, 1), (False, 4)):
        kept = partition_settings(
            layout.slots.total,
            is_affine=is_affine,
            partitions=2,
            window_clips=None,
            clips_per_gop=together,
        )
        shuffle: Any = "affine" if is_affine else "global"
        assert not is_foreseen(Order.of(layout.slots, 0, "uniform", shuffle, kept))
    assert not is_foreseen(Order(10, 0, shuffle=None))
    assert is_foreseen(Order(10, 0))


@pytest.mark.parametrize(
    ("environment", "rank", "world_size", "expected"),
    [
        ({}, 0, 1, range(1)),
        ({}, 5, 8, range(5, 6)),
        ({"LOCAL_WORLD_SIZE": "8"}, 5, 8, range(8)),
        ({"LOCAL_WORLD_SIZE": "4"}, 5, 8, range(4, 8)),
        ({"SLURM_STEP_NUM_NODES": "2"}, 1, 4, range(2)),
    ],
)
def test_which_ranks_are_on_the_node(
    environment: dict[str, str], rank: int, world_size: int, expected: range
) -> None:
    assert node_ranks(environment, rank, world_size) == expected


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("foresight")
    source, url = str(folder / "source"), str(folder / "repo")
    fill(open_store(source), videos(folder, 4, frames=96, gop=24, size=(64, 64)))
    publish(url, source, packed=True)
    return url


@pytest.mark.parametrize("sampling", ["uniform", "keyframe"])
def test_a_clip_of_real_videos_tells_when_its_gops_are_read_again(repo: str, sampling: Any) -> None:
    clips = dstream.open(repo).clips("d", frames=5, sampling=sampling, array="numpy")
    reader = ClipReader(clips.source, clips.settings, clips.meter)
    order = Order(len(clips), clips.settings.seed, sampling)
    reads = NodeReads(Ranks(3, 1, 2), range(1, 2), order.total)
    foresight = Foresight.of(order, reader.slots, clips.settings, reads, clips.fingerprint)
    assert foresight is not None
    read: dict[tuple[str, int], list[int]] = {}
    for position in read_here(order, reads, 4 * order.total):
        planned = reader.plan(order.draw(position))
        for extent in planned.plan.extents:
            read.setdefault((planned.sample.key, extent.gop), []).append(position)
    for position in range(order.total // 2, order.total):
        planned = reader.plan(order.draw(position))
        gops = [extent.gop for extent in planned.plan.extents]
        told = foresight.uses(planned.sample, planned.draw, gops)
        assert told is not None
        for gop, uses in zip(gops, told, strict=True):
            all_of_it = read[planned.sample.key, gop]
            assert uses.now == position
            assert uses.find() == [p for p in all_of_it if position < p < 2 * order.total]


def test_data_sets_whose_orders_look_the_same_have_plans_of_their_own(repo: str) -> None:
    clips = dstream.open(repo).clips("d", frames=5, array="numpy")
    reader = ClipReader(clips.source, clips.settings, clips.meter)
    order, planned = Order(len(clips), 0), reader.plan(Order(len(clips), 0).draw(0))
    reads = NodeReads(Ranks(1), range(1), order.total)
    plans = set()
    for data in ("training", "validation"):
        foresight = Foresight.of(order, reader.slots, clips.settings, reads, data)
        assert foresight is not None
        told = foresight.uses(planned.sample, planned.draw, [0])
        assert told is not None
        plans.add(told[0].plan)
    assert len(plans) == 2


def test_what_a_node_reads_about_once_an_epoch_is_not_told(repo: str) -> None:
    clips = dstream.open(repo).clips("d", frames=24, array="numpy")  # one or two to a GOP
    reader = ClipReader(clips.source, clips.settings, clips.meter)
    order = Order(len(clips), 0)
    reads = NodeReads(Ranks(1), range(1), order.total)
    foresight = Foresight.of(order, reader.slots, clips.settings, reads, clips.fingerprint)
    planned = reader.plan(order.draw(0))
    assert foresight is not None
    assert foresight.uses(planned.sample, planned.draw, [0]) is None
