"""What clips cost, read from the store's own counters."""

from pathlib import Path

import numpy as np
import pytest

import dstream
from dstream.measure import Purpose
from dstream.store.opening import open_store
from loader_data import fill, new_url, publish, videos


@pytest.mark.parametrize("packed", [True, False])
def test_a_clip_costs_one_request_and_its_gops(tmp_path: Path, packed: bool) -> None:
    source, repository = new_url(), new_url()
    fill(open_store(source), videos(tmp_path, 5))
    publish(repository, source, packed=packed)
    clips = dstream.open(repository).clips("d", frames=6, stride=2)
    with clips.loader(4, last="short", epochs=2) as loader:
        batches = list(loader)
        report = loader.report()
    assert report.clips == sum(map(len, batches)) == 2 * len(clips)
    assert report.data_requests == report.clips
    assert report.data_requests_per_clip == 1.0
    assert report.bytes_received == report.bytes_requested == report.bytes_of_gops
    assert report.bytes_needed < report.bytes_of_gops
    assert report.byte_amplification == report.bytes_received / report.bytes_needed
    assert report.bytes_unverified == (0 if packed else report.bytes_of_gops)
    assert report.bytes_delivered == sum(batch.video.nbytes for batch in batches)
    assert report.frames_delivered == 6 * report.clips
    assert report.decode_amplification == report.frames_decoded / report.frames_delivered
    # Manifest, three tables, one index group: once for both epochs.
    assert report.table_requests == 5
    assert report.index_requests == report.listing_requests == report.side_requests == 0
    assert report.skips == report.retries == report.fallbacks == {}
    assert 0 <= report.queue_occupancy <= 1
    assert report.wall_seconds >= report.first_batch_seconds > 0
    assert "pace" in report.bottleneck
    document = report.as_json()
    assert document["clips"] == report.clips
    assert document["skips"] == {}


def test_interleaved_audio_is_reported(tmp_path: Path) -> None:
    source, repository = new_url(), new_url()
    fill(open_store(source), videos(tmp_path, 2, audio=True))
    publish(repository, source, packed=True)
    with dstream.open(repository).clips("d", frames=12).loader(2) as loader:
        list(loader)
        report = loader.report()
    assert report.data_requests_per_clip == 1.0
    assert report.byte_amplification > 1.0


def test_a_large_bare_listing_starts_at_once(tmp_path: Path) -> None:
    source = new_url()
    few = list(videos(tmp_path, 4).values())
    store = open_store(source)
    for number in range(10_000):
        store.put(f"part{number % 10}/{number:05d}.mp4", few[number % 4])
    store.put("readme.txt", b"no video")
    store.put("part0/empty.mp4", b"")
    store.put(".hidden/a.mp4", few[0])
    clips = dstream.clips(source, frames=4, array="numpy")
    assert len(clips) == 10_000
    counts = clips.meter.snapshot()
    assert counts.total(purpose=Purpose.LISTING).count == len(counts.requests) == 1
    # As many batches are begun as may be in the making, one clip a fetcher beyond, and no more.
    with clips.loader(8, prefetch=1, fetchers=4) as loader:
        batch = next(loader)
        loader.close()
        report = loader.report()
    assert len(batch) == 8
    videos_touched = 2 * 8 + 8  # this batch, the next, and the one that the fetchers began
    assert 8 <= report.index_requests + report.data_requests <= 5 * videos_touched
    assert report.index_full_passes == 0
    assert report.listing_requests == 1


def test_an_index_is_read_once_for_all_clips_of_a_file(tmp_path: Path) -> None:
    source = new_url()
    fill(open_store(source), videos(tmp_path, 1))
    clips = dstream.clips(source, frames=4, clips_per_file=20)
    with clips.loader(4, fetchers=16) as loader:
        list(loader)
        report = loader.report()
    assert report.index_requests <= 4
    assert report.data_requests == 20


def test_an_index_may_be_refused_for_its_cost(tmp_path: Path) -> None:
    source = new_url()
    store = fill(open_store(source), videos(tmp_path, 2))
    whole_pass = videos(tmp_path / "ts", 1, container="mpegts", frames=240)["v00.mp4"]
    store.put("z.ts", whole_pass)
    clips = dstream.clips(source, frames=4, clips_per_file=3, max_index_bytes=len(whole_pass) // 2)
    with clips.loader(3, on_error="skip") as loader:
        keys = {key for batch in loader for key in batch.keys}
        report = loader.report()
    assert keys == {"v00.mp4", "v01.mp4"}
    assert report.skips["index-too-large"] >= 3
    with clips.loader(3) as loader, pytest.raises(dstream.MediaError, match=r"z\.ts"):
        list(loader)
    clips = dstream.clips(source, frames=4, clips_per_file=3)
    with clips.loader(3) as loader:
        list(loader)
        assert loader.report().index_full_passes == 1


def test_bytes_in_flight_are_bounded(tmp_path: Path) -> None:
    """A budget below one clip still delivers everything, one clip at a time."""
    source = new_url()
    fill(open_store(source), videos(tmp_path, 4))
    wide = dstream.clips(source, frames=4, clips_per_file=4, array="numpy")
    with wide.loader(4) as loader:
        expected = [np.array(batch.video) for batch in loader]
    tight = dstream.clips(source, frames=4, clips_per_file=4, array="numpy")
    with tight.loader(4, inflight_bytes=1, prefetch=4) as loader:
        got = [np.array(batch.video) for batch in loader]
    np.testing.assert_array_equal(got, expected)


def test_tables_are_read_again_when_their_budget_is_small(tmp_path: Path) -> None:
    source, repository = new_url(), new_url()
    fill(open_store(source), videos(tmp_path, 3))
    publish(repository, source, packed=True)
    clips = dstream.open(repository).clips("d", frames=4, table_cache_bytes=1)
    with clips.loader(4) as loader:
        list(loader)
        assert loader.report().data_requests_per_clip == 1.0
