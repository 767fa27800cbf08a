"""A decode that hangs, a store that is down for long, and how far ahead clips are fetched."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dstream
from dstream import Clips
from dstream.clock import FakeClock
from dstream.loader.concurrency import FIRST, LEAST, MOST, Concurrency, Seen, adapted
from dstream.measure import Meter
from dstream.media.decode import ClipDecoder
from dstream.store.faulty import Fault, FaultKind, FaultyStore
from dstream.store.metered import Metered
from dstream.store.opening import open_store
from dstream.store.patience import Outage, Patience
from dstream.store.retry import Retrier, Retrying, RetryPolicy
from loader_data import batch_hash, fill, new_url, videos


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return videos(tmp_path_factory.mktemp("made"), 4, frames=48, gop=12)


@pytest.fixture
def source(files: dict[str, bytes]) -> str:
    url = new_url()
    fill(open_store(url), files)
    return url


class Stuck:
    """The first decode of one video hangs until told; then it writes into its output after all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, duration_s: float) -> None:
        self.release = threading.Event()
        self.back = threading.Event()
        self.struck = 0
        decode = ClipDecoder.decode_many

        def stuck(decoder: Any, index: Any, plan: Any, data: Any, clips: Any) -> Any:
            if abs(index.track.duration_s - duration_s) > 1e-6 or self.struck:
                return decode(decoder, index, plan, data, clips)
            self.struck += 1
            self.release.wait(60)
            result = decode(decoder, index, plan, data, clips)
            for clip in clips:
                clip.out[:] = 77
            self.back.set()
            return result

        monkeypatch.setattr(ClipDecoder, "decode_many", stuck)


@pytest.fixture
def uneven(files: dict[str, bytes], tmp_path: Path) -> str:
    """One of the videos is of another length, by which it is known."""
    url = new_url()
    odd = videos(tmp_path, 1, frames=60, gop=12)["v00.mp4"]
    fill(open_store(url), files | {"v01.mp4": odd})
    return url


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    hanging = Stuck(monkeypatch, 2)
    yield hanging
    hanging.release.set()


def test_a_decode_that_hangs_is_left_behind(uneven: str, stuck: Stuck) -> None:
    clips = dstream.clips(uneven, frames=4, clips_per_file=4, array="numpy")
    with clips.loader(4, shuffle=None, on_error="skip", workers=2, decode_timeout_s=0.5) as loader:
        batches = list(loader)
        report = loader.report()
        hashes = [batch_hash(batch) for batch in batches]
        stuck.release.set()
        assert stuck.back.wait(60)
        # What the old thread wrote is in no batch.
        assert [batch_hash(batch) for batch in batches] == hashes
        assert not any((np.asarray(b.video) == 77).all(axis=(1, 2, 3, 4)).any() for b in batches)
        assert loader.failures[0].sample_key == "v01.mp4"
        assert "decode_timeout_s=0.5" in loader.failures[0].message
    assert stuck.struck == 1
    assert [len(batch) for batch in batches] == [4, 4, 4, 4]
    assert report.deadlines == {"decode": 1}
    # A file that hangs a decoder is not tried again; clips of it that were under way count.
    assert report.skips["decode-deadline"] >= 1


def test_a_decode_that_hangs_names_sample_and_file(uneven: str, stuck: Stuck) -> None:
    clips = dstream.clips(uneven, frames=4, array="numpy")
    with (
        clips.loader(1, shuffle=None, workers=1, decode_timeout_s=0.5) as loader,
        pytest.raises(dstream.MediaError, match=r"'v01\.mp4'.*decode_timeout_s") as caught,
    ):
        list(loader)
    assert caught.value.reason == "decode-deadline"


def test_clips_beside_one_that_hangs_are_right(
    uneven: str, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One batch of four videos: three are decoded into the memory that is left behind.
    clips = dstream.clips(uneven, frames=4, array="numpy")
    with clips.loader(4, shuffle=None, on_error="skip", workers=4, decode_timeout_s=0.5) as loader:
        batch = next(loader)
    monkeypatch.undo()
    for row, (key, start_s) in enumerate(zip(batch.keys, batch.start_s, strict=True)):
        alone = clips.clip(key, start_s=float(start_s))
        assert np.array_equal(np.asarray(batch.video)[row], np.asarray(alone.video))


def down_for(source: str, calls: int, clock: FakeClock, meter: Meter) -> Retrying:
    """The source as a store whose data reads fail ``calls`` times, then never again."""
    down = Fault(FaultKind.BEFORE, verb="get", times=calls)
    inner = Metered(FaultyStore(open_store(source), [down], clock=clock), meter, clock)
    retrier = Retrier(RetryPolicy(attempts=4), np.random.default_rng(0), meter, clock)
    return Retrying(inner, retrier)


def hashes(clips: Clips, **options: Any) -> list[str]:
    with clips.loader(2, fetchers=2, workers=1, **options) as loader:
        return [batch_hash(batch) for batch in loader]


def test_an_outage_is_waited_for_and_told_once(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, meter = FakeClock(), Meter()
    expected = hashes(dstream.clips(source, frames=4, array="numpy"))
    # Ten minutes of mean waits of 5 s each.
    store = down_for(source, 120, clock, meter)
    clips = dstream.clips(store, frames=4, array="numpy", meter=meter, clock=clock)
    began_s = clock.monotonic_s()
    with caplog.at_level(logging.WARNING, "dstream"):
        assert hashes(clips) == expected
    assert clock.monotonic_s() - began_s > 500
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith(f"{source} does not answer")
    assert "for up to 900 s (max_outage_s)" in said[0]
    assert "answers again after" in said[1]
    counts = meter.snapshot()
    assert sum(counts.event("outage").values()) == 1
    assert counts.event("retry")["error"] == 120


def test_an_outage_has_an_end(source: str) -> None:
    clock, meter = FakeClock(), Meter()
    store = down_for(source, -1, clock, meter)
    clips = dstream.clips(store, frames=4, array="numpy", meter=meter, clock=clock)
    with pytest.raises(dstream.StorageError, match="injected"):
        hashes(clips, max_outage_s=300.0)
    assert 250 < sum(clock.slept_s) < 900
    with pytest.raises(dstream.StorageError, match="injected"):
        hashes(clips, max_outage_s=0.0)


def test_one_object_that_never_answers_is_no_outage() -> None:
    clock, meter = FakeClock(), Meter()
    outage = Outage(1e9, "memory://x", meter, clock)
    mine, others = Patience(outage, lambda: False), Patience(outage, lambda: False)
    error = dstream.StorageError("reset")
    # While nobody is answered it may be the store; while others are, it is this object.
    assert all(mine.bears(error) for _ in range(100))
    for left in (True, True, False):
        others.answered()
        assert mine.bears(error) is left
    assert mine.bears(error)


def test_a_closed_loader_waits_for_no_outage(source: str) -> None:
    meter = Meter()
    down = Fault(FaultKind.BEFORE, verb="get", times=-1)
    inner = Metered(FaultyStore(open_store(source), [down]), meter)
    retrier = Retrier(RetryPolicy(attempts=2), np.random.default_rng(0), meter)
    clips = dstream.clips(Retrying(inner, retrier), frames=4, meter=meter)
    loader = clips.loader(2, fetchers=2)
    pipeline = loader._running()
    while not meter.snapshot().event("outage"):
        threading.Event().wait(0.01)
    loader.close()
    assert not any(thread.is_alive() for thread in pipeline._fetchers)


def test_small_batches_are_fetched_far_ahead(source: str) -> None:
    """With two clips in decoded batches, sixteen fetchers still have a request each."""
    clips = dstream.clips(source, frames=4, clips_per_file=50, array="numpy")
    for key in clips.keys():
        clips[key]  # indexed
    inside, most, lock = 0, 0, threading.Lock()
    everybody = threading.Event()
    reader_class = type(clips._reader)
    fetch = reader_class.fetch

    def counted(self: Any, planned: Any) -> list[bytes]:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            if inside == 8:
                everybody.set()
        assert everybody.wait(30)  # nobody goes on before eight are in flight
        with lock:
            inside -= 1
        return fetch(self, planned)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_class, "fetch", counted)
        with clips.loader(1, fetchers=8, prefetch=2) as loader:
            assert len(list(loader)) == 200
    assert most == 8


TABLE = [
    (Concurrency(16), Seen(100, 0.5, 0), Concurrency(24, 16, 100)),
    (Concurrency(16), Seen(100, 0.05, 0), Concurrency(16)),
    (Concurrency(24, 16, 100), Seen(150, 0.5, 0), Concurrency(36, 24, 150)),
    (Concurrency(24, 16, 100), Seen(102, 0.5, 0), Concurrency(16, calm=10)),
    (Concurrency(16, calm=10), Seen(102, 0.5, 0), Concurrency(16, calm=9)),
    (Concurrency(24, 16, 100), Seen(150, 0.05, 0), Concurrency(24)),
    (Concurrency(60), Seen(100, 1.0, 0), Concurrency(MOST, 60, 100)),
    (Concurrency(MOST), Seen(100, 1.0, 0), Concurrency(MOST)),
    (Concurrency(24, 16, 100), Seen(150, 1.0, 1), Concurrency(12, calm=10)),
    (Concurrency(3), Seen(100, 1.0, 9), Concurrency(LEAST, calm=10)),
]


@pytest.mark.parametrize(("now", "seen", "then"), TABLE)
def test_how_many_fetches_at_once(now: Concurrency, seen: Seen, then: Concurrency) -> None:
    assert adapted(now, seen) == then


@pytest.mark.parametrize(
    ("rtt_s", "needed"), [(0.001, FIRST), (0.08, 36), (0.3, MOST)], ids=["near", "wan", "far"]
)
def test_the_number_finds_what_a_round_trip_needs(rtt_s: float, needed: int) -> None:
    """A link of 400 clips a second: threads bring 1 / rtt each, until it is full."""
    now = Concurrency(FIRST)
    for _ in range(40):
        rate = min(400.0, now.limit / rtt_s)
        now = adapted(now, Seen(rate, 0.0 if rate >= 400 else 0.9, 0))
    assert now.limit >= min(needed, MOST)
    assert min(400.0, now.limit / rtt_s) >= min(400.0, MOST / rtt_s) * 0.95


def test_a_group_that_hangs_is_left_behind(uneven: str, stuck: Stuck) -> None:
    clips = dstream.clips(uneven, frames=8, stride=1, clips_per_file=6, array="numpy")
    options: dict[str, Any] = {"clips_per_gop": 3, "workers": 2, "decode_timeout_s": 0.5}
    with clips.loader(4, on_error="skip", **options) as loader:
        batches = list(loader)
        assert sum(map(len, batches)) == len(clips)
        stuck.release.set()
        assert stuck.back.wait(10)
        assert not any((np.asarray(batch.video) == 77).all((1, 2, 3, 4)).any() for batch in batches)
    assert loader.report().deadlines == {"decode": 1}
    assert loader.report().fallbacks["group-deadline"] == 1
