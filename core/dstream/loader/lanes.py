"""How positions are dealt to partitions: pure arithmetic, no memory.

A position belongs to a *partition* by its remainder modulo their number, read with its bits
reversed. So every run of ``2**k`` consecutive positions, wherever it begins, has exactly one
position in each of the ``2**k`` equal ranges of partitions. Steps of any size therefore draw
evenly from all partitions, and a world of ``2**k`` ranks that deals each step's positions out in
the partitions' order gives every rank the same range of partitions in every step. Ends of epochs
change nothing in that, since positions are counted through them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Lanes:
    """Partitions of an endless sequence whose epochs have ``total`` positions."""

    total: int
    count: int
    """Number of partitions, a power of two."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 1 << 16 or self.count & (self.count - 1):
            raise InvalidInputError(
                f"partitions must be a power of two up to 65536, got {self.count}",
                partitions=self.count,
            )

    def of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The partition of each position: int64 [N]."""
        return self._reversed[positions % self.count]

    def rank_in(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of its partition's clips of its epoch each position is: int64 [N].

        Every ``count`` positions from an epoch's start on have one in each partition.
        """
        return positions % self.total // self.count

    def position(
        self, epoch: int, lanes: NDArray[np.int64], ranks: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The positions that are the ``ranks``-th of their partitions in an epoch: int64 [N]."""
        begin = epoch * self.total
        first = (self._reversed[lanes] - begin) % self.count
        return begin + ranks * self.count + first

    def cuts(self, epoch: int) -> NDArray[np.int64]:
        """Where the partitions begin when an epoch's clips lie partition after partition.

        Returns:
            int64 [count + 1]. Sizes differ by one at most: which partitions have one more follows
            from where the epoch's positions begin and end.
        """
        sizes = np.full(self.count, self.total // self.count, dtype=np.int64)
        begin = epoch * self.total
        rest = np.arange(self.total % self.count, dtype=np.int64)
        sizes[self.of(begin + rest)] += 1
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])

    def deal(self, start: int, stop: int, low: int, high: int) -> NDArray[np.int64]:
        """The ``low``-th to ``high``-th of the positions ``[start, stop)``, by partition: int64.

        Those of one partition stay in their order. Costs nothing for the others.
        """
        turns, rest = divmod(stop - start, self.count)
        wanted = np.arange(low, high, dtype=np.int64)
        lane, turn = self._turns(start, turns, rest, wanted)
        first: NDArray[np.int64] = (self._reversed[lane] - start) % self.count
        positions: NDArray[np.int64] = start + first + turn * self.count
        return positions

    def _turns(
        self, start: int, turns: int, rest: int, wanted: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Partition and turn of the ``wanted``-th positions; ``rest`` partitions have one more."""
        if not rest:
            return np.divmod(wanted, turns)
        more = self.of(np.arange(start, start + rest, dtype=np.int64))
        if not turns:
            return np.sort(more)[wanted], np.zeros_like(wanted)
        counts = np.full(self.count, turns, dtype=np.int64)
        counts[more] += 1
        ends = np.cumsum(counts)
        lane = np.searchsorted(ends, wanted, side="right")
        return lane, wanted - (ends[lane] - counts[lane])

    @property
    def _reversed(self) -> NDArray[np.int64]:
        return _reversed_bits(self.count)


@lru_cache(maxsize=8)
def _reversed_bits(count: int) -> NDArray[np.int64]:
    """Every number below ``count``, a power of two, with its bits in reverse: int64 [count]."""
    numbers = np.arange(count, dtype=np.int64)
    result = np.zeros_like(numbers)
    for bit in range(count.bit_length() - 1):
        result = (result << 1) | ((numbers >> bit) & 1)
    return result
