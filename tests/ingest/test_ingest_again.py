from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dstream.errors import ConflictError
from dstream.ingest import Layout
from dstream.measure import Purpose
from dstream.recipe import SampleSpec, VideoFile
from dstream_recipes.video import VideoRecipe, VideoSettings
from ingest_made import Place, check_bytes, content, fill, place, some_videos, video_bytes


@pytest.fixture(params=list(Layout))
def layout(request: pytest.FixtureRequest) -> Layout:
    return Layout(request.param)


@pytest.fixture
def here(tmp_path: Path) -> Place:
    fill(tmp_path / "source", {**some_videos(3), "v000.json": b"{}"})
    return place(tmp_path / "repo", tmp_path / "source")


def test_nothing_new_makes_no_generation_and_leaves_no_journal(here: Place, layout: Layout) -> None:
    first = here.ingest(layout=layout)
    objects = here.objects()
    again = here.ingest(layout=layout)
    assert not again.published
    assert again.generation == first.generation
    assert (again.files, again.unchanged_files) == (0, 3)
    assert here.objects() == objects
    assert not [key for key in objects if key.startswith("_ds/ses/")]


def test_only_new_files_are_copied(here: Place, tmp_path: Path, layout: Layout) -> None:
    here.ingest(layout=layout)
    new = {"new/a.mp4": video_bytes(20), "new/b.mp4": video_bytes(21), "c.mkv": video_bytes(22)}
    fill(tmp_path / "source", new)
    before = here.meter.snapshot()
    shards = set(here.objects(".tar"))
    result = here.ingest(layout=layout)
    assert (result.files, result.unchanged_files) == (3, 3)
    assert result.generation is not None
    assert result.generation.version == 2
    read = here.meter.snapshot().minus(before)
    if layout is Layout.PACKED:
        copied = sum(len(data) for data in new.values())
        assert read.total("get", Purpose.COPY).bytes_received == copied
        assert shards < set(here.objects(".tar"))
    old = content(here.catalog, "clips@v1")
    both = content(here.catalog, "clips")
    assert old.keys == ["v000.mp4", "v001.mp4", "v002.mp4"]
    assert sorted(both.keys) == sorted(old.keys + list(new))
    assert both.manifest.parts[0] == old.manifest.parts[0]
    assert len(here.catalog.generations("clips")) == 2
    check_bytes(here, both, {**some_videos(3), "v000.json": b"{}", **new})


def test_a_changed_file_is_a_conflict_that_names_it(
    here: Place, tmp_path: Path, layout: Layout
) -> None:
    here.ingest(layout=layout)
    (tmp_path / "source" / "v001.mp4").write_bytes(video_bytes(50))
    objects = here.objects()
    with pytest.raises(ConflictError, match=r"v001\.mp4"):
        here.ingest(layout=layout)
    assert here.objects() == objects


def test_a_file_touched_but_not_changed_is_a_conflict_too_unless_replaced(
    here: Place, tmp_path: Path
) -> None:
    here.ingest()
    os.utime(tmp_path / "source" / "v001.mp4", (1, 1))
    with pytest.raises(ConflictError, match=r"v001\.mp4"):
        here.ingest()


def test_a_side_file_that_comes_later_is_a_conflict(here: Place, tmp_path: Path) -> None:
    here.ingest()
    fill(tmp_path / "source", {"v002.json": b"{}"})
    with pytest.raises(ConflictError, match=r"v002\.json"):
        here.ingest()


def test_replace_publishes_what_the_source_holds_now(
    here: Place, tmp_path: Path, layout: Layout
) -> None:
    here.ingest(layout=layout)
    (tmp_path / "source" / "v001.mp4").write_bytes(video_bytes(50))
    (tmp_path / "source" / "v002.mp4").unlink()
    before = here.meter.snapshot()
    result = here.ingest(layout=layout, replace=True)
    assert result.published
    read = here.meter.snapshot().minus(before)
    if layout is Layout.PACKED:
        copied = read.total("get", Purpose.COPY).bytes_received
        assert copied == len(video_bytes(50)), "an unchanged file was copied again"
    now = content(here.catalog, "clips")
    assert now.keys == ["v000.mp4", "v001.mp4"]
    files = {"v000.mp4": video_bytes(0), "v000.json": b"{}", "v001.mp4": video_bytes(50)}
    check_bytes(here, now, files)
    again = here.ingest(layout=layout, replace=True)
    assert not again.published
    assert again.generation == result.generation


def test_replace_can_change_the_layout_or_the_recipe(here: Place, tmp_path: Path) -> None:
    here.ingest()
    here.ingest(layout=Layout.IN_PLACE, replace=True)
    now = content(here.catalog, "clips")
    assert [part.layout for part in now.manifest.parts] == ["in_place"]
    assert {row["store"] for row in now.files} == {0}
    here.ingest(layout=Layout.IN_PLACE, replace=True, recipe=VideoRecipe(VideoSettings(split="x")))
    assert {row["split"] for row in content(here.catalog, "clips").samples} == {"x"}
    here.ingest(
        layout=Layout.IN_PLACE,
        replace=True,
        recipe=VideoRecipe(VideoSettings(split="x")),
    )
    assert len(here.catalog.generations("clips")) == 3


def test_replace_keeps_labels_and_side_files_of_unchanged_videos(
    here: Place, tmp_path: Path
) -> None:
    recipe = Labelled()
    here.ingest(recipe=recipe)
    first = content(here.catalog, "clips")
    fill(tmp_path / "source", {"v002.mp4": video_bytes(51)})
    here.ingest(recipe=recipe, replace=True)
    now = content(here.catalog, "clips")
    assert now.samples[0] == first.samples[0]
    assert now.files[:2] == first.files[:2]
    assert now.streams[0] == first.streams[0]
    assert [row["size"] for row in now.samples] == [len(video_bytes(i)) for i in (0, 1, 51)]


class Labelled(VideoRecipe):
    """As ``video``, with a label and the side file if there is one."""

    def samples(self, video: VideoFile) -> list[SampleSpec]:
        """One sample."""
        (spec,) = super().samples(video)
        number = 51 if video.name == "v002.mp4" else int(video.name[1:4])
        labels = {"size": len(video_bytes(number)), "has_side": bool(video.side)}
        return [replace(spec, labels=labels, side=tuple(video.side))]


def test_quarantined_files_are_remembered_until_they_change(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", {"bad.mp4": b"nothing like it"})
    first = here.ingest()
    assert first.quarantined_by_reason == {"not-media": 1}
    again = here.ingest()
    assert (again.quarantined, again.unchanged_files) == ((), 4)
    retried = here.ingest(retry_quarantined=True)
    assert retried.quarantined_by_reason == {"not-media": 1}
    (tmp_path / "source" / "bad.mp4").write_bytes(video_bytes(33))
    mended = here.ingest()
    assert (mended.samples, mended.quarantined) == (1, ())
    assert "bad.mp4" in content(here.catalog, "clips").keys


def test_another_recipe_cannot_append(here: Place, tmp_path: Path) -> None:
    here.ingest()
    fill(tmp_path / "source", {"new.mp4": video_bytes(40)})
    other = VideoRecipe(VideoSettings(split="val"))
    with pytest.raises(ConflictError, match="recipe"):
        here.ingest(recipe=other)
    assert len(here.catalog.generations("clips")) == 1


def test_the_same_files_elsewhere_merge_and_others_of_that_name_conflict(
    here: Place, tmp_path: Path
) -> None:
    here.ingest()
    fill(tmp_path / "copy", {"v000.mp4": video_bytes(0), "extra.mp4": video_bytes(60)})
    copy = place(tmp_path / "repo", tmp_path / "copy")
    result = copy.ingest()
    assert result.published
    now = content(here.catalog, "clips")
    assert sorted(now.keys) == ["extra.mp4", "v000.mp4", "v001.mp4", "v002.mp4"]
    assert now.manifest.sources == (here.source.url, copy.source.url)
    fill(tmp_path / "other", {"v000.mp4": video_bytes(61)})
    with pytest.raises(ConflictError, match=r"v000\.mp4"):
        place(tmp_path / "repo", tmp_path / "other").ingest()


def test_one_name_may_hold_both_layouts(here: Place, tmp_path: Path) -> None:
    here.ingest(layout=Layout.PACKED)
    fill(tmp_path / "source", {"later.mp4": video_bytes(70)})
    here.ingest(layout=Layout.IN_PLACE)
    now = content(here.catalog, "clips")
    assert [part.layout for part in now.manifest.parts] == ["packed", "in_place"]
    check_bytes(here, now, {**some_videos(3), "v000.json": b"{}", "later.mp4": video_bytes(70)})


def test_tables_are_the_same_bytes_whatever_the_number_of_workers(tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(6))
    tables: list[list[bytes]] = []
    for workers in (1, 3):
        here = place(tmp_path / f"repo-{workers}", tmp_path / "source")
        found = content(here.catalog, here.ingest(workers=workers).generation or "")
        rows = [
            {k: v for k, v in row.items() if k not in ("object", "index_object")}
            for row in found.files + found.samples
        ]
        tables.append([repr(row).encode() for row in rows])
    assert tables[0] == tables[1]
