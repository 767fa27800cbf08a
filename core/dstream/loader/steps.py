"""How a global step is dealt out to ranks: pure functions of (order, position, rank).

Ranks share one sequence of positions: a global step takes the next of them, a batch for each
rank. Which clips make a step depends on its size alone, not on the ranks that share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from dstream.errors import InvalidInputError
from dstream.loader.plan import Draw, Last, Order, whole

_DRAWN_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who takes part, and how much each takes of a step."""

    batch_size: int
    rank: int = 0
    world_size: int = 1
    last: Last = "wrap"
    replicas: int = 1
    """So many consecutive ranks get the same clips: those of one model-parallel group."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "rank", "world_size", "replicas"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        if self.batch_size < 1:
            raise InvalidInputError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise InvalidInputError(
                f"rank must be in range({self.world_size}), got {self.rank}",
                rank=self.rank,
                world_size=self.world_size,
            )
        if self.replicas < 1 or self.world_size % self.replicas:
            raise InvalidInputError(
                f"replicas must divide the world of {self.world_size} ranks, got {self.replicas}",
                replicas=self.replicas,
                world_size=self.world_size,
            )
        if self.last not in ("wrap", "drop", "short"):
            raise InvalidInputError(f"last must be 'wrap', 'drop' or 'short', got {self.last!r}")

    @property
    def share(self) -> int:
        """Which of the :attr:`shares` of a step is this rank's; replicas have the same."""
        return self.rank // self.replicas

    @property
    def shares(self) -> int:
        """Parts that a step is dealt into."""
        return self.world_size // self.replicas

    @property
    def step_size(self) -> int:
        """Clips of a whole global step."""
        return self.shares * self.batch_size


@dataclass(frozen=True, slots=True)
class Step:
    """One global step, the positions ``[start, stop)``."""

    start: int
    stop: int
    """Where the following global step begins, equal on all ranks."""
    positions: Sequence[int]
    """This rank's part, in the order of its batch."""


def step_at(position: int, epoch_size: int, order: Order, ranks: Ranks) -> Step | None:
    """The global step that begins at ``position``, or None where ``last="drop"`` skips to the end.

    With ``last="wrap"`` a step may take from the next epoch. With ``"short"`` the last step of
    an epoch is split evenly over the ranks, and a rank's part may be empty.
    """
    left = epoch_size - position % epoch_size
    size = ranks.step_size
    if ranks.last != "wrap" and left < size:
        if ranks.last == "drop":
            return None
        size = left
    stop = position + size
    low = size * ranks.share // ranks.shares
    high = size * (ranks.share + 1) // ranks.shares
    return Step(position, stop, order.deal(position, stop, low, high))


def steps(
    position: int, stop_position: int | None, epoch_size: int, order: Order, ranks: Ranks
) -> Iterator[Step]:
    """The global steps from ``position`` until ``stop_position`` is reached; endless for None.

    Args:
        position: where the first begins.
        stop_position: no step begins here or later.
        epoch_size: where epochs end, for ``ranks.last``: at every multiple of it.
        order: which positions go together to one rank.
        ranks: which part of each step.

    Raises:
        InvalidInputError: ``last="drop"`` and no step fits in an epoch, or ranks would share
            groups.
    """
    _check_groups(order, ranks)
    if ranks.last == "drop" and epoch_size < ranks.step_size:
        raise InvalidInputError(
            f"an epoch has {epoch_size} clips, less than one step of {ranks.shares} x "
            f"{ranks.batch_size}: last='drop' would drop all of it; use a smaller batch_size, "
            f"or last='wrap'",
            total=epoch_size,
        )
    while stop_position is None or position < stop_position:
        step = step_at(position, epoch_size, order, ranks)
        if step is None:
            position += epoch_size - position % epoch_size
            continue
        yield step
        position = step.stop


def drawn_steps(taken: Iterator[Step], order: Order) -> Iterator[tuple[Step, list[Draw]]]:
    """Steps with their clips; drawn many at once, since that is much cheaper for each."""
    while chunk := list(_some_steps(taken)):
        draws = iter(order.draw_many([p for step in chunk for p in step.positions]))
        for step in chunk:
            yield step, list(islice(draws, len(step.positions)))


def _some_steps(taken: Iterator[Step]) -> Iterator[Step]:
    clips = 0
    for step in taken:
        yield step
        clips += len(step.positions)
        if clips >= _DRAWN_AT_ONCE:
            return


def count_steps(position: int, stop_position: int, epoch_size: int, ranks: Ranks) -> int:
    """How many global steps :func:`steps` yields, without walking them.

    ``stop_position`` is the end of an epoch.
    """
    step_size = ranks.step_size
    if ranks.last == "wrap":
        return -(-(stop_position - position) // step_size)
    count = 0
    while position < stop_position:
        left = epoch_size - position % epoch_size
        full, rest = divmod(left, step_size)
        count += full + (1 if rest and ranks.last == "short" else 0)
        position += left
    return count


def _check_groups(order: Order, ranks: Ranks) -> None:
    if order.partitions is None:
        return
    settings = order.partitions.settings
    if settings.clips_per_gop > 1 and ranks.shares > settings.partitions:
        needed = 1 << (ranks.shares - 1).bit_length()
        raise InvalidInputError(
            f"clips_per_gop={settings.clips_per_gop} with {settings.partitions} partitions: "
            f"{ranks.shares} ranks would share the clips of a group, and each decode it; give "
            f"partitions={needed}, on all ranks and whenever the run goes on",
            partitions=settings.partitions,
            ranks=ranks.shares,
        )
