"""Counters in one vocabulary, for the store and the loader alike."""

from dstream.measure.counters import Meter, Purpose, RequestKey, RequestTotals, Snapshot

__all__ = ["Meter", "Purpose", "RequestKey", "RequestTotals", "Snapshot"]
