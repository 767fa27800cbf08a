"""Orders that keep clips together: each slot once, even partitions, bounded windows, one rank."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstream.errors import InvalidInputError
from dstream.loader.lanes import Lanes
from dstream.loader.partitions import PartitionSettings
from dstream.loader.plan import Last, Order, SlotTable
from dstream.loader.spans import MIN_SPAN_CLIPS, Spans
from dstream.loader.steps import Ranks, steps

COUNTS = st.lists(st.integers(0, 900), min_size=1, max_size=12).filter(sum)
SETTINGS = st.builds(
    PartitionSettings,
    is_affine=st.booleans(),
    partitions=st.sampled_from([1, 2, 4, 8, 16]),
    clips_per_gop=st.integers(1, 9),
    window_clips=st.integers(1, 200),
)
WORLDS = (1, 2, 3, 4, 8)


def order_of(counts: list[int], kept: PartitionSettings, seed: int = 0) -> Order:
    table = SlotTable(np.array(counts, dtype=np.int64))
    return Order.of(table, seed, "uniform", "affine" if kept.is_affine else "global", kept)


def epoch_positions(order: Order, epoch: int) -> list[int]:
    return list(range(epoch * order.total, (epoch + 1) * order.total))


@settings(max_examples=30)
@given(COUNTS, SETTINGS, st.integers(0, 2**63), st.integers(0, 5))
def test_each_epoch_has_every_slot_once(
    counts: list[int], kept: PartitionSettings, seed: int, epoch: int
) -> None:
    order = order_of(counts, kept, seed)
    drawn = order.draw_many(epoch_positions(order, epoch))
    assert sorted(drawn.slots.tolist()) == list(range(order.total))
    assert set(drawn.epochs.tolist()) == {epoch}


@settings(max_examples=25)
@given(COUNTS, SETTINGS, st.integers(0, 10**12), st.lists(st.integers(0, 5000), max_size=8))
def test_any_position_alone_is_what_it_is_among_others(
    counts: list[int], kept: PartitionSettings, start: int, offsets: list[int]
) -> None:
    order = order_of(counts, kept)
    positions = [start + offset for offset in offsets]
    assert [order.draw(position) for position in positions] == list(order.draw_many(positions))


@given(st.integers(1, 3000), st.sampled_from([1, 2, 4, 32, 128]), st.integers(0, 6))
def test_partitions_are_equal_within_one_and_hold_each_clip_once(
    total: int, count: int, epoch: int
) -> None:
    lanes = Lanes(total, count)
    positions = np.arange(epoch * total, (epoch + 1) * total)
    sizes = np.bincount(lanes.of(positions), minlength=count)
    assert sizes.max() - sizes.min() <= 1
    cuts = lanes.cuts(epoch)
    assert np.array_equal(np.diff(cuts), sizes)
    turns = lanes.rank_in(positions)
    assert np.all(turns < sizes[lanes.of(positions)])
    assert np.array_equal(lanes.position(epoch, lanes.of(positions), turns), positions)


@given(st.integers(1, 3000), st.integers(0, 7), st.integers(1, 40), st.integers(0, 10**6))
def test_every_run_draws_evenly_from_all_partitions(
    total: int, parts_log2: int, batch: int, start: int
) -> None:
    """Any run of batch * 2**k positions has `batch` in each 2**k-th of the partitions, ends of
    epochs or not: so 2**k ranks keep their partitions in every step."""
    lanes = Lanes(total, 128)
    parts = 1 << parts_log2
    run = lanes.of(np.arange(start, start + batch * parts))
    assert np.bincount(run * parts // 128, minlength=parts).tolist() == [batch] * parts


@settings(max_examples=25)
@given(st.lists(st.integers(0, 4000), min_size=1, max_size=12).filter(sum))
def test_spans_keep_short_samples_whole(counts: list[int]) -> None:
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    cuts = Spans(first).starts
    assert cuts[0] == 0
    assert cuts[-1] == sum(counts)
    assert np.all(np.diff(cuts) >= 0)
    for low, high in itertools.pairwise(first.tolist()):
        pieces = np.diff(np.unique(np.clip(cuts, low, high)), prepend=low)[1:]
        inside = [cut for cut in cuts.tolist() if low < cut < high]
        assert not inside or high - low > MIN_SPAN_CLIPS
        assert all(piece >= MIN_SPAN_CLIPS // 2 for piece in pieces.tolist()) or not inside


@settings(max_examples=25)
@given(COUNTS, st.sampled_from([2, 8]), st.integers(1, 100))
def test_partitions_keep_their_slots_from_epoch_to_epoch(
    counts: list[int], partitions: int, window: int
) -> None:
    order = order_of(counts, PartitionSettings(True, partitions, 1, window))
    lanes = Lanes(order.total, partitions)

    def owners(epoch: int) -> np.ndarray:
        drawn = order.draw_many(epoch_positions(order, epoch))
        owner = np.empty(order.total, dtype=np.int64)
        owner[drawn.slots] = lanes.of(drawn.positions)
        return owner

    moved = [int(np.count_nonzero(owners(0) != owners(epoch))) for epoch in (1, 2, 5)]
    # Sizes differ by one between epochs, so the cuts between partitions move by a few clips.
    assert max(moved) <= 2 * partitions


@settings(max_examples=25)
@given(COUNTS, st.sampled_from([1, 2, 8]), st.integers(1, 300), st.integers(0, 3))
def test_neighbours_in_a_span_stay_within_two_windows(
    counts: list[int], partitions: int, window: int, epoch: int
) -> None:
    order = order_of(counts, PartitionSettings(True, partitions, 1, window))
    lanes = Lanes(order.total, partitions)
    drawn = order.draw_many(epoch_positions(order, epoch))
    by_slot = np.argsort(drawn.slots)
    lane, turn = lanes.of(drawn.positions)[by_slot], lanes.rank_in(drawn.positions)[by_slot]
    distance = np.abs(np.diff(turn))
    far = np.flatnonzero((np.diff(lane) != 0) | (distance >= 2 * window))
    # Only where spans or partitions are cut do neighbours part.
    assert len(far) <= Spans(order_first(counts)).count + partitions


def order_first(counts: list[int]) -> np.ndarray:
    return SlotTable(np.array(counts, dtype=np.int64)).first


@settings(max_examples=30)
@given(COUNTS, SETTINGS.filter(lambda kept: kept.clips_per_gop > 1), st.integers(0, 3))
def test_groups_are_runs_of_one_sample_in_one_window(
    counts: list[int], kept: PartitionSettings, epoch: int
) -> None:
    order = order_of(counts, kept)
    table = SlotTable(np.array(counts, dtype=np.int64))
    groups: dict[int, list[tuple[int, int]]] = {}
    for draw in order.draw_many(epoch_positions(order, epoch)):
        groups.setdefault(draw.group, []).append((draw.slot, draw.position))
    for name, members in groups.items():
        slots = sorted(slot for slot, _ in members)
        assert slots == list(range(name, name + len(slots)))
        assert len(slots) <= kept.clips_per_gop
        assert len({table.locate(slot)[0] for slot in slots}) == 1
        positions = [position for _, position in members]
        assert max(positions) - min(positions) < kept.window_clips * kept.partitions
    whole = sum(count // kept.clips_per_gop for count in counts)
    cuts = len(counts) + kept.partitions + sum(counts) // MIN_SPAN_CLIPS
    assert len(groups) <= whole + 2 * cuts


@settings(max_examples=25)
@given(COUNTS, SETTINGS.filter(lambda kept: kept.clips_per_gop > 1), st.integers(0, 10**6))
def test_a_group_is_known_from_any_of_its_positions(
    counts: list[int], kept: PartitionSettings, start: int
) -> None:
    order = order_of(counts, kept)
    group = order.group(start)
    assert start in [draw.position for draw in group]
    assert len({draw.group for draw in group}) == 1
    assert [order.group(draw.position) for draw in group] == [group] * len(group)
    same_epoch = order.draw_many(epoch_positions(order, start // order.total))
    assert int(np.count_nonzero(same_epoch.groups == group[0].group)) == len(group)


@settings(max_examples=25)
@given(
    COUNTS,
    SETTINGS.filter(lambda kept: kept.clips_per_gop > 1),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(1, 9),
    st.integers(0, 10**5),
)
def test_one_rank_gets_all_clips_of_a_group(
    counts: list[int], kept: PartitionSettings, world: int, batch: int, start: int
) -> None:
    order = order_of(counts, kept)
    if world > kept.partitions:
        with pytest.raises(InvalidInputError, match="partitions="):
            next(steps(start, None, order.total, order, Ranks(batch, 0, world)))
        return
    owner: dict[tuple[int, int], set[int]] = {}
    for rank in range(world):
        stop = start + 2 * order.total
        mine = steps(start, stop, order.total, order, Ranks(batch, rank, world))
        for draw in order.draw_many([p for step in mine for p in step.positions]):
            owner.setdefault((draw.epoch, draw.group), set()).add(rank)
    assert all(len(ranks) == 1 for ranks in owner.values())


@settings(max_examples=25)
@given(
    COUNTS,
    SETTINGS,
    st.integers(1, 3),
    st.sampled_from(["wrap", "drop", "short"]),
    st.lists(st.tuples(st.sampled_from(WORLDS), st.integers(0, 5)), min_size=1, max_size=6),
)
def test_a_run_goes_on_in_any_world(
    counts: list[int],
    kept: PartitionSettings,
    batch: int,
    last: Last,
    runs: list[tuple[int, int]],
) -> None:
    """Cut at any step and resumed by another number of ranks, the global steps are the same."""
    kept = PartitionSettings(kept.is_affine, 16, kept.clips_per_gop, kept.window_clips)
    order = order_of(counts, kept)
    size = 24 * batch
    if last == "drop" and order.total < size:
        return

    def step_sequence(position: int, world: int) -> itertools.zip_longest[tuple[object, ...]]:
        ranks = [Ranks(size // world, rank, world, last) for rank in range(world)]
        return itertools.zip_longest(
            *(steps(position, 2 * order.total, order.total, order, rank) for rank in ranks)
        )

    position, resumed = 0, []
    for world, count in [*runs, (1, 1 << 60)]:
        for parts in itertools.islice(step_sequence(position, world), min(count, 1 << 60)):
            resumed.append([p for part in parts for p in part.positions])  # type: ignore[attr-defined]
            position = parts[0].stop  # type: ignore[attr-defined]
    uninterrupted = [list(parts[0].positions) for parts in step_sequence(0, 1)]  # type: ignore[attr-defined]
    assert resumed == uninterrupted
    times = Counter(p for step in resumed for p in step if p < 2 * order.total)
    assert set(times.values()) == {1}
    if last != "drop":
        assert len(times) == 2 * order.total


def test_what_partitioned_fingerprints_stand_for_does_not_change() -> None:
    counts = [30, 0, 700, 5]
    affine = order_of(counts, PartitionSettings(True, 4, 1, 32), 42)
    groups = order_of(counts, PartitionSettings(False, 4, 4, 8), 42)
    assert affine.draw_many(range(8)).slots.tolist() == [19, 371, 186, 558, 6, 369, 187, 553]
    assert groups.draw_many(range(8)).slots.tolist() == [645, 98, 654, 318, 646, 507, 652, 319]
    assert affine.fingerprint[:8] == "97bb747b"
    assert groups.fingerprint[:8] == "300bf3e9"
    moved = order_of([30, 0, 699, 6], PartitionSettings(True, 4, 1, 32), 42)
    assert moved.fingerprint != affine.fingerprint
