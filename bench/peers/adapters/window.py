"""When counting begins and ends, so that no clip counts that was made before.

A loader keeps a stock: clips that are made or being made ahead of its consumer. It fills while
nobody counts, and at the start it may hold more than a whole window's clips. So counting begins
once more clips have come than the stock can hold, at a clip that the consumer had to wait for: the
stock had run dry. It ends at such a clip too. Both ends are arrivals, with the same stock: none.
"""

from __future__ import annotations

from dataclasses import dataclass

_WAIT = 0.5
"""A clip was waited for if it took this share of the mean interval, or more."""


@dataclass(frozen=True)
class Rule:
    """How long to let clips pass, and to count them."""

    stock_clips: int
    """Most that the loader can hold, made or being made, when its first clip arrives."""
    window_s: float
    least_clips: int
    settle_limit_s: float
    """Counting begins after this, whatever has passed."""
    limit_s: float
    """Counting ends with the first clip after this, however few came."""


@dataclass(frozen=True)
class Progress:
    """At the arrival of a clip: what came since the first, or since counting began."""

    clips: int
    seconds: float
    wait_s: float
    """That the consumer waited for this clip."""

    @property
    def was_awaited(self) -> bool:
        return self.clips > 0 and self.wait_s >= _WAIT * self.seconds / self.clips


def may_begin(rule: Rule, now: Progress) -> bool:
    """Whether the clips after this one count; ``now`` is since the first."""
    if now.seconds >= rule.settle_limit_s:
        return True
    return now.clips >= rule.stock_clips and now.was_awaited


def may_end(rule: Rule, now: Progress) -> bool:
    """Whether this clip is the last that counts; ``now`` is since counting began."""
    if now.seconds >= rule.limit_s:
        return True
    enough = now.seconds >= rule.window_s and now.clips >= rule.least_clips
    return enough and now.was_awaited
