"""On a GPU: batches there are the host's, arrays past the host too, and nothing waits."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dstream
from dstream import Clips
from dstream.catalog import Catalog
from dstream.store.opening import open_store
from dstream_recipes.arrays import RECIPE
from ingest_made import place
from made_video import make_video

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch() -> Any:
    return import_module("torch")


@pytest.fixture
def clips(tmp_path: Path) -> Clips:
    for seed in range(3):
        make_video(tmp_path / f"{seed}.mp4", frames=96, seed=seed)
    return dstream.clips(tmp_path, frames=4, stride=1, seed=2)


def test_batches_are_the_hosts_also_when_they_are_kept(clips: Clips) -> None:
    with clips.loader(4) as loader:
        want = [batch.video.clone() for batch in loader]
    with clips.loader(4, device="cuda") as loader:
        kept = [batch.video for batch in loader]
        assert loader.report().fallbacks["device_ring_full"] > 0
    with clips.loader(4, device="cuda") as loader:
        passing = [batch.video.cpu() for batch in loader]
    for one, other, host in zip(kept, passing, want, strict=True):
        assert one.is_cuda
        assert (one.cpu() == host).all()
        assert (other == host).all()


def test_the_training_stream_is_never_synchronised(clips: Clips, torch: Any) -> None:
    with clips.loader(4, device="cuda", epochs=2) as loader:
        next(loader)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in loader:
                batch.video.float().mul_(2)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_busy_stream_never_sees_the_next_batch(clips: Clips, torch: Any) -> None:
    with clips.loader(4) as loader:
        want = [int(batch.video.long().sum()) for batch in loader]
    sums: list[Any] = []
    with clips.loader(4, device="cuda") as loader:
        for batch in loader:
            torch.cuda._sleep(20_000_000)  # the read is queued behind it, and the batch dropped
            sums.append(batch.video.long().sum())
            del batch
    assert [int(total) for total in sums] == want


def test_batches_leave_by_dlpack(clips: Clips, torch: Any) -> None:
    with clips.loader(4, device="cuda") as loader:
        batch = next(loader)
        again = torch.from_dlpack(batch.video)
        assert again.data_ptr() == batch.video.data_ptr()


def test_arrays_past_the_host_are_the_hosts(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        np.save(source / f"{number}.npy", rng.standard_normal((64, 16, 33, 8)).astype("<f4"))
    place(tmp_path / "repo", source).ingest("latents", RECIPE)
    clips = dstream.open(tmp_path / "repo").clips("latents", frames=8, stride=1, seed=1)
    with clips.loader(4) as host, clips.loader(4, device="cuda", direct=True) as device:
        for want, got in zip(host, device, strict=True):
            assert got.video.is_cuda
            assert (got.video.cpu() == want.video).all()
        report = device.report()
    told = {"gds_compat", "gds_small"} & set(report.fallbacks)
    assert report.gds_reads or told, report.fallbacks


def test_a_checkpoint_past_the_host_is_the_one_that_was_saved(tmp_path: Path, torch: Any) -> None:
    state: Any = import_module("dstream.checkpoint.state")
    saved = {"w": torch.randn(2048, 700), "t": torch.randn(900, 1024).to(torch.bfloat16).t()}
    catalog = Catalog.create(open_store(tmp_path / "repo"), exist_ok=True)
    state.save(saved, catalog, "model", step=1)
    target = {name: torch.zeros_like(value, device="cuda") for name, value in saved.items()}
    loaded = state.load(target, catalog, "model", direct="cuda")
    assert all(torch.equal(target[name].cpu(), value) for name, value in saved.items())
    assert sum(loaded.device_reads.values()) == 2, loaded.device_reads
