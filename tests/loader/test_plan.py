"""The plan: slots, starts, and the order of clips."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dstream.errors import InvalidInputError
from dstream.loader.plan import (
    Order,
    SlotTable,
    Window,
    slot_counts,
    start_in_sample,
)

DURATIONS = st.floats(0.001, 1e5)


def counts_of(durations: list[float], rate: float, window: Window) -> list[int]:
    rates = np.full(len(durations), rate)
    return [int(n) for n in slot_counts(np.array(durations), rates, window)]


def test_slots_are_whole_windows() -> None:
    window = Window(frames=16, stride=2)  # 32 frames
    assert counts_of([0.0, 1.0, 32 / 30, 2.2, 3.2, 64.0], 30, window) == [0, 0, 1, 2, 3, 60]


def test_slots_by_time_do_not_depend_on_the_rate() -> None:
    window = Window(frames=8, fps=4.0)
    assert counts_of([1.999, 2.0, 5.9, 6.0], 1e-9, window) == [0, 1, 2, 3]


def test_a_duration_rounded_to_ticks_still_counts() -> None:
    assert counts_of([round(16 / 29.97, 7)], 29.97, Window(frames=16, stride=1)) == [1]


def test_unknown_durations_and_rates_have_no_slot() -> None:
    window = Window(frames=2, stride=1)
    durations = np.array([np.nan, np.inf, -1.0, 5.0, 5.0])
    rates = np.array([30.0, 30.0, 30.0, 0.0, np.nan])
    assert slot_counts(durations, rates, window).tolist() == [0] * 5


@given(st.lists(st.integers(0, 5), max_size=40))
def test_every_slot_is_located(counts: list[int]) -> None:
    table = SlotTable(np.array(counts, dtype=np.int64))
    located = [table.locate(slot) for slot in range(table.total)]
    expected = [(i, j, n) for i, n in enumerate(counts) for j in range(n)]
    assert located == expected
    assert table.too_short == counts.count(0)


@given(DURATIONS, st.integers(1, 64), st.floats(0.5, 240), st.data())
def test_a_clip_starts_in_its_window_and_ends_in_its_sample(
    duration_s: float, frames: int, fps: float, data: st.DataObject
) -> None:
    window = Window(frames=frames, fps=fps)
    (slots,) = counts_of([duration_s], 30, window)
    assume(slots > 0)
    slot = data.draw(st.integers(0, slots - 1))
    drawn = data.draw(st.floats(0, 1, exclude_max=True))
    start_s = start_in_sample(duration_s, window.seconds(30), slot, slots, drawn)
    slack_s = 2e-6 * window.seconds(30)
    assert start_s >= 0
    end_s = (slot + 1) * duration_s / slots
    assert slot * duration_s / slots - slack_s <= start_s <= end_s + slack_s
    assert start_s + window.seconds(30) <= duration_s + slack_s


@given(st.integers(1, 400), st.integers(0, 2**63), st.integers(0, 5))
def test_each_epoch_delivers_every_slot_once(total: int, seed: int, epoch: int) -> None:
    order = Order(total, seed)
    draws = [order.draw(position) for position in range(epoch * total, (epoch + 1) * total)]
    assert sorted(draw.slot for draw in draws) == list(range(total))
    assert {draw.epoch for draw in draws} == {epoch}
    assert all(0 <= draw.drawn < 1 for draw in draws)


def test_seeds_and_epochs_differ() -> None:
    def slots(seed: int, epoch: int) -> list[int]:
        return [Order(500, seed).draw(epoch * 500 + p).slot for p in range(500)]

    orders = [slots(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(one != other for one, other in itertools.combinations(orders, 2))
    starts = {Order(500, 0).draw_slot(0, epoch, 7).drawn for epoch in range(50)}
    assert len(starts) == 50


def test_sequential_and_grid() -> None:
    order = Order(10, seed=3, sampling="grid", shuffle=None)
    draws = [order.draw(position) for position in range(20)]
    assert [draw.slot for draw in draws] == [*range(10), *range(10)]
    assert {draw.drawn for draw in draws} == {0.0}


def test_substitutes_are_deterministic_and_others() -> None:
    order = Order(1000, seed=3)
    first = [order.substitute(17, attempt).slot for attempt in range(1, 50)]
    assert first == [order.substitute(17, attempt).slot for attempt in range(1, 50)]
    assert len(set(first)) > 40
    assert order.substitute(2017, 1).epoch == 2


@pytest.mark.parametrize(
    ("frames", "stride", "fps"),
    [(0, 1, None), (4, None, None), (4, 1, 2.0), (4, 0, None), (4, None, 0.0)],
)
def test_bad_windows(frames: int, stride: int | None, fps: float | None) -> None:
    with pytest.raises(InvalidInputError):
        Window(frames, stride, fps)


def test_bad_orders() -> None:
    with pytest.raises(InvalidInputError, match="no clip"):
        Order(0, 0)


def test_shuffle_is_also_a_truth_value() -> None:
    def slots(shuffle: object) -> list[int]:
        order = Order(50, 3, shuffle=shuffle)  # type: ignore[arg-type]
        return [order.draw(position).slot for position in range(50)]

    assert slots(True) == slots("global") != slots(None)
    assert slots(False) == slots(None) == list(range(50))


def test_the_fingerprint_tells_orders_apart() -> None:
    orders = [
        Order(50, 3),
        Order(51, 3),
        Order(50, 4),
        Order(50, 3, sampling="grid"),
        Order(50, 3, shuffle=None),
    ]
    assert len({order.fingerprint for order in orders}) == len(orders)
    assert Order(50, 3, shuffle=True).fingerprint == Order(50, 3).fingerprint  # type: ignore[arg-type]


def test_what_a_fingerprint_stands_for_does_not_change() -> None:
    # States of runs are kept for months: who changes an order raises _ORDER_VERSION.
    order = Order(10, 42)
    assert [order.draw(position).slot for position in range(10)] == [1, 3, 8, 2, 5, 0, 6, 9, 7, 4]
    assert order.fingerprint.startswith("964a7eaccfc89170")
