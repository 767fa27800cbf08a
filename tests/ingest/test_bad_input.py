from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dstream.errors import (
    InvalidInputError,
    MediaError,
    MediaReason,
    NotFoundError,
    PermissionDeniedError,
    SourceChangedError,
    StorageError,
)
from dstream.ingest import IngestSettings, Layout, Share, ingest
from dstream.ingest.spool import SpoolError
from dstream.recipe import SampleSpec, StreamSpan, VideoFile
from dstream.store.base import Blob, ObjectInfo
from dstream.store.faulty import Fault, FaultKind, FaultyStore
from dstream_recipes.video import RECIPE
from ingest_made import Place, content, fill, place, some_videos, video_bytes

NOBODY = 65534


@pytest.fixture(params=list(Layout))
def layout(request: pytest.FixtureRequest) -> Layout:
    return Layout(request.param)


@pytest.fixture
def here(tmp_path: Path) -> Place:
    (tmp_path / "source").mkdir()
    return place(tmp_path / "repo", tmp_path / "source")


def reasons(here: Place, **settings: Any) -> dict[str, str]:
    result = here.ingest(**settings)
    assert result.generation is not None
    found = content(here.catalog, result.generation)
    stored = {row["name"]: row["reason"] for row in found.quarantine}
    assert stored == {row.name: row.reason for row in result.quarantined}
    assert here.meter.snapshot().event("quarantine") == {
        reason: list(stored.values()).count(reason) for reason in sorted(set(stored.values()))
    }
    return stored


def test_no_such_folder_and_no_videos_are_said_so(here: Place, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no videos .* it is empty"):
        here.ingest()
    fill(tmp_path / "source", {"notes.txt": b"x", "table.parquet": b"x"})
    with pytest.raises(NotFoundError, match="none of its 2 files"):
        here.ingest()
    fill(tmp_path / "source", {"a/clip.mp4": video_bytes()})
    with pytest.raises(NotFoundError, match="patterns"):
        here.ingest(recursive=False)
    with pytest.raises(NotFoundError, match="nowhere"):
        place(tmp_path / "repo", tmp_path / "nowhere").ingest()
    assert here.catalog.names() == []
    assert not here.objects(".tar")


def test_odd_names_are_taken_as_they_are(here: Place, tmp_path: Path, layout: Layout) -> None:
    names = [
        "with space.mp4",
        "ünïcödé/日本語.mp4",
        "emoji 🎬.mp4",
        "..dots..mp4",
        "a'b\"c.mp4",
        "per%20cent.mp4",
        "new\nline.mp4",
        "-rf.mp4",
        "/".join(["d" * 198] * 5) + "/x.mp4",
        "UPPER.MP4",
    ]
    files = {name: video_bytes(number) for number, name in enumerate(names)}
    fill(tmp_path / "source", files)
    result = here.ingest(layout=layout)
    hidden = [name for name in names if name.startswith(".")]
    assert result.quarantined == ()
    found = content(here.catalog, "clips")
    assert sorted(found.keys) == sorted(name for name in names if name not in hidden)
    assert here.meter.snapshot().event("scan-skip") == {"hidden": 1}


def test_names_that_cannot_be_keys_are_quarantined(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", {"good.mp4": video_bytes()})
    bad = os.fsencode(tmp_path / "source") + b"/caf\xe9.mp4"
    Path(os.fsdecode(bad)).write_bytes(video_bytes())
    assert reasons(here) == {r"caf\xe9.mp4": "bad-name"}


def test_a_name_longer_than_a_key_may_be_is_quarantined(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", {"good.mp4": video_bytes()})
    folder = "/".join(["d" * 250] * 4)
    deep = tmp_path / "source"
    before = Path.cwd()
    try:
        for part in [*folder.split("/"), "e" * 200]:
            deep = deep / part
            deep.mkdir()
        os.chdir(deep)
        Path("too-long.mp4").write_bytes(video_bytes())
    finally:
        os.chdir(before)
    result = here.ingest()
    assert result.samples == 1
    assert set(result.quarantined_by_reason) <= {"bad-name"}


def test_a_listing_with_dots_in_it_is_not_followed(here: Place) -> None:
    class Sly:
        """A source whose listing names files outside of it."""

        url = "memory://sly"

        def list(self, *_: object, **__: object) -> Iterator[ObjectInfo]:
            for key in ("../../etc/passwd.mp4", "/abs.mp4", "a//b.mp4", "ok\0.mp4", "folder/"):
                yield ObjectInfo(key, 10, "e")

    result = ingest(here.catalog, Sly(), "clips", recipe=RECIPE)  # type: ignore[arg-type]
    assert result.generation is None
    assert result.quarantined_by_reason == {"bad-name": 4}


def test_empty_files_folders_links_and_rubbish(here: Place, tmp_path: Path, layout: Layout) -> None:
    source = fill(
        tmp_path / "source",
        {
            "good.mp4": video_bytes(),
            "empty.mp4": b"",
            "text.mkv": b"not a video at all" * 50,
            "cut.mp4": video_bytes(3)[:1500],
            "folder.mp4/inside.mp4": video_bytes(4),
            "empty-no-suffix": b"",
        },
    )
    (source / "loop").symlink_to(source)
    (source / "self.mp4").symlink_to("self.mp4")
    (source / "gone.mp4").symlink_to("nowhere.mp4")
    (source / "linked.mp4").symlink_to("good.mp4")
    os.mkfifo(source / "pipe.mp4")
    found = reasons(here, layout=layout)
    assert found.pop("cut.mp4") in ("truncated", "damaged")
    assert found == {
        "empty.mp4": "empty",
        "text.mkv": "not-media",
        "gone.mp4": "unreadable",
        "self.mp4": "unreadable",
    }
    assert sorted(content(here.catalog, "clips").keys) == [
        "folder.mp4/inside.mp4",
        "good.mp4",
        "linked.mp4",
    ]


def test_only_rubbish_publishes_nothing_but_says_why(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", {"a.mp4": b"", "b.mp4": b"no video"})
    result = here.ingest()
    assert result.generation is None
    assert result.quarantined_by_reason == {"empty": 1, "not-media": 1}
    assert here.catalog.names() == []


@pytest.fixture
def users_folder() -> Iterator[Path]:
    """A folder of a user that permissions bind: root may read everything."""
    was_root = os.geteuid() == 0
    with TemporaryDirectory(dir="/tmp") as name:
        if was_root:
            os.chown(name, NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            if was_root:
                os.seteuid(0)


def test_files_and_folders_without_permission(users_folder: Path) -> None:
    source = fill(
        users_folder / "source",
        {"a.mp4": video_bytes(), "locked.mp4": video_bytes(1), "room/b.mp4": video_bytes(2)},
    )
    here = place(users_folder / "repo", source)
    (source / "locked.mp4").chmod(0)
    (source / "room").chmod(0)
    assert reasons(here) == {"locked.mp4": "unreadable", "room/": "unreadable"}
    (source / "room").chmod(0o700)
    (source / "locked.mp4").chmod(0o600)
    assert here.ingest().samples == 2
    source.chmod(0)
    with pytest.raises(PermissionDeniedError, match="source"):
        here.ingest()
    source.chmod(0o700)


class Denied:
    """A store that refuses some files; as root nothing else does."""

    def __init__(self, inner: Any, part: str, error: Exception) -> None:
        self._inner = inner
        self._part = part
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: str, *args: Any, **kwargs: Any) -> Blob:
        if self._part in key:
            raise self._error
        blob: Blob = self._inner.get(key, *args, **kwargs)
        return blob


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionDeniedError("no", operation="get"), "unreadable"),
        (SourceChangedError("other bytes"), "changed-while-reading"),
        (NotFoundError("gone"), "changed-while-reading"),
        (StorageError("a bad sector"), "unreadable"),
        (MediaError("x", reason=MediaReason.ENCRYPTED), "encrypted"),
    ],
)
def test_one_file_that_cannot_be_read_does_not_stop_the_rest(
    here: Place, tmp_path: Path, layout: Layout, error: Exception, reason: str
) -> None:
    fill(tmp_path / "source", some_videos(4))
    here.source = Denied(here.source, "v002", error)
    assert reasons(here, layout=layout) == {"v002.mp4": reason}
    here.source = here.source._inner
    again = here.ingest(layout=layout)
    passing = reason != "encrypted"
    assert again.samples == (1 if passing else 0)


def test_a_side_file_that_cannot_be_read_takes_its_video_along(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", {**some_videos(2), "v000.json": b"{}"})
    here.source = Denied(here.source, "v000.json", PermissionDeniedError("no"))
    assert reasons(here) == {"v000.mp4": "unreadable"}
    assert "side file v000.json" in content(here.catalog, "clips").quarantine[0]["detail"]
    here.source = here.source._inner
    assert here.ingest().samples == 1, "what may have passed is tried again"


def test_a_store_that_is_down_stops_the_ingest_instead_of_quarantining_all(
    here: Place, tmp_path: Path, layout: Layout
) -> None:
    fill(tmp_path / "source", some_videos(30))
    good = here.source
    here.source = Denied(good, ".mp4", StorageError("connection refused"))
    with pytest.raises(StorageError, match="in a row"):
        here.ingest(layout=layout)
    assert here.catalog.names() == []
    here.source = good
    assert here.ingest(layout=layout).samples == 30


def test_a_file_replaced_while_it_is_copied_is_noticed(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(3))
    path = tmp_path / "source" / "v001.mp4"
    inner = here.source

    class Replacing(Denied):
        def get(self, key: str, *args: Any, **kwargs: Any) -> Blob:
            if key == "v001.mp4" and path.stat().st_size == len(video_bytes(1)):
                path.write_bytes(video_bytes(40, frames=14))
            blob: Blob = inner.get(key, *args, **kwargs)
            return blob

    here.source = Replacing(inner, "", StorageError(""))
    assert reasons(here) == {"v001.mp4": "changed-while-reading"}
    here.source = inner
    assert here.ingest().samples == 1


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_spool_disk_stops_with_its_name_and_loses_nothing(
    here: Place, tmp_path: Path
) -> None:
    fill(tmp_path / "source", {**some_videos(4), "z.mp4": video_bytes(30, frames=300)})
    spool = tmp_path / "spool"
    spool.mkdir()
    settings: dict[str, Any] = {"spool_folder": spool, "shard_bytes": 4_000, "workers": 1}
    with file_size_limit(12_000), pytest.raises(SpoolError, match=str(spool)) as caught:
        here.ingest(**settings)
    assert caught.value.facts["errno"] == errno.EFBIG
    assert list(spool.iterdir()) == []
    assert here.objects(".entry")
    result = here.ingest(**settings)
    assert result.resumed_files >= 3
    assert result.samples == 5


def test_a_spool_folder_that_is_not_there(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(1))
    with pytest.raises(SpoolError, match="missing"):
        here.ingest(spool_folder=tmp_path / "missing")


def test_a_full_repository_disk(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(3))
    with file_size_limit(5_000), pytest.raises(StorageError):
        here.ingest()
    assert here.ingest().samples == 3


class OddRecipe:
    """Gives whatever samples it is told to."""

    name = "odd"
    needs_packets = False

    def __init__(self, make: Any) -> None:
        self._make = make

    def samples(self, video: VideoFile) -> Any:
        return self._make(video)

    def side_data(self, facts: Any, side: Any) -> Any:
        return {}


def spec(video: VideoFile, **change: Any) -> SampleSpec:
    track = video.tracks[0]
    span = StreamSpan(0, track.start_pts + change.pop("shift", 0), track.end_pts)
    return SampleSpec(**{"key": video.name, "group": "g", "streams": (span,), **change})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda v: 1 / 0, "ZeroDivisionError"),
        (lambda v: [spec(v, key="")], "needs a key"),
        (lambda v: [spec(v, shift=-1)], "not inside"),
        (lambda v: [spec(v, streams=(StreamSpan(4, 0, 1),))], "no track 4"),
        (lambda v: [spec(v, side=(".json",))], "side files"),
    ],
)
def test_a_recipe_that_misbehaves_is_named(
    here: Place, tmp_path: Path, make: Any, message: str
) -> None:
    fill(tmp_path / "source", some_videos(1))
    with pytest.raises(InvalidInputError, match=message) as caught:
        here.ingest(recipe=OddRecipe(make))
    assert "odd" in str(caught.value)
    assert "v000.mp4" in str(caught.value)


def test_one_file_may_give_several_samples_with_labels(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(2))

    def halves(video: VideoFile) -> list[SampleSpec]:
        track = video.tracks[0]
        middle = (track.start_pts + track.end_pts) // 2
        spans = [(track.start_pts, middle), (middle, track.end_pts)]
        return [
            spec(
                video,
                key=f"{video.name}#{number}",
                streams=(StreamSpan(0, *span),),
                labels={"half": number, "first": number == 0, "motion": 0.5},
            )
            for number, span in enumerate(spans)
        ]

    here.ingest(recipe=OddRecipe(halves))
    found = content(here.catalog, "clips")
    assert found.keys == ["v000.mp4#0", "v000.mp4#1", "v001.mp4#0", "v001.mp4#1"]
    assert [row["first"] for row in found.samples] == [True, False, True, False]
    assert len(found.files) == len(found.streams) == 2


def test_two_samples_of_one_key_are_a_conflict(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(2))
    recipe = OddRecipe(lambda v: [spec(v, key="same")])
    with pytest.raises(Exception, match=r"v000\.mp4.*v001\.mp4"):
        here.ingest(recipe=recipe)
    assert here.catalog.names() == []


def test_a_recipe_may_quarantine(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(2))

    def picky(video: VideoFile) -> list[SampleSpec]:
        if video.name == "v001.mp4":
            raise MediaError("no actions", reason=MediaReason.BAD_SIDE_FILE)
        return [spec(video)]

    here_reasons = here.ingest(recipe=OddRecipe(picky)).quarantined_by_reason
    assert here_reasons == {"bad-side-file": 1}


def test_settings_are_checked() -> None:
    for name in ("workers", "shard_bytes", "group_files", "spool_bytes"):
        wrong: dict[str, Any] = {name: 0}
        with pytest.raises(InvalidInputError, match=name):
            IngestSettings(**wrong)
    for index, count in ((0, 2), (3, 2), (-1, 2)):
        with pytest.raises(InvalidInputError, match="numbered"):
            Share(index, count)


def test_an_unknown_session_key_and_a_bad_name_are_refused(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(1))
    with pytest.raises(InvalidInputError, match="name"):
        here.ingest("bad@name")
    with pytest.raises(InvalidInputError, match="session key"):
        here.ingest(session_key="a/b")


def test_listing_failures_are_not_swallowed(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(1))
    here.source = FaultyStore(here.source, [Fault(FaultKind.BEFORE, "list")])
    with pytest.raises(StorageError):
        here.ingest()
