"""Waiting between attempts: longer each time for a store in trouble, shorter in a race.

A slot of the log is always won by somebody, so waiting after a lost race serves fairness alone. The
usual doubling starves: winners come back at once, and whoever lost most tries least often. Here the
wait halves with each loss, so that who has waited longest goes first. A writer whose attempts take
longer than its rivals' commits would lose all the same: it asks for a turn, by an entry of the log
that takes no time to make, and who sees that entry lets it go first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dstream.clock import Clock


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """Who commits, and how patiently."""

    author: str | None = None
    """Recorded in the log, for people; None means ``user@host``."""
    immediate_tries: int = 5
    """Attempts that follow at once."""
    first_wait_s: float = 0.05
    """Upper bound of the first wait for a store in trouble; it doubles from one to the next."""
    max_wait_s: float = 5.0
    """Upper bound of any wait."""
    slot_budget_s: float = 60.0
    """How long one write is followed up before its outcome is called unknown."""
    race_budget_s: float = 600.0
    """How long races against other writers are lost before giving up."""
    recheck_after_s: float = 60.0
    """A head known for longer is checked against a listing after a commit on it, since deleted
    log keys would have let the commit through."""


_POLITE = 4.0
"""Longest wait after the first lost race, in attempts."""

_AT_ONCE = 0.25
"""Waits are left out below this, in attempts: the writer is now one of the oldest."""

_STALE_S = 1.0
"""A head known for longer says nothing about rivals: losing on it is no reason to wait."""

_ASK_AFTER = 24
"""Losses after which a writer asks for a turn."""

_TURN = 2.0
"""Length of a turn, in attempts of who asks for it."""

MAX_TURN_S = 5.0
"""Longest turn that is granted."""


def race_wait_s(losses: int, attempt_s: float, share: float) -> float:
    """Seconds to wait after a lost race. Pure.

    Args:
        losses: races that this commit has lost, at least 1.
        attempt_s: how long one attempt takes, so that slow stores have long waits.
        share: the jitter, in [0, 1).

    >>> [race_wait_s(losses, 0.01, 0.5) for losses in (1, 2, 5, 6)]
    [0.02, 0.01, 0.00125, 0.0]
    """
    bound = math.ldexp(_POLITE, 1 - min(losses, 64))
    return share * bound * attempt_s if bound >= _AT_ONCE else 0.0


def turn_asked_s(ops: Iterable[Mapping[str, object]]) -> float:
    """How long a root asks other writers to wait, seconds. Pure; trusts no number.

    >>> turn_asked_s([{"op": "turn", "wait_s": 0.5}]), turn_asked_s([{"op": "turn", "wait_s": 1e9}])
    (0.5, 5.0)
    >>> turn_asked_s([{"op": "turn", "wait_s": "long"}, {"op": "publish"}])
    0.0
    """
    asked = [op.get("wait_s") for op in ops if op.get("op") == "turn"]
    seconds = [float(s) for s in asked if isinstance(s, int | float) and 0 < s < math.inf]
    return min(MAX_TURN_S, max(seconds, default=0.0))


def resend_wait_s(settings: CommitSettings, tries: int, share: float) -> float:
    """Seconds to wait before a write is sent again: none at first, then growing. Pure."""
    late = tries - settings.immediate_tries
    if late <= 0:
        return 0.0
    # 2**20 is far beyond any cap; the bound keeps the power small.
    return share * min(settings.max_wait_s, settings.first_wait_s * 2.0 ** min(late - 1, 20))


class Race:
    """One commit's races for the log."""

    def __init__(self, settings: CommitSettings, clock: Clock, rng: np.random.Generator) -> None:
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._until_s = clock.monotonic_s() + settings.race_budget_s
        self._begun_s = 0.0
        self._asked_at = 0
        self.losses = 0
        self.attempt_s = 0.0
        """How long the last lost attempt took."""

    def begin(self) -> None:
        """An attempt begins."""
        self._begun_s = self._clock.monotonic_s()

    def lose(self, head_read_at_s: float) -> float | None:
        """Wait after a lost attempt; returns how long, None when the budget is spent.

        Args:
            head_read_at_s: when the head was read or written that it was built on.
        """
        now_s = self._clock.monotonic_s()
        self.losses += 1
        if not self.asks:
            self.attempt_s = now_s - self._begun_s
        if now_s >= self._until_s:
            return None
        if self._begun_s - head_read_at_s > _STALE_S:
            return 0.0
        due_s = race_wait_s(self.losses, self.attempt_s, float(self._rng.random()))
        wait_s = min(self._settings.max_wait_s, due_s)
        if wait_s > 0:
            self._clock.sleep(wait_s)
        return wait_s

    @property
    def asks(self) -> bool:
        """Whether a turn is to be asked for before the next attempt."""
        return self.losses - self._asked_at >= _ASK_AFTER and self.attempt_s > 0

    @property
    def turn_s(self) -> float:
        """Length of the turn to ask for."""
        return min(MAX_TURN_S, _TURN * self.attempt_s)

    def asked(self) -> None:
        """A turn was asked for."""
        self._asked_at = self.losses


class Backoff:
    """Waits between sending one write again, until a budget of time is spent."""

    def __init__(
        self, settings: CommitSettings, budget_s: float, clock: Clock, rng: np.random.Generator
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._until_s = clock.monotonic_s() + budget_s
        self.tries = 0

    def wait(self) -> bool:
        """Wait before the next attempt; False when the budget is spent."""
        self.tries += 1
        wait_s = resend_wait_s(self._settings, self.tries, float(self._rng.random()))
        if wait_s > 0:
            self._clock.sleep(wait_s)
        return self._clock.monotonic_s() < self._until_s
