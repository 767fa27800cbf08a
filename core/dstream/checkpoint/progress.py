"""How far a copy is, told to whoever asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """State of a publish or fetch."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    files_kept: int = 0
    """Those that were there already and were not copied."""


Progress = Callable[[CopyProgress], None]


class Tally:
    """Adds up what the threads of one copy have done; calls back one thread at a time."""

    def __init__(self, files: int, size_bytes: int, tell: Progress | None) -> None:
        self._now = CopyProgress(0, files, 0, size_bytes)
        self._tell = tell
        self._lock = threading.Lock()

    def add(self, *, files: int = 0, size_bytes: int = 0, kept: int = 0) -> None:
        """Count files and bytes as done."""
        with self._lock:
            now = self._now
            self._now = replace(
                now,
                files_done=now.files_done + files,
                bytes_done=now.bytes_done + size_bytes,
                files_kept=now.files_kept + kept,
            )
            if self._tell is not None:
                self._tell(self._now)

    @property
    def now(self) -> CopyProgress:
        """The sums so far."""
        with self._lock:
            return self._now
