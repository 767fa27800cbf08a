"""How the rounds of a benchmark are told: the middle one, and how far apart they were."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """Median, least and most.

    >>> spread([0.97, 0.95, 0.99]), spread([2.5], ".1f")
    ('0.970 (0.950 to 0.990)', '2.5 (2.5 to 2.5)')
    """
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} ({least:{form}} to {most:{form}})"
