"""Which clip comes when: pure functions of (seed, position). No I/O, no memory that grows.

Words: a *slot* is one place for a clip, numbered over all samples. A *position* is one integer
in the endless sequence of epochs: epoch ``position // total``, and within it the
``position % total``-th slot of that epoch's order. ``steps.py`` says who takes which positions.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.loader.order import Permutation, fraction, fraction_many, hash64
from dstream.loader.partitions import Partitions, PartitionSettings

Sampling = Literal["uniform", "grid", "keyframe"]
Last = Literal["wrap", "drop", "short"]
Shuffle = Literal["global", "affine"] | None


def shuffle_of(value: object, *, has_cache: bool = False, nodes: int = 1) -> Shuffle:
    """The order that a user asks for: True and ``"auto"`` choose, False is None.

    ``affine`` pays where several nodes have a cache each; anywhere else ``global`` mixes better
    and costs the same.

    Raises:
        InvalidInputError: it is something else.

    >>> shuffle_of("auto"), shuffle_of(False), shuffle_of(True, has_cache=True, nodes=2)
    ('global', None, 'affine')
    """
    if value is True or value == "auto":
        return "affine" if has_cache and nodes > 1 else "global"
    if value == "global" or value == "affine":
        return "global" if value == "global" else "affine"
    if value is None or value is False:
        return None
    raise InvalidInputError(
        f"shuffle must be 'global', 'affine', 'auto' (or True), or None (or False), "
        f"got {value!r:.80}"
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

    def __str__(self) -> str:
        how = f"stride={self.stride}" if self.fps is None else f"fps={self.fps:g}"
        return f"{self.frames} frames with {how}"

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
        self.first: NDArray[np.int64] = np.zeros(len(counts) + 1, dtype=np.int64)
        """int64 [N + 1]: the first slot of each sample, and the number of slots."""
        np.cumsum(counts, out=self.first[1:])

    @property
    def total(self) -> int:
        """Number of slots."""
        return int(self.first[-1])

    @property
    def too_short(self) -> int:
        """Samples that have no slot."""
        return int(np.count_nonzero(np.diff(self.first) == 0))

    def locate(self, slot: int) -> tuple[int, int, int]:
        """(sample, which of its slots, how many it has) of one slot."""
        if not 0 <= slot < self.total:
            raise IndexError(f"slot {slot} is outside range({self.total})")
        sample = int(np.searchsorted(self.first, slot, side="right")) - 1
        first = int(self.first[sample])
        return sample, slot - first, int(self.first[sample + 1]) - first


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
    group: int = -1
    """First slot of the slots that are to be decoded together in this epoch; -1: none is."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Many clips to be delivered, each array [N]."""

    positions: NDArray[np.int64]
    epochs: NDArray[np.int64]
    slots: NDArray[np.int64]
    drawn: NDArray[np.float64]
    groups: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[Draw]:
        columns = (self.positions, self.epochs, self.slots, self.drawn, self.groups)
        return map(Draw, *(column.tolist() for column in columns))


@dataclass(frozen=True, slots=True)
class Order:
    """The order of all slots in every epoch. A value: equal on all ranks."""

    total: int
    seed: int
    sampling: Sampling = "uniform"
    shuffle: Shuffle = "global"
    partitions: Partitions | None = field(default=None, compare=False, repr=False)
    """What keeps clips together, where something does."""

    def __post_init__(self) -> None:
        if self.total < 1:
            raise InvalidInputError("there is no clip to deliver")
        if self.sampling not in ("uniform", "grid", "keyframe"):
            raise InvalidInputError(
                f"sampling must be 'uniform', 'grid' or 'keyframe', got {self.sampling!r}"
            )
        object.__setattr__(self, "shuffle", shuffle_of(self.shuffle))

    @classmethod
    def of(
        cls,
        slots: SlotTable,
        seed: int,
        sampling: Sampling,
        shuffle: Shuffle,
        settings: PartitionSettings | None,
    ) -> Order:
        """The order of a table's slots; ``settings`` say what it keeps together."""
        if settings is None or slots.total == 0:
            return cls(slots.total, seed, sampling, shuffle)
        return cls(slots.total, seed, sampling, shuffle, Partitions(slots.first, seed, settings))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which clip is at which position.

        Ranks, and the parts of a run that was resumed, agree on the order if and only if these
        are equal. What the slots are is the source's fingerprint and the clip's window.
        """
        facts: tuple[object, ...] = (
            _ORDER_VERSION, self.total, self.seed, self.sampling, self.shuffle,
        )  # fmt: skip
        if self.partitions is not None:
            facts = (*facts, self.partitions.fingerprint)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def draw(self, position: int) -> Draw:
        """The clip at one position of the endless sequence."""
        if self.partitions is not None:
            return next(iter(self.draw_many([position])))
        epoch, within = divmod(position, self.total)
        if self.shuffle is not None:
            within = _epoch_order(self.total, self.seed, epoch)(within)
        return self.draw_slot(position, epoch, within)

    def draw_many(self, positions: Sequence[int] | NDArray[np.int64]) -> Draws:
        """:meth:`draw` of many positions, much cheaper for each."""
        wanted = np.asarray(positions, dtype=np.int64)
        epochs, slots = np.divmod(wanted, self.total)
        groups = np.full_like(wanted, -1)
        if self.partitions is not None:
            slots, groups = self.partitions.slots(wanted)
        elif self.shuffle is not None:
            for epoch in np.unique(epochs).tolist():
                chosen = epochs == epoch
                order = _epoch_order(self.total, self.seed, epoch)
                slots[chosen] = order.many(slots[chosen])
        return Draws(wanted, epochs, slots, self._drawn(epochs, slots), groups)

    def _drawn(self, epochs: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.float64]:
        if self.sampling == "grid":
            return np.zeros(len(slots))
        return fraction_many(_START, self.seed, epochs, slots)

    @property
    def is_invertible(self) -> bool:
        """Whether :meth:`draw_slots` tells when a slot comes."""
        return self.partitions is None

    def draw_slots(self, epoch: int, slots: NDArray[np.int64]) -> Draws:
        """The clips of given slots in an epoch, each with the position at which it comes."""
        epochs, within = np.full_like(slots, epoch), slots
        if self.shuffle is not None:
            within = _epoch_order(self.total, self.seed, epoch).origins(slots)
        positions = epoch * self.total + within
        return Draws(positions, epochs, slots, self._drawn(epochs, slots), np.full_like(slots, -1))

    def draw_slot(self, position: int, epoch: int, slot: int) -> Draw:
        """The clip of a given slot in a given epoch."""
        drawn = 0.0 if self.sampling == "grid" else fraction(_START, self.seed, epoch, slot)
        return Draw(position, epoch, slot, drawn)

    def group(self, position: int) -> list[Draw]:
        """All clips of a position's group in the order of their positions, its own among them.

        The last one's position is where the group is due for the last time. With a world of
        ``2**k`` ranks, at most as many as there are partitions, all are one rank's, save those
        of the step where an epoch ends with ``last="short"``. A clip without group is alone.
        """
        if self.partitions is None:
            return [self.draw(position)]
        return list(self.draw_many(self.partitions.group(position)))

    def deal(self, start: int, stop: int, low: int, high: int) -> Sequence[int]:
        """The ``low``-th to ``high``-th of the positions ``[start, stop)`` of a step.

        They are counted partition by partition where there are some, so that a rank, and the ranks
        of a node, take the same ones in every step.
        """
        if self.partitions is None:
            return range(start + low, start + high)
        dealt: list[int] = self.partitions.lanes.deal(start, stop, low, high).tolist()
        return dealt

    def origins(self, slots: NDArray[np.int64]) -> Mapping[str, int]:
        """How many of these slots are of each component, by its name; empty for one data set."""
        return {}

    def substitute(self, position: int, attempt: int) -> Draw:
        """What replaces the clip at ``position`` when it failed ``attempt`` times (from 1)."""
        slot = hash64(_SUBSTITUTE, self.seed, position, attempt) % self.total
        return self.draw_slot(position, position // self.total, slot)


@lru_cache(maxsize=8)
def _epoch_order(total: int, seed: int, epoch: int) -> Permutation:
    return Permutation(total, hash64(_ORDER, seed, epoch))
