"""What lives in a cache whose readers know their plan: as values, on paper, and on disk."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_workers import Reader, used_bytes
from dstream.cache.layout import SegmentName
from dstream.cache.lifetimes import Lifetimes, Sample, Uses, lives_until, span_of
from dstream.cache.policy import Room
from dstream.cache.writing import Admission

EXTENT_BYTES, EXTENTS = 32_000, 1024


class Plan:
    """An order of extents that tells when each is read again, within two epochs."""

    def __init__(self, order: Sequence[int], epoch: int, name: str = "plan") -> None:
        self.order = order[: len(order) - 2 * epoch]
        """What is read; the plan goes on."""
        self._all, self._epoch, self._name = order, epoch, name
        self._read: dict[int, list[int]] = {}
        for place, extent in enumerate(order):
            self._read.setdefault(extent, []).append(place)

    def uses(self, place: int, readers: int = 1) -> Uses:
        def find() -> list[int]:
            end = (place // self._epoch + 2) * self._epoch
            read = self._read[self._all[place]]
            return [p for p in read[bisect.bisect_right(read, place) :] if p < end]

        return Uses(self._name, place, readers, find)


def plan(clips_each: int = 8, epochs: int = 2, name: str = "plan", seed: int = 0) -> Plan:
    generator = np.random.default_rng(seed)
    every = np.repeat(np.arange(EXTENTS), clips_each)
    order = np.concatenate([generator.permutation(every) for _ in range(epochs + 2)])
    return Plan(order.tolist(), len(every), name)


@pytest.mark.parametrize(
    ("upcoming", "span", "expected"),
    [([], 5, 10), ([12, 15, 40, 41], 5, 15), ([40], 5, 10), ([15], 5, 15), ([16], 5, 10)],
)
def test_an_extent_lives_to_its_last_use_before_a_long_gap(
    upcoming: list[int], span: int, expected: int
) -> None:
    assert lives_until(10, upcoming, span) == expected


@given(
    st.lists(
        st.builds(
            Sample,
            st.integers(0, 1000),
            st.one_of(st.none(), st.integers(1, 2000)),
            st.integers(1, 100),
            st.integers(1, 8),
        ),
        min_size=2,
    ),
    st.integers(1, 10**5),
)
def test_what_is_kept_for_less_than_the_span_fits_the_room(
    samples: list[Sample], room_bytes: int
) -> None:
    span = span_of(samples, room_bytes)
    elapsed = max(1, max(s.now for s in samples) - min(s.now for s in samples))

    def held(most: float) -> float:
        gaps = [
            (s.gap, s.size_bytes * s.reads) for s in samples if s.gap is not None and s.gap < most
        ]
        return sum(gap * size for gap, size in gaps) / elapsed

    assert held(span) <= room_bytes
    if any(s.gap is not None and s.gap > span for s in samples):
        assert held(span + 1) > room_bytes


def known(plan: str = "plan", room_bytes: int = 1000) -> Lifetimes:
    """Of extents of 10 bytes that are read again after 20: 0.5 a step, all of them fit."""
    found = Lifetimes(room_bytes)
    for now in range(2, 1200, 2):
        found.note_read(Uses(plan, now, 1, lambda now=now: [now + 20]), 10)  # type: ignore[misc]
    assert found.is_known
    return found


def use(now: int, *upcoming: int, plan: str = "plan") -> Uses:
    return Uses(plan, now, 1, lambda: upcoming)


def test_the_segment_in_which_least_lives_goes() -> None:
    found = known()
    found.own([1, 2, 3])
    for key, segment, until in (
        (1, 1, 1210),
        (2, 1, 1215),
        (3, 2, 1212),
        (4, 3, 1218),
        (5, 3, 1217),
    ):
        found.note_there(key, segment, 10, use(1200, until))
    full = [(1, 40), (2, 40), (3, 40), (4, 40)]
    assert found.victim(full) == 2  # 4 is another process's: what lives there it knows
    assert found.moving(2, 40) == [3]
    found.note_moved(3, 1)
    assert found.moving(2, 40) == []
    found.end(2)
    assert found.victim(full) == 3
    found.note_read(use(1216, 1300), 10)
    assert found.victim(full) == 1  # all in it are dead
    assert found.moving(3, 40)
    assert not found.moving(1, 40)


def test_of_a_segment_that_lives_almost_whole_a_part_is_lost() -> None:
    found = known()
    for key in range(10):
        found.note_there(key, 1, 10, use(1200, 1210))
    assert len(found.moving(1, 100)) == 8  # room for others is the point
    assert len(found.moving(1, 200)) == 10


def test_what_is_read_late_or_never_is_not_worth_its_room() -> None:
    found = known(room_bytes=11)
    assert found.is_worth_it(use(1200, 1210))
    assert not found.is_worth_it(use(1200, 1300))
    assert not found.is_worth_it(use(1200))


def test_another_plan_begins_anew() -> None:
    found = known()
    found.note_there(1, 1, 10, use(1200, 1210))
    found.note_read(use(5, 10, plan="other"), 10)
    assert not found.is_known
    assert found.moving(1, 40) == []
    assert found.is_worth_it(use(5, 10**9, plan="other"))


def test_a_plan_that_is_followed_from_an_earlier_place_begins_anew() -> None:
    found = known()
    found.note_read(use(1199, 1300), 10)  # threads overtake each other
    assert found.is_known
    found.note_read(use(0, 20), 10)
    assert not found.is_known


def test_who_cannot_tell_yet_goes_by_the_hits() -> None:
    room = Room()
    names = [SegmentName(number, 10, "a" * 16) for number in range(20)]
    room.lifetimes.own(range(20))
    found = room.reserve(
        names, names, budget_bytes=200, segment_bytes=10, need_bytes=10, leaving=()
    )
    assert found is not None
    assert found.moved_from is None  # the ring is tried


def test_on_disk_it_copies_what_lives_and_keeps_the_budget(tmp_path: Path) -> None:
    budget = EXTENTS * EXTENT_BYTES // 2
    reader, order = Reader(tmp_path, budget, size_bytes=EXTENT_BYTES), plan(4)
    half = len(order.order) // 2
    for place, extent in enumerate(order.order):
        if place == half:
            before = reader.count("cache.hits")
        reader.read(extent, uses=order.uses(place))
        if place % 256 == 0:
            assert used_bytes(tmp_path) <= budget
    assert (reader.count("cache.hits") - before) / half > 0.68  # 0.50 for who knows no plan
    assert reader.count("cache.moved") > 0
    assert reader.events("cache-refused")["later"] > 0
    assert not reader.events("cache-rot")
    moved, missed = reader.count("bytes.cache_moved"), reader.count("bytes.cache_missed")
    assert moved < 3 * missed


def test_what_lives_is_copied_though_readers_see_its_segment_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evict = Admission._evict

    def and_a_reader_looks(self: Admission, names: tuple[SegmentName, ...]) -> None:
        evict(self, names)
        self._index.refresh()

    monkeypatch.setattr(Admission, "_evict", and_a_reader_looks)
    reader, order = Reader(tmp_path, EXTENTS * EXTENT_BYTES // 2, size_bytes=EXTENT_BYTES), plan(4)
    for place, extent in enumerate(order.order[: len(order.order) // 2]):
        reader.read(extent, uses=order.uses(place))
    assert reader.count("cache.moved") > 0


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_of_a_node_share_one_plan(tmp_path: Path, processes: int) -> None:
    budget = EXTENTS * EXTENT_BYTES // 2
    readers = [Reader(tmp_path, budget, size_bytes=EXTENT_BYTES) for _ in range(processes)]
    order = plan(4)
    half, hits = len(order.order) // 2, 0
    for place, extent in enumerate(order.order):
        if place == half:
            hits = sum(reader.count("cache.hits") for reader in readers)
        readers[place % processes].read(extent, uses=order.uses(place, processes))
    assert used_bytes(tmp_path) <= budget
    later = sum(reader.count("cache.hits") for reader in readers) - hits
    assert later / half > 0.6


def test_an_extent_that_rotted_is_not_copied(tmp_path: Path) -> None:
    budget = EXTENTS * EXTENT_BYTES // 4
    reader, order = Reader(tmp_path, budget, size_bytes=EXTENT_BYTES), plan(4)
    half = len(order.order) // 2
    for place, extent in enumerate(order.order[:half]):
        reader.read(extent, uses=order.uses(place))
    for path in sorted(tmp_path.glob("segments/*.data"))[:-1]:
        with path.open("r+b") as file:
            for offset in range(1000, path.stat().st_size, EXTENT_BYTES + 64):
                file.seek(offset)
                file.write(b"rot")
    for place in range(half, half + 1000):
        reader.read(order.order[place], uses=order.uses(place))  # checks every byte
    assert reader.events("cache-rot")["bytes"] > 0
