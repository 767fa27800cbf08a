"""Same seed, same clips: across runs, processes, layouts, stores and numbers of ranks."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

import dstream
from acceptance_made import batch_hashes, clip_hashes, mixed_videos, placed
from dstream.ingest import Layout
from ingest_made import content, fill, stored_index
from s3_services import S3Place

LOADER: dict[str, Any] = {"batch_size": 5, "epochs": 2, "workers": 2}
CLIPS: list[dict[str, Any]] = [
    {"frames": 4, "stride": 3, "sampling": "uniform"},
    {"frames": 5, "fps": 7.5, "sampling": "uniform"},
    {"frames": 4, "stride": 2, "sampling": "grid"},
    {"frames": 4, "stride": 1, "sampling": "keyframe"},
]


@dataclass(frozen=True)
class Made:
    packed: str
    in_place: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("same")
    fill(folder / "source", mixed_videos())
    for layout in Layout:
        with placed(str(folder / layout), str(folder / "source")) as here:
            here.ingest(layout=layout, shard_bytes=500_000, group_files=2)
    return Made(str(folder / Layout.PACKED), str(folder / Layout.IN_PLACE))


def test_some_headers_know_no_frame_count(made: Made) -> None:
    """Else the equalities below would hold for the wrong reason."""
    for url in (made.packed, made.in_place):
        with placed(url, url) as here:
            found = content(here.catalog, "clips")
            known = {
                found.files[row["file"]]["name"]: stored_index(here, row).packets is not None
                for row in found.streams
            }
        assert known["a/a.mp4"]
        assert not known["c/c.mkv"]
        assert not known["f/f.mp4"]


@pytest.mark.parametrize("clips", CLIPS, ids=lambda clips: f"{clips}")
def test_in_place_equals_packed_and_another_run(made: Made, clips: dict[str, Any]) -> None:
    first = batch_hashes(made.packed, "clips", LOADER, seed=7, **clips)
    assert len(first) > 5
    assert len(set(first)) == len(first) or clips["sampling"] == "grid"
    assert batch_hashes(made.in_place, "clips", LOADER, seed=7, **clips) == first
    other_threads = {**LOADER, "workers": 1, "fetchers": 3, "prefetch": 4}
    assert batch_hashes(made.packed, "clips", other_threads, seed=7, **clips) == first
    assert batch_hashes(made.packed, "clips", LOADER, seed=8, **clips) != first


def test_another_process_gives_the_same_batches(made: Made) -> None:
    here = batch_hashes(made.in_place, "clips", LOADER, seed=3, **CLIPS[0])
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        there = pool.submit(batch_hashes, made.packed, "clips", LOADER, None, seed=3, **CLIPS[0])
        assert there.result() == here


@pytest.mark.rgw
@pytest.mark.parametrize("layout", list(Layout))
def test_ceph_gives_the_same_batches(made: Made, rgw_bucket: S3Place, layout: Layout) -> None:
    source, repository = f"{rgw_bucket.url}/raw", f"{rgw_bucket.url}/repo"
    with placed(repository, source, rgw_bucket.options) as here:
        for name, data in mixed_videos().items():
            here.source.put(name, data)
        here.ingest(layout=layout, shard_bytes=700_000, group_files=3)
    expected = batch_hashes(made.packed, "clips", LOADER, seed=7, **CLIPS[0])
    endpoint = rgw_bucket.endpoint_url
    assert batch_hashes(repository, "clips", LOADER, endpoint, seed=7, **CLIPS[0]) == expected


@pytest.mark.parametrize("layout", list(Layout))
def test_ranks_of_1_2_3_and_8_give_one_global_order(made: Made, layout: Layout) -> None:
    url = made.packed if layout is Layout.PACKED else made.in_place

    def order(world_size: int) -> list[list[tuple[int, str]]]:
        """For each step, position and content of all ranks' clips."""
        steps: list[list[tuple[int, str]]] = []
        for rank in range(world_size):
            with dstream.open(url) as repo:
                clips = repo.clips("clips", frames=4, stride=3, seed=5, array="numpy")
                ranks: dict[str, Any] = {"rank": rank, "world_size": world_size, "epochs": 2}
                with clips.loader(24 // world_size, **ranks) as loader:
                    for step, batch in enumerate(loader):
                        if rank == 0:
                            steps.append([])
                        pairs = zip(batch.positions.tolist(), clip_hashes(batch), strict=True)
                        steps[step].extend(pairs)
        return steps

    alone = order(1)
    flat = [position for step in alone for position, _ in step]
    assert flat == list(range(len(flat)))
    assert len(alone) > 5
    for world_size in (2, 3, 8):
        assert order(world_size) == alone
