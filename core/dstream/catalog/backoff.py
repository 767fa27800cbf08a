"""Waiting between attempts: some at once, then longer and longer, with jitter."""

from __future__ import annotations

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
    """Upper bound of the first wait; it doubles from one to the next."""
    max_wait_s: float = 5.0
    slot_budget_s: float = 60.0
    """How long one write is followed up before its outcome is called unknown."""
    race_budget_s: float = 600.0
    """How long races against other writers are lost before giving up."""
    recheck_after_s: float = 60.0
    """A head known for longer is checked against a listing after a commit on it, since deleted
    log keys would have let the commit through."""


class Backoff:
    """Waits of one activity: full jitter, doubling, until a budget of time is spent."""

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
        late = self.tries - self._settings.immediate_tries
        if late > 0:
            # 2**20 is far beyond any cap; the bound keeps the power small.
            bound_s = min(
                self._settings.max_wait_s, self._settings.first_wait_s * 2 ** min(late - 1, 20)
            )
            self._clock.sleep(float(self._rng.random()) * bound_s)
        return self._clock.monotonic_s() < self._until_s
