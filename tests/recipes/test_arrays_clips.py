"""Arrays through the ordinary path: ingested, streamed, their values equal to the files'."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dstream
from dstream.errors import CorruptDataError, InvalidInputError
from dstream.ingest.settings import Layout
from dstream.media.arrays import ALIGN_BYTES
from dstream_recipes.arrays import RECIPE
from ingest_made import Place, content, fill, place

TYPES = ("?", "u1", "i1", "<u2", "<i4", ">i8", "<f2", "<f4", ">f8", "<c8")


def npy(array: NDArray[Any]) -> bytes:
    target = io.BytesIO()
    np.save(target, array)
    return target.getvalue()


def safetensors(tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    document, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        place = [len(data), len(data) + len(values)]
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": place}
        data += values
    header = json.dumps(document).encode()
    return len(header).to_bytes(8, "little") + header + data


def some_array(dtype: str, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    values = np.random.default_rng(seed).integers(0, 200, shape)
    return values.astype(dtype)


def made(folder: Path, files: dict[str, bytes], recipe: Any = RECIPE, **settings: Any) -> Place:
    fill(folder / "source", files)
    found = place(folder / "repo", folder / "source")
    found.ingest("arrays", recipe, **settings)
    return found


def opened(folder: Path, **options: Any) -> Any:
    options = {"frames": 4, "stride": 1, "recipe": RECIPE, "array": "numpy", **options}
    return dstream.open(folder / "repo").clips("arrays", **options)


@pytest.mark.parametrize("layout", ["packed", "in_place"])
def test_every_window_has_the_files_values(tmp_path: Path, layout: str) -> None:
    arrays = {
        f"a{number}.npy": some_array(dtype, shape, number)
        for number, (dtype, shape) in enumerate(
            (TYPES[at % len(TYPES)], shape)
            for at, shape in enumerate(
                shape for _ in range(4) for shape in ((9,), (40, 3, 5), (5, 2, 2, 1100))
            )
        )
    }
    made(tmp_path, {name: npy(array) for name, array in arrays.items()}, layout=Layout(layout))
    clips = opened(tmp_path)
    for name, array in arrays.items():
        for start in (0, 1, len(array) - 4):
            clip = clips.clip(name, start_s=start)
            assert clip.video.dtype == array.dtype.newbyteorder("=")
            np.testing.assert_array_equal(clip.video, array[start : start + 4])
            assert clip.frame_index.tolist() == list(range(start, start + 4))


def test_whole_arrays_of_any_rank(tmp_path: Path) -> None:
    arrays = {"n.npy": np.array(7.5), "m.npy": some_array("<f4", (3, 5)).reshape(3, 5)}
    recipe = RECIPE.configured({"rows": "whole"})
    made(tmp_path, {name: npy(array) for name, array in arrays.items()}, recipe)
    clips = opened(tmp_path, frames=1, recipe=recipe)
    for name, array in arrays.items():
        np.testing.assert_array_equal(clips.clip(name).video, array[None])


def test_a_loader_gives_each_row_once_and_resumes(tmp_path: Path) -> None:
    array = some_array("<f4", (64, 6))
    made(tmp_path, {"a.npy": npy(array), "b.npy": npy(array + 1)})
    seen: list[Any] = []
    with opened(tmp_path, seed=3).loader(4, workers=2) as loader:
        for batch in loader:
            seen.append((batch.keys, batch.video.copy()))
            if len(seen) == 3:
                state = loader.state_dict()
    with opened(tmp_path, seed=3).loader(4, workers=2) as again:
        again.load_state_dict(state)
        rest = [(batch.keys, batch.video.copy()) for batch in again]
    assert len(seen) == 8
    assert [keys for keys, _ in rest] == [keys for keys, _ in seen[3:]]
    for (_, one), (_, other) in zip(rest, seen[3:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_window_reads_its_blocks_and_no_more(tmp_path: Path) -> None:
    made(tmp_path, {"a.npy": npy(some_array("<f4", (100, 1024)))})  # a block a row
    clips = opened(tmp_path)
    before = clips.meter.snapshot()
    clips.clip("a.npy", start_s=50)
    used = clips.meter.snapshot().minus(before).sums
    assert used["bytes.gops"] == 4 * 4096


def test_tensors_are_streams_and_types_that_numpy_lacks_are_torchs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    latents = torch.arange(6 * 8, dtype=torch.float32).reshape(6, 8).to(torch.bfloat16)
    scales = torch.arange(12, dtype=torch.float32).to(torch.float8_e4m3fn)
    files = {
        "t.safetensors": safetensors(
            {
                "latents": ("BF16", (6, 8), latents.view(torch.uint8).numpy().tobytes()),
                "scales": ("F8_E4M3", (12,), scales.view(torch.uint8).numpy().tobytes()),
            }
        )
    }
    made(tmp_path, files)
    for stream, tensor in (("latents", latents), ("scales", scales)):
        clips = opened(tmp_path, stream=stream, array="torch", frames=3)
        got = clips.clip("t.safetensors", start_s=2).video
        assert got.dtype == tensor.dtype
        assert torch.equal(got.view(torch.uint8), tensor[2:5].view(torch.uint8))
        with clips.loader(2, workers=1) as loader:
            batch = next(iter(loader))
        assert batch.video.dtype == tensor.dtype
    bits = opened(tmp_path, stream="latents").clip("t.safetensors").video
    assert bits.dtype == np.uint16


def test_files_are_packed_aligned_and_tar_reads_them(tmp_path: Path) -> None:
    files = {
        f"{'d/' * n}{'x' * (n * 30)}a{n}.npy": npy(some_array("u1", (n, 7))) for n in range(1, 9)
    }
    files["d/a.json"] = b"{}"
    found = made(tmp_path, files)
    rows = content(found.catalog, "arrays@v1").files
    assert {row["name"] for row in rows} == set(files) - {"d/a.json"}
    assert all(row["offset_bytes"] % ALIGN_BYTES == 0 for row in rows)
    (shard,) = found.objects(".tar")
    with tarfile.open(fileobj=io.BytesIO(found.repository.get(shard).data)) as archive:
        inside = {info.name: archive.extractfile(info) for info in archive}
        assert {name: file.read() for name, file in inside.items() if file} == {
            row["name"]: files[row["name"]] for row in rows
        }


def test_rotten_rows_are_an_error(tmp_path: Path) -> None:
    found = made(tmp_path, {"a.npy": npy(some_array("<f4", (8, 2000)))})
    shard = tmp_path / "repo" / found.objects(".tar")[0]
    row = content(found.catalog, "arrays@v1").files[0]
    data = bytearray(shard.read_bytes())
    data[row["offset_bytes"] + 128 + 5 * 8000 + 17] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    clips = opened(tmp_path)
    clips.clip("a.npy", start_s=0)
    with pytest.raises(CorruptDataError, match=r"a\.npy"):
        clips.clip("a.npy", start_s=4)


def test_what_cannot_be_streamed_is_quarantined(tmp_path: Path) -> None:
    objects = io.BytesIO()
    np.save(objects, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    found = made(
        tmp_path,
        {
            "good.npy": npy(some_array("<f4", (8,))),
            "objects.npy": objects.getvalue(),
            "fortran.npy": npy(np.asfortranarray(some_array("<f4", (3, 4)))),
            "cut.npy": npy(some_array("<f4", (8,)))[:-1],
            "nothing.npy": npy(np.zeros((0, 3))),
            "empty.npy": b"",
        },
    )
    rows = content(found.catalog, "arrays@v1").quarantine
    assert {row["name"]: row["reason"] for row in rows} == {
        "objects.npy": "bad-array",
        "fortran.npy": "bad-array",
        "cut.npy": "truncated",
        "nothing.npy": "no-frames",
        "empty.npy": "empty",
    }
    assert "unpickle" in next(row["detail"] for row in rows if row["name"] == "objects.npy")


def test_rows_of_different_forms_share_no_batch(tmp_path: Path) -> None:
    made(tmp_path, {"a.npy": npy(np.zeros((8, 2), "f4")), "b.npy": npy(np.zeros((8, 3), "f4"))})
    with pytest.raises(InvalidInputError, match=r"float32\[2\].*float32\[3\]"):
        opened(tmp_path).loader(2, workers=1)
    chosen = opened(tmp_path, where="pix_fmt = 'float32[3]'")
    assert chosen.keys() == ["b.npy"]
    with pytest.raises(InvalidInputError, match="resize and crop are for pictures"):
        opened(tmp_path, resize=8).clip("a.npy")


def test_orders_of_bytes_share_a_batch(tmp_path: Path) -> None:
    array = some_array("<f4", (4, 3))
    made(tmp_path, {"a.npy": npy(array), "b.npy": npy(array.astype(">f4"))})
    with opened(tmp_path).loader(2) as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch.video, np.stack([array, array]))


def test_a_folder_without_arrays_says_what_is_taken(tmp_path: Path) -> None:
    fill(tmp_path / "source", {"a.txt": b"x"})
    found = place(tmp_path / "repo", tmp_path / "source")
    with pytest.raises(dstream.NotFoundError, match=r"\.npy, \.safetensors"):
        found.ingest("arrays", RECIPE)
