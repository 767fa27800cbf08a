"""The loader over S3: one ranged read a clip, and a replaced object is noticed."""

from pathlib import Path

import pytest

import dstream
from dstream import Clips
from dstream.store.opening import open_store
from loader_data import batch_hash, fill, new_url, publish, videos
from s3_services import S3Place


@pytest.fixture(params=["moto", pytest.param("rgw", marks=pytest.mark.rgw)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Place:
    place: S3Place = request.getfixturevalue(f"{request.param}_bucket")
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    return place


def hashes(clips: Clips) -> list[str]:
    with clips.loader(3) as loader:
        found = [batch_hash(batch) for batch in loader]
        report = loader.report()
    assert report.data_requests == report.clips_decoded
    assert report.bytes_received == report.bytes_of_gops
    return found


def test_the_same_clips_as_from_memory(tmp_path: Path, place: S3Place) -> None:
    files = videos(tmp_path, 3, frames=60)
    source, repository, in_memory, other = (
        f"{place.url}/raw videos", f"{place.url}/repo", new_url(), new_url(),
    )  # fmt: skip
    for url in (source, in_memory):
        fill(open_store(url), files)
    wanted = {"frames": 4, "stride": 2, "array": "numpy"}
    publish(other, in_memory, packed=True)
    expected = hashes(dstream.open(other).clips("d", **wanted))  # type: ignore[arg-type]
    for packed in (True, False):
        publish(repository, source, packed=packed)
        with dstream.open(repository) as repo:
            assert hashes(repo.clips("d", **wanted)) == expected  # type: ignore[arg-type]
    bare = hashes(dstream.clips(source, clips_per_file=7, **wanted))  # type: ignore[arg-type]
    assert bare == hashes(dstream.clips(in_memory, clips_per_file=7, **wanted))  # type: ignore[arg-type]


def test_a_replaced_object_is_noticed(tmp_path: Path, place: S3Place) -> None:
    files = videos(tmp_path, 2, frames=60)
    source, repository = f"{place.url}/raw", f"{place.url}/repo"
    store = fill(open_store(source), {"a.mp4": files["v00.mp4"]})
    publish(repository, source, packed=False)
    with dstream.open(repository) as repo:
        clips = repo.clips("d", frames=4)
        assert clips["a"].key == "a"
        store.put("a.mp4", files["v01.mp4"])
        with pytest.raises(dstream.SourceChangedError, match=r"a\.mp4"):
            clips["a"]
        store.delete_many([("a.mp4", None)])
        with pytest.raises(dstream.NotFoundError, match=r"a\.mp4"):
            clips["a"]
