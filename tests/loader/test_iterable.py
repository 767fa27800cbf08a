"""Whole batches through torch's DataLoader: the plan's order, whatever the workers."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dstream
from dstream.errors import InvalidInputError
from dstream.loader.cursor import Cursor
from dstream.loader.plan import Order
from dstream.loader.steps import Ranks
from dstream.store.opening import open_store
from loader_data import batch_hash, fill, publish, videos

data: Any = pytest.importorskip("torch.utils.data", exc_type=ImportError)
HANG_S = 120
multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.utils.data"])
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than CPUs
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
SIZES = [(10, 2, 2), (7, 3, 1), (3, 8, 1), (12, 4, 3)]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("iterable")
    (folder / "source").mkdir()
    made = videos(folder / "made", 2, frames=36, size=(64, 64))
    fill(open_store(folder / "source"), made)
    publish(str(folder / "repo"), str(folder / "source"), packed=True)
    return str(folder / "repo")


def clips_of(repo: str) -> dstream.Clips:
    return dstream.open(repo).clips("d", frames=4)  # 18 slots


def dataset_of(repo: str, batch_size: int = 2, **options: Any) -> Any:
    return clips_of(repo).iterable(batch_size, workers=1, fetchers=2, **options)


def through(dataset: Any, workers: int, start: str | None = None, **options: Any) -> Any:
    if workers:
        options |= {"timeout": HANG_S, "multiprocessing_context": start or "fork"}
    return data.DataLoader(dataset, batch_size=None, num_workers=workers, **options)


def expected_of(repo: str, epochs: int = 1, **options: Any) -> list[str]:
    with clips_of(repo).loader(2, epochs=epochs, **options) as loader:
        return [batch_hash(batch) for batch in loader]


@pytest.mark.parametrize(
    ("start", "workers", "read_before"),
    [
        ("fork", 0, False), ("fork", 0, True), ("fork", 1, False), ("fork", 1, True),
        ("fork", 4, False), ("fork", 4, True), ("forkserver", 1, False), ("forkserver", 4, True),
        ("spawn", 1, False), ("spawn", 4, True),
    ],
)  # fmt: skip
def test_every_start_method_gives_the_plans_order(
    repo: str, start: str, workers: int, read_before: bool
) -> None:
    expected = expected_of(repo)
    clips = clips_of(repo)
    if read_before:
        clips[0]
        running = clips.loader(1, epochs=None)
        next(running)  # its threads are at work when the workers are made
    dataset = clips.iterable(2, workers=1, fetchers=2)
    loader = through(dataset, workers, start)
    assert len(loader) == 9
    got = list(loader)
    assert [batch_hash(batch) for batch in got] == expected
    assert sorted(p for batch in got for p in batch.positions.tolist()) == list(range(18))
    if read_before:
        running.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_are_set_and_seen_by_workers_that_live_on(repo: str, persistent: bool) -> None:
    expected = expected_of(repo, 3, last="drop")
    dataset = dataset_of(repo, last="drop")
    loader = through(dataset, 2, persistent_workers=persistent)
    got = []
    for epoch in (0, 1, 2):
        dataset.set_epoch(epoch)
        got += [batch_hash(batch) for batch in loader]
    assert got == expected
    dataset.set_epoch(1)
    for batch in loader:
        assert batch_hash(batch) == expected[9]
        break  # left early
    dataset.set_epoch(2)
    assert [batch_hash(batch) for batch in loader] == expected[18:]
    with pytest.raises(InvalidInputError, match="negative"):
        dataset.set_epoch(-1)


@pytest.mark.parametrize(
    ("total", "batch", "world", "last"),
    [(*size, last) for size in SIZES for last in ("wrap", "short")]
    + [(*size, "drop") for size in SIZES if size[1] * size[2] <= size[0]],
)
def test_set_epochs_are_the_loops_of_a_loader(
    total: int, batch: int, world: int, last: Any
) -> None:
    order, ranks = Order(total, 0), Ranks(batch, 0, world, last)
    cursor = Cursor()
    for epoch in range(6):
        at = Cursor.at_epoch(epoch, total, ranks)
        assert list(at.ahead(total, order, ranks, 1)) == list(cursor.ahead(total, order, ranks, 1))
        for step in cursor.ahead(total, order, ranks, 1):
            cursor = cursor.after(step)
        cursor = cursor.at_loop_end(total, 1).next_loop(total)


def test_ranks_and_workers_share_every_step(repo: str) -> None:
    got: dict[int, int] = {}
    for rank in range(2):
        dataset = dataset_of(repo, 2, rank=rank, world_size=2, last="short", epochs=2)
        for batch in through(dataset, 3):
            for position, slot in zip(batch.positions.tolist(), batch.slots.tolist(), strict=True):
                assert position not in got
                got[position] = slot
    with clips_of(repo).loader(1, epochs=2) as loader:
        assert got == {int(b.positions[0]): int(b.slots[0]) for b in loader}


def test_ranks_are_found_where_the_dataset_is_made(
    repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = dataset_of(repo, 1)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    again = pickle.loads(pickle.dumps(dataset))
    assert [batch.positions.tolist() for batch in again][:3] == [[1], [3], [5]]


def test_what_cannot_be_is_refused(repo: str) -> None:
    with pytest.raises(InvalidInputError, match="leave the GPU alone"):
        dataset_of(repo, device="cuda")
    with pytest.raises(InvalidInputError, match="leave the GPU alone"):
        dataset_of(repo, decoder="auto")
    with pytest.raises(InvalidInputError, match="batch_size"):
        dataset_of(repo, 0)
    with pytest.raises(TypeError, match="no length"):
        len(dataset_of(repo, epochs=None))


@pytest.fixture
def stateful() -> Callable[..., Any]:
    module: Any = pytest.importorskip("torchdata.stateful_dataloader", exc_type=ImportError)

    def make(dataset: Any, workers: int, **options: Any) -> Any:
        options = {"batch_size": None, "num_workers": workers, **options}
        if workers:
            options = {"timeout": HANG_S, "multiprocessing_context": "fork", **options}
        return module.StatefulDataLoader(dataset, **options)

    return make


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_stateful_dataloader_goes_on_where_it_was(
    repo: str, workers: int, stateful: Callable[..., Any]
) -> None:
    expected = expected_of(repo, 2)
    for taken in (0, 1, 5, 18):
        loader = stateful(dataset_of(repo, epochs=2), workers)
        batches = iter(loader)
        got = [batch_hash(next(batches)) for _ in range(taken)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        assert got == expected[:taken]
        del batches, loader
        again = stateful(dataset_of(repo, epochs=2), workers)
        again.load_state_dict(state)
        assert [batch_hash(batch) for batch in again] == expected[taken:]


@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_a_stateful_dataloader_goes_on_in_workers_that_are_not_forked(
    repo: str, start: str, stateful: Callable[..., Any]
) -> None:
    expected = expected_of(repo)
    loader = stateful(dataset_of(repo), 1, multiprocessing_context=start)
    batches = iter(loader)
    assert [batch_hash(next(batches)) for _ in range(4)] == expected[:4]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    del batches, loader
    again = stateful(dataset_of(repo), 1, multiprocessing_context=start)
    again.load_state_dict(state)
    assert [batch_hash(batch) for batch in again] == expected[4:]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_map_style_is_resumed_by_torchdata(
    repo: str, workers: int, stateful: Callable[..., Any]
) -> None:
    def shuffled() -> Any:
        options = {"batch_size": 3, "shuffle": True, "collate_fn": dstream.collate}
        generator = torch.Generator().manual_seed(5)
        return stateful(clips_of(repo), workers, generator=generator, **options)

    torch: Any = pytest.importorskip("torch")
    expected = [batch.slots.tolist() for batch in shuffled()]
    assert sorted(slot for slots in expected for slot in slots) == list(range(18))
    loader = shuffled()
    batches = iter(loader)
    assert [next(batches).slots.tolist() for _ in range(2)] == expected[:2]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    del batches, loader
    again = shuffled()
    again.load_state_dict(state)
    assert [batch.slots.tolist() for batch in again] == expected[2:]


def test_after_the_end_the_next_epoch_follows(repo: str, stateful: Callable[..., Any]) -> None:
    expected = expected_of(repo, 2)
    loader = stateful(dataset_of(repo), 2)
    assert [batch_hash(batch) for batch in loader] == expected[:9]
    state = loader.state_dict()
    dataset = dataset_of(repo)
    again = stateful(dataset, 2)
    again.load_state_dict(state)
    dataset.set_epoch(1)
    assert [batch_hash(batch) for batch in again] == expected[9:]


def test_persistent_workers_are_restored(repo: str, stateful: Callable[..., Any]) -> None:
    expected = expected_of(repo, 2)
    dataset = dataset_of(repo)
    loader = stateful(dataset, 2, persistent_workers=True)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    del batches, loader
    dataset = dataset_of(repo)
    again = stateful(dataset, 2, persistent_workers=True)
    again.load_state_dict(state)
    assert [batch_hash(batch) for batch in again] == expected[4:9]
    dataset.set_epoch(1)
    assert [batch_hash(batch) for batch in again] == expected[9:]


def test_another_number_of_workers_is_refused(repo: str, stateful: Callable[..., Any]) -> None:
    loader = stateful(dataset_of(repo), 2)
    next(iter(loader))
    state = loader.state_dict()
    assert "position" in json.dumps(state, default=str)
    other = stateful(dataset_of(repo), 3)
    other.load_state_dict(state)
    with pytest.raises((AssertionError, InvalidInputError)):
        next(iter(other))


def test_another_seed_is_refused(repo: str, stateful: Callable[..., Any]) -> None:
    loader = stateful(dataset_of(repo), 1)
    next(iter(loader))
    state = loader.state_dict()
    clips = dstream.open(repo).clips("d", frames=4, seed=1)
    other = stateful(clips.iterable(2), 1)
    other.load_state_dict(state)
    with pytest.raises(InvalidInputError, match="seed was 0, here it is 1"):
        next(iter(other))


def test_the_map_style_works_as_well(repo: str) -> None:
    clips = clips_of(repo)
    expected = [clips[slot].key for slot in range(18)]
    for workers in (0, 1, 4):
        options = {"multiprocessing_context": "fork", "timeout": HANG_S} if workers else {}
        loader = data.DataLoader(
            clips, batch_size=3, num_workers=workers, collate_fn=dstream.collate, **options
        )
        assert [key for batch in loader for key in batch.keys] == expected


def test_one_clip_is_enough(tmp_path: Path) -> None:
    videos(tmp_path, 1, frames=8, size=(64, 64))
    dataset = dstream.clips(tmp_path, frames=4).iterable(1, workers=1)
    assert [len(batch) for batch in through(dataset, 3)] == [1]
