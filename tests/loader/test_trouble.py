"""Damaged, changed and unfit data: errors that name the file, in the plan's order, or skips."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dstream
from dstream import Clips
from dstream.measure import Meter
from dstream.store.opening import open_store
from loader_data import batch_hash, fill, new_url, publish, videos


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    left = [t for t in threading.enumerate() if t.name.startswith("dstream-")]
    for thread in left:  # a loader that was dropped does not wait for its threads
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in left)


def small(folder: Path, **options: Any) -> dict[str, bytes]:
    return videos(folder, frames=48, **options)


def replaced(source: str) -> None:
    store = open_store(source)
    store.put("v01.mp4", store.get("v01.mp4").data)


def truncated(source: str) -> None:
    store = open_store(source)
    store.put("v01.mp4", store.get("v01.mp4").data[:2000])


def deleted(source: str) -> None:
    open_store(source).delete_many([("v01.mp4", None)])


CHANGES = [
    pytest.param(replaced, dstream.SourceChangedError, "source-changed", id="replaced"),
    pytest.param(truncated, dstream.SourceChangedError, "source-changed", id="truncated"),
    pytest.param(deleted, dstream.NotFoundError, "not-found", id="deleted"),
]


@pytest.mark.parametrize(("change", "error", "reason"), CHANGES)
@pytest.mark.parametrize("layout", ["bare", "in_place"])
@pytest.mark.parametrize("place", ["memory", "local"])
def test_a_changed_source_is_a_loud_error(
    tmp_path: Path, change: Any, error: type[Exception], reason: str, layout: str, place: str
) -> None:
    source, repository = new_url(), new_url()
    if place == "local":
        source, repository = str(tmp_path / "source"), str(tmp_path / "repository")
        (tmp_path / "source").mkdir()
    fill(open_store(source), small(tmp_path / "made"))
    clips: Clips
    if layout == "bare":
        clips = dstream.clips(source, frames=4, array="numpy", clips_per_file=4)
    else:
        publish(repository, source, packed=False)
        clips = dstream.open(repository).clips("d", frames=4, array="numpy")
    change(source)
    with clips.loader(1, shuffle=None) as loader:
        before = [next(loader).keys[0] for _ in range(len(clips) // 4)]
        assert {key.removesuffix(".mp4") for key in before} == {"v00"}
        with pytest.raises(error, match=r"v01\.mp4") as caught:
            next(loader)
        assert caught.value.facts["file" if "file" in caught.value.facts else "key"] == "v01.mp4"  # type: ignore[attr-defined]
    with clips.loader(4, on_error="skip") as loader:
        keys = [key.removesuffix(".mp4") for batch in loader for key in batch.keys]
        assert len(keys) >= len(clips)
        assert set(keys) == {"v00", "v02", "v03"}
        assert loader.report().skips[reason] >= len(clips) // 4
        assert loader.failures[0].sample_key.removesuffix(".mp4") == "v01"
    with (
        clips.loader(4, on_error="skip", max_failures=0) as loader,
        pytest.raises(dstream.DstreamError, match="max_failures=0"),
    ):
        list(loader)


def test_a_packed_generation_does_not_need_its_source(tmp_path: Path) -> None:
    source, repository = new_url(), new_url()
    fill(open_store(source), small(tmp_path))
    publish(repository, source, packed=True)
    deleted(source)
    with dstream.open(repository).clips("d", frames=4).loader(2) as loader:
        assert {key for batch in loader for key in batch.keys} == {"v00", "v01", "v02", "v03"}


def test_rotten_bytes_are_found_by_their_checksum(tmp_path: Path) -> None:
    source, repository = new_url(), new_url()
    fill(open_store(source), small(tmp_path))
    publish(repository, source, packed=True)
    store = open_store(repository)
    shard = next(info.key for info in store.list("data/") if info.key.endswith("shard"))
    data = bytearray(store.get(shard).data)
    data[len(data) // 2] ^= 1
    store.put(shard, bytes(data))
    clips = dstream.open(repository).clips("d", frames=4)
    with clips.loader(2) as loader, pytest.raises(dstream.CorruptDataError, match="checksum"):
        list(loader)
    with clips.loader(2, on_error="skip") as loader:
        list(loader)
        report = loader.report()
    assert report.skips["corrupt-data"] >= 1
    assert report.refetches["checksum"] >= 1


def test_bytes_damaged_on_the_way_are_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, repository = new_url(), new_url()
    fill(open_store(source), small(tmp_path))
    publish(repository, source, packed=True)

    def hashes(clips: Clips) -> list[str]:
        with clips.loader(2, array="numpy") as loader:
            return [batch_hash(batch) for batch in loader]

    expected = hashes(dstream.open(repository).clips("d", frames=4))
    clips = dstream.open(repository).clips("d", frames=4)
    reader_class = type(clips._reader)
    fetch = reader_class.fetch
    calls = iter(range(1000))

    def damaged(self: Any, planned: Any) -> list[bytes]:
        pieces = fetch(self, planned)
        return [b"\0" * len(pieces[0]), *pieces[1:]] if next(calls) % 3 == 0 else pieces

    monkeypatch.setattr(reader_class, "fetch", damaged)
    assert hashes(clips) == expected
    assert clips.meter.snapshot().event("refetch")["checksum"] >= 4


def test_files_that_are_no_video(tmp_path: Path) -> None:
    source = new_url()
    fill(open_store(source), small(tmp_path, count=2) | {"bad.mp4": b"not a video" * 500})
    clips = dstream.clips(source, frames=4, clips_per_file=8)
    with clips.loader(4, on_error="skip", epochs=3) as loader:
        list(loader)
        report = loader.report()
    assert report.skips == {"not-media": report.skips["not-media"]}
    assert report.skips["not-media"] >= 24
    # It was looked at once.
    assert report.index_requests <= 3 * 4

    def hashes(workers: int, fetchers: int, prefetch: int) -> list[str]:
        with clips.loader(
            4, on_error="skip", workers=workers, fetchers=fetchers, prefetch=prefetch
        ) as loader:
            return [batch_hash(batch) for batch in loader]

    # What replaces a clip depends on the plan alone.
    assert hashes(1, 1, 1) == hashes(4, 8, 5)
    with clips.loader(4) as loader, pytest.raises(dstream.MediaError, match=r"bad\.mp4"):
        list(loader)


def test_samples_that_turn_out_too_short_are_replaced(tmp_path: Path) -> None:
    source = new_url()
    files = small(tmp_path, count=2) | {"s.mp4": videos(tmp_path / "short", 1, frames=5)["v00.mp4"]}
    fill(open_store(source), files)
    clips = dstream.clips(source, frames=10, clips_per_file=4)
    with clips.loader(4) as loader:  # whatever on_error says
        assert all(key != "s.mp4" for batch in loader for key in batch.keys)
        assert loader.report().skips["too-short"] >= 4
    with (
        dstream.clips(source, frames=1000).loader(1) as loader,
        pytest.raises(dstream.DstreamError, match="in a row"),
    ):
        next(loader)


def test_sizes_that_differ_name_the_option(tmp_path: Path) -> None:
    source, repository = new_url(), new_url()
    files = small(tmp_path, count=2) | {
        "w.mp4": small(tmp_path / "w", count=1, size=(192, 96))["v00.mp4"]
    }
    fill(open_store(source), files)
    publish(repository, source, packed=True)
    repo = dstream.open(repository)
    # Tables know sizes: the loader is refused before anything is fetched.
    with pytest.raises(dstream.InvalidInputError, match="resize="):
        repo.clips("d", frames=4).loader(2, shuffle=None)
    with pytest.raises(dstream.InvalidInputError, match="resize=") as caught:
        repo.clips("d", frames=4).loader(2)
    assert caught.value.facts["sizes"] == ((96, 128), (96, 192))
    assert caught.value.facts["samples"] == ("v00", "w")
    with repo.clips("d", frames=4).loader(1) as loader:
        assert {batch.size for batch in loader} == {(96, 128), (96, 192)}
    with repo.clips("d", frames=4, resize=64, crop=(64, 64)).loader(2) as loader:
        assert {batch.size for batch in loader} == {(64, 64)}
    # A bare listing knows them when the files are indexed.
    with (
        dstream.clips(source, frames=4).loader(3) as loader,
        pytest.raises(dstream.InvalidInputError, match="resize="),
    ):
        list(loader)
    with pytest.raises(dstream.InvalidInputError, match="crop of 100x100"):
        repo.clips("d", frames=4, crop=(100, 100)).loader(2)


def test_pixel_kinds_that_differ_name_the_option(tmp_path: Path) -> None:
    source, repository = new_url(), new_url()
    deep = small(tmp_path / "d", count=1, pix_fmt="yuv420p10le")["v00.mp4"]
    fill(open_store(source), small(tmp_path, count=1) | {"deep.mp4": deep})
    publish(repository, source, packed=True)
    repo = dstream.open(repository)
    with pytest.raises(dstream.InvalidInputError, match="pixels='rgb'"):
        repo.clips("d", frames=4, pixels="native").loader(2)
    with repo.clips("d", frames=4, array="numpy").loader(2) as loader:
        assert {str(batch.video.dtype) for batch in loader} == {"uint8"}
    with repo.clips("d", frames=4, pixels="native", array="numpy").loader(1) as loader:
        assert {str(batch.video.dtype) for batch in loader} == {"uint8", "uint16"}


def test_leaving_a_loop_early_stops_the_threads(tmp_path: Path) -> None:
    source = new_url()
    fill(open_store(source), small(tmp_path))
    clips = dstream.clips(source, frames=4, clips_per_file=8)
    for _ in clips.loader(2):
        break
    loader = clips.loader(2)
    next(iter(loader))
    assert any(t.name.startswith("dstream-") for t in threading.enumerate())
    loader.close()
    loader.close()
    del loader


def test_an_interrupt_while_waiting_stops_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = new_url()
    fill(open_store(source), small(tmp_path))
    loader = dstream.clips(source, frames=4).loader(2)
    next(loader)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loader._running(), "_look_at_queue", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(loader)


def test_a_loop_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    source = new_url()
    fill(open_store(source), small(tmp_path))
    clips = dstream.clips(source, frames=4, clips_per_file=3, array="numpy")
    with clips.loader(5, epochs=3) as loader:
        assert len(loader) == 8
        expected = [batch_hash(batch) for batch in loader]
    with clips.loader(5) as loader:
        got = []
        for _ in range(3):
            for batch in loader:
                got.append(batch_hash(batch))
                if len(got) == 2:
                    break
            loader.close()
        got += [batch_hash(batch) for batch in loader]
        assert loader.position == 5 * len(got)
    assert got[:8] == expected
    with pytest.raises(TypeError, match="epochs=None"):
        len(clips.loader(5, epochs=None))


def test_ends_of_epochs(tmp_path: Path) -> None:
    source = new_url()
    fill(open_store(source), small(tmp_path))
    clips = dstream.clips(source, frames=4, clips_per_file=3)  # 12 slots

    def lengths(**options: Any) -> list[int]:
        with clips.loader(5, epochs=2, **options) as loader:
            return [len(batch) for batch in loader]

    assert lengths() == [5, 5, 5, 5, 5]
    assert lengths(last="drop") == [5, 5, 5, 5]
    assert lengths(last="short") == [5, 5, 2, 5, 5, 2]
    assert lengths(last="short", rank=0, world_size=2) == [5, 1, 5, 1]


SCRIPT = """
import sys
import dstream
loader = dstream.clips(sys.argv[1], frames=4, clips_per_file=100, array="numpy").loader(
    2, epochs=None
)
for number, batch in enumerate(loader):
    if number == 5:
        print("going", flush=True)
        if sys.argv[2] == "exit":
            break
"""


@pytest.mark.parametrize("end", ["exit", "interrupt"])
def test_a_process_ends_at_once(tmp_path: Path, end: str) -> None:
    videos(tmp_path, 2, frames=48)
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path), end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        if end == "interrupt":
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (0 if end == "exit" else -signal.SIGINT)
    assert errors == "" if end == "exit" else "KeyboardInterrupt" in errors


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0}, {"workers": 0}, {"prefetch": 0}, {"epochs": 0}, {"rank": 3},
        {"last": "no"}, {"shuffle": "no"}, {"shuffle": 1}, {"on_error": "no"}, {"array": "no"},
        {"device": "tpu"}, {"last": "drop", "batch_size": 1000}, {"max_failures": -1},
        {"merge_gap_bytes": -1}, {"merge_gap_bytes": "1MB"}, {"inflight_bytes": "1MB"},
        {"max_failures": None}, {"decode_timeout_s": "5"}, {"max_outage_s": None},
        {"quarantine": "bad.jsonl"}, {"quarantine": "/no/such/bad.jsonl", "on_error": "skip"},
    ],
)  # fmt: skip
def test_impossible_options(tmp_path: Path, options: dict[str, Any]) -> None:
    source = new_url()
    fill(open_store(source), {"a.mp4": b"x"})
    with pytest.raises(dstream.InvalidInputError):
        dstream.clips(source, frames=4).loader(**{"batch_size": 2, **options})


def test_sources_without_videos() -> None:
    source = new_url()
    fill(open_store(source), {"a.txt": b"x"})
    with pytest.raises(dstream.NotFoundError, match="no video"):
        dstream.clips(source, frames=4)
    fill(open_store(source), {"a.mp4": b"x"})
    with pytest.raises(dstream.InvalidInputError, match="clips_per_file"):
        dstream.clips(source, frames=4, clips_per_file=0)


def test_a_meter_can_be_shared(tmp_path: Path) -> None:
    source, meter = new_url(), Meter()
    fill(open_store(source), small(tmp_path, count=1))
    clips = dstream.clips(source, frames=4, meter=meter)
    assert clips.meter is meter
    assert clips["v00.mp4"].key == "v00.mp4"
    assert meter.snapshot().total("get").count >= 2


def test_the_first_failure_in_the_plan_is_the_one_raised(tmp_path: Path) -> None:
    source = new_url()
    files = small(tmp_path, count=3)
    files |= {f"v0{i}x.mp4": b"no video " * (i + 1) for i in range(3)}
    fill(open_store(source), files)
    for _ in range(5):
        with dstream.clips(source, frames=4).loader(3, shuffle=None) as loader:
            with pytest.raises(dstream.MediaError, match=r"v00x\.mp4"):
                next(loader)
            assert loader.report().clips == 0


def test_a_substitute_may_have_another_size(tmp_path: Path) -> None:
    source = new_url()
    files = small(tmp_path, count=2)
    wide = bytearray(small(tmp_path / "w", count=1, size=(192, 96))["v00.mp4"])
    start = wide.index(b"mdat") + 4
    wide[start:] = bytes(len(wide) - start)  # its tables are whole, its pictures are gone
    fill(open_store(source), files | {"a.mp4": bytes(wide)})
    clips = dstream.clips(source, frames=4, clips_per_file=6, array="numpy")
    for batch_size in (1, 3):
        with clips.loader(batch_size, on_error="skip", shuffle=None) as loader:
            batches = list(loader)
            assert {batch.size for batch in batches} == {(96, 128)}
            assert sum(loader.report().skips.values()) >= 6
            assert {failure.sample_key for failure in loader.failures} == {"a.mp4"}
    with clips.loader(1, shuffle=None) as loader, pytest.raises(dstream.MediaError) as caught:
        next(loader)
    assert caught.value.facts.get("file", "a.mp4") == "a.mp4"
    assert "a.mp4" in str(caught.value)
