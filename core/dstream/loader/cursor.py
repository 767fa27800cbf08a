"""How far a loader is, and which steps come next. Pure, like the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from dstream.loader.plan import Order
from dstream.loader.steps import Ranks, Step, steps


@dataclass(frozen=True, slots=True)
class Share:
    """Which of a rank's steps one process makes: every ``count``-th, from ``number`` on.

    More than one only in the workers of torch's DataLoader, which takes from them in turn.
    """

    number: int = 0
    count: int = 1


ALL_STEPS = Share()


@dataclass(frozen=True, slots=True)
class Cursor:
    """One place in the endless sequence of epochs, between two steps."""

    position: int = 0
    """The global order was delivered up to here: in clips, over all ranks."""
    loop_epoch: int = 0
    """The epoch in which the current loop began; it lasts ``epochs`` from there."""
    finished: bool = False
    """The loop is over: the next one begins a new epoch."""
    skip: int = 0
    """Steps from ``position`` on that other workers make before this one's next."""

    @classmethod
    def at_epoch(
        cls, epoch: int, epoch_size: int, ranks: Ranks, share: Share = ALL_STEPS
    ) -> Cursor:
        """Where the loop of an epoch begins when every epoch had a loop of its own.

        With ``last="wrap"`` the loop before may have taken from this epoch already.
        """
        position = epoch * epoch_size
        if ranks.last == "wrap":
            position = max(-(-position // ranks.step_size), epoch) * ranks.step_size
        return cls(position, position // epoch_size, skip=share.number)

    def ahead(
        self,
        epoch_size: int,
        order: Order,
        ranks: Ranks,
        epochs: int | None,
        share: Share = ALL_STEPS,
    ) -> Iterator[Step]:
        """The steps that are left of the loop, for one rank and one of its workers."""
        if self.finished:
            return iter(())
        stop = self.loop_end(epoch_size, epochs)
        left = steps(self.position, stop, epoch_size, order, ranks)
        return islice(left, self.skip, None, share.count)

    def after(self, step: Step, share: Share = ALL_STEPS) -> Cursor:
        """The place behind a delivered step."""
        return replace(self, position=step.stop, skip=share.count - 1)

    def at_loop_end(self, epoch_size: int, epochs: int | None) -> Cursor:
        """The place behind the last step of the loop; what ``last="drop"`` leaves out is over."""
        end = self.loop_end(epoch_size, epochs) or 0
        return replace(self, position=max(self.position, end), finished=True)

    def next_loop(self, epoch_size: int, share: Share = ALL_STEPS) -> Cursor:
        """Where the next loop begins, after one that is finished; else the same place."""
        if not self.finished:
            return self
        return Cursor(self.position, self.position // epoch_size, skip=share.number)

    def loop_end(self, epoch_size: int, epochs: int | None) -> int | None:
        """The position at which the loop is over; None: never."""
        return None if epochs is None else (self.loop_epoch + epochs) * epoch_size
