"""Decoder sessions shared by threads: the pool's decisions, carried out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from dstream.measure.counters import Meter
from dstream.media.decoders.pool import Lease, PoolState, SessionKey


class Session(Protocol):
    """A decoder on a device."""

    def close(self) -> None:
        """Free what it holds."""
        ...


S = TypeVar("S", bound=Session)


class PoolFullError(Exception):
    """A session of this kind never has room in the pool's memory."""


class SessionPool(Generic[S]):
    """Lends sessions, one thread each. Thread-safe.

    Args:
        state: decides.
        open_session: opens one; called outside of any lock.
    """

    def __init__(self, state: PoolState, open_session: Callable[[SessionKey], S]) -> None:
        self._state, self._open = state, open_session
        self._sessions: dict[int, S] = {}
        self._changed = threading.Condition()
        self._by_thread: dict[int, int] = {}
        self._is_closed = False

    @contextmanager
    def session(self, key: SessionKey, meter: Meter) -> Iterator[S]:
        """A session for one run, as soon as an engine is free.

        What leaves the block with an error leaves the session broken: it is closed.

        Args:
            key: what it is for.
            meter: counts it: events ``nvdec-session`` with ``opened``, ``reused``, ``closed`` (to
                make room), ``poisoned`` and ``not-opened``.

        Raises:
            PoolFullError: there is never room for it.
            Exception: whatever opening raises.
        """
        lease = self._take(key)
        is_healthy = False
        try:
            yield self._ready(lease, meter)
            is_healthy = True
        finally:
            self._end(lease, is_healthy, meter)

    @property
    def peak_bytes(self) -> int:
        """The most device memory that sessions held at once, by estimate."""
        return self._state.peak_bytes

    def lose(self, thread: threading.Thread) -> None:
        """Count on a thread's session no more: its run hangs."""
        with self._changed:
            number = self._by_thread.pop(thread.ident or 0, None)
            if number is not None:
                self._state.lose(number)
                self._changed.notify_all()

    def close(self) -> None:
        """Close idle sessions now, and busy ones as they are given back."""
        with self._changed:
            self._is_closed = True
            going = self._state.drain()
        for number in going:
            self._close(number)

    def _take(self, key: SessionKey) -> Lease:
        with self._changed:
            while True:
                if not self._state.fits(key):
                    raise PoolFullError
                lease = self._state.lease(key)
                if lease is not None:
                    self._by_thread[threading.get_ident()] = lease.number
                    return lease
                self._changed.wait()

    def _ready(self, lease: Lease, meter: Meter) -> S:
        for number in lease.close:
            self._close(number)
            meter.event("nvdec-session", "closed")
        if lease.is_new:
            session = self._open(lease.key)
            with self._changed:
                self._sessions[lease.number] = session
        meter.event("nvdec-session", "opened" if lease.is_new else "reused")
        return self._sessions[lease.number]

    def _end(self, lease: Lease, is_healthy: bool, meter: Meter) -> None:
        if not is_healthy:
            # Closed before its engine and its memory are promised to another.
            was_open = self._close(lease.number)
            meter.event("nvdec-session", "poisoned" if was_open else "not-opened")
        with self._changed:
            self._by_thread.pop(threading.get_ident(), None)
            is_healthy = is_healthy and not self._is_closed
            keep = self._state.give_back(lease.number, is_healthy=is_healthy)
            self._changed.notify_all()
        if not keep:
            self._close(lease.number)

    def _close(self, number: int) -> bool:
        with self._changed:
            session = self._sessions.pop(number, None)
        if session is not None:
            session.close()
        return session is not None
