"""What everything that does I/O counts, and under which names.

Requests are keyed by verb, purpose and outcome, one count for every attempt that left the
process. Events (retries, throttles, fallbacks, skips) are keyed by a name and a reason. Gauges
of time and bytes are plain sums. A :class:`Snapshot` is a value: subtract two to get a phase.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from dstream.forks import renew_after_fork

K = TypeVar("K")
N = TypeVar("N", int, float)


class Purpose(StrEnum):
    """What a request is for; reports keep these apart."""

    DATA = "data"
    """Media bytes for clips."""
    SIDE = "side"
    """Side files of samples: actions, captions, arrays."""
    TABLE = "table"
    """Manifests, Parquet parts and packet tables: once per group of files, then cached."""
    INDEX = "index"
    """Bytes of a source read to find its packets."""
    COPY = "copy"
    """Whole source files read, or shards written, by a packed ingest."""
    LOG = "log"
    """The catalog's log of roots."""
    LISTING = "listing"
    """Listing a source or a repository."""
    OTHER = "other"


@dataclass(frozen=True, slots=True, order=True)
class RequestKey:
    """Verb (``get``, ``put``, ``head``, ``list`` ...), purpose and outcome (``ok``, or a code)."""

    verb: str
    purpose: Purpose
    outcome: str


@dataclass(frozen=True, slots=True)
class RequestTotals:
    """Sums over the requests of one key."""

    count: int = 0
    bytes_requested: int = 0
    """Bytes asked for by ranges, or sent by writes."""
    bytes_received: int = 0
    """Body bytes that arrived, including those of reads that then failed."""
    seconds: float = 0.0
    """Time inside the store, summed over threads."""

    def plus(self, other: RequestTotals, sign: int = 1) -> RequestTotals:
        """Field-wise sum, or difference with ``sign=-1``."""
        return RequestTotals(
            self.count + sign * other.count,
            self.bytes_requested + sign * other.bytes_requested,
            self.bytes_received + sign * other.bytes_received,
            self.seconds + sign * other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All counters at one moment. Immutable."""

    requests: Mapping[RequestKey, RequestTotals] = field(default_factory=dict)
    events: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(name, reason) -> count, for example ``("retry", "throttled")``."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """Named totals: ``seconds.decode``, ``frames.decoded``, ``bytes.unverified`` ..."""

    def minus(self, earlier: Snapshot) -> Snapshot:
        """What happened between ``earlier`` and this."""
        requests = {
            key: total.plus(earlier.requests.get(key, RequestTotals()), -1)
            for key, total in self.requests.items()
        }
        return Snapshot(
            {key: total for key, total in requests.items() if total.count},
            _difference(self.events, earlier.events),
            _difference(self.sums, earlier.sums),
        )

    def total(
        self,
        verb: str | None = None,
        purpose: Purpose | None = None,
        outcome: str | None = None,
    ) -> RequestTotals:
        """Sum over all keys that match the given parts."""
        result = RequestTotals()
        for key, totals in self.requests.items():
            if (
                verb in (None, key.verb)
                and purpose in (None, key.purpose)
                and outcome in (None, key.outcome)
            ):
                result = result.plus(totals)
        return result

    def event(self, name: str) -> dict[str, int]:
        """Reason -> count of one kind of event."""
        return {reason: n for (kind, reason), n in sorted(self.events.items()) if kind == name}

    def as_json(self) -> dict[str, object]:
        """A plain document with sorted keys, for ``--json``."""
        return {
            "requests": [
                {
                    "verb": key.verb,
                    "purpose": str(key.purpose),
                    "outcome": key.outcome,
                    "count": totals.count,
                    "bytes_requested": totals.bytes_requested,
                    "bytes_received": totals.bytes_received,
                    "seconds": round(totals.seconds, 6),
                }
                for key, totals in sorted(self.requests.items())
            ],
            "events": [
                {"name": name, "reason": reason, "count": n}
                for (name, reason), n in sorted(self.events.items())
            ],
            "sums": {name: self.sums[name] for name in sorted(self.sums)},
        }


def _difference(now: Mapping[K, N], then: Mapping[K, N]) -> dict[K, N]:
    result: dict[K, N] = {}
    for key, value in now.items():
        change = value - then.get(key, type(value)(0))
        if change:
            result[key] = change
    return result


def sum_of(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The counters of several meters together."""
    requests: dict[RequestKey, RequestTotals] = {}
    events: dict[tuple[str, str], int] = {}
    sums: dict[str, float] = {}
    for snapshot in snapshots:
        for key, totals in snapshot.requests.items():
            requests[key] = requests.get(key, RequestTotals()).plus(totals)
        for event, count in snapshot.events.items():
            events[event] = events.get(event, 0) + count
        for name, amount in snapshot.sums.items():
            sums[name] = sums.get(name, 0) + amount
    return Snapshot(requests, events, sums)


class Meter:
    """Collects counts from many threads. Cheap: one short lock an event.

    Pickled to another process it arrives empty: counts belong to the process that made them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Requests are many: sums of count, bytes asked for, bytes received and seconds.
        self._requests: dict[tuple[str, Purpose, str], list[float]] = {}
        self._events: dict[tuple[str, str], int] = {}
        self._sums: dict[str, float] = {}
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child, where a thread of the parent may hold it."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return (Meter, ())

    def request(self, verb: str, purpose: Purpose, outcome: str, totals: RequestTotals) -> None:
        """Count one attempt that left the process."""
        with self._lock:
            sums = self._requests.get((verb, purpose, outcome))
            if sums is None:
                sums = self._requests[verb, purpose, outcome] = [0, 0, 0, 0.0]
            sums[0] += totals.count
            sums[1] += totals.bytes_requested
            sums[2] += totals.bytes_received
            sums[3] += totals.seconds

    def event(self, name: str, reason: str, count: int = 1) -> None:
        """Count a retry, throttle, fallback or skip, with its reason."""
        with self._lock:
            self._events[name, reason] = self._events.get((name, reason), 0) + count

    def add(self, name: str, amount: float) -> None:
        """Add to a named sum of seconds, bytes or frames."""
        with self._lock:
            self._sums[name] = self._sums.get(name, 0) + amount

    def snapshot(self) -> Snapshot:
        """The counters now, as a value."""
        with self._lock:
            requests = {
                RequestKey(*key): RequestTotals(int(count), int(asked), int(received), seconds)
                for key, (count, asked, received, seconds) in self._requests.items()
            }
            return Snapshot(requests, dict(self._events), dict(self._sums))


class MeterSum(Meter):
    """A meter whose snapshots include those of other meters."""

    def __init__(self, others: Sequence[Meter]) -> None:
        super().__init__()
        self._others = tuple(others)

    def __reduce__(self) -> tuple[object, ...]:
        return (MeterSum, (self._others,))

    def snapshot(self) -> Snapshot:
        """The counters of all now, as a value."""
        return sum_of([super().snapshot(), *(meter.snapshot() for meter in self._others)])
