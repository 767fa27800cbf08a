"""Counters in one vocabulary, for the store and the loader alike."""

from dstream.measure.counters import (
    Meter,
    MeterSum,
    Purpose,
    RequestKey,
    RequestTotals,
    Snapshot,
    sum_of,
)

__all__ = [
    "Meter",
    "MeterSum",
    "Purpose",
    "RequestKey",
    "RequestTotals",
    "Snapshot",
    "sum_of",
]
