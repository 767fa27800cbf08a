"""Files that give no clip: each counts once, is not tried again, and what it spoils is replaced."""

from pathlib import Path
from typing import Any

import pytest

import dstream
from dstream.loader.failures import ClipTooShortError, FailureLog
from dstream.measure import Meter
from dstream.store.base import Store
from dstream.store.opening import open_store
from loader_data import fill, new_url, publish, videos


def not_media(store: Store) -> None:
    store.put("v01.mp4", b"not a video" * 500)


def replaced(store: Store) -> None:
    store.put("v01.mp4", store.get("v01.mp4").data)


def deleted(store: Store) -> None:
    store.delete_many([("v01.mp4", None)])


@pytest.mark.parametrize("layout", ["bare", "in_place"])
@pytest.mark.parametrize("spoil", [not_media, replaced, deleted])
def test_a_bad_file_counts_once_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, layout: str
) -> None:
    source, repository = new_url(), new_url()
    store = fill(open_store(source), videos(tmp_path, frames=48))
    if layout == "in_place":
        publish(repository, source, packed=False)
        clips = dstream.open(repository).clips("d", frames=4, array="numpy")
    else:
        clips = dstream.clips(source, frames=4, array="numpy", clips_per_file=8)
    spoil(store)
    if layout == "bare" and spoil is not_media:
        clips = dstream.clips(source, frames=4, array="numpy", clips_per_file=8)
    tried: list[int] = []
    resolve = clips.source.resolve

    def watched(sample: int) -> Any:
        tried.append(sample)
        return resolve(sample)

    monkeypatch.setattr(clips.source, "resolve", watched)
    with clips.loader(4, on_error="skip", epochs=6, max_failures=1, fetchers=1) as loader:
        keys = [key.removesuffix(".mp4") for batch in loader for key in batch.keys]
        report = loader.report()
    assert set(keys) == {"v00", "v02", "v03"}
    assert sum(report.skips.values()) >= 6 * len(clips) // 4  # each replaced clip is counted
    assert tried.count(1) == 1
    assert [f.sample_key.removesuffix(".mp4") for f in loader.failures] == ["v01"]


def test_distinct_files_count(tmp_path: Path) -> None:
    source = new_url()
    bad = {f"x{i}.mp4": b"no video " * (i + 9) for i in range(5)}
    fill(open_store(source), videos(tmp_path, 2, frames=48) | bad)
    clips = dstream.clips(source, frames=4, clips_per_file=3)
    with clips.loader(2, on_error="skip", max_failures=5, epochs=4) as loader:
        list(loader)
        assert {failure.sample_key for failure in loader.failures} == set(bad)
        assert len(loader.failures) == 5
    with (
        clips.loader(2, on_error="skip", max_failures=4, epochs=4) as loader,
        pytest.raises(dstream.DstreamError, match="max_failures=4 files failed"),
    ):
        list(loader)


def test_a_damaged_place_spoils_its_own_clips_only(tmp_path: Path) -> None:
    source, repository = new_url(), new_url()
    fill(open_store(source), videos(tmp_path, 1, frames=48))
    publish(repository, source, packed=True)
    store = open_store(repository)
    shard = next(info.key for info in store.list("data/") if info.key.endswith("shard"))
    data = bytearray(store.get(shard).data)
    data[len(data) // 2] ^= 1
    store.put(shard, bytes(data))
    clips = dstream.open(repository).clips("d", frames=4)
    with clips.loader(2, on_error="skip", epochs=10, max_failures=1) as loader:
        slots = {int(slot) for batch in loader for slot in batch.slots}
        assert loader.report().skips["corrupt-data"] >= 2
    assert len(slots) >= len(clips) // 2


def test_failures_that_may_pass_count_each_time() -> None:
    log = FailureLog("skip", 2, Meter())
    for _ in range(2):
        log.record(dstream.ShortReadError("cut off"), "a", 0, 0, for_good=False)
    assert not log.is_given_up(0, "a", 0)
    with pytest.raises(dstream.DstreamError, match="max_failures=2"):
        log.record(dstream.ShortReadError("cut off"), "a", 0, 0, for_good=False)


def test_what_is_too_short_is_told_once_and_does_not_count() -> None:
    log = FailureLog("raise", 0, Meter())
    for _ in range(5):
        log.record(ClipTooShortError("short"), "a", 0, 0, for_good=False)
    assert [failure.reason for failure in log.failures] == ["too-short"]
    log = FailureLog("skip", 0, Meter())
    log.record(ClipTooShortError("short"), "a", 0, 0, for_good=False)
    with pytest.raises(dstream.DstreamError, match="max_failures=0"):
        log.record(dstream.NotFoundError("gone"), "a", 0, 0, for_good=True)


def test_files_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstream.loader.failures._FILES_KEPT", 10)
    log = FailureLog("skip", 10**6, Meter())
    for file in range(100):
        log.record(dstream.NotFoundError("gone"), str(file), 0, file, for_good=True)
        assert log.is_given_up(0, "0", 0)  # met again and again, so it is kept
    assert log.is_given_up(99, "99", 0)
    assert not log.is_given_up(50, "50", 0)
    with pytest.raises(dstream.DstreamError, match="in a row"):
        log.is_given_up(99, "99", 100)
