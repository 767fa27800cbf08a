"""The shared caches: each value loaded once, bounded by bytes, errors remembered or not."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dstream.errors import MediaError, MediaReason, StorageError
from dstream.loader.budget import ByteBudget
from dstream.loader.single_flight import SingleFlightCache

THREADS = 8


def test_many_threads_load_once() -> None:
    cache: SingleFlightCache[str, bytes] = SingleFlightCache(1000, len)
    gate, calls = threading.Barrier(THREADS), []

    def load() -> bytes:
        calls.append(1)
        return b"value"

    def ask(_: int) -> bytes:
        gate.wait()
        return cache.get("key", load)

    with ThreadPoolExecutor(THREADS) as pool:
        assert set(pool.map(ask, range(THREADS))) == {b"value"}
    assert len(calls) == 1


def test_the_least_recently_used_goes_first() -> None:
    cache: SingleFlightCache[str, bytes] = SingleFlightCache(100, len)
    loads: list[str] = []

    def get(key: str, size: int = 40) -> None:
        def load() -> bytes:
            loads.append(key)
            return b"x" * size

        cache.get(key, load)

    for key in ("a", "b", "a", "c", "a", "b"):
        get(key)
    assert loads == ["a", "b", "c", "b"]
    assert cache.size_bytes <= 100
    get("huge", 500)
    get("huge", 500)
    assert loads[-1] == "huge"
    assert loads.count("huge") == 1


def test_all_who_wait_get_the_error_and_it_is_forgotten() -> None:
    cache: SingleFlightCache[str, bytes] = SingleFlightCache(100, len)
    started, go = threading.Event(), threading.Event()

    def fail() -> bytes:
        started.set()
        go.wait()
        raise StorageError("down", key="k")

    def ask(_: int) -> object:
        try:
            return cache.get("k", fail)
        except StorageError as error:
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        answers = [pool.submit(ask, number) for number in range(THREADS)]
        started.wait()
        go.set()
        errors = [answer.result() for answer in answers]
    assert all(isinstance(error, StorageError) and error.facts["key"] == "k" for error in errors)
    assert cache.get("k", lambda: b"up") == b"up"


def test_errors_of_chosen_classes_are_remembered() -> None:
    cache: SingleFlightCache[str, bytes] = SingleFlightCache(100, len, remember=(MediaError,))
    calls: list[int] = []

    def fail() -> bytes:
        calls.append(1)
        raise MediaError("no video", reason=MediaReason.NOT_MEDIA)

    seen = []
    for _ in range(3):
        with pytest.raises(MediaError, match="no video") as caught:
            cache.get("k", fail)
        seen.append(caught.value)
    assert len(calls) == 1
    assert len({id(error) for error in seen}) == 3
    assert seen[2].reason is MediaReason.NOT_MEDIA


def test_bytes_are_granted_in_turn() -> None:
    budget = ByteBudget(100)
    granted: list[int] = []
    waiting = [threading.Event() for _ in range(3)]

    def ask(turn: int, size_bytes: int) -> None:
        waiting[turn].set()
        if budget.acquire(turn, size_bytes):
            granted.append(turn)

    threads = [threading.Thread(target=ask, args=args) for args in ((2, 1), (1, 60))]
    for thread, turn in zip(threads, (2, 1), strict=True):
        thread.start()
        waiting[turn].wait()
    assert granted == []
    assert budget.acquire(0, 500)  # larger than all, and alone
    budget.release(500)
    for thread in threads:
        thread.join()
    assert granted == [1, 2]
    assert budget.held_bytes == 61
    assert budget.peak_bytes == 500


def test_a_turn_can_be_forgone_and_a_budget_closed() -> None:
    budget = ByteBudget(10)
    budget.forgo(1)
    assert budget.acquire(0, 10)
    budget.overdraw(5)
    assert budget.held_bytes == 15
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(budget.acquire(2, 1)))
    thread.start()
    budget.close()
    thread.join()
    assert results == [False]


def test_remembered_errors_are_bounded() -> None:
    cache: SingleFlightCache[int, bytes] = SingleFlightCache(
        100, len, remember=(MediaError,), max_errors=3
    )
    loads: list[int] = []

    def ask(key: int) -> None:
        def fail() -> bytes:
            loads.append(key)
            raise MediaError("no video", reason=MediaReason.NOT_MEDIA)

        with pytest.raises(MediaError):
            cache.get(key, fail)

    for key in (0, 1, 2, 0, 3, 0, 1):
        ask(key)
    assert loads == [0, 1, 2, 3, 1]
