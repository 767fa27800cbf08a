"""Counter-based randomness: hashes and permutations that need no memory and no generator state.

Everything is integer arithmetic modulo 2**64, so every platform and every rank gets the same
numbers. The scalar and the array forms agree exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_ROUNDS = 6

MAX_SIZE = 1 << 62
"""Largest permutation; sums of two remainders must stay below 2**63."""


def hash64(*words: int) -> int:
    """A well-mixed 64-bit number of the given integers, in their order.

    >>> hash64(1, 2) == hash64(1, 2), hash64(1, 2) == hash64(2, 1)
    (True, False)
    """
    state = 0
    for word in words:
        state = ((state ^ (word & _MASK)) + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * _MIX_1) & _MASK
        state = ((state ^ (state >> 27)) * _MIX_2) & _MASK
        state ^= state >> 31
    return state


def hash_many(*words: int | NDArray[np.int64] | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """:func:`hash64` of each of many: uint64 [N]; whole numbers are the same for all."""
    state = np.zeros(1, dtype=np.uint64)
    for word in words:
        number = np.uint64(word & _MASK) if isinstance(word, int) else word.astype(np.uint64)
        state = _hash_step(state, number)
    return state


def _hash_step(state: _Words, words: _Words) -> NDArray[np.uint64]:
    mixed = np.atleast_1d(state ^ words) + np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX_1)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX_2)
    return mixed ^ (mixed >> np.uint64(31))


def fraction(*words: int) -> float:
    """A number in [0, 1) from the hash of the given integers, with 53 random bits.

    >>> 0.0 <= fraction(7, 0, 1) < 1.0
    True
    """
    return (hash64(*words) >> 11) * 2.0**-53


def fraction_many(*words: int | NDArray[np.int64] | NDArray[np.uint64]) -> NDArray[np.float64]:
    """:func:`fraction` of each of many: float64 [N]."""
    return (hash_many(*words) >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Permutation:
    """A pseudo-random permutation of ``range(size)`` in constant memory.

    A Feistel network over a rectangle of ``left * right`` cells just larger than ``size``, with
    additions modulo the sides; the few results beyond ``size`` are put through it again, which
    keeps it one to one.
    """

    __slots__ = ("_keys", "_left", "_right", "size")

    def __init__(self, size: int, key: int) -> None:
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"a permutation needs 1 to {MAX_SIZE} members, got {size}")
        self.size = size
        self._left = isqrt(size - 1) + 1
        self._right = -(-size // self._left)
        self._keys = [hash64(key, round_number) for round_number in range(_ROUNDS)]

    def __call__(self, index: int) -> int:
        """Where ``index`` goes."""
        if not 0 <= index < self.size:
            raise IndexError(f"{index} is outside range({self.size})")
        index = self._once(index)
        while index >= self.size:
            index = self._once(index)
        return index

    def _once(self, index: int) -> int:
        right, left = divmod(index, self._left)
        for round_number, key in enumerate(self._keys):
            if round_number % 2:
                right = (right + _keyed(key, left) % self._right) % self._right
            else:
                left = (left + _keyed(key, right) % self._left) % self._left
        return right * self._left + left

    def many(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each of ``indices`` (int64 [N]) goes."""
        return self._through(_forward, indices)

    def origins(self, members: NDArray[np.int64]) -> NDArray[np.int64]:
        """What goes to each of ``members`` (int64 [N]): :meth:`many` the other way round."""
        return self._through(_backward, members)

    def _through(self, once: _Once, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        keys: list[_Words] = [np.uint64(key) for key in self._keys]
        left, right = np.uint64(self._left), np.uint64(self._right)
        result = once(np.atleast_1d(indices).astype(np.uint64), left, right, keys)
        outside = np.flatnonzero(result >= np.uint64(self.size))
        while len(outside):
            result[outside] = once(result[outside], left, right, keys)
            outside = outside[result[outside] >= np.uint64(self.size)]
        return result.astype(np.int64)


def permute_each(
    indices: NDArray[np.int64],
    sizes: NDArray[np.int64],
    keys: NDArray[np.uint64],
    *,
    inverse: bool = False,
) -> NDArray[np.int64]:
    """Where each index goes in a permutation of its own.

    Args:
        indices: int64 [N], each in ``range(size)`` of its own size.
        sizes: int64 [N], 1 to 2**52.
        keys: uint64 [N]. ``Permutation(size, key)`` is the same permutation.
        inverse: where each index comes from instead.

    Returns:
        int64 [N].
    """
    once = _backward if inverse else _forward
    # Exact below 2**52: the root of a float64 is rounded correctly.
    left = np.sqrt(sizes - 1).astype(np.uint64) + np.uint64(1)
    size = sizes.astype(np.uint64)
    right = (size + left - np.uint64(1)) // left
    rounds: list[_Words] = [hash_many(keys, number) for number in range(_ROUNDS)]
    result = once(indices.astype(np.uint64), left, right, rounds)
    outside = np.flatnonzero(result >= size)
    while len(outside):
        kept: list[_Words] = [np.broadcast_to(key, size.shape)[outside] for key in rounds]
        result[outside] = once(result[outside], left[outside], right[outside], kept)
        outside = outside[result[outside] >= size[outside]]
    return result.astype(np.int64)


_Words = np.uint64 | NDArray[np.uint64]
_Once = Callable[[NDArray[np.uint64], _Words, _Words, Sequence[_Words]], NDArray[np.uint64]]


def _forward(
    cells: NDArray[np.uint64], left_size: _Words, right_size: _Words, keys: Sequence[_Words]
) -> NDArray[np.uint64]:
    right, left = np.divmod(cells, left_size)
    for number, key in enumerate(keys):
        if number % 2:
            right = (right + _hash_step(key, left) % right_size) % right_size
        else:
            left = (left + _hash_step(key, right) % left_size) % left_size
    return right * left_size + left


def _backward(
    cells: NDArray[np.uint64], left_size: _Words, right_size: _Words, keys: Sequence[_Words]
) -> NDArray[np.uint64]:
    right, left = np.divmod(cells, left_size)
    for number in reversed(range(len(keys))):
        if number % 2:
            right = (right + right_size - _hash_step(keys[number], left) % right_size) % right_size
        else:
            left = (left + left_size - _hash_step(keys[number], right) % left_size) % left_size
    return right * left_size + left


def _keyed(state: int, word: int) -> int:
    """One hash step from a state; the scalar twin of ``_hash_step``."""
    state = ((state ^ word) + _GOLDEN) & _MASK
    state = ((state ^ (state >> 30)) * _MIX_1) & _MASK
    state = ((state ^ (state >> 27)) * _MIX_2) & _MASK
    return state ^ (state >> 31)
