"""A loader's state: taken and restored anywhere, elastic, refused where it does not belong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dstream
from dstream.errors import FormatVersionError, InvalidInputError
from dstream.loader.state import write_state
from dstream.store.opening import open_store
from loader_data import batch_hash, fill, new_url, publish, videos

FRAMES = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = new_url()
    fill(open_store(url), videos(tmp_path_factory.mktemp("made"), 2, frames=48, size=(64, 64)))
    return url


@pytest.fixture(scope="module")
def repo(source: str) -> str:
    url = new_url()
    publish(url, source, packed=True)
    return url


def clips_of(repo: str, **options: Any) -> dstream.Clips:
    options = {"frames": FRAMES, "array": "numpy", **options}
    return dstream.open(repo).clips("d", **options)


def hashes(loader: dstream.Loader, count: int | None = None) -> list[str]:
    taken: list[str] = []
    while count is None or len(taken) < count:
        batch = next(loader, None)
        if batch is None:
            break
        taken.append(batch_hash(batch))
    return taken


def carried(state: dict[str, object]) -> dict[str, object]:
    """The state as a file would give it back."""
    text = json.dumps(state)
    assert len(text) < 1000
    result: dict[str, object] = json.loads(text)
    return result


@pytest.mark.parametrize("last", ["wrap", "drop", "short"])
def test_restored_at_every_batch_the_rest_is_the_same(repo: str, last: Any) -> None:
    clips = clips_of(repo)  # 24 slots
    options: dict[str, Any] = {"epochs": 2, "last": last}
    with clips.loader(7, **options) as loader:
        states = [loader.state_dict()]
        expected = []
        for batch in loader:
            expected.append(batch_hash(batch))
            states.append(loader.state_dict())
        states.append(loader.state_dict())
        following = hashes(iter(loader))
    assert following
    for taken, state in enumerate(states):
        with clips_of(repo).loader(7, workers=1, prefetch=5, fetchers=2, **options) as again:
            again.load_state_dict(carried(state))
            assert again.state_dict() == state
            # The last state is that behind the end, where the next loop is due.
            rest = expected[taken:] if taken <= len(expected) else following
            assert [batch_hash(batch) for batch in again] == rest
            if taken <= len(expected):
                assert [batch_hash(batch) for batch in again] == following


def test_what_is_prefetched_is_not_in_the_state(repo: str) -> None:
    with clips_of(repo).loader(2, prefetch=6) as loader:
        next(loader)
        while loader.report().clips_decoded < 6:
            pass
        state = loader.state_dict()
        rest = hashes(loader)
    assert state["position"] == 2
    with clips_of(repo).loader(2) as again:
        again.load_state_dict(state)
        assert hashes(again) == rest


def by_position(loaders: list[dstream.Loader], steps: int | None) -> Iterator[tuple[int, str]]:
    """Clips that all ranks deliver in some steps: of each step the positions in order."""
    while steps is None or steps > 0:
        batches = [next(loader, None) for loader in loaders]
        taken = [batch for batch in batches if batch is not None]
        if not taken:
            return
        yield from sorted(
            (position, f"{batch.keys[row]} {batch.pts_s[row].tolist()} {batch.slots[row]}")
            for batch in taken
            for row, position in enumerate(batch.positions.tolist())
        )
        steps = None if steps is None else steps - 1


@pytest.mark.parametrize("shuffle", ["global", "affine", None])
def test_resumed_on_other_world_and_batch_sizes(repo: str, shuffle: Any) -> None:
    with clips_of(repo).loader(1, epochs=3, shuffle=shuffle) as loader:
        expected = dict(by_position([loader], None))
    assert list(expected) == list(range(72))
    got: list[tuple[int, str]] = []
    state = None
    for world, batch, steps in [(2, 3, 3), (3, 1, 5), (1, 4, 1), (4, 2, 2), (8, 1, None)]:
        clips = clips_of(repo)
        loaders = [
            clips.loader(
                batch,
                rank=rank,
                world_size=world,
                epochs=3,
                shuffle=shuffle,
                workers=1,
                fetchers=2,
            )
            for rank in range(world)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(carried(state))
        got += by_position(loaders, steps)
        assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
    assert [position for position, _ in got] == list(range(len(got)))
    assert len(got) >= 72
    assert dict(got[:72]) == expected


def test_a_running_loader_can_be_put_elsewhere(repo: str) -> None:
    with clips_of(repo).loader(2, epochs=2) as loader:
        first = loader.state_dict()
        all_of_it = hashes(loader)
        loader.load_state_dict(first)
        assert hashes(loader, 3) == all_of_it[:3]
        loader.load_state_dict(first)
        assert [batch_hash(batch) for batch in loader] == all_of_it


def test_more_epochs_may_be_asked_for(repo: str) -> None:
    with clips_of(repo).loader(6, epochs=3) as loader:
        expected = hashes(loader)
    with clips_of(repo).loader(6, epochs=2) as loader:
        got = hashes(loader, 5)
        state = loader.state_dict()
    with clips_of(repo).loader(6, epochs=3) as loader:
        loader.load_state_dict(state)
        assert got + hashes(loader) == expected
    with clips_of(repo).loader(6, epochs=None) as loader:
        loader.load_state_dict(state)
        assert got + hashes(loader, 7) == expected


@pytest.mark.parametrize("last", ["wrap", "drop", "short"])
def test_who_counts_batches_gets_the_next_loop_as_well(repo: str, last: Any) -> None:
    with clips_of(repo).loader(7, epochs=2, last=last) as loader:
        expected = hashes(loader)
    with clips_of(repo).loader(7, last=last) as loader:
        got = hashes(iter(loader), len(loader))  # never told that the loop is over
        at_end = loader.state_dict()
        got += [batch_hash(batch) for batch in loader]
        assert got == expected
        loader.load_state_dict(at_end)
        assert list(loader) == []  # what was restored was the end of a loop


def test_clips_may_be_resized_otherwise(repo: str) -> None:
    with clips_of(repo).loader(2) as loader:
        next(loader)
        state = loader.state_dict()
    with clips_of(repo, resize=(32, 32)).loader(2) as loader:
        loader.load_state_dict(state)
        assert next(loader).positions.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed was 0, here it is 1"),
        ({"frames": 8}, "frames was 4, here it is 8"),
        ({"stride": 2}, "stride was 1, here it is 2"),
        ({"fps": 10}, "fps was None, here it is 10"),
        ({"sampling": "grid"}, "sampling was uniform, here it is grid"),
    ],
)
def test_another_sequence_is_refused(repo: str, changed: dict[str, Any], named: str) -> None:
    with clips_of(repo).loader(2) as loader:
        state = loader.state_dict()
    with clips_of(repo, **changed).loader(2) as other:
        with pytest.raises(InvalidInputError, match=named) as caught:
            other.load_state_dict(state)
        assert set(changed) <= set(caught.value.facts["differences"])  # type: ignore[call-overload]
        assert "data" not in caught.value.facts["differences"]  # type: ignore[operator]
        assert "Make the clips and the loader as they were" in str(caught.value)
    with clips_of(repo).loader(2, shuffle=False) as other:
        with pytest.raises(InvalidInputError, match="shuffle was global, here it is None"):
            other.load_state_dict(state)
    with clips_of(repo).loader(2, clips_per_gop=2) as other:
        with pytest.raises(InvalidInputError, match=r"order \(of .*clips_per_gop.*\) was"):
            other.load_state_dict(state)


def test_other_data_are_refused_and_the_pin_leads_back(source: str, tmp_path: Path) -> None:
    url = str(tmp_path / "repo")
    publish(url, source, packed=False)
    with dstream.open(url) as repo:
        token = repo.pin(["d"]).token
        pinned = repo.clips("d", frames=FRAMES, array="numpy", pin=token)
        assert pinned.pin == token
        with pinned.loader(2) as loader:
            first = hashes(loader, 1)
            state = carried(loader.state_dict())
        assert state["pin"] == token
        with pinned.loader(2) as loader:
            expected = hashes(loader)[1:]
    fuller = new_url()
    fill(open_store(fuller), {"more.mp4": open_store(source).get("v00.mp4").data})
    publish(url, fuller, packed=False)  # a newer generation
    with dstream.open(url) as repo:
        newest = repo.clips("d", frames=FRAMES, array="numpy")
        assert newest.pin is None
        with newest.loader(2) as loader, pytest.raises(InvalidInputError) as caught:
            loader.load_state_dict(state)
        assert "data was d@v1" in str(caught.value)
        assert f"pin={token!r}" in str(caught.value)
        again = repo.clips("d", frames=FRAMES, array="numpy", pin=str(state["pin"]))
        with again.loader(2) as loader:
            loader.load_state_dict(state)
            assert first
            assert hashes(loader) == expected
    with dstream.open(token) as frozen:
        assert frozen.clips("d", frames=FRAMES).pin == token


def test_a_changed_listing_is_refused(tmp_path: Path) -> None:
    videos(tmp_path, 2, frames=24)
    with dstream.clips(tmp_path, frames=4).loader(1) as loader:
        state = loader.state_dict()
    (tmp_path / "v01.mp4").unlink()
    with dstream.clips(tmp_path, frames=4).loader(1) as loader:
        with pytest.raises(InvalidInputError, match=r"data was .*best through a pin"):
            loader.load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        {}, {"version": True}, {"version": 0}, {"position": -1}, {"position": 1.5},
        {"position": None}, {"position": 1 << 70}, {"loop_epoch": 1}, {"clips": None},
        {"clips": {"data": 1}}, {"pin": 7}, {"worker": 3}, {"worker": {"number": 0}},
    ],
)  # fmt: skip
def test_what_is_no_state_is_refused(repo: str, damage: dict[str, object]) -> None:
    with clips_of(repo).loader(2) as loader:
        good = loader.state_dict()
        bad = {**good, **damage} if damage else {}
        with pytest.raises((InvalidInputError, FormatVersionError)):
            loader.load_state_dict(bad)
        with pytest.raises(InvalidInputError, match="no loader's state"):
            loader.load_state_dict(json.dumps(good))  # type: ignore[arg-type]
        assert loader.state_dict() == good


def test_a_newer_state_is_refused(repo: str) -> None:
    with clips_of(repo).loader(2) as loader:
        with pytest.raises(FormatVersionError, match="version 9"):
            loader.load_state_dict({**loader.state_dict(), "version": 9})


def test_a_state_file_is_whole_or_old(tmp_path: Path) -> None:
    path = tmp_path / "loader.json"
    write_state(path, {"position": 1})
    with pytest.raises(TypeError):
        write_state(path, {"position": 2, "bad": object()})
    assert json.loads(path.read_text()) == {"position": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": "affine", "partitions": 4},
        {"clips_per_gop": 3, "partitions": 4},
        {"clips_per_epoch": 10},
    ],
)
def test_every_order_goes_on_in_another_world(repo: str, options: dict[str, Any]) -> None:
    with clips_of(repo).loader(1, epochs=3, **options) as loader:
        expected = dict(by_position([loader], None))
        size = int(options.get("clips_per_epoch", 24))
        assert len(expected) == len(loader) == 3 * size
    ranks = [clips_of(repo).loader(3, rank=r, world_size=2, epochs=3, **options) for r in (0, 1)]
    got = dict(by_position(ranks, 5))
    state = carried(ranks[0].state_dict())
    for loader in ranks:
        loader.close()
    with clips_of(repo).loader(4, epochs=3, last="short", **options) as loader:
        loader.load_state_dict(state)
        got |= dict(by_position([loader], None))
    assert got == expected
    with clips_of(repo).loader(1, epochs=3) as other, pytest.raises(InvalidInputError):
        other.load_state_dict(state)


def test_replicas_deliver_the_same(repo: str) -> None:
    ranks = [
        clips_of(repo).loader(3, rank=rank, world_size=4, replicas=2, last="short")
        for rank in range(4)
    ]
    taken = [hashes(loader) for loader in ranks]
    for loader in ranks:
        loader.close()
    assert taken[0] == taken[1] != taken[2] == taken[3]


@pytest.mark.parametrize(
    ("cached", "ranks_on_node", "order"),
    [(True, "1", "affine"), (True, "2", "global"), (False, "1", "global")],
)
def test_the_order_suits_the_job(
    repo: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cached: bool,
    ranks_on_node: str,
    order: str,
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", ranks_on_node)):
        monkeypatch.setenv(name, value)
    options: dict[str, Any] = {"cache": tmp_path, "cache_bytes": 1 << 28} if cached else {}
    with dstream.open(repo, **options) as opened:
        clips = opened.clips("d", frames=FRAMES, array="numpy")
        for shuffle in ("auto", True):
            state: Any = clips.loader(1, shuffle=shuffle).state_dict()
            assert state["clips"]["shuffle"] == order
        named: Any = clips.loader(1, shuffle="global").state_dict()
        assert named["clips"]["shuffle"] == "global"
