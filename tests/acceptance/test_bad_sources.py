"""Sources and repositories that are not as they should be: loud errors that name what is wrong."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dstream
from acceptance_made import clip_hashes, placed
from cli_runner import dstream as command
from dstream.errors import NotFoundError, PermissionDeniedError, SourceChangedError, StorageError
from dstream.format.zjson import decode_document, encode_document
from dstream.ingest import Layout
from dstream.ingest.spool import SpoolError
from dstream.store.opening import StoreOptions
from ingest_made import Place, content, fill, some_videos, video_bytes
from s3_services import S3Place, plain_client

VIDEOS = some_videos(4)
VICTIM = "v002.mp4"


@dataclass(frozen=True)
class Spot:
    """A repository beside a source, on one kind of store."""

    here: Place
    options: StoreOptions | None
    server: S3Place | None

    def put(self, files: dict[str, bytes]) -> Place:
        """Give the source its files."""
        for name, data in files.items():
            self.here.source.put(name, data)
        return self.here

    def repo(self) -> dstream.Repo:
        """The repository as a user opens it."""
        return dstream.open(self.here.repository.url, options=self.options)


@pytest.fixture(params=["local", "moto", pytest.param("rgw", marks=pytest.mark.rgw)])
def spot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spot]:
    options: StoreOptions | None = None
    server: S3Place | None = None
    repository, source = str(tmp_path / "repo"), str(tmp_path / "source")
    if request.param != "local":
        server = request.getfixturevalue(f"{request.param}_bucket")
        assert server is not None
        repository, source = f"{server.url}/repo", f"{server.url}/source"
        options = server.options
    with placed(repository, source, options) as here:
        yield Spot(here, options, server)


def replace_it(here: Place) -> None:
    here.source.put(VICTIM, video_bytes(90))


def replace_by_the_same_size(here: Place) -> None:
    data = bytearray(VIDEOS[VICTIM])
    data[-1] ^= 1
    here.source.put(VICTIM, bytes(data))


def truncate_it(here: Place) -> None:
    here.source.put(VICTIM, VIDEOS[VICTIM][: len(VIDEOS[VICTIM]) // 2])


def delete_it(here: Place) -> None:
    here.source.delete_many([(VICTIM, None)])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (replace_it, SourceChangedError),
        (replace_by_the_same_size, SourceChangedError),
        (truncate_it, SourceChangedError),
        (delete_it, NotFoundError),
    ],
)
def test_a_video_that_changed_after_an_ingest_in_place(
    spot: Spot, change: Callable[[Place], None], error: type[Exception]
) -> None:
    here = spot.put(VIDEOS)
    here.ingest(layout=Layout.IN_PLACE)
    with spot.repo() as repo:
        clips = repo.clips("clips", frames=4, array="numpy", seed=1)
        with clips.loader(1) as loader:
            whole = [(batch.keys[0], clip_hashes(batch)[0]) for batch in loader]
        change(here)
        with pytest.raises(error, match=r"v002\.mp4"):
            clips.clip(VICTIM, start_s=0.1)
        # Batches that come before it are whole and as they were; none has a part of it.
        got: list[tuple[str, str]] = []
        with clips.loader(1) as loader, pytest.raises(error, match=r"v002\.mp4"):
            got.extend((batch.keys[0], clip_hashes(batch)[0]) for batch in loader)
        assert got == whole[: len(got)]
        assert len(got) == [key for key, _ in whole].index(VICTIM)
        with clips.loader(3, last="short") as loader, pytest.raises(error, match=r"v002\.mp4"):
            assert all(VICTIM not in batch.keys for batch in loader)
        with clips.loader(1, on_error="skip") as loader:
            assert VICTIM not in {key for batch in loader for key in batch.keys}
            assert sum(loader.report().skips.values()) >= 1
        assert clips["v001.mp4"].key == "v001.mp4"


def test_a_packed_dataset_does_not_mind(spot: Spot) -> None:
    here = spot.put(VIDEOS)
    here.ingest()
    delete_it(here)
    truncated = {"v001.mp4": VIDEOS["v001.mp4"][:100]}
    spot.put(truncated)
    with spot.repo() as repo, repo.clips("clips", frames=4).loader(2) as loader:
        assert {key for batch in loader for key in batch.keys} == set(VIDEOS)


def test_odd_names_stream(spot: Spot) -> None:
    """From the listing to the frames."""
    names = [
        "with space.mp4",
        "ünïcödé/日本語 🎬.mp4",
        "a..dots..b..mp4/in..side.mp4",
        "a%20b+c&d.mp4",
        "q?u#o'te\".mp4",
        "/".join(["long folder"] * 82) + "/x.mp4",
        "UPPER.MP4",
    ]
    files = {name: video_bytes(number) for number, name in enumerate(names)}
    assert max(map(len, names)) > 980
    here = spot.put(files)
    for layout in Layout:
        result = here.ingest(str(layout), layout=layout)
        assert result.quarantined == ()
        with spot.repo() as repo:
            clips = repo.clips(str(layout), frames=2)
            assert sorted(clips.keys()) == sorted(names)
            for name in names:
                assert clips[name].key == name


def test_names_that_lead_elsewhere_are_never_followed(tmp_path: Path) -> None:
    """``..`` as a part of a key: S3 allows it, a folder cannot have it."""
    with placed(str(tmp_path / "repo"), "memory://sly") as here:
        inner = here.source

        class Sly:
            url = inner.url
            capabilities = inner.capabilities

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

            def list(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
                from dstream.store.base import ObjectInfo

                yield from inner.list(*args, **kwargs)
                yield ObjectInfo("../../outside.mp4", 100, "e")
                yield ObjectInfo("a/../b.mp4", 100, "e")

        inner.put("good.mp4", video_bytes())
        here.source = Sly()
        result = here.ingest()
        assert result.samples == 1
        assert {row.name: row.reason for row in result.quarantined} == {
            "../../outside.mp4": "bad-name",
            "a/../b.mp4": "bad-name",
        }
        here.source = inner


def test_empty_objects_and_folder_markers_on_any_store(spot: Spot) -> None:
    here = spot.put(
        {"good.mp4": video_bytes(), "empty.mp4": b"", "x.mp4/inside.mp4": video_bytes(1)}
    )
    if spot.server is not None:
        client = plain_client(spot.server.endpoint_url)
        client.put_object(Bucket=spot.server.bucket, Key="source/folder.mp4/", Body=b"")
        client.close()
    result = here.ingest()
    assert result.quarantined_by_reason.get("empty") == 1
    assert sorted(content(here.catalog, "clips").keys) == ["good.mp4", "x.mp4/inside.mp4"]


def test_symlink_loops_end(tmp_path: Path) -> None:
    source = fill(tmp_path / "source", {"a/good.mp4": video_bytes()})
    (source / "a" / "up").symlink_to(source)
    (source / "self.mp4").symlink_to("self.mp4")
    for zero_prep in (False, True):
        if zero_prep:
            assert dstream.clips(source, frames=2).keys() == ["a/good.mp4"]
            continue
        with placed(str(tmp_path / "repo"), str(source)) as here:
            assert here.ingest().samples == 1


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own. Skips where mounting is not allowed."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"mounting is not allowed here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_spool_disk(tmp_path: Path) -> None:
    files = {f"v{i}.mp4": video_bytes(i, frames=300) for i in range(6)}
    fill(tmp_path / "source", files)
    largest = max(map(len, files.values()))
    with placed(str(tmp_path / "repo"), str(tmp_path / "source")) as here:
        with small_disk(tmp_path / "spool", largest // 4096 * 4096 + 4096) as spool:
            with pytest.raises(SpoolError, match=str(spool)) as caught:
                here.ingest(spool_folder=spool, workers=4, shard_bytes=1 << 20)
            assert caught.value.facts["errno"] == errno.ENOSPC
            assert list(spool.iterdir()) == []
        assert here.catalog.names() == []
        assert here.ingest().samples == 6


@pytest.mark.parametrize("layout", list(Layout))
def test_a_full_repository_disk(tmp_path: Path, layout: Layout) -> None:
    files = {f"v{i}.mp4": video_bytes(i, frames=300) for i in range(8)}
    fill(tmp_path / "source", files)
    with small_disk(tmp_path / "disk", 200 << 10) as disk:
        with placed(str(disk / "repo"), str(tmp_path / "source")) as here:
            here.ingest("before", include=("v0.mp4",))
            filler = disk / "filler"
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            filler.write_bytes(bytes(max(0, free - 8192)))
            with pytest.raises(StorageError) as caught:
                here.ingest("after", layout=layout, workers=2, shard_bytes=20_000)
            assert caught.value.facts["code"] == "ENOSPC"
            assert "full" in str(caught.value)
            assert str(disk) in str(caught.value)
            # What was there is whole, and what failed left nothing to see.
            assert here.catalog.names() == ["before"]
            with dstream.open(disk / "repo") as repo:
                assert repo.clips("before", frames=2)["v0.mp4"].key == "v0.mp4"
                assert len(repo.log()) == 2
            filler.unlink()
            if layout is Layout.IN_PLACE:
                assert here.ingest("after", layout=layout).samples == 8


def deny(server: S3Place, action: str, part: str) -> None:
    """Refuse one action below a part of the bucket to everybody, its owner included."""
    resource = f"arn:aws:s3:::{server.bucket}" + (f"/{part}/*" if part else "")
    client = plain_client(server.endpoint_url)
    statement = {"Effect": "Deny", "Principal": "*", "Action": action, "Resource": resource}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    client.put_bucket_policy(Bucket=server.bucket, Policy=json.dumps(policy))
    client.close()


def allow(server: S3Place) -> None:
    client = plain_client(server.endpoint_url)
    client.delete_bucket_policy(Bucket=server.bucket)
    client.close()


@pytest.mark.rgw
@pytest.mark.parametrize("layout", list(Layout))
def test_a_repository_that_may_not_be_written_on_ceph(rgw_bucket: S3Place, layout: Layout) -> None:
    with placed(f"{rgw_bucket.url}/repo", f"{rgw_bucket.url}/source", rgw_bucket.options) as here:
        for name, data in VIDEOS.items():
            here.source.put(name, data)
        deny(rgw_bucket, "s3:PutObject", "repo")
        try:
            with pytest.raises(PermissionDeniedError, match="s3:PutObject") as caught:
                here.ingest(layout=layout)
        finally:
            allow(rgw_bucket)
        assert caught.value.facts["permission"] == "s3:PutObject"
        assert here.catalog.names() == []
        assert here.ingest(layout=layout).samples == len(VIDEOS)


@pytest.mark.rgw
def test_a_source_that_may_not_be_listed_or_read_on_ceph(rgw_bucket: S3Place) -> None:
    with placed("memory://allowed", f"{rgw_bucket.url}/source", rgw_bucket.options) as here:
        for name, data in VIDEOS.items():
            here.source.put(name, data)
        try:
            deny(rgw_bucket, "s3:ListBucket", "")
            with pytest.raises(PermissionDeniedError, match="s3:ListBucket"):
                here.ingest()
            deny(rgw_bucket, "s3:GetObject", "source")
            result = here.ingest()
        finally:
            allow(rgw_bucket)
        assert result.generation is None
        assert result.quarantined_by_reason == {"unreadable": len(VIDEOS)}
        assert all("s3:GetObject" in row.detail for row in result.quarantined)
        assert here.ingest(layout=Layout.IN_PLACE).samples == len(VIDEOS)
        with dstream.open("memory://allowed", options=rgw_bucket.options) as repo:
            clips = repo.clips("clips", frames=2)
            deny(rgw_bucket, "s3:GetObject", "source")
            try:
                with pytest.raises(PermissionDeniedError, match=r"s3:GetObject") as caught:
                    clips[VICTIM]
            finally:
                allow(rgw_bucket)
            assert VICTIM in str(caught.value)


def test_an_unknown_name_says_what_there_is(spot: Spot) -> None:
    here = spot.put(VIDEOS)
    here.ingest()
    with spot.repo() as repo:
        for reference in ("clps", "clips@v9", "clips@prod"):
            with pytest.raises(NotFoundError, match=reference.partition("@")[0]) as caught:
                repo.clips(reference, frames=2)
            assert caught.value.exit_code == 10
        with pytest.raises(NotFoundError, match=r"v999\.mp4"):
            repo.clips("clips", frames=2)["v999.mp4"]


VERBS = [
    ("ls",),
    ("log",),
    ("show", "clips"),
    ("bench", "clips", "--clips", "1", "--frames", "2"),
    ("ingest", "SOURCE", "--name", "clips"),
]


def newer_root(repository: Path) -> None:
    """As a newer dstream would: its commit says who may read it."""
    newest = min((repository / "_ds" / "log").iterdir())
    document = decode_document(newest.read_bytes(), max_bytes=1 << 20, where="a root")
    document |= {"v": 99, "min_reader": 99, "min_writer": 99}
    newest.write_bytes(encode_document(document))


def newer_layout(repository: Path) -> None:
    """A newer dstream may keep its log elsewhere: only the format's mark is left where it was."""
    mark = repository / "_ds" / "format.json"
    document = json.loads(mark.read_text()) | {"v": 99, "min_reader": 99, "min_writer": 99}
    mark.write_text(json.dumps(document))
    shutil.move(repository / "_ds" / "log", repository / "_ds" / "log-of-99")


@pytest.mark.parametrize("newer", [newer_root, newer_layout])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_repository_of_a_newer_format_is_refused(
    tmp_path: Path, verb: tuple[str, ...], newer: Callable[[Path], None]
) -> None:
    source = fill(tmp_path / "source", VIDEOS)
    repository = tmp_path / "repo"
    with placed(str(repository), str(source)) as here:
        here.ingest()
    newer(repository)
    before = sorted(repository.rglob("*"))
    arguments = [str(source) if part == "SOURCE" else part for part in verb]
    ran = command(*arguments, "--repo", repository, "--json")
    assert (ran.code, ran.out) == (12, "")
    error = json.loads(ran.err)
    assert error["error"] == "FormatVersionError"
    assert "99" in error["message"]
    assert "upgrade" in error["message"]
    with pytest.raises(dstream.FormatVersionError):
        dstream.open(repository)
    assert sorted(repository.rglob("*")) == before
