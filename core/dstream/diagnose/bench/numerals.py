"""Numbers as a page shows them: three figures, with their units."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from dstream.diagnose.bench.document import Histogram

BEYOND_LIMIT = 1.005
"""An efficiency from which on percents show that a limit was measured too low."""


def figures(value: float) -> str:
    """Three figures.

    >>> figures(0), figures(0.01234), figures(12.345), figures(1234567.0)
    ('0', '0.0123', '12.3', '1,234,567')
    """
    if not value:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def share_of_limit(efficiency: float) -> str:
    """Of what was measured of the slowest part; nothing gives more than that really can.

    >>> share_of_limit(0.934), share_of_limit(1.004), share_of_limit(1.2)
    ('93%', '100%', 'over 100%')
    """
    return "over 100%" if efficiency >= BEYOND_LIMIT else f"{efficiency:.0%}"


def seconds(value_s: float) -> str:
    """A duration from microseconds to minutes.

    >>> seconds(0), seconds(12e-6), seconds(0.0345), seconds(2.5), seconds(95)
    ('0 s', '12 µs', '34.5 ms', '2.5 s', '95 s')
    """
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if 0 < value_s * scale < 1000:
            return f"{figures(value_s * scale)} {unit}"
    return f"{figures(value_s)} s"


def dollars(value: float) -> str:
    """Cents, and for less than a cent two figures.

    >>> dollars(0), dollars(0.0000123), dollars(0.25), dollars(1234.5)
    ('$0', '$0.000012', '$0.25', '$1,234.50')
    """
    if not value:
        return "$0"
    if value >= 0.01:
        return f"${value:,.2f}"
    return f"${value:.{1 - floor(log10(value))}f}"


def ticks(top: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to at least ``top``, about ``count`` steps of 1, 2 or 5 times 10^n.

    >>> ticks(93), ticks(0.7), ticks(0)
    ([0.0, 25.0, 50.0, 75.0, 100.0], [0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 1.0])
    """
    if top <= 0:
        return [0.0, 1.0]
    rough = top / count
    unit = 10.0 ** floor(log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    steps = 1
    while steps * step < top * 0.999:
        steps += 1
    return [round(place * step, 12) for place in range(steps + 1)]


def quantile_s(histogram: Histogram, share: float) -> float:
    """Below which duration so large a share lies; about, since within a bin by its logarithm."""
    edges: Sequence[float] = histogram.edges_s
    left = share * sum(histogram.counts)
    for place, count in enumerate(histogram.counts):
        if count and left <= count:
            low = edges[max(0, place - 1)]
            high = edges[min(place, len(edges) - 1)]
            return float(low * (high / low) ** (left / count))
        left -= count
    return 0.0
