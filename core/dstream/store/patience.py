"""What a long run adds to retries: it waits while the whole store is down, and it can be stopped.

A command that meets a dead server should say so soon; a training run should not die of ten
minutes without network. So the caller decides, for the threads that work for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dstream.clock import Clock
from dstream.errors import DstreamError
from dstream.measure import Meter

_LOG = logging.getLogger("dstream")

_SLICE_S = 0.2
"""How long a wait goes on unnoticed after it was stopped."""

_UNLUCKY = 3
"""Failures in a row, each while other requests were answered, that are the object's own fault."""


class Outage:
    """One store's outage as all threads of one run see it. Thread-safe.

    Args:
        max_outage_s: longest time without any answer; 0 never waits for more than the retries.
        who: what messages call the store.
        meter: gets an event ``outage`` for each, and ``seconds.outage``.
        clock: measures how long it lasts.
    """

    def __init__(self, max_outage_s: float, who: str, meter: Meter, clock: Clock) -> None:
        self.max_outage_s, self._who = max_outage_s, who
        self._meter, self._clock = meter, clock
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self.answers = 0
        """Requests that were answered so far."""

    def answered(self) -> None:
        """A request got its answer: there is no outage, or it is over."""
        self.answers += 1
        if self._since_s is None:
            return
        with self._lock:
            since_s, self._since_s = self._since_s, None
        if since_s is not None:
            lasted_s = self._clock.monotonic_s() - since_s
            self._meter.add("seconds.outage", lasted_s)
            _LOG.warning("%s answers again after %.0f s; going on", self._who, lasted_s)

    def is_bearable(self, error: DstreamError) -> bool:
        """Whether to go on waiting after retries in vain; says so once an outage."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            is_new = self._since_s is None
            if is_new:
                self._since_s = now_s
            lasted_s = now_s - (self._since_s or now_s)
        if is_new:
            self._meter.event("outage", str(error.facts.get("code", "error")))
            _LOG.warning(
                "%s does not answer (%s); waiting for up to %.0f s (max_outage_s)",
                self._who,
                error,
                self.max_outage_s,
            )
        return lasted_s < self.max_outage_s


class Patience:
    """What one thread does when its retries are used up."""

    def __init__(self, outage: Outage, stopped: Callable[[], bool]) -> None:
        self._outage, self.stopped = outage, stopped
        self._answers_seen = -1
        self._unlucky = 0

    def answered(self) -> None:
        """A request of this thread got its answer."""
        self._unlucky, self._answers_seen = 0, -1
        self._outage.answered()

    def bears(self, error: DstreamError) -> bool:
        """Whether to try once more: not where others are answered and only this one never is."""
        if self._outage.max_outage_s <= 0:
            return False
        seen, self._answers_seen = self._answers_seen, self._outage.answers
        if seen == self._answers_seen:
            return self._outage.is_bearable(error)
        # Others were answered meanwhile, or this is the first failure: no outage as yet.
        self._unlucky += seen >= 0
        if self._unlucky < _UNLUCKY:
            return True
        self._unlucky, self._answers_seen = 0, -1
        return False

    def sleep(self, clock: Clock, duration_s: float) -> bool:
        """Wait; False when the wait was stopped."""
        until_s = clock.monotonic_s() + duration_s
        while not self.stopped():
            left_s = until_s - clock.monotonic_s()
            if left_s <= 0:
                return True
            clock.sleep(min(_SLICE_S, left_s))
        return False


_HERE = threading.local()


def current() -> Patience | None:
    """The patience of this thread, if it has any."""
    patience: Patience | None = getattr(_HERE, "patience", None)
    return patience


@contextmanager
def patient(outage: Outage, stopped: Callable[[], bool]) -> Iterator[None]:
    """Let retries of this thread wait out an outage, until ``stopped()``."""
    before = current()
    _HERE.patience = Patience(outage, stopped)
    try:
        yield
    finally:
        _HERE.patience = before
