"""The loader through a cache: the same frames, and fewer requests."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dstream
from dstream.cache.admin import cache_stat
from dstream.cache.cache import ExtentCache
from dstream.cache.lifetimes import Uses
from dstream.cache.record import identity_of
from dstream.clock import SystemClock
from dstream.errors import InvalidInputError
from dstream.loader.report import LoaderReport
from dstream.measure import Purpose
from dstream.store.opening import open_store
from loader_data import batch_hash, fill, new_url, publish, videos

LAYOUTS = ["raw", "in_place", "packed"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return videos(tmp_path_factory.mktemp("v"), 3)


def made(layout: str, files: dict[str, bytes]) -> tuple[str, str]:
    """URLs of a repository and its source."""
    source, repository = new_url(), new_url()
    fill(open_store(source), files)
    if layout != "raw":
        publish(repository, source, packed=layout == "packed")
    return repository, source


def opened(layout: str, urls: tuple[str, str], **cache: Any) -> dstream.Clips:
    if layout == "raw":
        return dstream.clips(urls[1], frames=4, clips_per_file=10, **cache)
    return dstream.open(urls[0], **cache).clips("d", frames=4)


def run(clips: dstream.Clips, **settings: Any) -> tuple[list[str], LoaderReport]:
    with clips.loader(2, workers=2, **settings) as loader:
        hashes = [batch_hash(batch) for batch in loader]
        return hashes, loader.report()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_second_run_needs_no_data_request_and_shows_the_same(
    layout: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    urls = made(layout, files)
    plain, without = run(opened(layout, urls))
    cache: dict[str, Any] = {"cache": tmp_path / "c", "cache_bytes": "64MB"}
    first, cold = run(opened(layout, urls, **cache))
    second, warm = run(opened(layout, urls, **cache))
    assert plain == first == second
    assert (without.cache_hits, without.cache_misses) == (0, 0)
    assert cold.cache_bytes_missed == cold.cache_bytes_admitted > 0
    assert cold.cache_bytes_missed <= cold.bytes_received
    assert (warm.data_requests, warm.cache_misses, warm.cache_hit_rate) == (0, 0, 1.0)
    assert warm.cache_bytes_hit > 0
    # What has no checksum at its source is still held against none of it.
    assert warm.bytes_unverified == without.bytes_unverified
    assert (warm.bytes_unverified == 0) == (layout == "packed")
    assert warm.bytes_needed == without.bytes_needed


def test_random_access_and_loaders_share_it(files: dict[str, bytes], tmp_path: Path) -> None:
    clips = opened("packed", made("packed", files), cache=tmp_path, cache_bytes=1 << 26)
    run(clips)
    before = clips.meter.snapshot()
    assert clips[0].video.shape[0] == 4
    assert not clips.meter.snapshot().minus(before).total(purpose=Purpose.DATA).count


def test_the_forked_workers_of_a_dataloader_share_it(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    source = str(tmp_path / "source")
    fill(open_store(source), files)
    cache: dict[str, Any] = {"cache": tmp_path / "c", "cache_bytes": "64MB"}
    clips = dstream.clips(source, frames=4, clips_per_file=4, **cache)
    expected = [np.asarray(clips[slot].video).copy() for slot in range(6)]  # the rest is theirs

    def epoch() -> list[NDArray[np.uint8]]:
        loader = torch_data.DataLoader(
            clips,
            batch_size=2,
            num_workers=2,
            collate_fn=dstream.collate,
            multiprocessing_context="fork",
        )
        return [video for batch in loader for video in np.asarray(batch.video)]

    first, again = epoch(), epoch()
    assert len(first) == len(again) == len(clips)
    assert all(map(np.array_equal, first, again))
    assert all(map(np.array_equal, first, expected))
    stat = cache_stat(tmp_path / "c", SystemClock())
    before = clips.meter.snapshot()
    for slot in range(len(clips)):  # what the workers kept is there for their parent
        clips[slot]
    assert not clips.meter.snapshot().minus(before).total(purpose=Purpose.DATA).count
    assert stat.extents >= len(clips) // 2


def test_a_clip_that_is_cached_in_part_fetches_only_the_rest(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    urls = made("packed", files)
    clips = dstream.open(urls[0], cache=tmp_path, cache_bytes="64MB").clips("d", frames=20)
    key = clips.keys()[0]
    gops = clips.source.resolve(0).index.gops.size_bytes.tolist()

    def received(start_s: float, frames: int) -> int:
        before = clips.meter.snapshot()
        clips.clip(key, start_s=start_s, frames=frames)
        return clips.meter.snapshot().minus(before).total(purpose=Purpose.DATA).bytes_received

    rate = clips.source.resolve(0).rate
    assert received(12 / rate, 12) == gops[1]
    assert received(0.0, 36) == gops[0] + gops[2]


def test_a_replaced_object_is_another(files: dict[str, bytes], tmp_path: Path) -> None:
    source = new_url()
    store = fill(open_store(source), {"a.mp4": files["v00.mp4"]})
    cache: dict[str, Any] = {"cache": tmp_path, "cache_bytes": "64MB"}
    run(dstream.clips(source, frames=4, clips_per_file=5, **cache))
    store.put("a.mp4", files["v01.mp4"])
    changed, report = run(dstream.clips(source, frames=4, clips_per_file=5, **cache))
    assert report.cache_hits < report.cache_misses + report.cache_hits
    assert changed == run(dstream.clips(source, frames=4, clips_per_file=5))[0]


def test_rot_and_a_directory_that_vanishes_change_no_frame(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    urls = made("in_place", files)
    cache: dict[str, Any] = {"cache": tmp_path / "c", "cache_bytes": "64MB"}
    plain, _ = run(opened("in_place", urls, **cache))
    for path in (tmp_path / "c" / "segments").glob("*.data"):
        data = bytearray(path.read_bytes())
        for place in range(100, len(data), 5000):
            data[place] ^= 4
        path.write_bytes(data)
    rotten, report = run(opened("in_place", urls, **cache))
    assert rotten == plain
    assert report.cache_rot["bytes"] > 0
    assert report.cache_misses == sum(report.cache_rot.values())
    with opened("in_place", urls, **cache).loader(2, workers=2, prefetch=1) as loader:
        hashes = [batch_hash(next(loader))]
        shutil.rmtree((tmp_path / "c").rename(tmp_path / "gone"))  # at once, whoever writes there
        hashes += [batch_hash(batch) for batch in loader]
        assert loader.report().cache_off == {"vanished": 1}
    assert hashes == plain


def test_the_environment_names_a_cache(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = made("packed", files)
    monkeypatch.setenv("DSTREAM_CACHE", str(tmp_path / "c"))
    with pytest.raises(InvalidInputError, match="cache_bytes"):
        opened("packed", urls)
    assert not (tmp_path / "c").exists()
    with pytest.raises(InvalidInputError, match="not a URL"):
        opened("packed", urls, cache="s3://bucket/cache", cache_bytes="64MB")
    monkeypatch.setenv("DSTREAM_CACHE_BYTES", "64MB")
    assert run(opened("packed", urls))[1].cache_misses > 0
    assert run(opened("packed", urls, cache=False))[1].cache_hits == 0
    monkeypatch.delenv("DSTREAM_CACHE")
    with pytest.raises(InvalidInputError, match="needs cache="):
        opened("packed", urls, cache_bytes="1GB")


def test_identities_tell_versions_apart() -> None:
    made = [
        identity_of("s3://b", "k", None, None),
        identity_of("s3://b", "k", "e", None),
        identity_of("s3://b", "k", "e", "v"),
        identity_of("s3://b", "k", "ev", None),
        identity_of("s3://bk", "", "e", None),
        identity_of("s3://b/k", "k", None, None),
    ]
    digests = {item.digest for item in made if item is not None}
    assert len(digests) == len(made)


def test_a_mixture_holds_the_segments_of_all_its_data_sets(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    place = tmp_path / "c"

    def parts() -> list[dstream.Clips]:
        return [opened("raw", url, cache=place, cache_bytes="64MB") for url in urls]

    def in_use() -> list[bool]:
        return [one.in_use for one in cache_stat(place, SystemClock()).data_sets]

    urls = [made("raw", files), made("raw", files)]
    for clips in parts():
        clips[0]
        assert clips.cache is not None
        clips.cache.close()
    assert in_use() == [False, False]
    mixed = pickle.loads(pickle.dumps(dstream.mix([(clips, 1) for clips in parts()])))
    mixed[0]
    assert in_use() == [True, True]
    mixed.cache.close()
    assert in_use() == [False, False]


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [({}, True), ({"shuffle": "affine"}, False), ({"shuffle": None}, False)],
)
def test_the_loader_tells_the_cache_when_it_reads_an_extent_again(
    files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    is_told: bool,
) -> None:
    told: list[Uses] = []
    read = ExtentCache.read

    def listening(cache: ExtentCache, *given: Any, **options: Any) -> list[bytes]:
        told.extend(options.get("uses") or ())
        return read(cache, *given, **options)

    monkeypatch.setattr(ExtentCache, "read", listening)
    clips = opened("packed", made("packed", files), cache=tmp_path, cache_bytes="64MB")
    run(clips, epochs=2, **settings)
    assert bool(told) == is_told
    first_epoch = [uses for uses in told if uses.now < len(clips)]
    assert all(uses.find() for uses in first_epoch)  # each GOP is read in the second as well
    assert all(use > uses.now for uses in told for use in uses.find())
