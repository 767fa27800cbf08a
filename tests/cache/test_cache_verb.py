"""``dstream cache`` and warming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dstream as library
from cache_workers import Reader
from cli_runner import dstream
from dstream.cache.admin import cache_stat, clear_cache
from dstream.clock import SystemClock
from dstream.errors import NotFoundError
from dstream.store.opening import open_store
from loader_data import fill, publish, videos


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A repository with a packed data set ``d``, and its source with one file that is no video."""
    folder = tmp_path_factory.mktemp("r")
    source, repository = f"{folder}/source", f"{folder}/repo"
    fill(open_store(source), videos(folder, 3, frames=48))
    publish(repository, source, packed=True)
    open_store(source).put("not.mp4", b"no video")
    return repository, source


def test_what_was_warmed_needs_no_request(repo: tuple[str, str], tmp_path: Path) -> None:
    cache = ["--cache", str(tmp_path / "c")]
    ran = dstream(
        "cache", "warm", "d", "--repo", repo[0], *cache, "--cache-bytes", "64MB", "--json"
    )
    assert ran.code == 0, ran.err
    warmed = json.loads(ran.out)
    assert warmed["warmed"]["files"] == 3
    assert warmed["added_bytes"] == warmed["warmed"]["gop_bytes"] > 0
    ran = dstream("bench", "d", "--repo", repo[0], *cache, "--clips", "8", "--json")
    report = json.loads(ran.out)["report"]
    assert (report["data_requests"], report["cache_misses"]) == (0, 0)
    ran = dstream("bench", "d", "--repo", repo[0], *cache, "--clips", "8", "--details")
    assert "pieces hit (100%; 100% of the bytes)" in " ".join(ran.out.split())
    again = dstream("cache", "warm", "d", "--repo", repo[0], *cache, "--json")
    assert json.loads(again.out)["added_bytes"] == 0


def test_stat_and_clear_tell_data_sets_apart(repo: tuple[str, str], tmp_path: Path) -> None:
    cache = ["--cache", str(tmp_path)]
    assert (
        dstream("cache", "warm", "d", "--repo", repo[0], *cache, "--cache-bytes", "64MB").code == 0
    )
    raw = dstream("cache", "warm", repo[1], *cache, "--json")
    assert raw.code == 3
    assert [key for key, _ in json.loads(raw.out)["warmed"]["failed"]] == ["not.mp4"]
    stat = json.loads(dstream("cache", "stat", *cache, "--json").out)
    labels = [use["label"] for use in stat["data_sets"]]
    assert sorted(labels) == sorted([f"{open_store(repo[0]).url} d", open_store(repo[1]).url])
    assert stat["extents"] == sum(use["extents"] for use in stat["data_sets"]) > 0
    assert stat["reserved_bytes"] <= stat["budget_bytes"] == 64_000_000
    assert "in use" in dstream("cache", "stat", *cache).out
    would = json.loads(
        dstream("cache", "clear", "d", "--repo", repo[0], *cache, "--dry-run", "--json").out
    )
    assert (would["segments"], len(would["labels"])) == (1, 1)
    assert json.loads(dstream("cache", "stat", *cache, "--json").out) == stat
    assert dstream("cache", "clear", "d", "--repo", repo[0], *cache).code == 0
    for typo in ("e", "d"):  # of "d" there is nothing left
        ran = dstream("cache", "clear", typo, "--repo", repo[0], *cache)
        assert (ran.code, ran.out) == (10, "")
        assert f"holds nothing of '{open_store(repo[0]).url} {typo}'" in ran.err
        assert f"it holds '{open_store(repo[1]).url}'" in ran.err
    left = json.loads(dstream("cache", "stat", *cache, "--json").out)
    assert [use["label"] for use in left["data_sets"]] == [open_store(repo[1]).url]
    assert dstream("cache", "clear", *cache).code == 0
    assert json.loads(dstream("cache", "stat", *cache, "--json").out)["segments"] == 0


def test_clearing_leaves_what_is_not_the_caches(tmp_path: Path) -> None:
    mine = [tmp_path / "videos.mp4", tmp_path / "segments" / "notes.data", tmp_path / "users" / "x"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("the only copy")
    reader = Reader(tmp_path, 8 << 20)
    reader.read(*range(60))  # more than the budget
    reader.cache.close()
    assert clear_cache(tmp_path, clock=SystemClock()).segments > 0
    assert [path.read_text() for path in mine] == ["the only copy"] * 3


def test_warming_stops_when_the_budget_is_used_up(repo: tuple[str, str], tmp_path: Path) -> None:
    clips = library.open(repo[0], cache=tmp_path, cache_bytes=20_000).clips("d", frames=1)
    from dstream.loader.warming import warm

    done = warm(clips, threads=1)
    assert done.is_full
    assert clips.meter.snapshot().sums["bytes.cache_admitted"] <= 20_000


def test_warming_where_nothing_can_be_written_is_no_success(repo: tuple[str, str]) -> None:
    common = "cache", "warm", "d", "--repo", repo[0], "--cache", "/proc/c", "--cache-bytes", "64MB"
    ran = dstream(*common)
    assert ran.code == 3
    assert "cache off" in ran.out
    ran = dstream(*common, "--json")
    assert (ran.code, sum(json.loads(ran.out)["cache_off"].values())) == (3, 1)


def test_clearing_under_a_reader_that_writes_on(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 8 << 20)
    reader.read(*range(4))
    assert cache_stat(tmp_path, SystemClock()).data_sets[0].in_use
    assert clear_cache(tmp_path, SystemClock()).segments == 1
    reader.read(*range(8))
    reader.read(*range(8))
    assert reader.fetched == [*range(4), *range(8)]


def test_what_cannot_be_done_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="no cache"):
        cache_stat(tmp_path / "none", SystemClock())
    assert dstream("cache", "stat").code == 2
    assert dstream("cache", "stat", "d", "--cache", str(tmp_path)).code == 2
    assert dstream("cache", "warm", "--cache", str(tmp_path)).code == 2
    assert dstream("cache", "stat", "--dry-run", "--cache", str(tmp_path)).code == 2
    monkeypatch.setenv("DSTREAM_CACHE", str(tmp_path / "none"))
    assert dstream("cache", "stat").code == 10
