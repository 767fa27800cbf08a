"""A signal that ends a loop between two batches, on all ranks at the same one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dstream.errors import InvalidInputError
from dstream.loader.groups import Vote
from dstream.loader.state import write_state


class StopWaitingError(BaseException):
    """Raised by a signal in a wait for a batch; never leaves the loader."""


class SignalStop:
    """Whether a loop is to end, as all ranks see it.

    Args:
        every: ask the other ranks before every so many batches.
        write: called once when the loop ends.
        group: torch's; all ranks by default. Making this is a collective call.
    """

    def __init__(self, every: int, write: Callable[[], None], group: Any = None) -> None:
        if every < 1:
            raise InvalidInputError(f"every must be at least 1, got {every}")
        self.received: signal.Signals | None = None
        """The signal that came to this process; None if it came to another rank, or to none."""
        self.stopped = False
        """The loop was ended: save, and leave."""
        self._every, self._write, self._batches = every, write, 0
        self._vote = Vote(group)
        self._waiting = False

    def is_due(self) -> bool:
        """Whether to end before the next batch; equal on all ranks, each of which asks."""
        if not self.stopped and self._batches % self._every == 0:
            if self._vote.any(self.received is not None):
                self.end()
        self._batches += 1
        return self.stopped

    def end(self) -> None:
        """The loop ends here."""
        self.stopped = True
        self._write()

    def receive(self, number: int) -> None:
        """A signal came. A process that is alone, and waits for a batch, waits no longer."""
        self.received = signal.Signals(number)
        if self._waiting and self._vote.is_alone:
            self._waiting = False
            raise StopWaitingError

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While this lasts nothing is lost by leaving: a batch counts once it is handed over."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False


@contextmanager
def handled(stop: SignalStop, signals: tuple[int, ...]) -> Iterator[None]:
    """Take the signals for ``stop`` as long as this lasts; then the old handlers are back.

    A signal that comes again changes nothing: launchers send it more than once. In a child that
    was forked meanwhile it does what it does by default.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidInputError("signals can be taken in the main thread only: enter there")
    owner = os.getpid()

    def take(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.receive(number)

    before: dict[int, Any] = {}
    try:
        for number in signals:
            before[number] = signal.signal(number, take)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def state_writer(
    path: str | os.PathLike[str] | None, rank: int, state: Callable[[], Mapping[str, object]]
) -> Callable[[], None]:
    """Writes the loader's state to ``path``, on the first rank: it is equal on all."""

    def write() -> None:
        if path is not None and rank == 0:
            write_state(path, state())

    return write
