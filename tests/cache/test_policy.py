"""What is admitted and what goes: as a table, and against clairvoyance on the loader's orders."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cache_workers import Reader
from dstream.cache.layout import SegmentName
from dstream.cache.lifetimes import Uses
from dstream.cache.paper import PaperCache
from dstream.cache.policy import (
    Evidence,
    Reservation,
    cost_bytes,
    over_budget,
    reserve,
    ring_of,
)
from dstream.cache.record import RECORD_BYTES
from dstream.loader.partitions import partition_settings
from dstream.loader.plan import Order, SlotTable
from dstream.units import KIB

A, B = "a" * 16, "b" * 16


def names(*scopes: str, capacity: int = 10) -> list[SegmentName]:
    return [SegmentName(number, capacity, scope) for number, scope in enumerate(scopes)]


@pytest.mark.parametrize(
    ("have", "budget", "need", "leaving", "expected"),
    [
        ([], 30, 5, "", Reservation(10)),
        ([A, A], 30, 10, "", Reservation(10)),
        ([A, A, A], 30, 5, "", None),
        ([A, A], 30, 11, "", None),  # an extent larger than a segment gets what it needs
        ([A], 30, 15, "", Reservation(15)),
        ([], 30, 31, "", None),
        ([B, A, B], 30, 5, B, Reservation(10, (SegmentName(0, 10, B),))),
        ([A, A, B], 30, 15, B, None),
        ([A, B, B], 30, 15, B, Reservation(15, (SegmentName(1, 10, B), SegmentName(2, 10, B)))),
    ],
)
def test_reservations(
    have: list[str], budget: int, need: int, leaving: str, expected: Reservation | None
) -> None:
    found = reserve(
        names(*have), budget_bytes=budget, segment_bytes=10, need_bytes=need, leaving={leaving}
    )
    assert found == expected


@given(
    st.lists(st.sampled_from([A, B]), max_size=12),
    st.integers(1, 150),
    st.integers(1, 40),
    st.sets(st.sampled_from([A, B])),
)
def test_a_reservation_keeps_the_budget_and_deletes_only_what_left(
    scopes: list[str], budget: int, need: int, leaving: set[str]
) -> None:
    have = names(*scopes)
    found = reserve(have, budget_bytes=budget, segment_bytes=10, need_bytes=need, leaving=leaving)
    if found is None:
        return
    assert found.capacity_bytes >= need
    assert all(name.scope in leaving for name in found.evict)
    left = [name for name in have if name not in found.evict]
    assert sum(name.capacity_bytes for name in left) + found.capacity_bytes <= budget


@given(st.lists(st.sampled_from([A, B]), max_size=12), st.integers(1, 150))
def test_a_smaller_budget_is_met_with_those_that_left_first(scopes: list[str], budget: int) -> None:
    have = names(*scopes)
    gone = over_budget(have, budget_bytes=budget, leaving={B})
    left = [name for name in have if name not in gone]
    assert sum(name.capacity_bytes for name in left) <= budget
    assert not gone or sum(n.capacity_bytes for n in left) + gone[-1].capacity_bytes > budget
    if any(name.scope == A for name in gone):
        assert all(name.scope == A for name in left)


def test_the_oldest_of_the_ring_makes_room() -> None:
    have = names(*[A] * 10)
    assert ring_of(have, 0) == []
    assert ring_of(have[:7], 1) == []
    assert ring_of(have, 3) == have[7:]


@pytest.mark.parametrize(
    ("ring", "hits", "expected"),
    [
        (8, {12: 1, 13: 1}, None),  # less than a quarter of a segment
        (8, {12: 10, 13: 10}, 10),
        (8, {12: 10, 13: 10, 19: 60, 0: 200}, 6),  # 20 of two; any two kept ones had 33.3
        (8, {12: 10, 13: 10, 0: 200}, 4),  # nor has the ring half of what its room is worth
        (8, {14: 90, 19: 90}, None),  # the younger ones of the ring say nothing
        (16, {4: 90}, 18),  # so many at most
        (4, {16: 9, 19: 180, 0: 1600}, 2),
        (1, {0: 1900}, 0),
    ],
)
def test_the_ring_is_as_large_as_it_pays(
    ring: int, hits: dict[int, int], expected: int | None
) -> None:
    have = names(*[A] * 20, capacity=40)
    found = Evidence().of(have, ring, hits).next_ring(ring, len(have), 40)
    assert found == expected


def test_a_ring_that_was_written_anew_without_a_hit_vanishes() -> None:
    have = names(*[A] * 20, capacity=40)
    found = Evidence()
    for expected in (None, None, None, 0):
        found = found.of(have, 4, {})
        assert found.next_ring(4, len(have), 40) == expected


def test_evidence_adds_up() -> None:
    have = names(*[A] * 20, capacity=40)
    little = Evidence().of(have, 8, {12: 6})
    assert little.next_ring(8, 20, 40) is None
    assert little.of(have, 8, {13: 6}).next_ring(8, 20, 40) == 10


def test_what_the_node_reads_no_more_gives_way() -> None:
    """After a whole new set of reads, of which each comes once an epoch: nothing else shows it."""
    cache = PaperCache(HALF_BYTES)
    for extent in range(EXTENTS // 2):
        cache.read(extent, SIZE_BYTES)
    hits = [
        [cache.read(extent, SIZE_BYTES) for extent in range(EXTENTS, EXTENTS + 400)]
        for _ in range(6)
    ]
    assert sum(hits[0]) == 0
    assert sum(hits[-1]) > 380


def test_what_is_idle_gives_way_to_larger_segments_too() -> None:
    size_bytes = 10 * SIZE_BYTES
    small = PaperCache(10 * HALF_BYTES)
    for extent in range(EXTENTS // 2):
        small.read(extent, size_bytes)
    cache = small.reopened(11 * HALF_BYTES)
    hits = [
        [cache.read(extent, size_bytes) for extent in range(EXTENTS, EXTENTS + 400)]
        for _ in range(8)
    ]
    assert sum(hits[-1]) > 300


def test_a_ring_that_did_well_comes_back_soon() -> None:
    cache = PaperCache(HALF_BYTES)
    new = itertools.count(EXTENTS)

    def hit_rate_in_windows(windows: int) -> float:
        """64 extents at a time, each read twice: half of all reads can be hits."""
        hits = 0
        for _ in range(windows):
            some = list(itertools.islice(new, 64))
            hits += sum(cache.read(extent, SIZE_BYTES) for extent in some * 2)
        return hits / (128 * windows)

    for extent in range(EXTENTS // 2):
        cache.read(extent, SIZE_BYTES)
    assert hit_rate_in_windows(200) > 0.45
    for extent in range(2000):  # only what is kept is read again
        cache.read(extent % 128, SIZE_BYTES)
        cache.read(next(new), SIZE_BYTES)
    assert hit_rate_in_windows(1) == 0
    hit_rate_in_windows(100)
    assert hit_rate_in_windows(10) > 0.45


def clairvoyant(accesses: Sequence[int], capacity: int) -> NDArray[np.bool_]:
    """Belady's rule, which may also pass an extent by: which accesses hit."""
    never = len(accesses)
    upcoming, last = np.full(never, never), dict[int, int]()
    for place in range(never - 1, -1, -1):
        upcoming[place] = last.get(accesses[place], never)
        last[accesses[place]] = place
    held: dict[int, int] = {}
    latest: list[tuple[int, int]] = []
    hits = np.zeros(never, np.bool_)
    for place, extent in enumerate(accesses):
        hits[place] = extent in held
        wanted = int(upcoming[place])
        if extent not in held and len(held) == capacity:
            while held.get(latest[0][1]) != -latest[0][0]:
                heapq.heappop(latest)
            if wanted >= -latest[0][0]:
                continue
            del held[heapq.heappop(latest)[1]]
        held[extent] = wanted
        heapq.heappush(latest, (-wanted, extent))
    return hits


EXTENTS, EPOCHS = 1024, 4
SIZE_BYTES = 64 * KIB
HALF_BYTES = 32 * (16 * cost_bytes(SIZE_BYTES) - 15 * RECORD_BYTES)
"""Budget of a cache that holds half of the extents: 32 segments of 16."""


def accesses(shuffle: str, clips_each: int, window_clips: int = 0) -> list[int]:
    """The extents that one node reads, clip by clip, in the loader's own order."""
    slots = SlotTable(np.full(EXTENTS // 16, 16 * clips_each, dtype=np.int64))
    settings = partition_settings(
        slots.total,
        is_affine=shuffle == "affine",
        partitions=2 if shuffle == "affine" else None,
        window_clips=window_clips or None,
        clips_per_gop=1,
    )
    order = Order.of(slots, 3, "uniform", "affine" if settings else "global", settings)
    draws = order.draw_many(np.arange(EPOCHS * slots.total))
    return [draw.slot // clips_each for draw in draws]


@pytest.mark.parametrize(
    ("shuffle", "clips_each", "window_clips"),
    [("global", 1, 0), ("affine", 1, 128), ("affine", 8, 256), ("affine", 15, 512)],
)
def test_at_half_the_data_it_hits_within_5_points_of_clairvoyance(
    shuffle: str, clips_each: int, window_clips: int
) -> None:
    order = accesses(shuffle, clips_each, window_clips)
    cache = PaperCache(HALF_BYTES)
    hits = np.array([cache.read(extent, SIZE_BYTES) for extent in order])
    best = clairvoyant(order, EXTENTS // 2)
    epoch = len(order) // EPOCHS
    later = slice(epoch, None)
    assert 0 <= best[later].mean() - hits[later].mean() < 0.05
    assert best[later].mean() > 0.45


@pytest.mark.parametrize(("clips_each", "share"), [(2, 0.5), (8, 0.25), (8, 0.5), (8, 0.75)])
def test_who_tells_the_plan_hits_within_5_points_of_clairvoyance(
    clips_each: int, share: float
) -> None:
    """Several clips of a GOP over the whole epoch: the loader's ``shuffle="global"``."""
    order = accesses("global", clips_each)
    epoch = len(order) // EPOCHS
    read: dict[int, list[int]] = {}
    for place, extent in enumerate(order):
        read.setdefault(extent, []).append(place)
    cache = PaperCache(int(2 * share * HALF_BYTES))

    def is_hit(place: int, extent: int) -> bool:
        soon = [p for p in read[extent] if place < p < (place // epoch + 2) * epoch]
        return cache.read(extent, SIZE_BYTES, Uses("plan", place, 1, lambda: soon))

    hits = np.array([is_hit(place, extent) for place, extent in enumerate(order)])
    best = clairvoyant(order, int(EXTENTS * share))
    whole = slice(epoch, -epoch)  # what comes after the last epoch nobody told
    assert 0 <= best[whole].mean() - hits[whole].mean() < 0.05
    missed_bytes = int((~hits).sum()) * SIZE_BYTES
    assert cache.kept_bytes < missed_bytes
    assert cache.moved_bytes < 3 * missed_bytes


def test_several_clips_a_gop_over_the_whole_epoch_need_the_plan() -> None:
    """Who doesn't know the future does no better than half there; see docs/cache.md."""
    order = accesses("global", 8)
    cache = PaperCache(HALF_BYTES)
    hits = np.array([cache.read(extent, SIZE_BYTES) for extent in order])
    assert hits[len(order) // EPOCHS :].mean() > 0.45


def test_the_cache_itself_does_as_the_policy_says(tmp_path: Path) -> None:
    size_bytes, extents, clips_each = 32_000, 1024, 4
    reader = Reader(tmp_path, extents * size_bytes // 2, size_bytes=size_bytes)
    paper = PaperCache(extents * size_bytes // 2)
    generator = np.random.default_rng(0)
    order: list[int] = []
    for _ in range(2):
        line = np.repeat(generator.permutation(extents), clips_each).reshape(-1, 64 * clips_each)
        order += generator.permuted(line, axis=1).ravel().tolist()
    half = len(order) // 2
    for place in order[:half]:
        reader.read(place)
    before = reader.count("cache.hits")
    for place in order[half:]:
        reader.read(place)
    best = clairvoyant(order, extents // 2)[half:].mean()
    assert (reader.count("cache.hits") - before) / half > best - 0.07  # segments are not quite full
    assert reader.count("cache.evicted_segments") > 0
    on_paper = np.mean([paper.read(place, size_bytes) for place in order])
    assert reader.count("cache.hits") / len(order) == pytest.approx(on_paper, abs=0.01)
