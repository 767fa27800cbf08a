"""Which clip comes when: pure functions of (seed, position). No I/O, no memory that grows.

Words: a *slot* is one place for a clip, numbered over all samples. A *position* is one integer
in the endless sequence of epochs: epoch ``position // total``, and within it the
``position % total``-th slot of that epoch's order. Ranks share one sequence: a global step takes
the next ``world_size * batch_size`` positions, and rank r the r-th part of them.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.loader.order import Permutation, fraction, hash64

Sampling = Literal["uniform", "grid", "keyframe"]
Last = Literal["wrap", "drop", "short"]
Shuffle = Literal["global"] | None


def shuffle_of(value: object) -> Shuffle:
    """``"global"`` or None as the user may write them: True and False do as well.

    Raises:
        InvalidInputError: it is something else.

    >>> shuffle_of(True), shuffle_of(False), shuffle_of("global")
    ('global', None, 'global')
    """
    if value is True or value == "global":
        return "global"
    if value is None or value is False:
        return None
    raise InvalidInputError(
        f"shuffle must be 'global' (or True), or None (or False), got {value!r:.80}"
    )


SLACK = 1e-6
"""A sample this part of a window short still counts as full: durations are rounded to ticks."""

# First words of every hash, so that no two uses share numbers.
_ORDER, _START, _SUBSTITUTE = 1, 2, 3

_ORDER_VERSION = 1
"""Goes up when the same parameters come to mean another order."""


def whole(name: str, value: object) -> int:
    """An argument that is a whole number of any kind (numpy's too) as Python's own.

    Fixed-width integers would overflow in the hashes.

    Raises:
        InvalidInputError: it is none.

    >>> whole("seed", np.int64(7))
    7
    """
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{name} must be a whole number, got {value!r}") from error


@dataclass(frozen=True, slots=True)
class Window:
    """How long a clip is. Exactly one of ``stride`` (in frames) and ``fps`` is given."""

    frames: int
    stride: int | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", whole("frames", self.frames))
        if self.stride is not None:
            object.__setattr__(self, "stride", whole("stride", self.stride))
        if self.frames < 1:
            raise InvalidInputError(f"frames must be at least 1, got {self.frames}")
        if self.stride is not None and self.fps is not None:
            raise InvalidInputError("give stride= or fps=, not both")
        if self.stride is None and self.fps is None:
            raise InvalidInputError("give stride= (in frames) or fps= (by time)")
        if self.stride is not None and self.stride < 1:
            raise InvalidInputError(f"stride must be at least 1, got {self.stride}")
        if self.fps is not None and not 0 < self.fps < 1e6:
            raise InvalidInputError(f"fps must be above 0, got {self.fps}")

    def seconds(self, rate: float) -> float:
        """Length in seconds on a track of ``rate`` frames per second."""
        if self.fps is not None:
            return self.frames / self.fps
        return self.frames * (self.stride or 1) / rate

    def clip_fps(self, rate: float) -> float:
        """Frames per second of the clip itself."""
        return self.fps if self.fps is not None else rate / (self.stride or 1)


def slot_counts(
    duration_s: NDArray[np.float64], rate: NDArray[np.float64], window: Window
) -> NDArray[np.int64]:
    """Slots of each sample: int64 [N], as many as whole windows fit; 0 where it is too short.

    Args:
        duration_s: float64 [N] length of each sample in seconds.
        rate: float64 [N] frames per second of each sample's track.
        window: the clip.
    """
    usable = (duration_s > 0) & (rate > 0) & np.isfinite(duration_s) & np.isfinite(rate)
    if window.fps is not None:
        fitting = duration_s * window.fps / window.frames
    else:
        fitting = duration_s * rate / (window.frames * (window.stride or 1))
    return np.where(usable, np.floor(fitting + SLACK), 0).astype(np.int64)


class SlotTable:
    """All slots of all samples, in sample order."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._first = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=self._first[1:])

    @property
    def total(self) -> int:
        """Number of slots."""
        return int(self._first[-1])

    @property
    def too_short(self) -> int:
        """Samples that have no slot."""
        return int(np.count_nonzero(np.diff(self._first) == 0))

    def locate(self, slot: int) -> tuple[int, int, int]:
        """(sample, which of its slots, how many it has) of one slot."""
        if not 0 <= slot < self.total:
            raise IndexError(f"slot {slot} is outside range({self.total})")
        sample = int(np.searchsorted(self._first, slot, side="right")) - 1
        first = int(self._first[sample])
        return sample, slot - first, int(self._first[sample + 1]) - first


def start_in_sample(
    duration_s: float, window_s: float, slot: int, slots: int, drawn: float
) -> float:
    """Where a clip starts, in seconds from the sample's start.

    Slot ``slot`` of ``slots`` covers ``[slot * w, (slot + 1) * w)`` with ``w = duration / slots``.
    The start is the part ``drawn`` (0 to 1) of it, kept so early that the clip ends in the sample.
    """
    width_s = duration_s / slots
    earliest_s = slot * width_s
    latest_s = max(earliest_s, min(earliest_s + width_s, duration_s - window_s))
    return max(0.0, min(earliest_s + drawn * (latest_s - earliest_s), duration_s - window_s))


@dataclass(frozen=True, slots=True)
class Draw:
    """One clip to be delivered: which slot, and how far into its window it starts."""

    position: int
    epoch: int
    slot: int
    drawn: float
    """Part of the slot's window before the start, in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of all slots in every epoch. A value: equal on all ranks."""

    total: int
    seed: int
    sampling: Sampling = "uniform"
    shuffle: Shuffle = "global"

    def __post_init__(self) -> None:
        if self.total < 1:
            raise InvalidInputError("there is no clip to deliver")
        if self.sampling not in ("uniform", "grid", "keyframe"):
            raise InvalidInputError(
                f"sampling must be 'uniform', 'grid' or 'keyframe', got {self.sampling!r}"
            )
        object.__setattr__(self, "shuffle", shuffle_of(self.shuffle))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which clip is at which position.

        Ranks, and the parts of a run that was resumed, agree on the order if and only if these
        are equal. What the slots are is the source's fingerprint and the clip's window.
        """
        facts = (_ORDER_VERSION, self.total, self.seed, self.sampling, self.shuffle)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def draw(self, position: int) -> Draw:
        """The clip at one position of the endless sequence."""
        epoch, within = divmod(position, self.total)
        if self.shuffle is not None:
            within = _epoch_order(self.total, self.seed, epoch)(within)
        return self.draw_slot(position, epoch, within)

    def draw_slot(self, position: int, epoch: int, slot: int) -> Draw:
        """The clip of a given slot in a given epoch."""
        drawn = 0.0 if self.sampling == "grid" else fraction(_START, self.seed, epoch, slot)
        return Draw(position, epoch, slot, drawn)

    def substitute(self, position: int, attempt: int) -> Draw:
        """What replaces the clip at ``position`` when it failed ``attempt`` times (from 1)."""
        slot = hash64(_SUBSTITUTE, self.seed, position, attempt) % self.total
        return self.draw_slot(position, position // self.total, slot)


@lru_cache(maxsize=8)
def _epoch_order(total: int, seed: int, epoch: int) -> Permutation:
    return Permutation(total, hash64(_ORDER, seed, epoch))


@dataclass(frozen=True, slots=True)
class Ranks:
    """How a global step is dealt out."""

    batch_size: int
    rank: int = 0
    world_size: int = 1
    last: Last = "wrap"

    def __post_init__(self) -> None:
        for name in ("batch_size", "rank", "world_size"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        if self.batch_size < 1:
            raise InvalidInputError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise InvalidInputError(
                f"rank must be in range({self.world_size}), got {self.rank}",
                rank=self.rank,
                world_size=self.world_size,
            )
        if self.last not in ("wrap", "drop", "short"):
            raise InvalidInputError(f"last must be 'wrap', 'drop' or 'short', got {self.last!r}")


@dataclass(frozen=True, slots=True)
class Step:
    """One global step: the positions ``[start, stop)`` are this rank's."""

    start: int
    stop: int
    next_position: int
    """Where the following global step begins, equal on all ranks."""


def step_at(position: int, total: int, ranks: Ranks) -> Step | None:
    """The global step that begins at ``position``, or None where ``last="drop"`` skips to the end.

    With ``last="wrap"`` a step may take from the next epoch. With ``"short"`` the last step of
    an epoch is split evenly over the ranks, and a rank's part may be empty.
    """
    step_size = ranks.world_size * ranks.batch_size
    left = total - position % total
    if ranks.last == "wrap" or left >= step_size:
        start = position + ranks.rank * ranks.batch_size
        return Step(start, start + ranks.batch_size, position + step_size)
    if ranks.last == "drop":
        return None
    start = position + left * ranks.rank // ranks.world_size
    stop = position + left * (ranks.rank + 1) // ranks.world_size
    return Step(start, stop, position + left)


def steps(position: int, stop_position: int | None, total: int, ranks: Ranks) -> Iterator[Step]:
    """The global steps from ``position`` until ``stop_position`` is reached; endless for None.

    Raises:
        InvalidInputError: ``last="drop"`` and no step fits in an epoch.
    """
    if ranks.last == "drop" and total < ranks.world_size * ranks.batch_size:
        raise InvalidInputError(
            f"an epoch has {total} clips, less than one step of {ranks.world_size} x "
            f"{ranks.batch_size}: last='drop' would drop all of it; use a smaller batch_size, "
            f"or last='wrap'",
            total=total,
        )
    while stop_position is None or position < stop_position:
        step = step_at(position, total, ranks)
        if step is None:
            position += total - position % total
            continue
        yield step
        position = step.next_position


def count_steps(position: int, stop_position: int, total: int, ranks: Ranks) -> int:
    """How many global steps :func:`steps` yields, without walking them.

    ``stop_position`` is the end of an epoch.
    """
    step_size = ranks.world_size * ranks.batch_size
    if ranks.last == "wrap":
        return -(-(stop_position - position) // step_size)
    count = 0
    while position < stop_position:
        left = total - position % total
        whole, rest = divmod(left, step_size)
        count += whole + (1 if rest and ranks.last == "short" else 0)
        position += left
    return count
