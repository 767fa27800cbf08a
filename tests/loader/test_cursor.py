"""Runs that are killed and resumed on other numbers of ranks, on paper: nothing lost or doubled."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume, example, given
from hypothesis import strategies as st

from dstream.loader.cursor import Cursor, Share
from dstream.loader.plan import Last, Order
from dstream.loader.steps import Ranks, Step

LASTS = st.sampled_from(["wrap", "drop", "short"])
WORLDS = st.sampled_from([1, 2, 3, 4, 8])


@dataclass
class Run:
    """One life of a job: all ranks in step, as a training keeps them."""

    total: int
    batch: int
    world: int
    last: Last
    epochs: int | None

    def steps(self, cursor: Cursor) -> list[tuple[list[int], Cursor]]:
        """Positions of each global step in rank order, and the place behind it."""
        ranks = [Ranks(self.batch, r, self.world, self.last) for r in range(self.world)]
        parts = [
            list(cursor.ahead(self.total, Order(self.total, 0), r, self.epochs)) for r in ranks
        ]
        taken = []
        for step in zip(*parts, strict=True):
            assert len({part.stop for part in step}) == 1
            positions = [p for part in step for p in part.positions]
            taken.append((positions, cursor.after(step[0])))
        return taken

    def fits(self) -> bool:
        return self.last != "drop" or self.total >= self.batch * self.world


def whole_loops(run: Run, loops: int, cursor: Cursor | None = None) -> list[list[int]]:
    """All steps of some loops, never interrupted."""
    cursor, taken = cursor or Cursor(), []
    for _ in range(loops):
        cursor = cursor.next_loop(run.total)
        for positions, _ in run.steps(cursor):
            taken.append(positions)
        ends = [c for _, c in run.steps(cursor)]
        cursor = (ends[-1] if ends else cursor).at_loop_end(run.total, run.epochs)
    return taken


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(steps until it is killed, world size) of each life."""
    return draw(st.lists(st.tuples(st.integers(0, 12), WORLDS), min_size=1, max_size=5))


@given(
    total=st.integers(1, 90),
    epochs=st.integers(1, 3),
    last=LASTS,
    lives=lives(),
    per_step=st.sampled_from([1, 2, 3]),
)
def test_the_same_global_batch_gives_the_same_steps(
    total: int, epochs: int, last: Last, lives: list[tuple[int, int]], per_step: int
) -> None:
    """World sizes change, the global batch does not: exactly the uninterrupted run's steps."""
    step = 24 * per_step  # divisible by 1, 2, 3, 4, 8
    total *= per_step
    alone = Run(total, step, 1, last, epochs)
    assume(alone.fits())
    expected = whole_loops(alone, 1)
    got: list[list[int]] = []
    cursor = Cursor()
    for killed_after, world in [*lives, (10**9, 4)]:
        for positions, after in Run(total, step // world, world, last, epochs).steps(cursor):
            if killed_after == 0:
                break
            killed_after -= 1
            got.append(positions)
            cursor = after
    assert got == expected


@given(
    total=st.integers(1, 200),
    epochs=st.integers(1, 3),
    last=st.sampled_from(["wrap", "short"]),
    lives=st.lists(
        st.tuples(st.integers(0, 12), WORLDS, st.integers(1, 5)), min_size=1, max_size=5
    ),
)
@example(total=7, epochs=1, last="wrap", lives=[(2, 3, 1), (0, 2, 3)])
def test_no_position_is_lost_or_seen_twice(
    total: int, epochs: int, last: Last, lives: list[tuple[int, int, int]]
) -> None:
    """World and batch sizes change at will: every position once, in the global order."""
    got: list[int] = []
    cursor = Cursor()
    for killed_after, world, batch in [*lives, (10**9, 2, 3)]:
        for positions, after in Run(total, batch, world, last, epochs).steps(cursor):
            if killed_after == 0:
                break
            killed_after -= 1
            got += positions
            cursor = after
    assert got == list(range(len(got)))
    assert len(got) >= total * epochs
    if last == "short":
        assert len(got) == total * epochs


@given(
    total=st.integers(1, 60),
    batch=st.integers(1, 4),
    world=WORLDS,
    last=LASTS,
    epochs=st.integers(1, 2),
    stop=st.integers(0, 40),
)
def test_loops_after_a_resumed_loop_are_those_of_the_whole_run(
    total: int, batch: int, world: int, last: Last, epochs: int, stop: int
) -> None:
    """A state of any loop, its end included: the loops that follow are the same."""
    run = Run(total, batch, world, last, epochs)
    assume(run.fits())
    loops = 4
    expected = whole_loops(run, loops)
    got: list[list[int]] = []
    cursor = Cursor()
    for _ in range(loops):
        cursor = cursor.next_loop(total)
        ends = cursor
        for positions, after in run.steps(cursor):
            if stop == 0:
                ends = cursor = Cursor(ends.position, ends.loop_epoch, ends.finished)  # restored
            stop -= 1
            got.append(positions)
            ends = after
        cursor = ends.at_loop_end(total, epochs)
    assert got == expected
    if last == "drop":
        assert len(got) == loops * epochs * (total // (batch * world))


@given(
    total=st.integers(1, 60),
    batch=st.integers(1, 4),
    world=st.integers(1, 3),
    last=LASTS,
    workers=st.integers(1, 5),
    epochs=st.integers(1, 2),
    data=st.data(),
)
def test_workers_in_turn_make_the_steps_of_their_rank(
    total: int,
    batch: int,
    world: int,
    last: Last,
    workers: int,
    epochs: int,
    data: st.DataObject,
) -> None:
    """Each worker is stopped anywhere and restored: taken in turn, it is the rank's own order."""
    ranks = Ranks(batch, world - 1, world, last)
    assume(last != "drop" or total >= batch * world)
    expected = list(Cursor().ahead(total, Order(total, 0), ranks, epochs))
    made: list[list[Step]] = []
    for number in range(workers):
        share = Share(number, workers)
        cursor = Cursor(skip=number)
        mine = list(cursor.ahead(total, Order(total, 0), ranks, epochs, share))
        cut = data.draw(st.integers(0, len(mine)))
        for step in mine[:cut]:
            cursor = cursor.after(step, share)
        made.append(mine[:cut] + list(cursor.ahead(total, Order(total, 0), ranks, epochs, share)))
    in_turn = [
        steps[turn] for turn in range(max(map(len, made))) for steps in made if turn < len(steps)
    ]
    assert in_turn == expected


def test_a_finished_loop_gives_nothing_until_the_next() -> None:
    over = Cursor().at_loop_end(10, 1)
    assert over == Cursor(10, 0, finished=True)
    assert list(over.ahead(10, Order(10, 0), Ranks(5), 1)) == []
    assert over.next_loop(10) == Cursor(10, 1)
    assert Cursor(4).next_loop(10) == Cursor(4)
