"""Mixtures: exact shares, each component's own epochs, one position for any number of ranks."""

import math
import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dstream
from dstream.errors import InvalidInputError
from dstream.loader.mixture import MAX_CYCLE, Component, MixedOrder, shares_of
from dstream.loader.plan import Order
from dstream.store.opening import open_store
from loader_data import batch_hash, fill, new_url, publish, videos


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([0.7, 0.3], (7, 3)),
        ([1], (1,)),
        ([2, 4, 2], (1, 2, 1)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([70, 29, 1], (70, 29, 1)),
        ([1e-9, 1e-9], (1, 1)),
    ],
)
def test_weights_that_fit_are_exact(weights: list[float], shares: tuple[int, ...]) -> None:
    assert shares_of(weights) == shares


# Nine at most, so that the smallest has a place of its own in the longest cycle.
@given(st.lists(st.floats(2e-3, 1.0), min_size=1, max_size=9))
def test_other_weights_are_off_by_less_than_one_place(weights: list[float]) -> None:
    shares = shares_of(weights)
    cycle = sum(shares)
    assert cycle <= MAX_CYCLE
    for weight, share in zip(weights, shares, strict=True):
        assert share >= 1
        assert abs(share - cycle * weight / math.fsum(weights)) < 1


@pytest.mark.parametrize("weights", [[], [0.0, 1], [-1, 2], [math.nan], [math.inf], [1, 1e-5]])
def test_impossible_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidInputError):
        shares_of(weights)


def order(totals: list[int], shares: list[int], **alike: Any) -> MixedOrder:
    alike = {"seed": 7, **alike}
    parts = zip(totals, shares, strict=True)
    components = [Component(f"c{n}", *part) for n, part in enumerate(parts)]
    return MixedOrder.mixed(components, Order(sum(totals), **alike))


mixtures = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=4).map(
    lambda parts: ([total for total, _ in parts], [share for _, share in parts])
)


@settings(max_examples=60)
@given(mixtures, st.integers(0, 1 << 40), st.sampled_from(["global", None]), st.integers(0, 99))
def test_every_cycle_has_the_shares_and_every_component_its_epochs(
    parts: tuple[list[int], list[int]], far: int, shuffle: Any, seed: int
) -> None:
    totals, shares = parts
    mixed = order(totals, shares, seed=seed, shuffle=shuffle)
    first = np.cumsum([0, *totals])
    seen: list[list[int]] = [[] for _ in totals]
    for cycle in range(6):
        draws = [mixed.draw(cycle * mixed.cycle + place) for place in range(mixed.cycle)]
        numbers = [mixed.component_of(draw.slot) for draw in draws]
        assert Counter(numbers) == dict(enumerate(shares))
    # In its own order a component shows each slot once an epoch.
    for position in range(mixed.cycle * (max(totals) // min(shares) + 2)):
        draw = mixed.draw(position)
        assert draw.position == position
        number = mixed.component_of(draw.slot)
        seen[number].append(draw.epoch * totals[number] + draw.slot - int(first[number]))
    for number, total in enumerate(totals):
        epochs = len(seen[number]) // total
        whole = sorted(slot for slot in seen[number] if slot < epochs * total)
        assert whole == list(range(epochs * total))
    positions = [far + step * 3 for step in range(40)]
    assert list(mixed.draw_many(positions)) == [mixed.draw(position) for position in positions]


def test_a_substitute_is_of_the_same_component() -> None:
    mixed = order([50, 3, 900], [5, 1, 4])
    for position in range(300):
        number = mixed.component_of(mixed.draw(position).slot)
        for attempt in (1, 2, 3):
            found = mixed.substitute(position, attempt)
            assert (found.position, mixed.component_of(found.slot)) == (position, number)
            assert mixed.draw_slot(position, found.epoch, found.slot) == found


def test_the_fingerprint_is_of_seed_sizes_and_shares() -> None:
    variants = [
        order([50, 30], [2, 1]),
        order([50, 30], [1, 2]),
        order([50, 31], [2, 1]),
        order([30, 50], [2, 1]),
        order([50, 30], [2, 1], seed=8),
        order([50, 30], [2, 1], sampling="grid"),
        order([50, 30], [2, 1], shuffle=None),
        Order(80, 7),
    ]
    assert len({variant.fingerprint for variant in variants}) == len(variants)
    assert order([50, 30], [2, 1]).fingerprint == variants[0].fingerprint


def test_a_mixture_of_billions_is_drawn_at_once() -> None:
    mixed = order([10**9, 10**12], [1, 3])
    assert mixed.draw(10**15).position == 10**15
    slots = mixed.draw_many(range(10**14, 10**14 + 4000)).slots
    assert len(set(slots.tolist())) == 4000
    assert mixed.origins(slots) == {"c0": 1000, "c1": 3000}


def test_an_empty_component_and_an_affine_order_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="component c1 of the mixture has no clip"):
        order([5, 0], [1, 1])
    with pytest.raises(InvalidInputError, match="shuffled globally"):
        order([5, 5], [1, 1], shuffle="affine")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[dstream.Clips]:
    """Two data sets of different repositories, with 15 and 6 clips, and one of other pictures."""
    found = []
    for number, (count, size) in enumerate([(5, (64, 48)), (2, (64, 48)), (1, (96, 48))]):
        folder: Path = tmp_path_factory.mktemp(f"part{number}")
        source, repository = new_url(), new_url()
        made = videos(folder, count, frames=24, size=size)
        fill(open_store(source), {f"p{number}-{name}": data for name, data in made.items()})
        publish(repository, source, packed=True, name=f"part{number}")
        found.append(dstream.open(repository).clips(f"part{number}", frames=8, array="numpy"))
    return found


def test_clips_are_mixed_by_weight_and_reported_by_component(parts: list[dstream.Clips]) -> None:
    mixture = dstream.mix([(parts[0], 0.75), (parts[1], 0.25)])
    assert (len(mixture), mixture.cycle) == (21, 4)
    assert mixture[0].key == "p0-v00"
    assert mixture[-1].key == "p1-v01"
    assert mixture.clip("p1-v01").key == "p1-v01"
    with mixture.loader(4, clips_per_epoch=40) as loader:
        for batch in loader:
            assert sum(key.startswith("p1") for key in batch.keys) == 1
        report = loader.report()
    assert report.components == {"part0@v1": 30, "part1@v1": 10}
    assert report.data_requests >= 20  # of both repositories, each with a meter of its own
    assert report.table_requests >= 8
    twice = dstream.mix([(parts[1], 1), (parts[1], 1)])
    with twice.loader(2) as loader:
        assert len([batch for batch in loader]) == 6
        assert loader.report().components == {"part1@v1": 6, "part1@v1 #2": 6}


def test_a_mixture_goes_on_where_it_stopped_on_any_number_of_ranks(
    parts: list[dstream.Clips],
) -> None:
    mixture = dstream.mix([(parts[0], 2), (parts[1], 1)])

    def rows(loader: dstream.Loader, batches: int | None) -> list[tuple[int, int]]:
        with loader:
            found: list[tuple[int, int]] = []
            for batch in loader:
                found += zip(batch.positions.tolist(), batch.slots.tolist(), strict=True)
                if batches is not None and len(found) >= batches * len(batch):
                    break
        return found

    whole = rows(mixture.loader(3, epochs=2), None)
    assert [position for position, _ in whole] == list(range(42))
    begun = [mixture.loader(1, rank=rank, world_size=3, epochs=2) for rank in range(3)]
    before = [row for loader in begun for row in rows(loader, 5)]
    state = begun[0].state_dict()
    assert state == begun[2].state_dict()
    after = []
    for rank in range(2):
        copy = pickle.loads(pickle.dumps(mixture))
        loader = copy.loader(2, rank=rank, world_size=2, epochs=2, last="short")
        loader.load_state_dict(state)
        after += rows(loader, None)
    assert sorted(before + after) == whole
    other = dstream.mix([(parts[0], 1), (parts[1], 1)]).loader(3)
    with pytest.raises(InvalidInputError, match="order"):
        other.load_state_dict(state)


def test_equal_mixtures_give_equal_batches(parts: list[dstream.Clips]) -> None:
    def hashes(**options: Any) -> list[str]:
        mixture = dstream.mix([(parts[0], 3), (parts[1], 1)])
        with mixture.loader(4, clips_per_epoch=16, **options) as loader:
            return [batch_hash(batch) for batch in loader]

    found = hashes(workers=1, fetchers=1)
    assert found == hashes(workers=3, fetchers=8)
    assert all(one != other for one, other in pairwise(found))


def test_components_that_do_not_fit_are_refused(parts: list[dstream.Clips]) -> None:
    with pytest.raises(InvalidInputError, match="different sizes"):
        dstream.mix([(parts[0], 1), (parts[2], 1)]).loader(2)
    others = dstream.clips(new_filled(), frames=4, array="numpy")
    with pytest.raises(InvalidInputError, match="same frames: the first has 8, number 2 has 4"):
        dstream.mix([(parts[0], 1), (others, 1)])
    with pytest.raises(InvalidInputError, match="shuffled globally"):
        dstream.mix([(parts[0], 1), (parts[1], 1)]).loader(2, shuffle="affine")
    with pytest.raises(InvalidInputError, match="at least one component"):
        dstream.mix([])
    wrong: Any
    for wrong in (parts[0], parts, [(1, parts[0])], {"a": parts[0]}, [(parts[0], "1")]):
        with pytest.raises(InvalidInputError, match=r"pairs of clips and weights"):
            dstream.mix(wrong)


def new_filled() -> str:
    url = new_url()
    fill(open_store(url), {"a.mp4": b"x"})
    return url
