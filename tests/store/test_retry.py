"""Retries are bounded, jittered, counted, and never touch put-if-absent."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.clock import FakeClock
from dstream.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    DstreamError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    ShortReadError,
    SourceChangedError,
    StorageError,
    ThrottledError,
)
from dstream.measure import Meter
from dstream.store.faulty import Fault, FaultKind, FaultyStore
from dstream.store.memory import MemoryStore
from dstream.store.metered import Metered
from dstream.store.retry import Retrier, Retrying, RetryPolicy, is_retryable, wait_s


class Bench:
    """A retrying, counting, failing store in memory, with its parts at hand."""

    def __init__(self, *faults: Fault, attempts: int = 4, seed: int = 0) -> None:
        self.clock = FakeClock()
        self.meter = Meter()
        self.memory = MemoryStore()
        self.faulty = FaultyStore(self.memory, faults, clock=self.clock)
        retrier = Retrier(
            RetryPolicy(attempts), np.random.default_rng(seed), self.meter, self.clock
        )
        self.store = Retrying(Metered(self.faulty, self.meter, self.clock), retrier)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FaultKind.BEFORE, "error"),
        (FaultKind.AFTER, "error"),
        (FaultKind.THROTTLE, "throttled"),
        (FaultKind.SHORT, "short-read"),
    ],
)
def test_passing_faults_are_ridden_out_and_counted(kind: FaultKind, reason: str) -> None:
    bench = Bench(Fault(kind, "get", times=3))
    bench.memory.put("k", b"0123456789")
    assert bench.store.get("k", 2, 8).data == b"234567"
    snapshot = bench.meter.snapshot()
    assert snapshot.event("retry") == {reason: 3}
    assert snapshot.total("get").count == 4
    assert snapshot.total("get", outcome="ok").count == 1
    assert snapshot.total("get").bytes_requested == 24
    assert len(bench.clock.slept_s) == 3
    received = 6 + 3 * 3 if kind is FaultKind.SHORT else 6
    assert snapshot.total("get").bytes_received == received


@pytest.mark.parametrize("verb", ["head", "put", "upload", "delete", "list"])
def test_every_idempotent_call_is_retried(verb: str, tmp_path: Path) -> None:
    bench = Bench(Fault(FaultKind.AFTER, verb))
    bench.memory.put("k", b"1")
    path = tmp_path / "file"
    path.write_bytes(b"1")
    calls: dict[str, Callable[[], object]] = {
        "head": lambda: bench.store.head("k"),
        "put": lambda: bench.store.put("k", b"1"),
        "upload": lambda: bench.store.upload("k", path),
        "delete": lambda: bench.store.delete_many([("k", None)]),
        "list": lambda: list(bench.store.list()),
    }
    calls[verb]()
    assert [name for name, _ in bench.faulty.calls] == [verb, verb]


def test_attempts_are_bounded() -> None:
    bench = Bench(Fault(FaultKind.BEFORE, times=-1), attempts=5)
    with pytest.raises(StorageError) as caught:
        bench.store.get("k")
    assert len(bench.faulty.calls) == 5
    assert len(bench.clock.slept_s) == 4
    assert bench.meter.snapshot().event("retry-exhausted") == {"error": 1}
    assert not is_retryable(caught.value)  # an outer layer does not start over


@pytest.mark.parametrize("kind", list(FaultKind))
def test_put_if_absent_is_tried_once(kind: FaultKind) -> None:
    bench = Bench(Fault(kind, "put-if-absent", times=-1, delay_s=1))
    landed = True
    try:
        bench.store.put_if_absent("k", b"1")
    except OutcomeUnknownError:
        assert kind in (FaultKind.AFTER, FaultKind.LOST_REQUEST)
        landed = kind is FaultKind.AFTER
    except StorageError:
        assert kind in (FaultKind.BEFORE, FaultKind.THROTTLE)
        landed = False
    assert [info.key for info in bench.memory.list()] == (["k"] if landed else [])
    assert bench.faulty.calls == [("put-if-absent", "k")]
    assert bench.meter.snapshot().event("retry") == {}


def test_a_refusal_whose_answer_was_lost_is_unknown_too() -> None:
    bench = Bench(Fault(FaultKind.AFTER, "put-if-absent"))
    bench.memory.put("k", b"rival")
    with pytest.raises(OutcomeUnknownError):
        bench.store.put_if_absent("k", b"mine")
    with pytest.raises(AlreadyExistsError):
        bench.store.put_if_absent("k", b"mine")


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("x"),
        ConflictError("x"),
        AlreadyExistsError("x"),
        SourceChangedError("x"),
        PermissionDeniedError("x"),
        OutcomeUnknownError("x"),
        InvalidInputError("x"),
        CorruptDataError("x"),
        StorageError("x", retry=False),
        ShortReadError("x", retry=False),
    ],
    ids=range(10),
)
def test_answers_are_not_retried(error: DstreamError) -> None:
    assert not is_retryable(error)
    assert wait_s(RetryPolicy(), 1, error, 0.5) is None


def test_a_listing_goes_on_where_it_broke_off() -> None:
    bench = Bench(Fault(FaultKind.SHORT, "list", times=2))
    names = [f"{number:02}" for number in range(20)]
    for name in names:
        bench.memory.put(name, b"")
    assert [info.key for info in bench.store.list(limit=15)] == names[:15]
    assert bench.meter.snapshot().event("retry") == {"error": 2}
    assert bench.meter.snapshot().total("list").count == 3


def test_retry_after_is_respected_up_to_its_limit() -> None:
    bench = Bench(Fault(FaultKind.THROTTLE, "get", delay_s=20))
    bench.memory.put("k", b"")
    bench.store.get("k")
    assert 20 <= bench.clock.slept_s[0] <= 20.1
    assert bench.meter.snapshot().event("throttle") == {"SlowDown": 1}
    bench = Bench(Fault(FaultKind.THROTTLE, "get", delay_s=3600))
    with pytest.raises(ThrottledError):
        bench.store.get("k")
    assert bench.clock.slept_s == []


@given(
    failures=st.integers(1, 10_000),
    share=st.floats(0, 1, exclude_max=True),
    asked_s=st.none() | st.floats(-5, 200),
)
def test_waits_are_within_their_bounds(failures: int, share: float, asked_s: float | None) -> None:
    policy = RetryPolicy(attempts=20_000)
    pause_s = wait_s(policy, failures, ThrottledError("x", retry_after_s=asked_s), share)
    if asked_s is not None and asked_s > policy.longest_retry_after_s:
        assert pause_s is None
        return
    assert pause_s is not None
    if asked_s is None:
        assert (
            0
            <= pause_s
            <= min(policy.longest_wait_s, policy.first_wait_s * 2.0 ** min(failures, 99))
        )
    else:
        assert max(0.0, asked_s) <= pause_s <= max(0.0, asked_s) + policy.first_wait_s


def test_same_seed_same_waits() -> None:
    def waits(seed: int) -> list[float]:
        bench = Bench(Fault(FaultKind.BEFORE, times=3), seed=seed)
        bench.memory.put("k", b"")
        bench.store.get("k")
        return bench.clock.slept_s

    assert waits(1) == waits(1)
    assert waits(1) != waits(2)


def test_nonsense_policies_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        RetryPolicy(attempts=0)
    with pytest.raises(InvalidInputError):
        RetryPolicy(longest_wait_s=-1)


def test_faults_strike_as_scripted_and_by_a_seeded_chance() -> None:
    faulty = FaultyStore(
        MemoryStore(), [Fault(FaultKind.BEFORE, "put", key_part="log/", skip=1, times=2)]
    )
    failed = []
    for turn in range(5):
        faulty.put("data/x", b"")
        try:
            faulty.put(f"log/{turn}", b"")
        except StorageError:
            failed.append(turn)
    assert failed == [1, 2]

    def struck(seed: int) -> list[str]:
        faulty = FaultyStore(
            MemoryStore(),
            [Fault(FaultKind.THROTTLE, times=-1, chance=0.3)],
            rng=np.random.default_rng(seed),
        )
        for turn in range(40):
            try:
                faulty.put(f"{turn}", b"")
            except ThrottledError:
                continue
        return [key for _, _, key in faulty.struck]

    assert struck(1) == struck(1)
    assert 0 < len(struck(1)) < 40
    assert pickle.loads(pickle.dumps(faulty)).calls == faulty.calls
