"""Many writers of one log: nobody starves, whoever is slower or came later.

Writers are simulated as events in time, with the waits of the real :class:`Race`. The log decides
as a store does: the first write of a slot wins.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest

from catalog_made import create_catalog, open_catalog
from dstream.catalog import CommitSettings
from dstream.catalog.backoff import MAX_TURN_S, Race, race_wait_s, turn_asked_s
from dstream.clock import FakeClock
from dstream.measure import Meter, Purpose
from dstream.store.base import ObjectInfo, Store
from dstream.store.memory import MemoryStore
from lifecycle_made import publish_files

WRITE_S, READ_S = 0.006, 0.004
"""About those of a Ceph gateway on this machine's loopback."""


@dataclass
class Writer:
    """A process that commits in a loop."""

    think_s: float
    """What building on another head takes it."""
    clock: FakeClock = field(default_factory=lambda: FakeClock(0.0))
    commits: int = 0
    longest_s: float = 0.0
    begun_s: float = 0.0


def simulate(thinks_s: list[float], until_s: float, doubling: bool = False) -> list[Writer]:
    """Let writers commit without a pause.

    Args:
        thinks_s: of each writer.
        until_s: length of the run.
        doubling: wait as most do instead: some tries at once, then longer each time.
    """
    rng = np.random.default_rng(3)
    settings = CommitSettings()
    writers = [Writer(think_s) for think_s in thinks_s]
    races = [Race(settings, w.clock, rng) for w in writers]
    built_on = [0] * len(writers)
    head, turn_until_s, turn_of = 0, 0.0, -1
    order = itertools.count()
    events: list[tuple[float, int, int, bool]] = []

    def at(when_s: float, number: int, decides: bool) -> None:
        heapq.heappush(events, (when_s, next(order), number, decides))

    for number in range(len(writers)):
        at(float(rng.uniform(0, 0.01)), number, False)
    while events[0][0] < until_s:
        now_s, _, number, decides = heapq.heappop(events)
        writer, race = writers[number], races[number]
        writer.clock.time_s = now_s
        if not decides:  # it has read the newest root, and begins to build on it
            if now_s < turn_until_s and turn_of != number:
                at(turn_until_s + READ_S, number, False)
                continue
            race.begin()
            built_on[number] = head
            think_s = 0.0 if race.asks else writer.think_s
            at(now_s + (think_s + WRITE_S / 2) * float(rng.uniform(0.8, 1.2)), number, True)
            continue
        writer.clock.time_s += WRITE_S / 2
        if built_on[number] == head:
            head += 1
            turn_until_s = 0.0
            if race.asks:
                turn_until_s, turn_of = writer.clock.time_s + race.turn_s, number
                race.asked()
                at(writer.clock.time_s, number, False)
                continue
            writer.commits += 1
            writer.longest_s = max(writer.longest_s, writer.clock.time_s - writer.begun_s)
            writer.begun_s = writer.clock.time_s + WRITE_S  # its data, or its manifest
            writer.clock.time_s = writer.begun_s
            races[number] = Race(settings, writer.clock, rng)
            at(writer.begun_s, number, False)
            continue
        writer.clock.time_s += READ_S
        if doubling:
            race.losses += 1
            late = max(0, race.losses - 5)
            bound_s = min(5.0, 0.05 * 2 ** min(late - 1, 20)) if late else 0.0
            writer.clock.sleep(float(rng.random()) * bound_s)
        else:
            assert race.lose(now_s) is not None
        at(writer.clock.time_s + READ_S, number, False)
    for writer, race in zip(writers, races, strict=True):
        if race.losses:
            writer.longest_s = max(writer.longest_s, until_s - writer.begun_s)
    return writers


@pytest.mark.parametrize("count", [2, 8, 32])
def test_equal_writers_get_equal_shares(count: int) -> None:
    writers = simulate([0.0002] * count, 20)
    commits = [writer.commits for writer in writers]
    assert max(commits) <= 1.5 * min(commits)
    assert max(writer.longest_s for writer in writers) < 0.1 * count


def test_doubling_waits_starve() -> None:
    """What is simulated shows the fault that the other tests deny."""
    doubled = simulate([0.0002] * 32, 20, doubling=True)
    assert max(writer.longest_s for writer in doubled) > 8
    fair = simulate([0.0002] * 32, 20)
    assert sum(w.commits for w in fair) > sum(w.commits for w in doubled)


@pytest.mark.parametrize("rivals", [1, 8])
@pytest.mark.parametrize("think_s", [0.03, 0.3])
def test_a_writer_slower_than_its_rivals_commits_all_the_same(think_s: float, rivals: int) -> None:
    """A collector of a large catalog, an append that merges manifests: it asks for turns."""
    *quick, slow = simulate([0.0002] * rivals + [think_s], 400 * think_s)
    assert slow.commits >= 5
    assert min(writer.commits for writer in quick) > slow.commits
    starved = simulate([0.0002] * rivals + [think_s], 400 * think_s, doubling=True)[-1]
    assert starved.commits == 0


def test_waits_shrink_with_age_and_grow_with_the_store() -> None:
    longest = [race_wait_s(losses, 0.01, 0.999) for losses in range(1, 200)]
    assert longest == sorted(longest, reverse=True)
    assert longest[5:] == [0.0] * 194
    assert race_wait_s(1, 1.0, 0.5) == 100 * race_wait_s(1, 0.01, 0.5)


@pytest.mark.parametrize("asked", [None, "1", -1, 0, float("nan"), [], {}])
def test_a_turn_that_is_no_time_is_none(asked: object) -> None:
    assert turn_asked_s([{"op": "turn", "wait_s": asked}, {"op": "noop", "wait_s": 3}]) == 0.0
    assert turn_asked_s([{"op": "turn", "wait_s": 1e300}]) == MAX_TURN_S


class Slow:
    """A client whose manifests take long to store, while a rival commits in between."""

    def __init__(self, inner: Store, clock: FakeClock, rival: object) -> None:
        self._inner, self._clock, self._rival = inner, clock, rival

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        self._clock.sleep(0.5)
        self._rival()  # type: ignore[operator]
        return self._inner.put_if_absent(key, data, purpose=purpose)


def test_the_commit_loop_asks_and_rivals_give_way() -> None:
    memory = MemoryStore()
    create_catalog(memory)
    clock, meter, told = FakeClock(), Meter(), Meter()
    rival = open_catalog(memory, "rival", told, clock)
    waited: list[float] = []

    def rival_commits() -> None:
        """It would commit each time; but not while it is asked to wait."""
        ops = rival.head().ops
        if turn_asked_s(ops):
            waited.append(turn_asked_s(ops))
            return
        publish_files(rival, "run", {"weights": f"{rival.head().seq}"})

    slow = open_catalog(Slow(memory, clock, rival_commits), "slow", meter, clock)  # type: ignore[arg-type]
    # It asks by a write that is quick: the rival is late for once.
    turns = 0

    def rival_is_late() -> None:
        nonlocal turns
        turns += 1
        if turns != 25:
            rival_commits()

    slow.store._rival = rival_is_late  # type: ignore[attr-defined]
    entry = publish_files(slow, "mine", {"weights": "at last"})
    assert waited == [1.0]
    assert meter.snapshot().event("commit") == {"lost-race": 24, "asked-for-turn": 1}
    assert slow.resolve("mine@latest") == entry
    # Who comes upon a turn that nobody uses waits once, and goes on.
    slept_s = sum(clock.slept_s)
    publish_files(rival, "run", {"weights": "later"})
    assert sum(clock.slept_s) == slept_s
    assert told.snapshot().event("commit").get("gave-way", 0) == 0
