"""Clips are exactly the frames of a full decode, whatever way the data are stored."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import dstream
from dstream import Batch, Clips
from dstream.store.opening import open_store
from loader_data import batch_hash, decode_all, fill, new_url, publish, videos

Decoded = dict[str, tuple[NDArray[np.uint8], NDArray[np.float64]]]
LAYOUTS = ["bare", "in_place", "packed"]


class Made:
    """The same videos in one source and two repositories, and all their frames."""

    def __init__(self, folder: Path) -> None:
        files = videos(folder, 3)
        files |= {"vfr.mp4": videos(folder / "vfr", 1, vfr=True)["v00.mp4"]}
        self.source, self.packed, self.in_place = new_url(), new_url(), new_url()
        self.store = fill(open_store(self.source), files)
        self.decoded: Decoded = {
            name.removesuffix(".mp4"): decode_all(data, folder) for name, data in files.items()
        }
        publish(self.packed, self.source, packed=True)
        publish(self.in_place, self.source, packed=False)

    def clips(self, layout: str, **options: object) -> Clips:
        options = {"array": "numpy", **options}
        if layout == "bare":
            return dstream.clips(self.source, clips_per_file=5, **options)  # type: ignore[arg-type]
        repository = self.packed if layout == "packed" else self.in_place
        return dstream.open(repository).clips("d", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("videos"))


def shown_at(times: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.searchsorted(times, wanted + 1e-5, side="right") - 1


def check(made: Made, batch: Batch, stride: int | None, fps: float | None) -> None:
    for row, key in enumerate(batch.keys):
        frames, times = made.decoded[key.removesuffix(".mp4")]
        count = batch.pts_s.shape[1]
        if fps is not None:
            expected = shown_at(times, batch.start_s[row] + np.arange(count) / fps)
        else:
            first = int(np.argmin(np.abs(times - batch.pts_s[row, 0])))
            # The drawn start, or the last place from which the clip still fits.
            latest = len(times) - (count - 1) * (stride or 1) - 1
            assert first == min(shown_at(times, batch.start_s[row : row + 1])[0], latest)
            expected = first + np.arange(count) * (stride or 1)
        np.testing.assert_allclose(batch.pts_s[row], times[expected], atol=1e-4)
        np.testing.assert_array_equal(batch.video[row], frames[expected])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("stride", "fps"), [(1, None), (2, None), (4, None), (None, 12.0), (None, 50.0)]
)
def test_frames_equal_a_full_decode(
    made: Made, layout: str, stride: int | None, fps: float | None
) -> None:
    clips = made.clips(layout, frames=6, stride=stride, fps=fps)
    with clips.loader(4, workers=2) as loader:
        batches = list(loader)
    assert sum(map(len, batches)) >= len(clips) > 0
    for batch in batches:
        check(made, batch, stride, fps)
        assert batch.video.dtype == np.uint8
        assert batch.size == (96, 128)
        if fps is not None:
            assert batch.fps.tolist() == [fps] * len(batch)


@pytest.mark.parametrize("sampling", ["uniform", "grid", "keyframe"])
def test_layouts_and_runs_give_equal_batches(made: Made, sampling: str) -> None:
    def hashes(layout: str, seed: int) -> list[str]:
        clips = made.clips(layout, frames=4, stride=3, seed=seed, sampling=sampling)
        with clips.loader(5, epochs=2) as loader:
            return [batch_hash(batch) for batch in loader]

    first = hashes("packed", 7)
    assert hashes("packed", 7) == first
    assert hashes("in_place", 7) == first
    assert hashes("packed", 8) != first
    assert len(set(first)) == len(first)


def test_ranks_share_one_global_order(made: Made) -> None:
    clips = made.clips("packed", frames=4, stride=2)

    def order(world_size: int, batch_size: int) -> list[list[str]]:
        ranks = []
        for rank in range(world_size):
            with clips.loader(batch_size, rank=rank, world_size=world_size) as loader:
                ranks.append([list(zip(b.slots.tolist(), b.start_s, strict=True)) for b in loader])
        return [[repr(clip) for rank in step for clip in rank] for step in zip(*ranks, strict=True)]

    single = order(1, 24)
    assert order(2, 12) == order(3, 8) == order(8, 3) == single


def test_keyframe_sampling_starts_on_keyframes_and_decodes_less(made: Made) -> None:
    wanted = {"frames": 6, "stride": 1}
    with made.clips("packed", sampling="keyframe", **wanted).loader(4) as loader:
        for batch in loader:
            steady = [row for row, key in enumerate(batch.keys) if key != "vfr"]
            in_gop = batch.pts_s[steady, 0] * 30 % 12
            assert np.allclose(np.minimum(in_gop, 12 - in_gop), 0, atol=1e-3)
        cheap = loader.report().decode_amplification
    with made.clips("packed", **wanted).loader(4) as loader:
        list(loader)
        assert cheap < loader.report().decode_amplification


def test_random_access(made: Made) -> None:
    clips = made.clips("packed", frames=4, stride=2)
    frames, times = made.decoded["v01"]
    np.testing.assert_array_equal(clips["v01"].video, frames[[0, 2, 4, 6]])
    clip = clips.clip("v01", start_s=1.0, frames=3)
    np.testing.assert_array_equal(clip.video, frames[[30, 32, 34]])
    assert clip.frame_index is not None
    assert clip.frame_index.tolist() == [30, 32, 34]
    np.testing.assert_allclose(clip.pts_s, times[[30, 32, 34]])
    assert (clip.key, clip.start_s, clip.fps) == ("v01", 1.0, 15.0)
    # Too late a start moves back to where the clip still fits.
    np.testing.assert_array_equal(clips.clip("v01", start_s=99).video, frames[[113, 115, 117, 119]])
    assert clips[0].key == clips.keys()[0]
    assert clips[-1].key == clips.keys()[-1]
    np.testing.assert_array_equal(clips[3].video, clips[3].video)
    with pytest.raises(IndexError):
        clips[len(clips)]
    with pytest.raises(dstream.NotFoundError, match="v99"):
        clips["v99"]
    with pytest.raises(dstream.InvalidInputError, match="frames"):
        clips.clip("v01", frames=1000)


def test_a_slot_by_number_is_the_loaders_clip(made: Made) -> None:
    clips = made.clips("in_place", frames=4, stride=2)
    with clips.loader(3, last="short") as loader:
        for batch in loader:
            for row, slot in enumerate(batch.slots.tolist()):
                np.testing.assert_array_equal(clips[slot].video, batch.video[row])


def test_resize_and_crop(made: Made) -> None:
    clips = made.clips("packed", frames=4, resize=48, crop=(40, 40), crop_mode="random")
    with clips.loader(4) as loader:
        first = list(loader)
    with clips.loader(4) as loader:
        again = list(loader)
    assert first[0].video.shape == (4, 4, 3, 40, 40)
    assert list(map(batch_hash, first)) == list(map(batch_hash, again))


def test_clips_stay_inside_their_samples(tmp_path: Path) -> None:
    source, repository = new_url(), new_url()
    fill(open_store(source), videos(tmp_path, 1, frames=240))
    spans = {"v00.mp4": [("a", 0.5, 2.0), ("b", 2.0, 2.1), ("c", 3.1, 7.9)]}
    publish(repository, source, packed=True, spans=spans, splits={"c": "val"})
    repo = dstream.open(repository)
    clips = repo.clips("d", frames=5, fps=10, array="numpy")
    assert len(clips) == 3 + 0 + 9
    assert clips.too_short == 1
    limits = {key: (low, high) for key, low, high in spans["v00.mp4"]}
    with clips.loader(3, epochs=8) as loader:
        for batch in loader:
            for key, pts_s in zip(batch.keys, batch.pts_s, strict=True):
                low, high = limits[key]
                assert low - 1e-6 <= pts_s[0]
                assert pts_s[-1] < high
    assert repo.clips("d", frames=5, fps=10, split="val").keys() == ["c"]
    with pytest.raises(dstream.InvalidInputError, match="split='nope'"):
        repo.clips("d", frames=5, split="nope")
    with pytest.raises(dstream.InvalidInputError, match="stream='left'"):
        repo.clips("d", frames=5, stream="left")
    with pytest.raises(dstream.InvalidInputError, match="long enough"):
        repo.clips("d", frames=500).loader(1)


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mkv", "libx264"), ("mkv", "libx265"), ("webm", "libvpx-vp9"), ("mkv-no-cues", "libx264"),
        ("mp4-fragmented-sidx", "libx264"), ("mp4-fragmented-mfra", "libx264"),
        ("mp4-fragmented", "libx265"), ("mpegts", "libx264"), ("flv", "libx264"),
    ],
)  # fmt: skip
def test_every_kind_of_container(tmp_path: Path, container: str, codec: str) -> None:
    files = videos(tmp_path, 1, container=container, codec=codec, frames=90)
    suffix = {"webm": ".webm", "mpegts": ".ts", "flv": ".flv"}.get(container, ".mkv")
    frames, times = decode_all(files["v00.mp4"], tmp_path)
    source, repository = new_url(), new_url()
    fill(open_store(source), {f"v00{suffix}": files["v00.mp4"]})
    publish(repository, source, packed=True)
    bare = dstream.clips(source, frames=5, stride=2, clips_per_file=9, array="numpy", seed=1)
    packed = dstream.open(repository).clips("d", frames=5, stride=2, array="numpy", seed=1)
    for clips in (bare, packed):
        with clips.loader(3, epochs=2) as loader:
            for batch in loader:
                for video, pts_s in zip(batch.video, batch.pts_s, strict=True):
                    places = np.array([int(np.argmin(np.abs(times - t))) for t in pts_s])
                    assert np.diff(places).tolist() == [2, 2, 2, 2]
                    np.testing.assert_allclose(pts_s, times[places], atol=2e-3)
                    np.testing.assert_array_equal(video, frames[places])
            assert loader.report().skips == {}
