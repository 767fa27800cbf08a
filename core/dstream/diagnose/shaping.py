"""What a measuring proxy adds on purpose: delay, a narrow link, and faults."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dstream.clock import Clock
from dstream.errors import InvalidInputError
from dstream.loader.order import fraction


class FaultKind(StrEnum):
    """What goes wrong with a request."""

    SLOW_DOWN = "503"
    """Answered with SlowDown; the store never sees it."""
    RESET = "reset"
    """The connection is reset half-way through the answer."""
    TRUNCATE = "truncate"
    """The connection ends half-way through the answer."""
    STALL = "stall"
    """The answer stops half-way for a while, then goes on."""
    CORRUPT = "corrupt"
    """One bit of the answer is flipped."""


STALL_S = 10.0
_FAULT = re.compile(r"([a-z0-9]+)=([0-9.]+)(%?)(?::([0-9.]+)s?)?")


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault and the share of requests that suffer it."""

    kind: FaultKind
    share: float
    stall_s: float = STALL_S


def parse_fault(text: str) -> Fault:
    """``503=5%``, ``reset=0.02``, ``stall=1%:10s``.

    Raises:
        InvalidInputError: it is nothing of the kind.

    >>> parse_fault("stall=1%:2s")
    Fault(kind=<FaultKind.STALL: 'stall'>, share=0.01, stall_s=2.0)
    """
    match = _FAULT.fullmatch(text.strip())
    kinds = [str(kind) for kind in FaultKind]
    try:
        if match is None or match[1] not in kinds:
            raise ValueError(text)
        share = float(match[2]) / (100 if match[3] else 1)
        stall_s = float(match[4]) if match[4] else STALL_S
        if not 0 <= share <= 1:
            raise ValueError(text)
    except ValueError as error:
        raise InvalidInputError(
            f"fault {text!r:.80}: write KIND=SHARE such as 503=5%, with a KIND of "
            f"{', '.join(kinds)} and a share of at most 100%; stall takes its length: stall=1%:10s"
        ) from error
    return Fault(FaultKind(match[1]), share, stall_s)


def drawn_fault(faults: Sequence[Fault], seed: int, number: int) -> Fault | None:
    """The fault of the ``number``-th request, or None. The same for the same seed."""
    if not faults:
        return None
    place = fraction(seed, number)
    for fault in faults:
        if place < fault.share:
            return fault
        place -= fault.share
    return None


class Pacer:
    """A link of a given width, shared by all connections in one direction."""

    def __init__(self, bytes_per_s: float | None, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_s = 0.0

    def pass_through(self, size_bytes: int) -> None:
        """Wait until the link has carried this many more bytes."""
        if self._bytes_per_s is None:
            return
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._free_s = max(self._free_s, now_s) + size_bytes / self._bytes_per_s
            wait_s = self._free_s - now_s
        if wait_s > 0:
            self._clock.sleep(wait_s)


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that is added on purpose."""

    delay_s: float = 0.0
    """Added to every request, and once more to every new connection: a longer round trip."""
    bytes_per_s: float | None = None
    """Width of the link in each direction; None for no bound."""
    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.delay_s < 0 or (self.bytes_per_s is not None and self.bytes_per_s <= 0):
            raise InvalidInputError("a delay must not be negative, a bandwidth must be above 0")
        if sum(fault.share for fault in self.faults) > 1:
            raise InvalidInputError("the faults' shares add up to more than 100%")
