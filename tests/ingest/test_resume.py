from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dstream.catalog import Catalog
from dstream.errors import ConflictError, NotFoundError, OutcomeUnknownError, StorageError
from dstream.ingest import IngestResult, Layout, Progress, Share, finish_ingest
from dstream.measure import Purpose
from dstream.store.faulty import Fault, FaultKind, FaultyStore
from dstream.store.opening import open_store
from ingest_made import Place, check_bytes, content, fill, place, some_videos, video_bytes

FILES = {**some_videos(9), "bad.mp4": b"no video", "v004.txt": b"side"}


class Stopped(Exception):
    """What stands for a kill in these tests."""


def stop_after(files: int) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if progress.files_done >= files:
            raise Stopped

    return report


@pytest.fixture(params=list(Layout))
def layout(request: pytest.FixtureRequest) -> Layout:
    return Layout(request.param)


@pytest.fixture
def here(tmp_path: Path) -> Place:
    fill(tmp_path / "source", FILES)
    return place(tmp_path / "repo", tmp_path / "source")


def small_groups(here: Place, layout: Layout, **settings: Any) -> IngestResult:
    return here.ingest(layout=layout, shard_bytes=8_000, group_files=2, workers=1, **settings)


def check_whole(here: Place) -> None:
    found = content(here.catalog, "clips")
    assert found.keys == [f"v{i:03d}.mp4" for i in range(9)]
    assert [row["reason"] for row in found.quarantine] == ["not-media"]
    check_bytes(here, found, FILES)


def test_a_second_run_finds_what_the_first_had_finished(here: Place, layout: Layout) -> None:
    with pytest.raises(Stopped):
        small_groups(here, layout, progress=stop_after(7))
    assert here.catalog.names() == []
    finished = set(here.objects(".entry"))
    assert len(finished) >= 2
    objects = {key: here.repository.head(key) for key in here.objects() if key.startswith("data/")}
    before = here.meter.snapshot()
    result = small_groups(here, layout)
    assert result.published
    assert 4 <= result.resumed_files <= 7
    check_whole(here)
    for key, info in objects.items():
        assert here.repository.head(key).etag == info.etag, "written again"
    read = here.meter.snapshot().minus(before).total("get", Purpose.COPY).bytes_received
    if layout is Layout.PACKED:
        assert read < sum(len(data) for data in FILES.values()) * 0.7
    assert not [key for key in here.objects() if key.startswith("_ds/ses/")]


def test_files_that_changed_between_the_runs_are_taken_as_they_are_now(
    here: Place, tmp_path: Path, layout: Layout
) -> None:
    with pytest.raises(Stopped):
        small_groups(here, layout, progress=stop_after(7))
    changes = {"v000.mp4": video_bytes(80), "v001.json": b"new beside it", "new.mp4": b"x"}
    fill(tmp_path / "source", changes)
    (tmp_path / "source" / "v002.mp4").unlink()
    small_groups(here, layout)
    found = content(here.catalog, "clips")
    assert sorted(found.keys) == [f"v{i:03d}.mp4" for i in range(9) if i != 2]
    check_bytes(here, found, FILES | changes)
    assert "v001.json" in [row["name"] for row in found.files]


def test_a_kill_between_commit_and_cleanup_publishes_once(
    here: Place, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dstream.ingest.journal.Journal.clear", _stopped)
    with pytest.raises(Stopped):
        small_groups(here, layout)
    monkeypatch.undo()
    assert here.objects(".entry")
    result = small_groups(here, layout)
    assert not result.published
    assert len(here.catalog.generations("clips")) == 1
    assert not here.objects(".entry")
    check_whole(here)


def test_a_replacement_killed_before_cleanup_is_not_made_twice(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.ingest()
    fill(Path(here.source.url), {"v000.mp4": video_bytes(81)})
    monkeypatch.setattr("dstream.ingest.journal.Journal.clear", _stopped)
    with pytest.raises(Stopped):
        here.ingest(replace=True)
    monkeypatch.undo()
    assert not here.ingest(replace=True).published
    assert len(here.catalog.generations("clips")) == 2


def _stopped(*_: object) -> None:
    raise Stopped


@pytest.mark.parametrize("verb", ["upload", "put", "put-if-absent"])
@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.AFTER])
def test_every_failed_write_leaves_a_state_that_a_rerun_completes(
    here: Place, tmp_path: Path, verb: str, kind: FaultKind
) -> None:
    for number in range(12):
        faulty = FaultyStore(
            open_store(tmp_path / "repo"), [Fault(kind, verb, skip=number, times=1)]
        )
        name = f"clips-{verb}-{kind}-{number}"
        broken = Place(faulty, here.source, Catalog.open(faulty), here.meter)
        try:
            small = broken.ingest(name, shard_bytes=8_000, workers=1)
        except (StorageError, OutcomeUnknownError):
            assert faulty.struck
            small = here.ingest(name, shard_bytes=8_000, workers=1)
        assert small.generation is not None
        assert content(here.catalog, name).keys == [f"v{i:03d}.mp4" for i in range(9)]
        assert len(here.catalog.generations(name)) == 1
        if not faulty.struck:
            break
    else:
        assert verb == "put"


def test_shares_are_committed_as_one_generation(here: Place, layout: Layout) -> None:
    for index in (1, 2, 3):
        result = small_groups(here, layout, share=Share(index, 3), session_key="night")
        assert result.generation is None
        assert here.catalog.names() == []
    done = finish_ingest(here.catalog, "night")
    assert done.published
    assert done.samples == 9
    found = content(here.catalog, "clips")
    assert sorted(found.keys) == [f"v{i:03d}.mp4" for i in range(9)]
    assert [row["reason"] for row in found.quarantine] == ["not-media"]
    check_bytes(here, found, FILES)
    assert not [key for key in here.objects() if key.startswith("_ds/ses/")]
    with pytest.raises(NotFoundError, match="night"):
        finish_ingest(here.catalog, "night")


def test_a_share_that_was_killed_is_resumed_and_a_done_one_is_idle(here: Place) -> None:
    settings: dict[str, Any] = {"session_key": "night", "shard_bytes": 4_000, "workers": 1}
    with pytest.raises(Stopped):
        here.ingest(share=Share(1, 2), progress=stop_after(3), **settings)
    with pytest.raises(NotFoundError):
        finish_ingest(here.catalog, "night")
    here.ingest(share=Share(2, 2), **settings)
    with pytest.raises(ConflictError, match=r"1 of 2 parts .*1/2"):
        finish_ingest(here.catalog, "night")
    assert here.ingest(share=Share(1, 2), **settings).resumed_files >= 1
    assert here.ingest(share=Share(1, 2), **settings).files == 0
    assert finish_ingest(here.catalog, "night").samples == 9


def test_shares_that_do_not_fit_each_other_are_refused(here: Place) -> None:
    here.ingest(share=Share(1, 2), session_key="night")
    here.ingest(share=Share(2, 2), session_key="night", layout=Layout.IN_PLACE)
    with pytest.raises(ConflictError, match="layouts"):
        finish_ingest(here.catalog, "night")
    here.ingest(share=Share(2, 3), session_key="night")
    with pytest.raises(ConflictError, match="divisions"):
        finish_ingest(here.catalog, "night")


def test_shares_append_to_what_was_published_meanwhile(here: Place, tmp_path: Path) -> None:
    here.ingest(share=Share(1, 2), session_key="night")
    here.ingest(share=Share(2, 2), session_key="night")
    fill(tmp_path / "other", {"other.mp4": video_bytes(90), "v003.mp4": video_bytes(3)})
    place(tmp_path / "repo", tmp_path / "other").ingest()
    done = finish_ingest(here.catalog, "night")
    assert done.generation is not None
    assert done.generation.version == 2
    assert done.samples == 8
    expected = [f"v{i:03d}.mp4" for i in range(9)]
    assert sorted(content(here.catalog, "clips").keys) == ["other.mp4", *expected]
