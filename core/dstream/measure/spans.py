"""How long each stage of each clip took: what measuring hears from a loader while it runs.

Counters (:mod:`dstream.measure.counters`) say how much; spans say when, and of which clip. A loader
that is given no sink measures nothing of this.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from dstream.forks import renew_after_fork


class SpanStage(StrEnum):
    """A stage of a clip, as a loader runs it. ``cache`` lies within ``fetch``, ``convert`` within
    ``decode``; the others follow one another."""

    PLAN = "plan"
    """Placing the clip in its sample, and which bytes it needs."""
    FETCH = "fetch"
    """From asking for the bytes to having them."""
    CACHE = "cache"
    """The part of it spent in this node's cache: looking, reading, keeping, and waiting for another
    thread that fetches the same."""
    DECODE = "decode"
    """From bytes to the clip's frames in the batch."""
    CONVERT = "convert"
    """The part of it spent resizing and converting colours."""
    WAIT = "wait"
    """The consumer waited for the batch."""
    COLLATE = "collate"
    """The batch was handed over, in the consumer's thread."""


class ClipId(NamedTuple):
    """Which clip. A position whose clip failed has a second one, of another slot."""

    position: int
    """In the endless global order."""
    slot: int
    sample: str


class Span(NamedTuple):
    """One stage of the clips that went through it together."""

    stage: SpanStage
    start_s: float
    """By the loader's monotonic clock."""
    end_s: float
    clips: tuple[ClipId, ...]
    """One; those of a batch; or those of a group that is read and decoded at once."""
    thread: str
    """Its name."""


class SpanSink(Protocol):
    """Hears of each stage when it is over. Called from any thread, by the one that did it."""

    def span(
        self, stage: SpanStage, start_s: float, end_s: float, clips: tuple[ClipId, ...]
    ) -> None:
        """A stage that went well; one that failed is among the counters, by its reason."""
        ...


EDGES_S = tuple(10 ** (step / 5) for step in range(-25, 11))
"""Bounds of the bins of latencies: five to a decade, from 10 µs to 100 s."""


class SpanRecorder:
    """Counts how long stages take, and keeps the first ``max_spans`` of the spans. Thread-safe.

    Args:
        max_spans: bounds the memory, about 0.4 kB each; beyond, they are counted as dropped.
    """

    def __init__(self, max_spans: int = 0) -> None:
        self._max_spans = max_spans
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._dropped = 0
        self._counts = {stage: [0] * (len(EDGES_S) + 1) for stage in SpanStage}
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child, where a thread of the parent may hold it."""
        self._lock = threading.Lock()

    def span(
        self, stage: SpanStage, start_s: float, end_s: float, clips: tuple[ClipId, ...]
    ) -> None:
        """See :class:`SpanSink`."""
        place = bisect_right(EDGES_S, end_s - start_s)
        with self._lock:
            self._counts[stage][place] += 1
            if len(self._spans) < self._max_spans:
                thread = threading.current_thread().name
                self._spans.append(Span(stage, start_s, end_s, clips, thread))
            else:
                self._dropped += 1

    @property
    def spans(self) -> list[Span]:
        """Those that were kept, in the order of their ends."""
        with self._lock:
            return list(self._spans)

    @property
    def dropped(self) -> int:
        """Spans beyond ``max_spans``."""
        return self._dropped

    def counts(self) -> Mapping[SpanStage, tuple[int, ...]]:
        """Of each stage that ran, spans by duration: below the first of :data:`EDGES_S`, from each
        edge to below the next, from the last on."""
        with self._lock:
            return {stage: tuple(n) for stage, n in self._counts.items() if any(n)}
