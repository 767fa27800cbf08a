"""Clips that are decoded together: the same clips, far fewer frames decoded, one read a group."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dstream
from dstream.errors import MediaError, MediaReason
from dstream.loader.shared import SharedGroup, Sharing
from made_video import make_video

FRAMES, GOP, SLOTS = 240, 60, 15
"""Four GOPs, 15 slots of 16 frames."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    for number in range(6):
        make_video(folder / f"{number}.mp4", frames=FRAMES, gop=GOP, size=(64, 48), seed=number)
    return folder


def opened(source: Path, **more: Any) -> Any:
    return dstream.clips(
        source, frames=16, stride=1, clips_per_file=SLOTS, array="numpy", **{"seed": 5, **more}
    )


def seen(loader: Any) -> dict[int, tuple[str, bytes, bytes]]:
    """Key, times and pixels of every clip, by its position."""
    found = {}
    with loader:
        for batch in loader:
            for row, position in enumerate(batch.positions.tolist()):
                found[position] = (
                    batch.keys[row], batch.pts_s[row].tobytes(), batch.video[row].tobytes(),
                )  # fmt: skip
    return found


_ALONE: dict[tuple[Any, ...], list[tuple[str, bytes, bytes]]] = {}


def alone(source: Path, loader: Any, **more: Any) -> dict[int, tuple[str, bytes, bytes]]:
    """The clips of the loader's first epoch, each made alone by random access to its slot."""
    made = _ALONE.get((source, *more.items()))
    if made is None:
        clips = list(map(opened(source, **more).__getitem__, range(6 * SLOTS)))
        made = [(clip.key, clip.pts_s.tobytes(), clip.video.tobytes()) for clip in clips]
        _ALONE[source, *more.items()] = made
    return {place: made[loader.order.draw(place).slot] for place in range(6 * SLOTS)}


@pytest.mark.parametrize("k", [2, 4, 8])
def test_the_same_clips_from_fewer_decoded_frames(source: Path, k: int) -> None:
    clips = opened(source)
    loader = clips.loader(6, clips_per_gop=k, workers=2)
    assert seen(loader) == alone(source, loader)
    report = loader.report()
    assert report.clips == 6 * SLOTS
    assert dict(report.fallbacks) == {}

    plain = opened(source)
    usual = plain.loader(6, workers=2)
    seen(usual)
    assert report.decode_amplification < usual.report().decode_amplification
    # A group is one read; ends of samples and of partitions cut some of them.
    assert report.data_requests <= 6 * (SLOTS // k + 2) + 8
    assert report.frames_delivered == 6 * SLOTS * 16


def test_with_crops_and_sizes(source: Path) -> None:
    more = {"resize": (32, 40), "crop": (24, 32), "sampling": "grid"}
    loader = opened(source, **more).loader(5, clips_per_gop=4, workers=3)
    assert seen(loader) == alone(source, loader, **more)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_have_whole_groups(source: Path, world_size: int) -> None:
    found: dict[int, tuple[str, bytes, bytes]] = {}
    decoded = 0
    for rank in range(world_size):
        clips = opened(source)
        loader = clips.loader(
            2, clips_per_gop=4, rank=rank, world_size=world_size, last="short", workers=2
        )
        found |= seen(loader)
        decoded += loader.report().frames_decoded
        whole = loader
    assert found == alone(source, whole)
    one = opened(source).loader(2 * world_size, clips_per_gop=4)
    seen(one)
    assert decoded <= 1.25 * one.report().frames_decoded  # a step that is cut at the end is shared


def test_a_resumed_run_goes_on_in_the_middle_of_groups(source: Path) -> None:
    loader = opened(source).loader(6, clips_per_gop=8)
    with loader:
        for _ in range(4):
            next(loader)
        state = loader.state_dict()
    rest = opened(source).loader(6, clips_per_gop=8)
    rest.load_state_dict(state)
    found = seen(rest)
    assert sorted(found) == list(range(24, 6 * SLOTS))
    assert found == {p: clip for p, clip in alone(source, rest).items() if p >= 24}


def test_without_room_each_clip_is_made_alone(source: Path) -> None:
    loader = opened(source).loader(6, clips_per_gop=8, decoded_bytes=1)
    assert seen(loader) == alone(source, loader)
    fallbacks = dict(loader.report().fallbacks)
    assert set(fallbacks) == {"group-memory"}
    assert fallbacks["group-memory"] >= 6 * 2


def test_held_frames_are_given_back(source: Path) -> None:
    clip_bytes = 16 * 3 * 64 * 48
    room = (8 + 1) * 8 * clip_bytes  # a group of each partition, and one to come
    loader = opened(source).loader(4, clips_per_gop=8, decoded_bytes=room, epochs=3)
    with loader:
        for _ in loader:
            pass
    assert loader.report().clips >= 3 * 6 * SLOTS
    # Were nothing given back, all but the first few groups would have had no room.
    assert sum(loader.report().fallbacks.values()) <= 8


def test_idle_decoders_go_ahead_as_far_as_there_is_room(source: Path) -> None:
    room = 80 * 16 * 3 * 64 * 48
    loader = opened(source).loader(1, clips_per_gop=8, prefetch=1, workers=2, decoded_bytes=room)
    with loader:
        next(loader)
        # Two batches may be made: no more than two groups are due.
        until_s = time.monotonic() + 60
        while loader.report().clips_decoded <= 40 and time.monotonic() < until_s:
            time.sleep(0.01)
        assert 40 < loader.report().clips_decoded <= 80
        assert sum(1 for _ in loader) == 6 * SLOTS - 1


def test_a_group_that_cannot_be_decoded_leaves_its_clips_alone(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MediaError("not together", reason=MediaReason.DAMAGED)

    monkeypatch.setattr(Sharing, "decode", refuse)
    loader = opened(source).loader(6, clips_per_gop=4, workers=2)
    assert seen(loader) == alone(source, loader)
    assert set(loader.report().fallbacks) == {"group-decode"}


def test_a_group_that_cannot_be_read_leaves_its_clips_alone(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MediaError("not together", reason=MediaReason.DAMAGED)

    monkeypatch.setattr(Sharing, "fetch", refuse)
    loader = opened(source).loader(6, clips_per_gop=4, workers=2)
    assert seen(loader) == alone(source, loader)
    assert set(loader.report().fallbacks) == {"group-read"}


def test_a_damaged_place_spoils_only_the_clips_that_need_it(source: Path, tmp_path: Path) -> None:
    for video in source.iterdir():
        (tmp_path / video.name).write_bytes(video.read_bytes())
    good = opened(tmp_path)
    index = good.source.resolve(2).index
    place, size = int(index.gops.offset_bytes[2]), int(index.gops.size_bytes[2])
    with (tmp_path / "2.mp4").open("r+b") as stream:
        stream.seek(place)
        stream.write(bytes(size))

    def positions(**options: Any) -> tuple[list[int], dict[str, int]]:
        loader = opened(tmp_path).loader(6, on_error="skip", **options)
        return sorted(seen(loader)), dict(loader.report().skips)

    together, skipped_together = positions(clips_per_gop=4)
    assert together == list(range(6 * SLOTS))
    assert sum(skipped_together.values()) >= 3


def test_epochs_and_affine_order(source: Path) -> None:
    loader = opened(source).loader(
        6, clips_per_gop=4, shuffle="affine", partitions=4, epochs=2, workers=2
    )
    found = seen(loader)
    assert len(found) == 2 * 6 * SLOTS
    keys = {found[position][0] for position in range(6 * SLOTS)}
    assert keys == {f"{number}.mp4" for number in range(6)}


def test_whoever_waits_is_told_once() -> None:
    group = SharedGroup([])
    first, second = object(), object()
    assert group.clip_or_wait(first) is None  # type: ignore[arg-type]
    assert group.end({}) == [first]
    assert group.end({}) == []
    with pytest.raises(AttributeError):
        group.clip_or_wait(second)  # type: ignore[arg-type]  # no task: it is asked for its place


def test_numbers_are_those_of_the_frames(source: Path) -> None:
    loader = opened(source).loader(6, clips_per_gop=8, workers=1)
    with loader:
        for batch in loader:
            assert np.all(np.diff(batch.pts_s, axis=1) > 0)
            assert batch.video.shape[1:] == (16, 3, 48, 64)
