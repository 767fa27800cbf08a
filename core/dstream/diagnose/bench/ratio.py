"""How many times one set of measured rates is another, with an interval that is exact.

The interval is the one that inverts the Mann-Whitney test on the logarithms (L. E. Moses, in
Walker and Lev, "Statistical Inference", 1953; Hollander, Wolfe and Chicken, "Nonparametric
Statistical Methods", 3rd edition, sections 4.2 and 4.3, with Hodges and Lehmann's estimate): of
all m * n ratios b / a in order, those k places from either end. It holds with the stated
probability whatever the distribution of the rates is, if B's is A's times a factor and runs are
independent. No randomness is in it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dstream.errors import InvalidInputError

CONFIDENCE = 0.95
_POWER = 0.8
_SMALLEST_EFFECT = 0.05
FEWEST_REPEATS = 4
"""A side, below which no interval holds with 95%: 2 / (8 choose 4) is below 5%, 2 / (6 choose 3)
is not."""
_EFFICIENCY = 3 / math.pi
"""Of the Mann-Whitney test to the t test on normal data, for large samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """B's rates over A's."""

    ratio: float
    """Median of all ratios b / a."""
    low: float
    high: float
    confidence: float
    """That the true ratio is in [low, high]: at least 0.95, or what so few runs can give."""
    differs: bool | None
    """Whether 1 is outside of the interval; None where its confidence is below 0.95."""
    repeats_needed: int
    """About how many runs a side show a difference of 5% four times in five, by the scatter of
    these; 0 where that is not known."""


def compare_rates(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Compare two sets of rates.

    Raises:
        InvalidInputError: a set is empty, or has a rate that is not above 0.
    """
    for rates in (a, b):
        if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise InvalidInputError(f"rates to compare must be above 0, got {list(rates)!r:.80}")
    ratios = sorted(rate / base for base in a for rate in b)
    outside, confidence = _places(len(a), len(b))
    low, high = ratios[outside], ratios[-1 - outside]
    return Ratio(
        ratio=statistics.median(ratios),
        low=low,
        high=high,
        confidence=confidence,
        differs=None if confidence < CONFIDENCE else low > 1 or high < 1,
        repeats_needed=_repeats_needed(a, b),
    )


def _places(m: int, n: int) -> tuple[int, float]:
    """How many ratios to leave out at either end, and the interval's confidence.

    >>> _places(4, 4)
    (0, 0.9714285714285714)
    >>> _places(5, 5), _places(1, 1)
    ((2, 0.9682539682539683), (0, 0.0))
    """
    ways = mann_whitney_ways(m, n)
    total = sum(ways)
    outside, below = 0, ways[0]
    while 2 * (below + ways[outside + 1]) <= (1 - CONFIDENCE) * total:
        outside += 1
        below += ways[outside]
    return outside, 1 - 2 * below / total


def mann_whitney_ways(m: int, n: int) -> list[int]:
    """In how many orders of m and n values U is 0, 1, ..., m * n.

    The coefficients of the Gaussian binomial, a product of (1 - q^(n + i)) / (1 - q^i).

    >>> mann_whitney_ways(2, 2)
    [1, 1, 2, 1, 1]
    """
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):
            ways[u] -= ways[u - n - i]
        for u in range(i, m * n + 1):
            ways[u] += ways[u - i]
    return ways


def _repeats_needed(a: Sequence[float], b: Sequence[float]) -> int:
    """Two-sample size for normal logarithms, by the test's efficiency."""
    if len(a) + len(b) < 4:
        return 0
    squares = [_squares(rates) for rates in (a, b)]
    variance = sum(squares) / (len(a) + len(b) - 2)
    normal = statistics.NormalDist()
    z = normal.inv_cdf((1 + CONFIDENCE) / 2) + normal.inv_cdf(_POWER)
    needed = 2 * z**2 * variance / math.log1p(_SMALLEST_EFFECT) ** 2 / _EFFICIENCY
    return max(FEWEST_REPEATS, math.ceil(needed))


def _squares(rates: Sequence[float]) -> float:
    logs = [math.log(rate) for rate in rates]
    mean = statistics.fmean(logs)
    return sum((log - mean) ** 2 for log in logs)
