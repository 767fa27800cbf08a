"""How a step is dealt to ranks, where epochs end, and who gets the same clips."""

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dstream.errors import InvalidInputError
from dstream.loader.plan import Last, Order
from dstream.loader.steps import Ranks, count_steps, drawn_steps, steps


def global_order(
    total: int, batch: int, world: int, last: Last, epochs: int
) -> list[tuple[int, ...]]:
    """Positions of each global step, ranks joined."""
    per_rank = [
        list(steps(0, epochs * total, total, Order(total, 0), Ranks(batch, rank, world, last)))
        for rank in range(world)
    ]
    assert len({len(rank_steps) for rank_steps in per_rank}) == 1
    return [
        tuple(itertools.chain.from_iterable(part.positions for part in parts))
        for parts in zip(*per_rank, strict=True)
    ]


@given(st.integers(1, 200), st.integers(1, 8), st.sampled_from(["wrap", "drop", "short"]))
def test_all_world_sizes_give_one_global_order(total: int, batch: int, last: Last) -> None:
    """The same global batch size, dealt to 1, 2, 3 or 8 ranks, is the same sequence of steps."""
    step = batch * 24
    assume(last != "drop" or total >= step)
    orders = [global_order(total, step // world, world, last, 3) for world in (1, 2, 3, 8)]
    assert all(order == orders[0] for order in orders)
    positions = [p for positions in orders[0] for p in positions]
    if last == "wrap":
        assert positions == list(range(len(positions)))
        assert 3 * total <= len(positions) < 3 * total + step
    elif last == "short":
        assert positions == list(range(3 * total))
    else:
        assert positions == [p for p in range(3 * total) if p % total < total // step * step]


@given(
    st.integers(1, 300),
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from(["wrap", "drop", "short"]),
    st.integers(0, 500),
)
def test_steps_are_counted_without_walking(
    total: int, batch: int, world: int, last: Last, position: int
) -> None:
    ranks = Ranks(batch, 0, world, last)
    assume(last != "drop" or total >= batch * world)
    stop = (position // total + 2) * total
    assert count_steps(position, stop, total, ranks) == len(
        list(steps(position, stop, total, Order(total, 0), ranks))
    )


def test_an_endless_sequence_goes_on() -> None:
    endless = steps(0, None, 7, Order(7, 0), Ranks(3))
    taken = list(itertools.islice(endless, 100))
    assert taken[-1].start == 297


def test_replicas_get_the_same_clips() -> None:
    order = Order(100, 0)
    parts = [
        [step.positions for step in steps(0, 100, 100, order, Ranks(5, rank, 8, replicas=4))]
        for rank in range(8)
    ]
    assert parts[0] == parts[1] == parts[2] == parts[3]
    assert parts[4] == parts[5] == parts[6] == parts[7]
    assert list(itertools.chain(*parts[0], *parts[4])) != list(range(100))
    assert sorted(itertools.chain(*parts[0], *parts[4])) == list(range(100))


def test_an_epoch_may_be_shorter_than_the_data() -> None:
    taken = [step.positions for step in steps(0, 20, 10, Order(1000, 0), Ranks(4, last="short"))]
    assert [list(positions) for positions in taken] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11, 12, 13], [14, 15, 16, 17], [18, 19],
    ]  # fmt: skip


def test_impossible_ranks() -> None:
    with pytest.raises(InvalidInputError, match="rank"):
        Ranks(1, rank=2, world_size=2)
    with pytest.raises(InvalidInputError, match="batch_size"):
        Ranks(0)
    with pytest.raises(InvalidInputError, match="replicas"):
        Ranks(1, world_size=6, replicas=4)
    with pytest.raises(InvalidInputError, match="last='drop'"):
        list(steps(0, 5, 5, Order(5, 0), Ranks(6, last="drop")))


def test_clips_are_drawn_as_one_by_one() -> None:
    order = Order(50, 7)
    ranks = Ranks(7, 1, 2, last="short")
    drawn = list(drawn_steps(steps(0, 600, 50, order, ranks), order))
    assert [step for step, _ in drawn] == list(steps(0, 600, 50, order, ranks))
    assert all(
        draws == [order.draw(position) for position in step.positions] for step, draws in drawn
    )
