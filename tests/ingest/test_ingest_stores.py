"""Ingest from and into real kinds of store."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstream.ingest import Layout
from dstream.measure import Purpose
from dstream.store.memory import MemoryStore
from ingest_made import check_bytes, content, place, some_videos, video_bytes
from media_outcomes import VIDEO_SUFFIXES
from s3_services import S3Place

FILES = {**some_videos(5), "day 1/ünï code+x.mp4": video_bytes(11), "v001.json": b"{}"}


def check_s3(server: S3Place, layout: Layout) -> None:
    here = place(f"{server.url}/lab/repo", f"{server.url}/raw", server.options)
    for name, data in FILES.items():
        here.source.put(name, data)
    try:
        result = here.ingest(layout=layout, shard_bytes=8_000)
        assert result.samples == 6
        found = content(here.catalog, "clips")
        check_bytes(here, found, FILES)
        assert {row["source_uri"] for row in found.files} == {
            f"{server.url}/raw/{name}" for name in FILES
        }
        here.source.put("later.mp4", video_bytes(30))
        before = here.meter.snapshot()
        assert here.ingest(layout=layout, shard_bytes=8_000).samples == 1
        read = here.meter.snapshot().minus(before).total("get", Purpose.COPY).bytes_received
        assert read == (len(video_bytes(30)) if layout is Layout.PACKED else 0)
    finally:
        here.source.close()
        here.repository.close()


@pytest.mark.parametrize("layout", list(Layout))
def test_on_a_mock_of_s3(moto_bucket: S3Place, layout: Layout) -> None:
    check_s3(moto_bucket, layout)


@pytest.mark.rgw
@pytest.mark.parametrize("layout", list(Layout))
def test_on_a_real_s3_server(rgw_bucket: S3Place, layout: Layout) -> None:
    check_s3(rgw_bucket, layout)


def test_versions_are_recorded_in_place_where_the_bucket_keeps_them(tmp_path: Path) -> None:
    here = place(tmp_path / "repo", tmp_path / "unused")
    here.source = MemoryStore(versioned=True)
    for name, data in FILES.items():
        here.source.put(name, data)
    here.ingest(layout=Layout.IN_PLACE)
    found = content(here.catalog, "clips")
    for row in found.files:
        here.source.put(row["name"], b"other bytes")
        old = here.source.get(row["name"], version=row["version"]).data
        assert old == FILES[row["name"]]


@pytest.mark.media
@pytest.mark.parametrize("layout", list(Layout))
def test_a_folder_of_real_videos(media_dir: Path, tmp_path: Path, layout: Layout) -> None:
    here = place(tmp_path / "repo", media_dir)
    result = here.ingest("media", layout=layout, shard_bytes=4 << 20)
    found = content(here.catalog, "media")
    videos = {
        str(path.relative_to(media_dir))
        for path in media_dir.rglob("*")
        if path.suffix.lower() in VIDEO_SUFFIXES
    }
    stored = {row["name"] for row in found.files if row["role"] == "video"}
    left_out = {row["name"] for row in found.quarantine}
    assert stored | left_out == videos
    assert not stored & left_out
    assert set(found.keys) == stored
    assert len(stored) == 81
    assert result.quarantined_by_reason["encrypted"] >= 2
    check_bytes(
        here, found, {row["name"]: (media_dir / row["name"]).read_bytes() for row in found.files}
    )
    again = here.ingest("media", layout=layout)
    assert not again.published
    assert again.unchanged_files == len(videos)
