"""A cache bounded by bytes in which each value is loaded once, however many threads want it."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dstream.errors import DstreamError
from dstream.forks import renew_after_fork

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def one_each(value: object) -> int:
    """A size for values that are counted, not measured."""
    return 1


@dataclass(slots=True)
class _Flight(Generic[V]):
    """One load in progress."""

    done: threading.Event
    value: V | None = None
    error: BaseException | None = None


class SingleFlightCache(Generic[K, V]):
    """Least recently used values go first when ``max_bytes`` is exceeded.

    Pickled to another process it arrives empty.

    Args:
        max_bytes: budget; the newest value is kept even when it alone is larger.
        size_of: bytes that a value stands for.
        remember: errors of these classes are kept and raised again instead of loading anew
            (a file that is no video stays none). Other errors are forgotten.
        max_errors: how many are remembered; those that were not met for longest are forgotten.
    """

    def __init__(
        self,
        max_bytes: int,
        size_of: Callable[[V], int],
        remember: tuple[type[DstreamError], ...] = (),
        max_errors: int = 10_000,
    ) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._remember = remember
        self._max_errors = max_errors
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._errors: OrderedDict[K, DstreamError] = OrderedDict()
        self.renew()
        renew_after_fork(self)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self._max_bytes, self._size_of, self._remember, self._max_errors)
        return SingleFlightCache, arguments

    def renew(self) -> None:
        """In a forked child: forget the loads of threads that did not come along."""
        self._lock = threading.Lock()
        self._flights: dict[K, _Flight[V]] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes of the values held now."""
        return self._bytes

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The value of ``key``; ``load`` is called when it is neither held nor being loaded.

        Raises:
            Whatever ``load`` raises, in every thread that waited for it.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
            if key in self._errors:
                self._errors.move_to_end(key)
                raise copy.copy(self._errors[key])
            flight = self._flights.get(key)
            leads = flight is None
            if flight is None:
                flight = self._flights[key] = _Flight(threading.Event())
        if leads:
            return self._load(key, flight, load)
        flight.done.wait()
        if flight.error is not None:
            # A copy, since raising one instance in many threads would chain their tracebacks.
            raise copy.copy(flight.error)
        return flight.value  # type: ignore[return-value]  # set when there is no error

    def _load(self, key: K, flight: _Flight[V], load: Callable[[], V]) -> V:
        try:
            value = load()
            self._keep(key, value)
            flight.value = value
            return value
        except BaseException as error:
            flight.error = copy.copy(error) if isinstance(error, DstreamError) else error
            if isinstance(error, self._remember):
                with self._lock:
                    self._errors[key] = copy.copy(error)
                    if len(self._errors) > self._max_errors:
                        self._errors.popitem(last=False)
            raise
        finally:
            with self._lock:
                del self._flights[key]
            flight.done.set()

    def _keep(self, key: K, value: V) -> None:
        size_bytes = self._size_of(value)
        with self._lock:
            self._values[key] = (value, size_bytes)
            self._bytes += size_bytes
            while self._bytes > self._max_bytes and len(self._values) > 1:
                _, (_, dropped_bytes) = self._values.popitem(last=False)
                self._bytes -= dropped_bytes
