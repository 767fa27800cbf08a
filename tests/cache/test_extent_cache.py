"""One process and its cache."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import xxhash

from cache_workers import EXTENT_BYTES, Reader, extent, identity, used_bytes
from dstream.cache.cache import ExtentCache, Fetch
from dstream.cache.record import ByteRange
from dstream.errors import FormatVersionError, InvalidInputError, StorageError
from dstream.measure import Meter
from dstream.units import MIB

BUDGET = 8 * MIB


def serve(data: bytes) -> Fetch:
    return lambda _: [data]


def test_what_was_read_once_is_not_fetched_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "c", BUDGET)
    reader.read(0, 1, 2)
    reader.read(2, 1, 3)
    assert reader.fetched == [0, 1, 2, 3]
    assert (reader.count("cache.hits"), reader.count("cache.misses")) == (2, 4)
    assert reader.count("bytes.cache_hit") == 2 * EXTENT_BYTES
    assert reader.count("bytes.cache_admitted") == 4 * EXTENT_BYTES
    again = Reader(tmp_path / "c", None)
    again.read(0, 1, 2, 3)
    assert again.fetched == []


def test_one_range_asked_for_twice_is_fetched_once(tmp_path: Path) -> None:
    reader = Reader(tmp_path, BUDGET)
    reader.read(5, 5, 6, 5)
    assert reader.fetched == [5, 6]


def test_versions_of_an_object_never_mix(tmp_path: Path) -> None:
    reader = Reader(tmp_path, BUDGET)
    for _ in range(2):
        for tag in ("1", "2"):
            for key in ("a", "b"):
                reader.read(0, 1, key=key, tag=tag)
    assert len(reader.fetched) == 8


def test_ranges_that_overlap_are_extents_of_their_own(tmp_path: Path) -> None:
    cache = ExtentCache(tmp_path, BUDGET)
    whole = bytes(range(200))
    for start, stop in ((0, 100), (0, 200), (50, 100), (0, 100)):
        got = cache.read(identity(), [ByteRange(start, stop)], serve(whole[start:stop]))
        assert got == [whole[start:stop]]


def test_a_cache_that_is_full_keeps_what_it_has(tmp_path: Path) -> None:
    budget = 20 * EXTENT_BYTES
    reader = Reader(tmp_path, budget)
    for _ in range(3):
        for place in range(40):
            reader.read(place)
    kept = reader.count("bytes.cache_admitted") // EXTENT_BYTES
    assert 15 <= kept <= 20
    assert reader.count("cache.hits") == 2 * kept
    assert reader.count("cache.evicted_segments") == 0
    assert reader.events("cache-refused")["full"] == 120 - 3 * kept
    assert used_bytes(tmp_path) <= budget + 4096
    assert reader.cache.is_full


def test_an_extent_larger_than_a_segment_has_one_of_its_own(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 200 * MIB, size_bytes=10 * MIB)
    reader.read(0)
    reader.read(0)
    assert reader.fetched == [0]


def test_an_extent_larger_than_the_budget_is_passed_through(tmp_path: Path) -> None:
    reader = Reader(tmp_path, EXTENT_BYTES // 2)
    reader.read(0)
    reader.read(0)
    assert reader.fetched == [0, 0]
    assert reader.events("cache-refused") == {"too-large": 2}


def test_a_data_set_that_nobody_uses_makes_room(tmp_path: Path) -> None:
    first = Reader(tmp_path, 10 * EXTENT_BYTES, label="first")
    first.read(*range(8))
    second = Reader(tmp_path, None, label="second")
    second.read(*range(8), key="other")
    assert second.events("cache-refused") == {"full": 8}
    first.cache.close()
    third = Reader(tmp_path, None, label="second")
    third.read(*range(8), key="other")
    assert third.count("cache.evicted_segments") == 1
    assert third.count("bytes.cache_evicted") >= 8 * EXTENT_BYTES
    first.read(*range(8))  # evicted meanwhile
    assert first.fetched == [*range(8)] * 2


def test_a_smaller_budget_evicts_at_once(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 64 * MIB, size_bytes=MIB)
    reader.read(*range(40))
    smaller = Reader(tmp_path, 16 * MIB, size_bytes=MIB)
    assert smaller.count("cache.evicted_segments") > 0
    assert used_bytes(tmp_path) <= 16 * MIB
    smaller.read(*range(40))


def test_known_checksums_keep_wrong_bytes_out(tmp_path: Path) -> None:
    meter = Meter()
    cache = ExtentCache(tmp_path, BUDGET, meter=meter)
    right, wrong = extent("k", "1", 0), extent("k", "1", 1)
    part = ByteRange(0, len(right), xxhash.xxh3_64_intdigest(right))
    assert cache.read(identity(), [part], lambda _: [wrong]) == [wrong]  # for the caller to judge
    assert meter.snapshot().event("cache-refused") == {"checksum": 1}
    assert cache.read(identity(), [part], lambda _: [right]) == [right]
    unknown = ByteRange(0, len(right))
    assert cache.read(identity(), [unknown], lambda _: pytest.fail("it is there")) == [right]
    other = ByteRange(0, len(right), 7)
    assert cache.read(identity(), [other], lambda _: [wrong]) == [wrong]
    assert meter.snapshot().event("cache-rot") == {"source-checksum": 1}


def test_what_is_asked_for_fresh_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    cache = ExtentCache(tmp_path, BUDGET)
    part = [ByteRange(0, 2)]
    assert cache.read(identity(), part, serve(b"no")) == [b"no"]
    assert cache.read(identity(), part, serve(b"ok"), fresh=True) == [b"ok"]
    assert cache.read(identity(), part, serve(b"??")) == [b"ok"]
    assert ExtentCache(tmp_path).read(identity(), part, serve(b"??")) == [b"ok"]


def test_extents_are_dropped_while_the_places_of_others_are_gone_through(tmp_path: Path) -> None:
    """By another thread, and not in the middle of it: a dictionary must not change then."""
    reader = Reader(tmp_path, BUDGET)
    reader.read(*range(4))
    index, droppers = reader.cache._index, list[threading.Thread]()

    class Place(int):
        def __rshift__(self, bits: int) -> int:
            if not droppers:
                droppers.append(threading.Thread(target=index.drop, args=(1,)))
                droppers[0].start()
                droppers[0].join(0.2)
            return int(self) >> bits

    index._places = {1: Place(0), **index._places}
    for path in (tmp_path / "segments").iterdir():
        path.unlink()
    index.refresh()
    droppers[0].join()
    assert index.find(1) is None


def test_an_object_that_its_etag_does_not_tell_apart_is_not_kept(tmp_path: Path) -> None:
    meter = Meter()
    cache = ExtentCache(tmp_path, BUDGET, meter=meter)
    for _ in range(2):
        assert cache.read(None, [ByteRange(0, 2)], lambda _: [b"ab"]) == [b"ab"]
    assert meter.snapshot().event("cache-refused") == {"weak-identity": 2}


def test_threads_that_miss_the_same_extents_fetch_them_once(tmp_path: Path) -> None:
    meter = Meter()
    cache = ExtentCache(tmp_path, BUDGET, meter=meter)
    ready, lock = threading.Barrier(8), threading.Lock()
    fetched: list[int] = []

    def read(turn: int) -> None:
        order = list(range(40))[:: -1 if turn % 2 else 1]
        ranges = [ByteRange(place * 1000, place * 1000 + 1000) for place in order]

        def fetch(missing: Sequence[int]) -> list[bytes]:
            with lock:
                fetched.extend(order[place] for place in missing)
            return [extent("k", "1", order[place], 1000) for place in missing]

        ready.wait()
        for _ in range(10):
            got = cache.read(identity("k"), ranges, fetch)
            assert got == [extent("k", "1", place, 1000) for place in order]

    threads = [threading.Thread(target=read, args=(turn,)) for turn in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fetched) == list(range(40))
    assert meter.snapshot().sums["cache.hits"] == 8 * 10 * 40 - 40


def test_a_fetch_that_fails_is_tried_by_whoever_waited_for_it(tmp_path: Path) -> None:
    cache = ExtentCache(tmp_path, BUDGET)
    began, go_on = threading.Event(), threading.Event()
    got: list[bytes] = []

    def fail(_: Sequence[int]) -> list[bytes]:
        began.set()
        go_on.wait()
        raise StorageError("reset")

    def first() -> None:
        with pytest.raises(StorageError):
            cache.read(identity(), [ByteRange(0, 2)], fail)

    def second() -> None:
        got.extend(cache.read(identity(), [ByteRange(0, 2)], lambda _: [b"ab"]))

    one = threading.Thread(target=first)
    one.start()
    began.wait()
    two = threading.Thread(target=second)
    two.start()
    go_on.set()
    one.join()
    two.join()
    assert got == [b"ab"]


def test_what_another_thread_fetches_is_a_hit_that_joined_it(tmp_path: Path) -> None:
    meter = Meter()
    cache = ExtentCache(tmp_path, BUDGET, meter=meter)
    began, go_on = threading.Event(), threading.Event()

    def first(_: Sequence[int]) -> list[bytes]:
        began.set()
        go_on.wait()
        return [b"ab"]

    def second(missing: Sequence[int]) -> list[bytes]:
        assert missing == [0]  # and has found that the other one is on its way
        go_on.set()
        return [b"cde"]

    one = threading.Thread(target=cache.read, args=(identity(), [ByteRange(0, 2)], first))
    one.start()
    began.wait()
    both = [ByteRange(2, 5), ByteRange(0, 2)]
    assert cache.read(identity(), both, second) == [b"cde", b"ab"]
    one.join()
    assert cache.read(identity(), both, lambda _: pytest.fail("they are there")) == [b"cde", b"ab"]
    sums = meter.snapshot().sums
    assert (sums["cache.hits"], sums["cache.joined"], sums["cache.misses"]) == (3, 1, 2)


def test_it_is_opened_anew_in_another_process(tmp_path: Path) -> None:
    reader = Reader(tmp_path, BUDGET)
    reader.read(0)
    copy = pickle.loads(pickle.dumps(reader.cache))
    part = ByteRange(0, EXTENT_BYTES)
    assert copy.read(identity(), [part], pytest.fail) == [extent("video", "1", 0)]


def test_a_forked_child_reads_and_writes_on_its_own(tmp_path: Path) -> None:
    reader = Reader(tmp_path, BUDGET)
    reader.read(0, 1)
    child = os.fork()
    if not child:
        try:
            reader.read(0, 1, 2)
            os._exit(0 if reader.fetched == [0, 1, 2] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reader.read(2, 3)
    assert reader.fetched == [0, 1, 3]


@pytest.mark.parametrize("text", ["", "{", '{"format_version": 1, "budget_bytes": -5}', "[1]"])
def test_a_damaged_marker_is_written_again(tmp_path: Path, text: str) -> None:
    Reader(tmp_path, BUDGET).read(0)
    (tmp_path / "cache.json").write_text(text)
    with pytest.raises(InvalidInputError, match="cache_bytes"):
        Reader(tmp_path, None)
    Reader(tmp_path, BUDGET)
    reader = Reader(tmp_path, None)
    reader.read(0)
    assert reader.fetched == []


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache.json").write_text('{"format_version": 2, "budget_bytes": 5}')
    with pytest.raises(FormatVersionError, match="format 2"):
        Reader(tmp_path, BUDGET)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="name a directory"):
        Reader(tmp_path / "file", BUDGET)
    with pytest.raises(InvalidInputError, match="at least 1"):
        Reader(tmp_path / "c", 0)
