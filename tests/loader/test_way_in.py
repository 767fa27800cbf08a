"""The package's front door: cheap to import, complete, and honest about what is missing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dstream
from dstream.store.opening import open_store
from loader_data import fill, new_url, publish, videos


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, json, dstream; dstream.DstreamError; "
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    heavy = {"numpy", "av", "boto3", "botocore", "duckdb", "torch", "zstandard"}
    assert heavy.isdisjoint(json.loads(out.stdout))


def test_every_public_name_exists() -> None:
    assert sorted(dstream.__all__) == list(dstream.__all__)
    for name in dstream.__all__:
        assert getattr(dstream, name) is not None
    assert set(dstream.__all__) <= set(dir(dstream))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        dstream.nothing_like_it  # noqa: B018


@pytest.fixture
def repository(tmp_path: Path) -> str:
    source, repository = new_url(), new_url()
    fill(open_store(source), videos(tmp_path, 2, frames=48))
    publish(repository, source, packed=True, name="first")
    publish(repository, source, packed=False, name="first")
    return repository


def test_a_repository_is_opened_by_name_and_reference(repository: str) -> None:
    with dstream.open(repository) as repo:
        assert repo.names() == ["first"]
        assert len(repo.log()) == 3
        assert repo.show("first").generation.version == 2
        assert repo.show("first@v1").manifest.parts[0].layout == "packed"
        assert repo.show("first").aliases == {"latest": 2}
        for reference in ("first", "first@v1", "first@latest", "first@newest"):
            assert repo.clips(reference, frames=4).keys() == ["v00", "v01"]
        same = repo.clips("first@v2", frames=4).fingerprint
        assert repo.clips("first", frames=4).fingerprint == same
        assert repo.clips("first@v1", frames=4).fingerprint != same
        with pytest.raises(dstream.NotFoundError, match="first"):
            repo.clips("frist", frames=4)
        with pytest.raises(dstream.InvalidInputError, match="not both"):
            repo.clips("first", frames=4, stride=1, fps=2.0)
    with pytest.raises(dstream.NotFoundError):
        dstream.open(new_url())


def test_a_damaged_table_is_refused(repository: str) -> None:
    store = open_store(repository)
    for info in list(store.list("data/")):
        if info.key.endswith("samples.parquet"):
            store.put(info.key, store.get(info.key).data[:-1] + b"?")
    with pytest.raises(dstream.CorruptDataError, match=r"samples\.parquet"):
        dstream.open(repository).clips("first", frames=4)


def test_a_single_file_is_a_source(tmp_path: Path) -> None:
    videos(tmp_path, 2, frames=48)
    clips = dstream.clips(tmp_path / "v01.mp4", frames=4)
    assert clips.keys() == ["v01.mp4"]
    assert clips["v01.mp4"].video.shape == (4, 3, 96, 128)
    url = new_url()
    fill(open_store(url), {"a b/c.mp4": (tmp_path / "v00.mp4").read_bytes()})
    assert dstream.clips(f"{url}/a b/c.mp4", frames=4)[0].key == "c.mp4"
    for absent in (tmp_path / "absent", tmp_path / "v09.mp4", f"{url}/d.mp4", f"{url}/d"):
        with pytest.raises(dstream.NotFoundError):
            dstream.clips(absent, frames=4)


RECIPE = """
import numpy as np

class Actions:
    name = "actions"
    needs_packets = True

    def samples(self, video):
        return []

    def side_data(self, facts, side):
        rows = side[".actions.jsonl"].split()
        return {
            "action": np.array([int(rows[i]) for i in facts.frame_index]),
            "word": np.array([rows[i].decode() for i in facts.frame_index], dtype=object),
        }

RECIPE = Actions()
"""


def test_side_files_ride_along(tmp_path: Path) -> None:
    source, repository = new_url(), new_url()
    files = videos(tmp_path, 2, frames=48)
    for number in range(2):
        lines = [str(1000 * number + frame) for frame in range(48)]
        files[f"v0{number}.actions.jsonl"] = "\n".join(lines).encode()
    fill(open_store(source), files)
    publish(repository, source, packed=True, recipe="actions")
    path = tmp_path / "my_recipe.py"
    path.write_text(RECIPE)
    repo = dstream.open(repository)
    # The name in the manifest is not installed, and no file is run because stored bytes say so.
    with pytest.raises(dstream.InvalidInputError, match="recipe="):
        repo.clips("d", frames=4)
    clips = repo.clips("d", frames=4, stride=2, recipe=str(path), array="numpy")
    with clips.loader(3) as loader:
        for batch in loader:
            numbers = np.array([int(key[1:]) for key in batch.keys])[:, None]
            expected = 1000 * numbers + np.rint(batch.pts_s * 30).astype(int)
            np.testing.assert_array_equal(batch.side["action"], expected)
            assert batch.side["word"].tolist() == expected.astype(str).tolist()
        # Each side file once, then kept.
        assert loader.report().side_requests == 2
    assert clips["v01"].side["action"].tolist() == [1000, 1002, 1004, 1006]
    assert repo.clips("d", frames=4, recipe=None)["v01"].side == {}
    source, repository = new_url(), new_url()
    fill(open_store(source), videos(tmp_path, 1, frames=48))
    publish(repository, source, packed=True)
    with pytest.raises(dstream.NotFoundError, match="acions"):  # also where no side file needs it
        dstream.open(repository).clips("d", frames=4, recipe="acions")


def test_numbers_may_be_numpys_and_sizes_lists(tmp_path: Path) -> None:
    source = new_url()
    fill(open_store(source), videos(tmp_path, 2, frames=48))
    plain = dstream.clips(source, frames=4, stride=2, seed=7, resize=(32, 48), array="numpy")
    four: Any = np.int64(4)
    two: Any = np.int32(2)
    seven: Any = np.uint64(7)
    size: Any = [np.int64(32), 48]
    of_numpy = dstream.clips(
        source, frames=four, stride=two, seed=seven, resize=size, array="numpy"
    )
    with plain.loader(2) as one, of_numpy.loader(two) as other:
        assert [b.slots.tolist() for b in one] == [b.slots.tolist() for b in other]
    assert of_numpy[two - 1].key == plain[1].key == plain[-1].key
    assert dstream.clips(source, frames=2, resize=four).settings.pixels.resize == 4


@pytest.mark.parametrize(
    "options",
    [{"frames": 4.0}, {"frames": "4"}, {"seed": None}, {"seed": 0.5}, {"stride": 1.5},
     {"resize": "64"}, {"resize": (64, 64, 3)}, {"resize": 64.0}, {"crop": 64},
     {"sampling": "unifrom"}, {"array": "jax"}],
)  # fmt: skip
def test_what_an_argument_cannot_be_is_refused_by_name(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    source = new_url()
    fill(open_store(source), videos(tmp_path, 1, frames=48))
    with pytest.raises(dstream.InvalidInputError, match=next(iter(options))):
        dstream.clips(source, **{"frames": 4, **options})


def test_a_slot_is_no_slice_and_no_clip_is_empty(tmp_path: Path) -> None:
    source = new_url()
    fill(open_store(source), videos(tmp_path, 1, frames=48))
    clips = dstream.clips(source, frames=4)
    wrong: Any
    for wrong in (slice(0, 1), 1.5, None):
        with pytest.raises(TypeError):
            clips[wrong]
    wrong = ["a.mp4"]
    with pytest.raises(dstream.InvalidInputError, match="source must be"):
        dstream.clips(wrong, frames=4)
    with pytest.raises(dstream.InvalidInputError, match="frames"):
        clips.clip("v00.mp4", frames=0)
