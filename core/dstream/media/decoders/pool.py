"""Which decoder session serves which run: the pure part of the pool.

A session is costly to open (tens of milliseconds on an H100, says torchcodec's pull request
1176) and holds device memory, so it lives long. As many run at once as the device has engines.
A session serves only streams of one codec configuration: decoders that were carried over to
another are known to give frames out of order (DALI issue 5665) and to stay broken after a
refusal (vLLM issue 51138). A session whose run failed in any way is closed, never used again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dstream.units import MIB

_LEAST_SESSION_BYTES = 128 * MIB
"""What vLLM allows for one decoder."""
_SURFACES = 24
"""Pictures that a session keeps: up to 16 references, those in the making and those put out."""


@dataclass(frozen=True, slots=True, order=True)
class SessionKey:
    """What a session can be used for."""

    codec: str
    bit_depth: int
    width: int
    height: int
    configuration: int
    """Digest of the parameter sets."""
    on_device: bool = False
    """Frames come out in the device's memory, or in the host's."""

    @property
    def size_bytes(self) -> int:
        """Device memory that a session is assumed to hold; an estimate, nothing tells the truth."""
        return max(_LEAST_SESSION_BYTES, _SURFACES * self.picture_bytes)

    @property
    def picture_bytes(self) -> int:
        """Of one surface."""
        return self.width * self.height * 3 // 2 * (1 if self.bit_depth == 8 else 2)


@dataclass(frozen=True, slots=True)
class Lease:
    """Leave to use one session for one run."""

    number: int
    """Of the session; no two ever have the same."""
    key: SessionKey
    is_new: bool
    """The session is to be opened."""
    close: tuple[int, ...] = ()
    """Idle sessions that are to be closed before, to make room."""


class PoolState:
    """Sessions by number: idle, busy or lost. Decides, and touches no device.

    Args:
        engines: how many sessions may run at once.
        max_bytes: bound of the device memory of all sessions.
    """

    def __init__(self, engines: int, max_bytes: int) -> None:
        self.engines = max(1, engines)
        self.max_bytes = max_bytes
        self._idle: OrderedDict[int, SessionKey] = OrderedDict()
        self._busy: dict[int, SessionKey] = {}
        self._lost: dict[int, SessionKey] = {}
        self._opened = 0
        self.peak_bytes = 0
        """The most that :attr:`held_bytes` has been."""

    @property
    def held_bytes(self) -> int:
        """Device memory of all sessions, by estimate."""
        every = (*self._idle.values(), *self._busy.values(), *self._lost.values())
        return sum(key.size_bytes for key in every)

    def fits(self, key: SessionKey) -> bool:
        """Whether a session of this kind can ever have room. Lost ones hold theirs."""
        lost = sum(each.size_bytes for each in self._lost.values())
        return lost + key.size_bytes <= self.max_bytes

    def lease(self, key: SessionKey) -> Lease | None:
        """A session for one run; None: wait until one is given back.

        The one of this kind that was used last, else a new one; then idle sessions go, the
        longest unused first, until it has room.
        """
        if len(self._busy) >= self.engines:
            return None
        number = next((n for n in reversed(self._idle) if self._idle[n] == key), None)
        if number is not None:
            self._busy[number] = self._idle.pop(number)
            return Lease(number, key, is_new=False)
        over_bytes = self.held_bytes + key.size_bytes - self.max_bytes
        going = []
        for idle, other in self._idle.items():
            if over_bytes <= 0:
                break
            going.append(idle)
            over_bytes -= other.size_bytes
        if over_bytes > 0:
            return None
        for idle in going:
            del self._idle[idle]
        self._opened += 1
        self._busy[self._opened] = key
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return Lease(self._opened, key, is_new=True, close=tuple(going))

    def give_back(self, number: int, *, is_healthy: bool) -> bool:
        """End a run. False: the session is to be closed.

        Only a session whose run ended as it should is kept. One that was lost, and whose thread
        came back after all, frees its memory.
        """
        if self._lost.pop(number, None) is not None:
            return False
        key = self._busy.pop(number)
        if is_healthy:
            self._idle[number] = key
        return is_healthy

    def drain(self) -> tuple[int, ...]:
        """All idle sessions: they are to be closed."""
        going = tuple(self._idle)
        self._idle.clear()
        return going

    def lose(self, number: int) -> None:
        """A run hangs: its engine may serve others, its memory is still held."""
        if number in self._busy:
            self._lost[number] = self._busy.pop(number)
