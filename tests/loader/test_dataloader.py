"""Random access by the workers of torch's DataLoader, however they are started."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dstream
from dstream.loader import collate
from dstream.store.opening import open_store
from loader_data import fill, new_url, publish, videos


def repository(folder: Path) -> str:
    (folder / "source").mkdir()
    fill(open_store(folder / "source"), videos(folder / "made", 2, frames=48))
    publish(str(folder / "repo"), str(folder / "source"), packed=False)
    return str(folder / "repo")


def same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def test_what_is_pickled_is_opened_anew(tmp_path: Path) -> None:
    repo = dstream.open(repository(tmp_path))
    clips = repo.clips("d", frames=4, array="numpy")
    expected = clips[3]
    again: dstream.Clips = pickle.loads(pickle.dumps(clips))
    assert len(again) == len(clips)
    assert again.fingerprint == clips.fingerprint
    assert again.meter is not clips.meter
    assert not again.meter.snapshot().requests
    assert same(again[3].video, expected.video)
    assert again.meter.snapshot().total("get").count >= 1
    with clips.loader(2) as one, again.loader(2) as other:
        assert [batch.keys for batch in one] == [batch.keys for batch in other]
        assert other.report().clips == len(clips)
    other_repo: dstream.Repo = pickle.loads(pickle.dumps(repo))
    assert other_repo.names() == ["d"]
    assert same(other_repo.clips("d", frames=4, array="numpy")[3].video, expected.video)


def test_a_repository_at_a_root_stays_there(tmp_path: Path) -> None:
    url = repository(tmp_path)
    frozen = dstream.open(url).at(1)
    again = pickle.loads(pickle.dumps(frozen))
    publish(url, str(tmp_path / "source"), packed=False, name="later")
    assert again.names() == pickle.loads(pickle.dumps(frozen)).names() == ["d"]
    assert dstream.open(url).names() == ["d", "later"]


def test_raw_clips_pickle_after_use(tmp_path: Path) -> None:
    fill(open_store(tmp_path), videos(tmp_path / ".made", 2, frames=48) | {"x.mp4": b"no" * 50})
    clips = dstream.clips(tmp_path, frames=4, array="numpy")
    with clips.loader(2, on_error="skip") as loader:
        list(loader)
    again = pickle.loads(pickle.dumps(clips))
    assert same(again["v01.mp4"].video, clips["v01.mp4"].video)


@pytest.mark.parametrize("start", ["spawn", "forkserver", "fork"])
def test_a_dataloader_gives_the_same_batches(tmp_path: Path, start: str) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    clips = dstream.open(repository(tmp_path)).clips("d", frames=4)
    expected = [collate([clips[i], clips[i + 1]]) for i in range(0, 4, 2)]
    loader = torch_data.DataLoader(
        torch_data.Subset(clips, range(4)),
        batch_size=2,
        collate_fn=dstream.collate,
        num_workers=2,
        multiprocessing_context=start,
    )
    batches = list(loader)
    assert len(batches) == 2
    for batch, like in zip(batches, expected, strict=True):
        assert isinstance(batch, dstream.Batch)
        assert batch.keys == like.keys
        assert batch.slots.tolist() == like.slots.tolist()
        assert batch.positions.tolist() == [-1, -1]
        assert same(batch.video, like.video)
        assert same(batch.pts_s, like.pts_s)


def test_a_loader_is_no_dataset(tmp_path: Path) -> None:
    fill(open_store(tmp_path), videos(tmp_path / ".made", 1, frames=48))
    clips = dstream.clips(tmp_path, frames=4)
    with clips.loader(1) as loader:
        with pytest.raises(TypeError, match=r"collate_fn=dstream\.collate"):
            loader[0]
        with pytest.raises(TypeError, match=r"collate_fn=dstream\.collate"):
            pickle.dumps(loader)
        torch_data = pytest.importorskip("torch.utils.data")
        with pytest.raises(TypeError, match=r"threads of its own"):
            next(iter(torch_data.DataLoader(loader)))


def test_a_collated_batch_is_that_of_the_loader(tmp_path: Path) -> None:
    source = new_url()
    fill(open_store(source), videos(tmp_path, 2, frames=48))
    publish(url := new_url(), source, packed=True)
    for array in ("numpy", None):
        clips = dstream.open(url).clips("d", frames=4, array=array)
        with clips.loader(2, shuffle=False) as loader:
            for batch in loader:
                made = dstream.collate([clips[int(slot)] for slot in batch.slots])
                assert type(made.video) is type(batch.video)
                assert (made.keys, made.size) == (batch.keys, batch.size)
                assert made.slots.tolist() == batch.slots.tolist()
                assert made.fps.tolist() == batch.fps.tolist()
                assert made.start_s.tolist() == batch.start_s.tolist()
                assert same(made.video, batch.video)


def clip(**changes: Any) -> dstream.Clip:
    facts = {
        "video": np.zeros((2, 3, 4, 6), dtype=np.uint8), "key": "a", "start_s": 0.0,
        "pts_s": np.zeros(2), "fps": 25.0, "frame_index": None,
    }  # fmt: skip
    return dstream.Clip(**{**facts, **changes})


def test_clips_that_do_not_fit_are_refused() -> None:
    assert len(dstream.collate([clip(), clip()])) == 2
    assert dstream.collate([clip()]).slots.tolist() == [-1]
    with pytest.raises(dstream.InvalidInputError, match="resize="):
        dstream.collate([clip(), clip(key="b", video=np.zeros((2, 3, 4, 8), dtype=np.uint8))])
    with pytest.raises(dstream.InvalidInputError, match="'steer'"):
        dstream.collate([clip(side={"steer": np.zeros(2)}), clip()])
    with pytest.raises(dstream.InvalidInputError, match="no clip"):
        dstream.collate([])
    batch = dstream.collate([clip(side={"steer": np.ones(2)})] * 3)
    assert batch.side["steer"].shape == (3, 2)


def test_a_batch_goes_to_a_device() -> None:
    torch = pytest.importorskip("torch")
    names = np.array(["x", "y"], dtype=object)
    batch = dstream.collate([clip(side={"steer": np.ones(2), "name": names})] * 3)
    moved = batch.to("cpu", non_blocking=True)
    assert isinstance(moved.video, torch.Tensor)
    assert isinstance(moved.side["steer"], torch.Tensor)
    assert isinstance(moved.side["name"], np.ndarray)
    assert moved.keys == batch.keys
    assert same(moved.video, batch.video)
    assert moved.to("cpu").video is moved.video
    assert moved.to("meta").video.device.type == "meta"
