"""Which clip of which component comes when. Pure functions, like the plan.

Positions come in cycles of a fixed length, in each of which every component has its exact share of
the places, in an order of its own. So a component's how-manieth clip stands at a position follows
from the position alone, and each component walks through its own endless epochs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.loader.order import Permutation, hash64
from dstream.loader.plan import Draw, Draws, Order

MAX_CYCLE = 4096
"""Longest cycle; weights that no shorter one can hold exactly are rounded to parts of it."""

_MAX_DENOMINATOR = 10_000
_MIX_VERSION = 1
_CYCLE, _COMPONENT = 11, 12
"""First words of the hashes that shuffle a cycle, and that seed a component."""


def shares_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Places of each component in a cycle: exact where ``MAX_CYCLE`` allows, else rounded.

    Rounding is by the largest remainder, so that each is at most one place off.

    Raises:
        InvalidInputError: a weight is not a positive number, or too small to have a place.

    >>> shares_of([0.7, 0.3]), shares_of([2, 1, 1])
    ((7, 3), (2, 1, 1))
    """
    if not weights:
        raise InvalidInputError("a mixture needs at least one component")
    for weight in weights:
        if not 0 < weight < math.inf:
            raise InvalidInputError(f"a weight must be a positive number, got {weight!r:.80}")
    top = max(weights)
    parts = [Fraction(weight / top).limit_denominator(_MAX_DENOMINATOR) for weight in weights]
    common = math.lcm(*(part.denominator for part in parts))
    exact = [int(part * common) for part in parts]
    divisor = math.gcd(*exact) or 1
    if all(exact) and sum(exact) // divisor <= MAX_CYCLE:
        return tuple(share // divisor for share in exact)
    total = math.fsum(weight / top for weight in weights)
    ideal = [weight / top / total * MAX_CYCLE for weight in weights]
    rounded = [math.floor(share) for share in ideal]
    by_remainder = sorted(range(len(ideal)), key=lambda at: rounded[at] - ideal[at])
    for at in by_remainder[: MAX_CYCLE - sum(rounded)]:
        rounded[at] += 1
    if not all(rounded):
        least = min(weights)
        raise InvalidInputError(
            f"weight {least:g} of {math.fsum(weights):g} is less than one clip in {MAX_CYCLE}: "
            "leave the component out, or give it more"
        )
    return tuple(rounded)


@dataclass(frozen=True, slots=True)
class Component:
    """One data set of a mixture."""

    name: str
    """What reports call it; unique in the mixture."""
    total: int
    """Its slots."""
    share: int
    """Its places in a cycle."""


@dataclass(frozen=True, slots=True)
class MixedOrder(Order):
    """The order of a mixture: slots are numbered through all components, one after another."""

    components: tuple[Component, ...] = ()
    _orders: tuple[Order, ...] = field(default=(), compare=False, repr=False)
    _first: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(1, dtype=np.int64), compare=False, repr=False
    )
    _component: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64), compare=False, repr=False
    )
    """int64 [cycle] component of each place of a cycle."""
    _nth: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64), compare=False, repr=False
    )
    """int64 [cycle] how many places of the same component come before it."""

    @classmethod
    def mixed(cls, components: Sequence[Component], alike: Order) -> MixedOrder:
        """The order of some components.

        Args:
            components: their sizes and shares.
            alike: seed, sampling and shuffle of all of them.

        Raises:
            InvalidInputError: a component has no clip, or the order is one that keeps clips
                together.
        """
        if alike.partitions is not None or alike.shuffle == "affine":
            raise InvalidInputError(
                "a mixture is shuffled globally: leave out shuffle='affine', clips_per_gop= and "
                "partitions="
            )
        for component in components:
            if component.total < 1:
                raise InvalidInputError(f"component {component.name} of the mixture has no clip")
        shares = [component.share for component in components]
        return cls(
            sum(component.total for component in components),
            alike.seed,
            alike.sampling,
            alike.shuffle,
            components=tuple(components),
            _orders=tuple(
                replace(alike, total=each.total, seed=hash64(_COMPONENT, alike.seed, number))
                for number, each in enumerate(components)
            ),
            _first=np.cumsum([0, *(component.total for component in components)]),
            _component=np.repeat(np.arange(len(shares)), shares),
            _nth=np.concatenate([np.arange(share) for share in shares]),
        )

    @property
    def cycle(self) -> int:
        """Length of a cycle in clips."""
        return len(self._component)

    @property
    def is_invertible(self) -> bool:
        """Nobody has needed it."""
        return False

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which clip is at which position."""
        shares = tuple((component.total, component.share) for component in self.components)
        orders = tuple(order.fingerprint for order in self._orders)
        facts = (_MIX_VERSION, self.seed, shares, orders)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def draw(self, position: int) -> Draw:
        """The clip at one position of the endless sequence."""
        number, own = self._place(position)
        return self._of(number, position, self._orders[number].draw(own))

    def draw_many(self, positions: Sequence[int] | NDArray[np.int64]) -> Draws:
        """:meth:`draw` of many positions, much cheaper for each."""
        wanted = np.asarray(positions, dtype=np.int64)
        cycles, places = np.divmod(wanted, self.cycle)
        for cycle in np.unique(cycles).tolist():
            chosen = cycles == cycle
            places[chosen] = _cycle_order(self.cycle, self.seed, cycle).many(places[chosen])
        numbers = self._component[places]
        shares = np.array([component.share for component in self.components])
        own = cycles * shares[numbers] + self._nth[places]
        epochs, slots = np.zeros_like(wanted), np.zeros_like(wanted)
        drawn = np.zeros(len(wanted))
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            draws = self._orders[number].draw_many(own[chosen])
            epochs[chosen], drawn[chosen] = draws.epochs, draws.drawn
            slots[chosen] = draws.slots + self._first[number]
        return Draws(wanted, epochs, slots, drawn, np.full_like(wanted, -1))

    def draw_slot(self, position: int, epoch: int, slot: int) -> Draw:
        """The clip of a given slot in a given epoch of its component."""
        number = self.component_of(slot)
        found = self._orders[number].draw_slot(position, epoch, slot - int(self._first[number]))
        return self._of(number, position, found)

    def substitute(self, position: int, attempt: int) -> Draw:
        """What replaces the clip at ``position``: another of its component, so weights hold."""
        number, own = self._place(position)
        return self._of(number, position, self._orders[number].substitute(own, attempt))

    def component_of(self, slot: int) -> int:
        """The number of the component that a slot is of."""
        return int(np.searchsorted(self._first, slot, side="right")) - 1

    def origins(self, slots: NDArray[np.int64]) -> Mapping[str, int]:
        """How many of these slots are of each component, by its name."""
        numbers, counts = np.unique(
            np.searchsorted(self._first, slots, side="right") - 1, return_counts=True
        )
        return {
            self.components[number].name: count
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        }

    def _place(self, position: int) -> tuple[int, int]:
        """The component at a position, and the position in its own endless sequence."""
        cycle, within = divmod(position, self.cycle)
        place = _cycle_order(self.cycle, self.seed, cycle)(within)
        number = int(self._component[place])
        return number, cycle * self.components[number].share + int(self._nth[place])

    def _of(self, number: int, position: int, draw: Draw) -> Draw:
        return replace(draw, position=position, slot=draw.slot + int(self._first[number]))


@lru_cache(maxsize=8)
def _cycle_order(cycle: int, seed: int, number: int) -> Permutation:
    return Permutation(cycle, hash64(_CYCLE, seed, number))
