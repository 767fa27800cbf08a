"""Permutations and hashes: one to one, the same in both forms, independent of each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.loader.order import (
    Permutation,
    fraction,
    fraction_many,
    hash64,
    hash_many,
    permute_each,
)

KEYS = st.integers(0, 2**64 - 1)


@given(st.integers(1, 3000), KEYS)
def test_every_index_goes_to_another(size: int, key: int) -> None:
    permutation = Permutation(size, key)
    images = [permutation(index) for index in range(size)]
    assert sorted(images) == list(range(size))


@given(st.integers(1, 2**62), KEYS, st.data())
def test_array_form_equals_scalar_form(size: int, key: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    permutation = Permutation(size, key)
    expected = [permutation(index) for index in indices]
    assert permutation.many(np.array(indices, dtype=np.int64)).tolist() == expected
    assert all(0 <= image < size for image in expected)


def test_known_values_never_change() -> None:
    """A stored position must mean the same clip in every later version and on every platform."""
    assert hash64(1, 2, 3) == 15020427595393229491
    assert [Permutation(10, 42)(index) for index in range(10)] == [9, 5, 0, 3, 2, 8, 6, 1, 7, 4]
    assert fraction(5, 6) == 0.6540133728219998


def test_keys_give_unrelated_orders() -> None:
    size = 10_000
    one, other = (Permutation(size, key).many(np.arange(size)) for key in (1, 2))
    assert abs(float(np.corrcoef(one, other)[0, 1])) < 0.05
    assert abs(float(np.corrcoef(one, np.arange(size))[0, 1])) < 0.05
    assert np.count_nonzero(one == other) < 20


def test_neighbours_are_spread_evenly() -> None:
    size = 100_000
    images = Permutation(size, 3).many(np.arange(1000))
    counts, _ = np.histogram(images, bins=10, range=(0, size))
    assert counts.min() > 60
    assert counts.max() < 140


def test_small_orders_all_occur() -> None:
    orders = {tuple(Permutation(4, key)(index) for index in range(4)) for key in range(2000)}
    assert len(orders) == 24


def test_a_billion_members_cost_no_memory() -> None:
    permutation = Permutation(10**9, 5)
    images = permutation.many(np.arange(10**9 - 1000, 10**9))
    assert len(set(images.tolist())) == 1000


@pytest.mark.parametrize("index", [-1, 10])
def test_outside_is_an_error(index: int) -> None:
    with pytest.raises(IndexError):
        Permutation(10, 0)(index)


def test_fractions_are_uniform() -> None:
    drawn = np.array([fraction(1, index) for index in range(10_000)])
    counts, _ = np.histogram(drawn, bins=10, range=(0, 1))
    assert counts.min() > 850
    assert counts.max() < 1150


@given(st.lists(st.tuples(st.integers(1, 2**40), KEYS), min_size=1, max_size=20), st.data())
def test_many_permutations_at_once(sized: list[tuple[int, int]], data: st.DataObject) -> None:
    indices = [data.draw(st.integers(0, size - 1)) for size, _ in sized]
    sizes = np.array([size for size, _ in sized])
    keys = np.array([key for _, key in sized], dtype=np.uint64)
    images = permute_each(np.array(indices), sizes, keys)
    expected = [
        Permutation(size, key)(index) for index, (size, key) in zip(indices, sized, strict=True)
    ]
    assert images.tolist() == expected
    assert permute_each(images, sizes, keys, inverse=True).tolist() == indices


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5), st.integers(0, 2**80))
def test_many_hashes_equal_single_ones(words: list[int], first: int) -> None:
    array = np.array(words)
    assert hash_many(first, array).tolist() == [hash64(first, word) for word in words]
    assert fraction_many(first, array).tolist() == [fraction(first, word) for word in words]
