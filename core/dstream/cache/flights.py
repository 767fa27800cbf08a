"""Extents on their way, so that a process fetches each of them once."""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Flight:
    """One extent that a thread is obtaining for all."""

    __slots__ = ("data", "done")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.data: bytes | None = None
        """None when it could not be had."""


class Flights:
    """Who obtains what. Thread-safe.

    A thread lands all its own flights before it waits for another's, so no two can wait for each
    other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[int, Flight] = {}

    def claim(self, keys: Iterable[int]) -> tuple[list[int], dict[int, Flight]]:
        """The keys that the caller must now obtain and :meth:`land`, and the flights of others."""
        mine: list[int] = []
        others: dict[int, Flight] = {}
        with self._lock:
            for key in keys:
                flight = self._flights.get(key)
                if flight is None:
                    self._flights[key] = Flight()
                    mine.append(key)
                else:
                    others[key] = flight
        return mine, others

    def land(self, key: int, data: bytes | None) -> None:
        """Give those who wait what was obtained, or None: they must try themselves."""
        with self._lock:
            flight = self._flights.pop(key)
        flight.data = data
        flight.done.set()
