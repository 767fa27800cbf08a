"""Rows read past the host: the same values, by a stand-in for CuFile; choices as tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dstream
from cufile_stand_in import StandIn
from dstream import Clips
from dstream.cache.cache import ExtentCache
from dstream.errors import InvalidInputError, NotFoundError, ShortReadError, StorageError
from dstream.loader.direct import DirectRows, refusal
from dstream.loader.loader import Loader
from dstream.loader.settings import LoaderSettings
from dstream.loader.steps import Ranks
from dstream.measure import Meter
from dstream.media.row_form import RowForm
from dstream.store.device_read import DeviceReader, Support, cover, probe_kvikio, reason_of
from dstream_recipes.arrays import RECIPE
from ingest_made import place

GDS, COMPAT = Support(None, False, 16384), Support(None, True, 16384)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
def test_a_cover_is_blocks_around_the_range(start: int, size: int, rest: int) -> None:
    stop, file_bytes = start + size, start + size + rest
    blocks = cover(start, stop, file_bytes)
    assert blocks.start_byte % 4096 == 0
    assert blocks.stop_byte % 4096 == 0 or blocks.stop_byte == file_bytes
    assert blocks.start_byte + blocks.lead_bytes == start
    assert 0 <= blocks.lead_bytes < 4096
    assert stop <= blocks.stop_byte < stop + 4096


@pytest.mark.parametrize(
    ("support", "size_bytes", "reason"),
    [
        (Support("no_gpu"), 1 << 20, "no_gpu"),
        (Support("no_kvikio"), 1 << 20, "no_kvikio"),
        (Support("kvikio_broken", False), 1 << 20, "kvikio_broken"),
        (COMPAT, 1 << 20, "gds_compat"),
        (COMPAT, 1, "gds_compat"),
        (GDS, 16383, "gds_small"),
        (GDS, 16384, "gds"),
    ],
)
def test_only_what_is_gds_is_called_so(support: Support, size_bytes: int, reason: str) -> None:
    assert reason_of(support, size_bytes) == reason


@pytest.mark.parametrize(
    ("form", "is_packed", "is_local", "is_cached", "why"),
    [
        (None, True, True, True, "no_array"),
        (RowForm("float32", (), big_endian=True), True, True, True, "big_endian"),
        (RowForm("float32", ()), False, False, True, None),
        (RowForm("float32", ()), True, False, False, "not_local"),
        (RowForm("float32", ()), False, True, False, "in_place"),
        (RowForm("float32", ()), True, True, False, None),
    ],
)
def test_which_clips_are_read_directly(
    form: RowForm | None, is_packed: bool, is_local: bool, is_cached: bool, why: str | None
) -> None:
    assert refusal(form, is_packed, is_local, is_cached) == why


def test_without_a_gpu_nothing_of_kvikio_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kvikio", None)
    assert probe_kvikio(has_gpu=False) == Support("no_gpu")


def test_a_kvikio_that_does_not_import_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvikio").mkdir()
    (tmp_path / "kvikio" / "__init__.py").write_text("raise RuntimeError('libcufile.so.0')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert probe_kvikio(has_gpu=True) == Support("kvikio_broken")


torch: Any = pytest.importorskip("torch")


def reader(support: Support, meter: Meter, opened: Callable[[Path], Any] = StandIn) -> DeviceReader:
    return DeviceReader("cpu", meter, support, opened)


@pytest.mark.parametrize("support", [Support("no_gpu"), COMPAT, GDS])
def test_all_ways_give_the_same_bytes(tmp_path: Path, support: Support) -> None:
    data = np.random.default_rng(1).integers(0, 256, 50_001, np.uint8)
    path = tmp_path / "file"
    path.write_bytes(data.tobytes())
    found = reader(support, Meter())
    for start, stop in ((0, 50_001), (1, 2), (4096, 8192), (4000, 45_000), (49_999, 50_001)):
        np.testing.assert_array_equal(found.read(path, start, stop).numpy(), data[start:stop])
    with pytest.raises(ShortReadError, match="expected 50002"):
        found.read(path, 0, 50_002)
    with pytest.raises(NotFoundError):
        found.read(tmp_path / "gone", 0, 1)
    with pytest.raises(StorageError):
        found.read(tmp_path, 0, 1)


def test_a_kvikio_that_fails_is_counted_and_the_host_reads(tmp_path: Path) -> None:
    def fails(path: Path) -> Any:
        raise RuntimeError("cuFileHandleRegister: 5030")

    (tmp_path / "file").write_bytes(b"abcd")
    meter = Meter()
    got = reader(GDS, meter, fails).read(tmp_path / "file", 1, 3)
    assert bytes(got.numpy()) == b"bc"
    assert meter.snapshot().event("fallback") == {"kvikio_failed": 1}


@pytest.fixture
def latents(tmp_path: Path) -> dict[str, Any]:
    """Two files in a local repository, and what is in them."""
    rng = np.random.default_rng(3)
    arrays = {"a.npy": rng.standard_normal((40, 2, 700)).astype("<f4")}
    arrays |= {"b.npy": rng.standard_normal((30, 2, 700)).astype("<f4")}
    for name, array in arrays.items():
        (tmp_path / "source").mkdir(exist_ok=True)
        np.save(tmp_path / "source" / name, array)
    place(tmp_path / "repo", tmp_path / "source").ingest("latents", RECIPE)
    return arrays


def loader_of(clips: Clips, direct: DirectRows, meter: Meter) -> Loader:
    made = clips.reader(direct=direct)
    return Loader(made, Ranks(4, 0, 1, "wrap", 1), LoaderSettings(workers=2, prefetch=2), epochs=1)


@pytest.mark.parametrize("stride", [1, 3])
def test_batches_are_those_of_the_host(
    tmp_path: Path, latents: dict[str, Any], stride: int
) -> None:
    clips = dstream.open(tmp_path / "repo").clips(
        "latents", frames=5, stride=stride, recipe=RECIPE, seed=1
    )
    meter = Meter()
    direct = DirectRows(reader(GDS, meter), meter)
    with clips.loader(4, workers=2) as host, loader_of(clips, direct, meter) as device:
        clips_given = 0
        for want, got in zip(host, device, strict=True):
            clips_given += len(got)
            assert got.keys == want.keys
            np.testing.assert_array_equal(got.pts_s, want.pts_s)
            assert torch.equal(got.video, want.video)
    counted = meter.snapshot()
    assert counted.event("fallback") == {}
    assert counted.sums["reads.gds"] == clips_given
    assert counted.sums["bytes.unverified"] > 0


def test_a_remote_repository_is_read_directly_once_it_is_cached(
    tmp_path: Path, latents: dict[str, Any]
) -> None:
    remote = place("memory://direct-latents", tmp_path / "source")
    remote.ingest("latents", RECIPE)
    opened = dstream.open("memory://direct-latents", cache=tmp_path / "cache", cache_bytes=1 << 30)
    clips = opened.clips("latents", frames=4, stride=1, recipe=RECIPE, seed=1)
    meter = Meter()
    direct = DirectRows(reader(COMPAT, meter), meter, clips.cache)
    with loader_of(clips, direct, meter) as first:
        before = [batch.video.clone() for batch in first]
    first_clips = meter.snapshot().event("fallback")
    assert "direct_not_local" in first_clips
    assert isinstance(clips.cache, ExtentCache)
    before_second = meter.snapshot()
    with loader_of(clips, direct, meter) as second:
        after = [batch.video for batch in second]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    second_clips = meter.snapshot().minus(before_second).event("fallback")
    assert set(second_clips) == {"gds_compat"}
    assert "reads.gds" not in meter.snapshot().sums


def test_a_file_that_goes_away_is_read_by_its_store(
    tmp_path: Path, latents: dict[str, Any]
) -> None:
    meter = Meter()

    def gone(path: Path) -> Any:
        raise FileNotFoundError(path)

    direct = DirectRows(reader(GDS, meter, gone), meter)
    clips = dstream.open(tmp_path / "repo").clips("latents", frames=4, stride=1, recipe=RECIPE)
    with clips.loader(4, workers=2) as host, loader_of(clips, direct, meter) as device:
        for want, got in zip(host, device, strict=True):
            assert torch.equal(torch.as_tensor(want.video), torch.as_tensor(got.video))
    assert set(meter.snapshot().event("fallback")) == {"direct_gone"}


def test_it_is_for_gpus_only(tmp_path: Path, latents: dict[str, Any]) -> None:
    clips = dstream.open(tmp_path / "repo").clips("latents", frames=4, stride=1, recipe=RECIPE)
    with pytest.raises(InvalidInputError, match="device='cuda'"):
        clips.loader(2, direct=True)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInputError, match="no CUDA device"):
            clips.loader(2, direct=True, device="cuda")
