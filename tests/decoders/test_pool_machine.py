"""The pool of decoder sessions against a model: any order of runs, failures and hangs."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from dstream.media.decoders.pool import Lease, PoolState, SessionKey

KEYS = [
    SessionKey("h264", 8, 1280, 720, 1),
    SessionKey("h264", 8, 1280, 720, 2),
    SessionKey("hevc", 10, 3840, 2160, 3),
    SessionKey("hevc", 10, 7680, 4320, 4),
]
ENGINES = 2
MAX_BYTES = KEYS[3].size_bytes + 2 * KEYS[0].size_bytes


class PoolMachine(RuleBasedStateMachine):
    """Sessions as a test sees them: when each was used last, and what must not be used again."""

    leases = Bundle("leases")
    lost = Bundle("lost")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PoolState(ENGINES, MAX_BYTES)
        self.busy: dict[int, SessionKey] = {}
        self.idle: list[tuple[int, SessionKey]] = []  # the longest unused first
        self.hung: dict[int, SessionKey] = {}
        self.gone: set[int] = set()

    @rule(target=leases, key=st.sampled_from(KEYS))
    def begin(self, key: SessionKey) -> Lease | None:
        lease = self.pool.lease(key)
        idle_of_key = [number for number, other in self.idle if other == key]
        if lease is None:
            assert len(self.busy) == ENGINES or not idle_of_key
            # Nobody waits for ever: either a busy session is to come back, or there is no room.
            assert self.busy or not self.pool.fits(key)
            return None
        assert len(self.busy) < ENGINES
        assert lease.number not in self.gone | self.busy.keys() | self.hung.keys()
        assert lease.is_new == (not idle_of_key)
        if idle_of_key:
            assert lease.number == idle_of_key[-1]
            self.idle.remove((lease.number, key))
            assert lease.close == ()
        assert list(lease.close) == [number for number, _ in self.idle[: len(lease.close)]]
        self.gone |= set(lease.close)
        self.idle = self.idle[len(lease.close) :]
        self.busy[lease.number] = key
        return lease

    @rule(lease=consumes(leases), is_healthy=st.booleans())
    def end(self, lease: Lease | None, is_healthy: bool) -> None:
        if lease is None or lease.number not in self.busy:
            return
        kept = self.pool.give_back(lease.number, is_healthy=is_healthy)
        assert kept == is_healthy
        key = self.busy.pop(lease.number)
        if is_healthy:
            self.idle.append((lease.number, key))
        else:
            self.gone.add(lease.number)

    @rule(target=lost, lease=consumes(leases))
    def hang(self, lease: Lease | None) -> Lease | None:
        if lease is None or lease.number not in self.busy:
            return None
        self.pool.lose(lease.number)
        self.hung[lease.number] = self.busy.pop(lease.number)
        return lease

    @rule(lease=consumes(lost), is_healthy=st.booleans())
    def come_back(self, lease: Lease | None, is_healthy: bool) -> None:
        if lease is None:
            return
        assert not self.pool.give_back(lease.number, is_healthy=is_healthy)
        del self.hung[lease.number]
        self.gone.add(lease.number)

    @precondition(lambda self: not self.busy)
    @rule(key=st.sampled_from(KEYS))
    def an_idle_pool_serves_what_fits(self, key: SessionKey) -> None:
        hung_bytes = sum(other.size_bytes for other in self.hung.values())
        assert self.pool.fits(key) == (hung_bytes + key.size_bytes <= MAX_BYTES)
        lease = self.begin(key)
        assert (lease is not None) == self.pool.fits(key)
        if lease is not None:
            self.end(lease, True)

    @invariant()
    def memory_is_bounded(self) -> None:
        keys = [*self.busy.values(), *self.hung.values(), *(key for _, key in self.idle)]
        assert self.pool.held_bytes == sum(key.size_bytes for key in keys) <= MAX_BYTES
        assert self.pool.held_bytes <= self.pool.peak_bytes <= MAX_BYTES


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPool = PoolMachine.TestCase
