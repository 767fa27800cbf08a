"""What lives in a cache whose readers know their plan: as values, on paper, and on disk."""

from __future__ import annotations

import bisect
import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_workers import Reader, used_bytes
from dstream.cache.layout import SegmentName
from dstream.cache.lifetimes import Lifetimes, Sample, Uses, spans_of
from dstream.cache.lives import lives_until
from dstream.cache.paper import PaperCache
from dstream.cache.policy import Room
from dstream.cache.record import Record
from dstream.cache.segment import OpenSegment
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


samples = st.lists(
    st.builds(
        Sample,
        st.integers(0, 1000),
        st.one_of(st.none(), st.integers(1, 2000)),
        st.integers(1, 100),
        st.integers(1, 8),
        st.integers(0, 10**6),
    ),
    min_size=2,
)


@given(st.lists(samples, min_size=1, max_size=3), st.integers(1, 10**5))
def test_what_is_kept_for_less_than_the_span_fits_the_room(
    plans: list[list[Sample]], room_bytes: int
) -> None:
    _, spans = spans_of(plans, room_bytes)

    def held(more: int) -> float:
        return sum(
            s.gap * s.size_bytes * s.reads / max(1, max(now) - min(now))
            for samples, span in zip(plans, spans, strict=True)
            if (now := [s.now for s in samples])
            for s in samples
            if s.gap is not None and s.gap < span + more
        )

    # Where plans have clocks of other paces, a span on one falls between the ticks of another.
    assert held(0 if len(plans) == 1 else -1) <= room_bytes * (1 + 1e-9)
    rest = [
        s
        for samples, span in zip(plans, spans, strict=True)
        for s in samples
        if s.gap is not None and s.gap > span + 1
    ]
    if rest:
        assert held(2) > room_bytes * (1 - 1e-9)


def test_a_plan_that_is_read_as_often_has_the_same_room() -> None:
    one = other = [Sample(now, 20, 10, 1, now) for now in range(0, 1000, 2)]
    alone, [span] = spans_of([one], 120)
    assert (alone, span) == (20, 20)
    longest, spans = spans_of([one, [replace(s, gap=40) for s in other]], 120)
    assert (longest, spans) == (40, [40, 40])  # of both: 100 and 200 bytes; it ends at 120
    longest, spans = spans_of([one, [replace(s, now=s.now * 8, gap=160) for s in other]], 90)
    assert (longest, spans) == (20, [20, 160])  # a clock that runs eight times as fast


def known(plan: str = "plan", room_bytes: int = 1000) -> Lifetimes:
    """Of extents of 10 bytes that are read again after 20: 0.5 a step, all of them fit."""
    found = Lifetimes(room_bytes)
    follow(found, plan)
    return found


def follow(found: Lifetimes, plan: str) -> None:
    for now in range(2, 1200, 2):
        found.note_read(Uses(plan, now, 1, lambda now=now: [now + 20]), 10)  # type: ignore[misc]
    assert found.is_known


def segments(*numbers: int, capacity_bytes: int = 40) -> list[SegmentName]:
    return [SegmentName(number, capacity_bytes, "a" * 16) for number in numbers]


def use(now: int, *upcoming: int, plan: str = "plan") -> Uses:
    return Uses(plan, now, 1, lambda: upcoming)


def test_the_segment_in_which_least_lives_goes() -> None:
    found = known()
    for number in (1, 2, 3):
        found.note_made(number)
    for key, segment, until in (
        (1, 1, 1210),
        (2, 1, 1215),
        (3, 2, 1212),
        (4, 3, 1218),
        (5, 3, 1217),
    ):
        found.note_there(key, segment, 10, use(1200, until))
    full = segments(1, 2, 3, 4)
    assert found.victims(full) == segments(2, 1, 3)  # 4 is another's, which knows what lives there
    assert found.moving([2], 40) == [3]
    found.note_moved(3, 1)
    assert found.moving([2], 40) == []
    found.note_made(5, [2])
    assert found.victims(full) == segments(3, 1)
    found.note_read(use(1216, 1300), 10)
    assert found.victims(full) == segments(1, 3)  # all in it are dead
    assert found.moving([3], 40)
    assert not found.moving([1], 40)
    assert found.victims(segments(4)) == segments(4)  # where none is its own, others go


def test_who_made_its_share_of_the_segments_leaves_others_what_it_found() -> None:
    found = known()
    for now in range(1200, 1300):
        found.note_read(Uses("plan", now, 4, lambda: []), 10)
    found.find([1, 2, 3, 4, 5, 6, 7])
    found.note_made(8)
    have = segments(*range(1, 9))
    assert found.victims(have) == have
    found.note_made(9, [1])
    assert found.victims(segments(*range(2, 10))) == segments(8, 9)
    found.renew()  # in a forked child: all are its parent's
    assert found.victims(segments(*range(2, 10))) == segments(*range(2, 10))


def test_of_a_segment_that_lives_almost_whole_a_part_is_lost() -> None:
    found = known()
    for key in range(10):
        found.note_there(key, 1, 10, use(1200, 1210))
    assert len(found.moving([1], 100)) == 8  # room for others is the point
    assert len(found.moving([1], 200)) == 10


def test_what_is_read_late_or_never_is_not_worth_its_room() -> None:
    found = known(room_bytes=11)
    assert found.is_worth_it(use(1200, 1210))
    assert not found.is_worth_it(use(1200, 1300))
    assert not found.is_worth_it(use(1200))


def test_what_another_plan_reads_takes_no_life() -> None:
    found = known(room_bytes=10**5)
    found.note_there(1, 1, 10, use(1200, 1210))
    found.note_there(2, 1, 10, use(1200, 1210))
    found.note_read(use(5, 10, plan="other"), 10)
    assert found.is_known
    assert found.is_worth_it(use(5, 10**9, plan="other"))
    assert not found.is_worth_it(use(1200, 10**9))
    assert found.moving([1], 40) == [1, 2]
    follow(found, "other")
    found.note_there(2, 1, 10, use(1200, 1220, plan="other"))
    found.note_there(3, 1, 10, use(1200, 1220, plan="other"))
    assert sorted(found.moving([1], 40)) == [1, 2, 3]
    found.note_read(use(1215, plan="plan"), 10)
    assert sorted(found.moving([1], 40)) == [2, 3]  # until the last plan is done with it
    found.note_moved(2, 7)
    assert (found.moving([1], 40), found.moving([7], 40)) == ([3], [2])


@pytest.mark.parametrize("plan", [None, "other"])
def test_a_plan_that_nobody_follows_any_more_is_over(plan: str | None) -> None:
    found = known(room_bytes=300)
    found.note_there(1, 1, 10, use(1200, 1210))
    for now in range(30):
        assert found.moving([1], 40) == [1]
        found.note_read(None if plan is None else use(now, now + 7, plan=plan), 10)
    assert found.moving([1], 40) == [1]
    found.note_read(None if plan is None else use(30, 37, plan=plan), 10)
    assert found.moving([1], 40) == []
    assert not found.is_known  # so the other one goes by hits until it has been read enough


def test_of_many_plans_the_one_longest_unread_is_forgotten() -> None:
    found = known("0", room_bytes=10**6)
    found.note_there(1, 1, 10, use(1200, 1210, plan="0"))
    for number in range(1, 8):
        found.note_read(use(5, 10, plan=str(number)), 10)
    assert found.moving([1], 40) == [1]
    found.note_read(use(5, 10, plan="8"), 10)
    assert found.moving([1], 40) == []


def test_a_plan_that_is_followed_from_an_earlier_place_begins_anew() -> None:
    found = known()
    found.note_read(use(1199, 1300), 10)  # threads overtake each other
    assert found.is_known
    found.note_read(use(0, 20), 10)
    assert not found.is_known


def test_who_cannot_tell_yet_goes_by_the_hits() -> None:
    room = Room()
    names = [SegmentName(number, 10, "a" * 16) for number in range(20)]
    for name in names:
        room.note_made(name)
    found = room.reserve(
        names, names, budget_bytes=200, segment_bytes=10, need_bytes=10, leaving=()
    )
    assert found is not None
    assert not found.keeps_living  # the ring is tried


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


def test_a_disk_that_fails_while_it_is_copied_costs_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = 0

    def fail(segment: OpenSegment, place: int) -> tuple[Record, bytes]:
        nonlocal failed
        failed += 1
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(OpenSegment, "extent_at", fail)
    reader, order = Reader(tmp_path, EXTENTS * EXTENT_BYTES // 2, size_bytes=EXTENT_BYTES), plan(4)
    for place, extent in enumerate(order.order[: len(order.order) // 2]):
        reader.read(extent, uses=order.uses(place))
    assert failed > 0
    assert reader.events("cache-off") == {}
    assert reader.events("cache-rot") == {"io-error": failed}


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


def test_training_and_validation_by_turns_do_not_spoil_each_other(tmp_path: Path) -> None:
    """An eighth of the reads, a few batches at a time, follows a plan of its own."""
    budget = EXTENTS * EXTENT_BYTES // 2
    reader, train = Reader(tmp_path, budget, size_bytes=EXTENT_BYTES), plan(4)
    check = plan(4, epochs=1, name="validation", seed=1)
    half, hits = len(train.order) // 2, 0
    for place, extent in enumerate(train.order):
        before = reader.count("cache.hits")
        reader.read(extent, uses=train.uses(place))
        hits += reader.count("cache.hits") - before if place >= half else 0
        if place % 512 == 511:
            for more in range(place // 8 - 63, place // 8 + 1):
                reader.read(check.order[more], key="other", uses=check.uses(more))
    assert hits / half > 0.62  # of 0.71 alone


def test_segments_that_are_smaller_than_a_new_one_make_room_together() -> None:
    order = plan(4)
    size_bytes, half = 10 * EXTENT_BYTES, len(order.order) // 2
    small = PaperCache(EXTENTS * size_bytes // 2)
    for place, extent in enumerate(order.order[:EXTENTS]):
        small.read(extent, size_bytes, order.uses(place))
    cache = small.reopened(EXTENTS * size_bytes * 5 // 8)  # its segments are larger
    hits = [cache.read(e, size_bytes, order.uses(place)) for place, e in enumerate(order.order)]
    assert sum(hits[half:]) / half > 0.75
