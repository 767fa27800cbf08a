from __future__ import annotations

import json
import os
import pickle
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from catalog_made import create_catalog
from checkpoint_made import make_folder
from dstream.catalog import Catalog
from dstream.checkpoint import fetch, publish
from dstream.checkpoint.repository import checkpoint_of
from dstream.errors import (
    CorruptDataError,
    DstreamError,
    FormatVersionError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
)
from dstream.store.memory import MemoryStore
from dstream.store.opening import open_store

torch: Any = pytest.importorskip("torch", exc_type=ImportError)


from dstream.checkpoint import StorageReader, StorageWriter, load, save  # noqa: E402
from dstream.checkpoint.dcp_files import groups  # noqa: E402
from dstream.checkpoint.dcp_metadata import TWIN_NAME, Piece, decode_twin  # noqa: E402
from dstream.checkpoint.dcp_reader import coalesced  # noqa: E402
from dstream.checkpoint.torch_api import CheckpointException, dcp  # noqa: E402
from dstream.format.refs import ObjectRef  # noqa: E402


class Evil:
    """What a pickle can do."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("EVIL",))


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def catalog(memory: MemoryStore) -> Catalog:
    return create_catalog(memory)


def some_state(salt: float = 1.0) -> dict[str, Any]:
    large = torch.arange(600.0).reshape(20, 30) * salt
    return {
        "w": large,
        "view": large[:, 3],
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(salt, dtype=torch.float64),
        "flags": torch.tensor([True, False]),
        "half": torch.full((7,), salt, dtype=torch.bfloat16),
        "nested": {"list": [1, 2.5, "x", None], "deep": {"t": torch.full((2, 2), salt)}},
        "epoch": 3,
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other)) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other)


def test_state_and_loader_position_come_back_together(catalog: Catalog) -> None:
    made = save(
        some_state(2.0), catalog, "run", step=7, loader_state={"epoch": 1, "batch": 40},
        attrs={"loss": 0.5}, promote="best",
    )  # fmt: skip
    assert (made.label, made.step, made.attrs["loss"]) == ("run@v1", 7, 0.5)
    into = some_state(0.0) | {"epoch": 0}
    found = load(into, catalog, "run@best")
    assert same(into, some_state(2.0))
    assert found.generation == made
    assert found.loader_state == {"epoch": 1, "batch": 40}
    save(some_state(), catalog, "run", step=8)
    assert load(into, catalog, "run").loader_state is None


def test_a_url_will_do(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "repo")) as store:
        Catalog.create(store)
    url = str(tmp_path / "repo")
    save(some_state(2.0), url, "run", step=1)
    into = some_state(0.0)
    load(into, url, "run")
    assert same(into, some_state(2.0))
    with pytest.raises(NotFoundError):
        load(into, url, "other")


def test_a_fetched_save_is_a_folder_of_torch(catalog: Catalog, tmp_path: Path) -> None:
    save(some_state(2.0), catalog, "run", step=7)
    done = fetch(catalog, "run", tmp_path, layout="torchtitan")
    assert (done.path / ".metadata").exists()
    into = some_state(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(into, storage_reader=dcp.FileSystemReader(str(done.path)))
    assert same(into, some_state(2.0))


def test_many_small_files_are_one_checkpoint(catalog: Catalog) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(
            some_state(3.0), storage_writer=StorageWriter(catalog, "run", file_bytes=100, step=1)
        )
    assert len(checkpoint_of(catalog, catalog.resolve("run")).files) >= 5
    into = some_state(0.0)
    load(into, catalog, "run")
    assert same(into, some_state(3.0))


def test_a_writer_used_twice_takes_the_step_from_the_checkpoint_id(catalog: Catalog) -> None:
    writer = StorageWriter(catalog, "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in (10, 20):
            dcp.save(some_state(step), checkpoint_id=str(step), storage_writer=writer)
            assert writer.generation is not None
            assert writer.generation.step == step
        with pytest.raises(InvalidInputError, match="no step"):
            dcp.save(some_state(), checkpoint_id="s3://other", storage_writer=writer)
        with pytest.raises(InvalidInputError, match="use_collectives"):
            dcp.save(some_state(), storage_writer=writer, use_collectives=False)
    assert [g.step for g in catalog.generations("run")] == [10, 20]


def test_a_key_makes_a_save_safe_to_repeat(catalog: Catalog) -> None:
    first = save(some_state(), catalog, "run", step=1, idempotency_key="job/1")
    assert save(some_state(), catalog, "run", step=1, idempotency_key="job/1") == first
    assert save(some_state(), catalog, "run", step=1).version == 2


def test_writers_and_readers_pickle(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "repo")) as store:
        catalog = Catalog.create(store)
        writer = pickle.loads(pickle.dumps(StorageWriter(catalog, "run", step=1)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(some_state(), storage_writer=writer)
        reader = pickle.loads(pickle.dumps(StorageReader(catalog, "run")))
        assert reader.generation.label == "run@v1"


def test_shapes_must_fit(catalog: Catalog) -> None:
    save({"w": torch.zeros(3)}, catalog, "run", step=1)
    with pytest.raises(DstreamError, match=r"mismatch|shape"):
        load({"w": torch.zeros(4)}, catalog, "run")
    with pytest.raises(DstreamError, match="Missing key"):
        load({"other": torch.zeros(3)}, catalog, "run")


# What a hostile repository can do. ---------------------------------------------------------


def test_pickled_objects_are_refused_unless_trusted(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save({"w": torch.zeros(2), "hook": Evil()}, catalog, "run", step=1)
    into = {"w": torch.ones(2), "hook": None}
    with pytest.raises(RefusedError, match="hook is a pickled object"):
        load(into, catalog, "run")
    assert not (tmp_path / "EVIL").exists()
    load(into, catalog, "run", allow_pickles=True)
    assert (tmp_path / "EVIL").exists()


def test_the_pickle_of_torch_is_never_read(
    memory: MemoryStore, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(some_state(2.0), catalog, "run", step=1)
    metadata = checkpoint_of(catalog, catalog.resolve("run")).file(".metadata")
    assert metadata is not None
    memory.put(metadata.object.key, pickle.dumps(Evil()))
    into = some_state(0.0)
    load(into, catalog, "run")
    assert same(into, some_state(2.0))
    assert not (tmp_path / "EVIL").exists()


@pytest.mark.parametrize("path", [TWIN_NAME, "__0_0.distcp"])
def test_damage_is_noticed(memory: MemoryStore, catalog: Catalog, path: str) -> None:
    save(some_state(2.0), catalog, "run", step=1)
    file = checkpoint_of(catalog, catalog.resolve("run")).file(path)
    assert file is not None
    data = bytearray(memory.get(file.object.key).data)
    for at in range(0, len(data), 64):
        data[at] ^= 1
    memory.put(file.object.key, bytes(data))
    with pytest.raises(CorruptDataError):
        load(some_state(0.0), catalog, "run")


def test_a_folder_without_the_json_is_told_to_be_fetched(catalog: Catalog, tmp_path: Path) -> None:
    publish(catalog, make_folder(tmp_path / "source"), "run")
    with pytest.raises(InvalidInputError, match="fetch it"):
        StorageReader(catalog, "run").read_metadata()


def twin(**changes: object) -> bytes:
    document: dict[str, object] = {
        "version": 1,
        "min_reader": 1,
        "paths": {"w": ["w"]},
        "state": {
            "w": {
                "dtype": "float32",
                "requires_grad": False,
                "memory_format": "contiguous",
                "size": [3],
                "chunks": [[[0], [3]]],
            }
        },
        "storage": [["w", [0], "__0_0.distcp", 0, 9, "0" * 16]],
    }
    return json.dumps(document | changes).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"state": {"w": {"dtype": "load"}}},
        {"state": {"w": {"dtype": "__class__", "size": [1]}}},
        {"state": []},
        {"storage": [["w", [-1], "f", 0, 9, ""]]},
        {"storage": [["w", [0], "f", -5, 9, ""]]},
        {"storage": [["w", [0], 7, 0, 9, ""]]},
        {"storage": [["w"]]},
        {"storage": 5},
        {"paths": {"w": [1.5]}},
        {"min_reader": "x"},
    ],
    ids=range(10),
)
def test_hostile_metadata_is_damage(changes: dict[str, object]) -> None:
    assert decode_twin(twin(), "t").state_dict_metadata["w"].size == torch.Size([3])
    with pytest.raises(CorruptDataError):
        decode_twin(twin(**changes), "t")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 100_000, b"\xff"])
def test_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_twin(data, "t")


def test_newer_metadata_is_refused() -> None:
    with pytest.raises(FormatVersionError):
        decode_twin(twin(min_reader=2), "t")


@pytest.mark.parametrize("path", ["nothing", "../x", "__0_0.distcp"])
def test_places_outside_the_checkpoint_are_refused(
    catalog: Catalog, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save({"w": torch.zeros(3)}, catalog, "run", step=1)
    reader = StorageReader(catalog, "run@v1")
    metadata = reader.read_metadata()
    for index, piece in metadata.storage_data.items():
        metadata.storage_data[index] = Piece(path, 1 << 40, piece.size_bytes, piece.xxh3)
    monkeypatch.setattr(reader, "read_metadata", lambda: metadata)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CheckpointException, match="there is nothing"):
            dcp.load({"w": torch.ones(3)}, storage_reader=reader)


def test_close_pieces_are_read_together() -> None:
    reference = ObjectRef("k", 100 << 20, "0" * 64)
    mib = 1 << 20
    places = [(0, mib), (mib, mib), (5 * mib, mib), (6 * mib, 40 * mib), (46 * mib, 10)]
    pieces = [(n, Piece("f", start, size, "")) for n, (start, size) in enumerate(places)]
    runs = list(coalesced(reference, list(reversed(pieces))))
    assert [(r.start_byte, r.stop_byte) for r in runs] == [
        (0, 2 * mib), (5 * mib, 6 * mib), (6 * mib, 46 * mib), (46 * mib, 46 * mib + 10)
    ]  # fmt: skip
    assert [item for run in runs for item, _ in run.items] == [0, 1, 2, 3, 4]


def test_no_items_make_no_files() -> None:
    assert list(groups([], 10)) == []


def test_errors_of_torch_are_ours_when_alone(catalog: Catalog) -> None:
    catalog.publish(catalog.begin_session(), "run", "dataset", b"x")
    with pytest.raises(DstreamError, match="is a dataset"):
        save(some_state(), catalog, "run", step=1)
