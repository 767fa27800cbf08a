"""Ctrl-C in a bench: the first one asks it to come to an end, and to tell what was measured."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "the bench was interrupted"


class InterruptedRunError(KeyboardInterrupt):
    """The first Ctrl-C, in a wait that it may end."""


class Interruption:
    """Whether a bench was asked to come to an end."""

    def __init__(self) -> None:
        self.came = False
        self._may_raise = False

    def receive(self) -> None:
        """It is asked now. Where the main thread waits in :meth:`breaking`, it waits no longer."""
        self.came = True
        if self._may_raise:
            self._may_raise = False
            raise InterruptedRunError

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """While this lasts nothing is lost by leaving: ``InterruptedRunError`` does at once."""
        try:
            self._may_raise = True  # before the look: one that comes between is not lost
            if self.came:
                raise InterruptedRunError
            yield
        finally:
            self._may_raise = False

    @contextmanager
    def on_signal(self) -> Iterator[None]:
        """Take the first SIGINT for this; those after it do what they did before.

        Outside the main thread, where no signal arrives, nothing is taken.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def take(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, before)
            self.receive()

        signal.signal(signal.SIGINT, take)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
