"""What a measuring proxy saw: counted as it passes, summed up as a report."""

from __future__ import annotations

import math
import threading
from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dstream.diagnose.intervals import Intervals
from dstream.diagnose.prices import Prices
from dstream.diagnose.s3_request import Kind

BIN_S = 1.0
"""Width of the timeline's bins."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer."""

    number: int
    kind: Kind
    bucket: str
    key: str
    status: int
    """The answer's status; 0 where there was none."""
    outcome: str
    """``ok``, or why it was not completed: ``client-gone``, ``upstream``, ``fault-reset`` ..."""
    began_s: float
    first_byte_s: float
    """When the answer's head was there."""
    ended_s: float
    sent_bytes: int
    """Body bytes of the request."""
    received_bytes: int
    """Body bytes of the answer that the store sent."""
    delivered_bytes: int
    """Those of them that the client took."""
    range_start: int | None = None
    """First byte of the object in the answer; None where the answer is no object."""
    object_bytes: int | None = None
    """Size of the whole object, where the answer told it."""
    ranged: bool = False
    """The client asked for a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTotals:
    """Requests of one kind."""

    kind: Kind
    requests: int
    statuses: Mapping[int, int]
    sent_bytes: int
    received_bytes: int
    p50_s: float
    """Percentiles of the time from a request's head to its answer's last byte."""
    p95_s: float
    p99_s: float
    first_byte_p50_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficReport:
    """What a command did to its store. Bytes are bodies' bytes, without heads and framing."""

    wall_seconds: float
    requests: int
    kinds: tuple[KindTotals, ...]
    outcomes: Mapping[str, int]
    """Requests by outcome."""
    throttled: int
    """Answers 429 and 503, injected ones included."""
    refused: int
    """Requests that were not signed with the key handed out."""

    received_bytes: int
    """Body bytes of completed answers to reads of objects."""
    aborted_bytes: int
    """Body bytes of answers that were not completed."""
    passed_bytes: int
    """Body bytes of all answers, those of requests still under way included."""
    sent_bytes: int
    unique_bytes: int
    """Different bytes of objects among those received, aborted ones included."""
    reread_bytes: int
    """Bytes of objects that were received again."""
    amplification: float
    """All bytes of objects received / unique bytes; 1 is ideal."""
    objects: int
    """Different objects read."""
    objects_bytes: int
    """Their sizes together, as far as answers told them."""

    whole_reads: int
    """Reads of a whole object."""
    sequential_reads: int
    """Reads that began where the last read of the object ended."""
    random_reads: int
    """Other reads of a part."""
    pattern: str
    """``whole``, ``sequential``, ``random`` or ``mixed``: what most reads were."""

    concurrency_mean: float
    """Requests in flight, averaged over the time in which any was."""
    concurrency_max: int
    timeline_bin_seconds: float
    timeline_requests: tuple[int, ...]
    timeline_bytes: tuple[int, ...]
    timeline_concurrency: tuple[float, ...]

    dollars: float
    prices: Prices
    proxy_cpu_seconds: float
    proxy_cpu_share: float
    """Of one core, over the wall time."""
    proxy_cpu_seconds_per_request: float
    """Its median over requests."""
    proxy_is_limit: bool
    """The proxy was so busy that the rates are its own, not the store's."""


_NEAR_LIMIT = 0.8
"""Share of one core beyond which the interpreter's lock makes the proxy the bottleneck."""


@dataclass(slots=True)
class _Totals:
    statuses: dict[int, int] = field(default_factory=dict)
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: array[float] = field(default_factory=lambda: array("f"))
    first_byte: array[float] = field(default_factory=lambda: array("f"))


@dataclass(slots=True)
class _Object:
    seen: Intervals = field(default_factory=Intervals)
    last_stop: int = -1
    size_bytes: int = 0


class Traffic:
    """Collects exchanges from many threads. Memory: 8 bytes a request, and each object's ranges.

    Args:
        began_s: the monotonic time that the timeline starts at.
    """

    def __init__(self, began_s: float) -> None:
        self._lock = threading.Condition()
        self._began_s = began_s
        self._kinds = defaultdict[Kind, _Totals](_Totals)
        self._outcomes: dict[str, int] = {}
        self._objects = defaultdict[tuple[str, str], _Object](_Object)
        self._reads = {"whole": 0, "sequential": 0, "random": 0}
        self._received_bytes = self._aborted_bytes = self._object_bytes = 0
        self._in_flight = self._most_in_flight = 0
        self._refused = self._passed_bytes = 0
        self._bins: list[list[float]] = []
        self._cpu: array[float] = array("f")

    def begin(self) -> None:
        """A request's head is here."""
        with self._lock:
            self._in_flight += 1
            self._most_in_flight = max(self._most_in_flight, self._in_flight)

    def passed(self, size_bytes: int) -> None:
        """A piece of an answer's body is here."""
        with self._lock:
            self._passed_bytes += size_bytes

    def refuse(self) -> None:
        """A begun request was refused for its signature."""
        with self._lock:
            self._leave()
            self._refused += 1

    def end(self, exchange: Exchange, cpu_s: float) -> None:
        """A begun request is done, or given up; it cost the proxy ``cpu_s`` of a core."""
        with self._lock:
            self._leave()
            self._cpu.append(cpu_s)
            totals = self._kinds[exchange.kind]
            totals.statuses[exchange.status] = totals.statuses.get(exchange.status, 0) + 1
            totals.sent_bytes += exchange.sent_bytes
            totals.received_bytes += exchange.received_bytes
            totals.seconds.append(exchange.ended_s - exchange.began_s)
            totals.first_byte.append(exchange.first_byte_s - exchange.began_s)
            self._outcomes[exchange.outcome] = self._outcomes.get(exchange.outcome, 0) + 1
            self._place(exchange)
            if exchange.range_start is not None:
                self._read(exchange, exchange.range_start)

    def _leave(self) -> None:
        self._in_flight -= 1
        self._lock.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight: a client has its answer before it is counted."""
        with self._lock:
            return self._lock.wait_for(lambda: self._in_flight == 0, timeout_s)

    def _read(self, exchange: Exchange, start: int) -> None:
        stop = start + exchange.received_bytes
        if exchange.outcome == "ok":
            self._received_bytes += exchange.received_bytes
        else:
            self._aborted_bytes += exchange.received_bytes
        self._object_bytes += exchange.received_bytes
        seen = self._objects[exchange.bucket, exchange.key]
        seen.seen.add(start, stop)
        seen.size_bytes = max(seen.size_bytes, exchange.object_bytes or 0, stop)
        whole = not exchange.ranged or (start == 0 and stop == exchange.object_bytes)
        follows = start == seen.last_stop
        self._reads["whole" if whole else "sequential" if follows else "random"] += 1
        seen.last_stop = stop

    def _place(self, exchange: Exchange) -> None:
        """Spread a request's time over the bins that it touches."""
        first = max(0, math.floor((exchange.began_s - self._began_s) / BIN_S))
        last = max(first, math.floor((exchange.ended_s - self._began_s) / BIN_S))
        while len(self._bins) <= last:
            self._bins.append([0.0, 0.0, 0.0])
        self._bins[first][0] += 1
        self._bins[last][1] += exchange.received_bytes + exchange.sent_bytes
        for number in range(first, last + 1):
            left_s = self._began_s + number * BIN_S
            start_s, stop_s = max(exchange.began_s, left_s), min(exchange.ended_s, left_s + BIN_S)
            self._bins[number][2] += max(0.0, stop_s - start_s)

    def report(self, wall_s: float, cpu_s: float, prices: Prices) -> TrafficReport:
        """The sums so far.

        Args:
            wall_s: how long the command ran.
            cpu_s: CPU seconds of the proxy's process in that time.
            prices: what requests and bytes cost.
        """
        with self._lock:
            kinds = tuple(_kind_totals(kind, self._kinds[kind]) for kind in sorted(self._kinds))
            unique = sum(found.seen.size_bytes for found in self._objects.values())
            busy = [bin_ for bin_ in self._bins if bin_[2] > 0]
            statuses = [item for kind in kinds for item in kind.statuses.items()]
            all_received = sum(kind.received_bytes for kind in kinds)
            return TrafficReport(
                wall_seconds=wall_s,
                requests=sum(kind.requests for kind in kinds),
                kinds=kinds,
                outcomes=dict(sorted(self._outcomes.items())),
                throttled=sum(count for status, count in statuses if status in (429, 503)),
                refused=self._refused,
                received_bytes=self._received_bytes,
                aborted_bytes=self._aborted_bytes,
                passed_bytes=self._passed_bytes,
                sent_bytes=sum(kind.sent_bytes for kind in kinds),
                unique_bytes=unique,
                reread_bytes=self._object_bytes - unique,
                amplification=self._object_bytes / unique if unique else 0.0,
                objects=len(self._objects),
                objects_bytes=sum(found.size_bytes for found in self._objects.values()),
                whole_reads=self._reads["whole"],
                sequential_reads=self._reads["sequential"],
                random_reads=self._reads["random"],
                pattern=pattern(self._reads),
                concurrency_mean=sum(bin_[2] for bin_ in busy) / (len(busy) * BIN_S or 1),
                concurrency_max=self._most_in_flight,
                timeline_bin_seconds=BIN_S,
                timeline_requests=tuple(int(bin_[0]) for bin_ in self._bins),
                timeline_bytes=tuple(int(bin_[1]) for bin_ in self._bins),
                timeline_concurrency=tuple(bin_[2] / BIN_S for bin_ in self._bins),
                dollars=prices.dollars({kind.kind: kind.requests for kind in kinds}, all_received),
                prices=prices,
                proxy_cpu_seconds=cpu_s,
                proxy_cpu_share=cpu_s / wall_s if wall_s else 0.0,
                proxy_cpu_seconds_per_request=float(np.median(self._cpu)) if self._cpu else 0.0,
                proxy_is_limit=wall_s > 0 and cpu_s / wall_s > _NEAR_LIMIT,
            )


def pattern(reads: Mapping[str, int]) -> str:
    """The name of what at least four fifths of the reads were.

    >>> pattern({"whole": 9, "sequential": 0, "random": 1}), pattern({"whole": 1, "random": 1})
    ('whole', 'mixed')
    """
    total = sum(reads.values())
    if not total:
        return "none"
    return next((name for name, count in reads.items() if count >= 0.8 * total), "mixed")


def _kind_totals(kind: Kind, totals: _Totals) -> KindTotals:
    p50, p95, p99 = np.percentile(totals.seconds, (50, 95, 99))
    return KindTotals(
        kind=kind,
        requests=len(totals.seconds),
        statuses=dict(sorted(totals.statuses.items())),
        sent_bytes=totals.sent_bytes,
        received_bytes=totals.received_bytes,
        p50_s=float(p50),
        p95_s=float(p95),
        p99_s=float(p99),
        first_byte_p50_s=float(np.median(totals.first_byte)),
    )
