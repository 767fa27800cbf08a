"""Who looks at the time for threads that are inside C until their answer is whole.

One thread a process, which ends when nothing has been under way for a while.
"""

from __future__ import annotations

import threading
from typing import Protocol

from dstream.clock import SystemClock
from dstream.forks import renew_after_fork
from dstream.store.s3_connection import SLICE_S

_CLOCK = SystemClock()
_IDLE_LOOKS = 20


class Watched(Protocol):
    """Something under way that may have to be cut short."""

    def look(self, now_s: float) -> None:
        """Cut it short if it is due, by the monotonic clock."""
        ...


class Watch:
    """Looks at everything under way every ``SLICE_S``. Thread-safe; a forked child has its own."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget what the parent has under way, and its thread."""
        self._lock = threading.Lock()
        self._under_way: set[Watched] = set()
        self._is_awake = False

    def add(self, watched: Watched) -> None:
        """Look at this one until it is removed."""
        self._under_way.add(watched)
        if not self._is_awake:
            with self._lock:
                if not self._is_awake:
                    threading.Thread(target=self._run, name="dstream-watch", daemon=True).start()
                    self._is_awake = True

    def remove(self, watched: Watched) -> None:
        """It is over."""
        self._under_way.discard(watched)

    def _run(self) -> None:
        try:
            self._look_until_idle()
        except BaseException:
            with self._lock:
                self._is_awake = False  # the next to be added has another thread
            raise

    def _look_until_idle(self) -> None:
        idle = 0
        while True:
            _CLOCK.sleep(SLICE_S)
            under_way = self._under_way.copy()
            idle = 0 if under_way else idle + 1
            now_s = _CLOCK.monotonic_s()
            for watched in under_way:
                watched.look(now_s)
            if idle >= _IDLE_LOOKS:
                with self._lock:
                    # First this, then a last look: whoever adds does it the other way around.
                    self._is_awake = False
                    if not self._under_way:
                        return
                    self._is_awake, idle = True, 0


WATCH = Watch()
