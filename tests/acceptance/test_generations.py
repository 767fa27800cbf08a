"""The media folder, then three new files: only these are copied, and the old generation streams."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest

import dstream
from acceptance_made import clip_hashes, placed
from cli_runner import dstream as command
from dstream.ingest import Layout
from dstream.measure import Purpose
from dstream.store.opening import StoreOptions, open_store
from ingest_made import fill, video_bytes
from s3_services import S3Place

NEW = {"new/one.mp4": video_bytes(70), "new/two.mkv": video_bytes(71), "three.mov": video_bytes(72)}
WHOLE_FOLDER = 81


def first_clips(url: str, reference: str, options: StoreOptions | None) -> list[str]:
    """Hashes of a few batches: another generation has another order from the first clip on."""
    with dstream.open(url, options=options) as repo:
        clips = repo.clips(reference, frames=4, fps=8, resize=(48, 64), array="numpy")
        with clips.loader(4, epochs=1, workers=2, prefetch=1) as loader:
            return [found for batch in islice(loader, 3) for found in clip_hashes(batch)]


def check(url: str, source: str, layout: Layout, options: StoreOptions | None) -> None:
    with placed(url, source, options) as here:
        here.ingest("media", layout=layout)
        before = first_clips(url, "media", options)
        shards = set(here.objects(".tar"))
        for name, data in NEW.items():
            here.source.put(name, data)
        start = here.meter.snapshot()
        result = here.ingest("media", layout=layout)
        spent = here.meter.snapshot().minus(start)
        new_bytes = sum(map(len, NEW.values()))
        assert (result.samples, result.files, result.bytes) == (3, 3, new_bytes)
        copied = spent.total("get", Purpose.COPY)
        assert copied.bytes_received == (new_bytes if layout is Layout.PACKED else 0)
        # Shards hold the three, besides tar headers and packet tables.
        written = [here.repository.head(key) for key in set(here.objects(".tar")) - shards]
        assert sum(info.size_bytes for info in written) < 4 * new_bytes
        if layout is Layout.IN_PLACE:
            assert not written
            assert spent.total("get", Purpose.INDEX).bytes_received <= new_bytes
    with dstream.open(url, options=options) as repo:
        assert len(repo.clips("media@v1", frames=1, resize=32).keys()) == WHOLE_FOLDER
        assert len(repo.clips("media", frames=1, resize=32).keys()) == WHOLE_FOLDER + 3
        new = repo.clips("media@v2", frames=2, array="numpy")
        assert {new[name].video.shape for name in NEW} == {(2, 3, 48, 64)}
    assert first_clips(url, "media@v1", options) == before


@pytest.mark.media
@pytest.mark.parametrize("layout", list(Layout))
def test_three_new_files_are_all_that_is_copied(
    media_dir: Path, tmp_path: Path, layout: Layout
) -> None:
    shutil.copytree(media_dir, tmp_path / "media")
    url = str(tmp_path / "repo")
    check(url, str(tmp_path / "media"), layout, None)
    log = command("log", "--repo", url, "--json")
    published = [
        op
        for commit in json.loads(log.out)["commits"]
        for op in commit["ops"]
        if op.get("name") == "media"
    ]
    versions = {op["version"] for op in published if "version" in op}
    assert versions == {1, 2}
    shown = command("log", "--repo", url)
    assert "media@v1" in shown.out
    assert "media@v2" in shown.out


@pytest.mark.media
@pytest.mark.rgw
def test_three_new_files_are_all_that_is_copied_on_ceph(
    media_dir: Path, rgw_bucket: S3Place
) -> None:
    source = f"{rgw_bucket.url}/media"
    store = open_store(source, options=rgw_bucket.options)
    for path in sorted(media_dir.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(media_dir)), path.read_bytes())
    store.close()
    check(f"{rgw_bucket.url}/repo", source, Layout.PACKED, rgw_bucket.options)


def test_the_folder_may_be_given_by_hand(tmp_path: Path) -> None:
    """The same through the command line, on made videos, so that it runs everywhere."""
    source, url = fill(tmp_path / "source", {"a.mp4": video_bytes(1)}), str(tmp_path / "repo")
    assert command("init", url).code == 0
    for files in ({}, NEW):
        fill(source, files)
        assert command("ingest", source, "--name", "v", "--repo", url).code == 0
    for reference, samples in (("v@v1", 1), ("v@v2", 4), ("v@latest", 4)):
        shown = command("show", reference, "--repo", url, "--json").document()
        assert shown["totals"]["samples"] == samples
