"""The model of the protocol holds its promises, and each rule that is left out is missed."""

from __future__ import annotations

import pytest

from txn_model import MUTANT_CASTS, MUTANTS, PROTOCOL, search

LIMIT = 25_000
MUTANT_LIMIT = 120_000


@pytest.mark.parametrize("cast", PROTOCOL, ids="-".join)
def test_no_promise_is_broken(cast: tuple[str, ...]) -> None:
    result = search(cast, limit=LIMIT)
    assert result.violation is None, result.trace
    assert result.states > 200


SMALL = (("P1", "P2"), ("S1", "G1"), ("N1", "W1", "G1"), ("F1", "G1"), ("P1", "G1-swept"))


@pytest.mark.parametrize("cast", SMALL, ids="-".join)
def test_small_casts_are_searched_completely(cast: tuple[str, ...]) -> None:
    assert cast in PROTOCOL
    assert search(cast, limit=LIMIT).complete


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_rule_is_needed(mutant: str) -> None:
    result = search(MUTANT_CASTS[mutant], mutant, limit=MUTANT_LIMIT)
    assert result.violation is not None, f"without its rule nothing breaks: {MUTANTS[mutant]}"
    assert result.trace
