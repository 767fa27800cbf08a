"""Bounds the compressed bytes in flight, granting them in the plan's order."""

from __future__ import annotations

import threading


class ByteBudget:
    """Bytes that fetched and not yet decoded clips may hold together.

    Grants are given strictly in turn (0, 1, 2, ...), so the clip that the consumer waits for can
    never be starved by later ones, and a clip larger than the whole budget passes alone.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._changed = threading.Condition()
        self._turn = 0
        self._forgone: set[int] = set()
        self._held_bytes = 0
        self._closed = False
        self.peak_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes granted now."""
        return self._held_bytes

    def acquire(self, turn: int, size_bytes: int) -> bool:
        """Wait for this turn and for room; False when the budget was closed meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._may_pass(turn, size_bytes))
            if self._closed:
                return False
            self._take(size_bytes)
            self._forgone.add(turn)
            self._advance()
            return True

    def forgo(self, turn: int) -> None:
        """Let the others pass: this turn asks for nothing more. No effect once it was granted."""
        with self._changed:
            if turn >= self._turn:
                self._forgone.add(turn)
                self._advance()

    def _advance(self) -> None:
        while self._turn in self._forgone:
            self._forgone.remove(self._turn)
            self._turn += 1
        self._changed.notify_all()

    def _may_pass(self, turn: int, size_bytes: int) -> bool:
        return turn == self._turn and (
            self._held_bytes == 0 or self._held_bytes + size_bytes <= self.max_bytes
        )

    def overdraw(self, size_bytes: int) -> None:
        """Take bytes at once, whatever the budget says.

        For a clip that already had its turn and needs more (one GOP earlier, or another clip in
        place of a failed one): waiting there could wait for itself.
        """
        with self._changed:
            self._take(size_bytes)

    def _take(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self._held_bytes)

    def release(self, size_bytes: int) -> None:
        """Give bytes back."""
        with self._changed:
            self._held_bytes -= size_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Wake everyone who waits; they get False."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
