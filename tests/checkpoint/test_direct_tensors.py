"""Tensors of a checkpoint past the host, by a stand-in for CuFile: equal, or read by the host."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from cufile_stand_in import StandIn
from dstream.catalog import Catalog
from dstream.errors import InvalidInputError
from dstream.measure import Meter
from dstream.store.device_read import DeviceReader, Support
from dstream.store.opening import open_store

torch: Any = pytest.importorskip("torch")
direct: Any = pytest.importorskip("dstream.checkpoint.direct")
state: Any = pytest.importorskip("dstream.checkpoint.state")
dcp: Any = pytest.importorskip("torch.distributed.checkpoint")
StorageReader: Any = pytest.importorskip("dstream.checkpoint.dcp_reader").StorageReader


def place_of(saved: Any, tmp_path: Path, before: bytes = b"abc") -> tuple[Any, bytes]:
    target = io.BytesIO()
    torch.save(saved, target)
    path = tmp_path / "file"
    path.write_bytes(before + target.getvalue() + b"after")
    return direct.tensor_place(path, len(before), len(target.getvalue())), path.read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool"])
def test_the_place_of_a_tensor(tmp_path: Path, dtype: str) -> None:
    saved = torch.arange(60).reshape(3, 20).to(getattr(torch, dtype)).t()
    place, data = place_of(saved, tmp_path)
    raw = bytearray(data[place.start_byte : place.stop_byte])
    found = torch.frombuffer(raw, dtype=place.dtype).as_strided(place.shape, place.stride)
    assert (found.dtype, found.stride()) == (saved.dtype, saved.stride())
    assert torch.equal(found.float(), saved.float())


@pytest.mark.parametrize("saved", [{"a": 1}, torch.arange(10)[2:5], [torch.ones(2)]])
def test_what_is_no_tensor_of_its_own_has_none(tmp_path: Path, saved: Any) -> None:
    assert place_of(saved, tmp_path)[0] is None


def test_damaged_archives_have_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"PK\3\4" + bytes(5000))
    assert direct.tensor_place(tmp_path / "file", 0, 5004) is None


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_state_is_loaded_past_the_host(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    saved = {
        "large": torch.randn(1024, 600, generator=generator),
        "turned": torch.randn(700, 1024, generator=generator).to(torch.bfloat16).t(),
        "small": torch.randn(7, generator=generator),
        "step": 5,
    }
    catalog = Catalog.create(open_store(tmp_path))
    state.save(saved, catalog, "model", step=1)
    target = {
        name: torch.zeros_like(value) if hasattr(value, "shape") else 0
        for name, value in saved.items()
    }
    meter = Meter()
    reads = DeviceReader("cpu", meter, Support(None, False, 16384), StandIn)
    reader = StorageReader(catalog, "model@v1", direct=direct.DirectTensors(reads, tmp_path, meter))
    dcp.load(target, storage_reader=reader, no_dist=True)
    for name, value in saved.items():
        assert target[name] == 5 if name == "step" else torch.equal(target[name], value), name
    assert direct.device_reads(meter) == {"gds": 2, "direct_small": 1}
    assert meter.snapshot().sums["bytes.unverified"] == 1024 * 600 * 4 + 700 * 1024 * 2


def test_it_is_for_gpus_and_local_repositories(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        with pytest.raises(InvalidInputError, match="local file system"):
            direct.direct_tensors("cuda", "s3://bucket", Meter())
    else:
        with pytest.raises(InvalidInputError, match="no such CUDA device"):
            direct.direct_tensors("cuda", str(tmp_path), Meter())
