from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import xxhash

from dstream.ingest import Layout, Progress
from dstream.measure import Purpose
from ingest_made import (
    check_bytes,
    content,
    fill,
    place,
    some_videos,
    stored_bytes,
    stored_index,
    video_bytes,
)

FILES = {
    **some_videos(3),
    "day 2/ünï.mkv": video_bytes(7, "mkv"),
    "day 2/ünï.actions.jsonl": b'{"frame": 0}\n',
    "day 2/ünï.txt": b"a caption",
    "notes.txt": b"belongs to nothing",
    "broken.mp4": video_bytes(1)[:200],
    "no-suffix": video_bytes(9),
}
STORED = {name for name in FILES if name not in ("notes.txt", "broken.mp4")}


@pytest.fixture(params=["local", "memory"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """(repository, source)"""
    if request.param == "local":
        return str(tmp_path / "repo"), str(tmp_path / "source")
    return f"memory://{tmp_path.name}-repo", f"memory://{tmp_path.name}-source"


def put_files(url: str, files: dict[str, bytes]) -> None:
    if "://" not in url:
        fill(Path(url), files)
        return
    source = place(url + "-unused", url).source
    for name, data in files.items():
        source.put(name, data)


@pytest.mark.parametrize("layout", list(Layout))
def test_every_file_is_stored_or_quarantined(urls: tuple[str, str], layout: Layout) -> None:
    put_files(urls[1], FILES)
    here = place(*urls)
    result = here.ingest(layout=layout, shard_bytes=8_000)
    assert result.published
    assert result.generation is not None
    assert result.generation.label == "clips@v1"
    assert result.files == len(STORED)
    assert result.samples == 5
    assert [(row.name, row.reason) for row in result.quarantined] == [("broken.mp4", "truncated")]

    found = content(here.catalog, result.generation)
    assert {row["name"] for row in found.files} == STORED
    assert sorted(found.keys) == sorted(STORED - {"day 2/ünï.actions.jsonl", "day 2/ünï.txt"})
    assert [row["name"] for row in found.quarantine] == ["broken.mp4"]
    check_bytes(here, found, FILES)
    part = found.manifest.parts[0]
    assert part.layout == str(layout)
    assert found.manifest.sources == (here.source.url,)
    assert found.manifest.totals.bytes == sum(len(FILES[name]) for name in STORED)
    assert (part.shards.count > 1) is (layout is Layout.PACKED)
    for row in found.files:
        assert row["source_uri"] == f"{here.source.url}/{row['name']}"
        expected = f"xxh3:{xxhash.xxh3_64_hexdigest(FILES[row['name']])}"
        assert row["checksum"] == (expected if layout is Layout.PACKED else None)
        assert row["role"] == ("side" if row["name"].endswith(("jsonl", "txt")) else "video")


@pytest.mark.parametrize("layout", list(Layout))
def test_stream_rows_and_indexes_agree(tmp_path: Path, layout: Layout) -> None:
    fill(tmp_path / "source", FILES)
    here = place(tmp_path / "repo", tmp_path / "source")
    found = content(here.catalog, here.ingest(layout=layout).generation or "")
    for row in found.streams:
        index = stored_index(here, row)
        file = found.files[row["file"]]
        data = FILES[file["name"]]
        assert index.size_bytes == len(data)
        assert (row["codec"], row["width"], row["height"]) == ("h264", 64, 48)
        assert row["keyframes"] == len(index.gops) == 2
        assert row["duration_s"] == pytest.approx(0.4, abs=0.05)
        assert row["access"] == str(index.access)
        if layout is Layout.IN_PLACE:
            assert index.gops.checksum is None
            continue
        assert index.gops.checksum is not None
        for start, size, checksum in zip(
            index.gops.offset_bytes, index.gops.size_bytes, index.gops.checksum, strict=True
        ):
            assert xxhash.xxh3_64_intdigest(data[start : start + size]) == checksum


def test_checksums_in_place_are_made_on_demand_and_equal_the_packed_ones(tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(2))
    here = place(tmp_path / "repo", tmp_path / "source")
    here.ingest("packed")
    here.ingest("in-place", layout=Layout.IN_PLACE, checksum=True)
    packed, in_place = (content(here.catalog, name) for name in ("packed", "in-place"))
    for left, right in zip(packed.streams, in_place.streams, strict=True):
        one, other = stored_index(here, left), stored_index(here, right)
        assert one.track == other.track
        assert one.gops.checksum is not None
        assert other.gops.checksum is not None
        np.testing.assert_array_equal(one.gops.checksum, other.gops.checksum)


def test_shards_are_plain_tars_with_a_video_before_its_side_files(tmp_path: Path) -> None:
    long = "/".join(["d" * 100] * 3)
    files = {**FILES, f"{long}/long.mp4": video_bytes(3), f"{long}/long.json": b"{}"}
    fill(tmp_path / "source", files)
    here = place(tmp_path / "repo", tmp_path / "source")
    found = content(here.catalog, here.ingest().generation or "")
    unpacked: dict[str, bytes] = {}
    order: list[str] = []
    for key in here.objects(".tar"):
        with tarfile.open(fileobj=io.BytesIO(here.repository.get(key).data)) as archive:
            for info in archive:
                reader = archive.extractfile(info)
                assert reader is not None
                unpacked[info.name] = reader.read()
                order.append(info.name)
    assert unpacked == {name: files[name] for name in unpacked}
    assert unpacked.keys() == {row["name"] for row in found.files}
    at = order.index("day 2/ünï.mkv")
    assert order[at + 1 : at + 3] == ["day 2/ünï.actions.jsonl", "day 2/ünï.txt"]
    assert all(row["offset_bytes"] % 512 == 0 for row in found.files)


def test_in_place_reads_little_and_packed_reads_each_byte_once(tmp_path: Path) -> None:
    files = {"long.mp4": video_bytes(5, frames=400)}
    fill(tmp_path / "source", files)
    here = place(tmp_path / "repo", tmp_path / "source")
    before = here.meter.snapshot()
    here.ingest("packed")
    read = here.meter.snapshot().minus(before)
    assert read.total("get", Purpose.COPY).bytes_received == len(files["long.mp4"])
    assert read.total("get", Purpose.INDEX).count == 0
    before = here.meter.snapshot()
    here.ingest("in-place", layout=Layout.IN_PLACE)
    read = here.meter.snapshot().minus(before)
    assert read.total("get", Purpose.COPY).count == 0
    assert read.total("get", Purpose.DATA).count == 1
    first_frames = read.total("get", Purpose.DATA).bytes_received
    assert first_frames < len(files["long.mp4"]) / 10
    assert read.total("get", Purpose.INDEX).count <= 4


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    fill(tmp_path / "source", FILES)
    here = place(tmp_path / "repo", tmp_path / "source")
    seen: list[Progress] = []
    here.ingest(progress=seen.append)
    assert seen[0].files_done == 0
    assert seen[0].eta_s is None
    assert [p.files_done for p in seen] == sorted(p.files_done for p in seen)
    last = seen[-1]
    assert last.files_done == last.files_total == 6
    assert (
        last.bytes_done
        == last.bytes_total
        == sum(len(FILES[n]) for n in FILES) - len(FILES["notes.txt"])
    )
    assert last.quarantined == 1
    assert last.eta_s == 0


def test_sides_of_the_same_name_go_to_the_longest_stem(tmp_path: Path) -> None:
    files = {
        "run.mp4": video_bytes(1),
        "run.left.mp4": video_bytes(2),
        "run.left.json": b"left",
        "run.json": b"both",
    }
    fill(tmp_path / "source", files)
    here = place(tmp_path / "repo", tmp_path / "source")
    found = content(here.catalog, here.ingest().generation or "")
    names = [row["name"] for row in found.files]
    assert names.index("run.left.json") == names.index("run.left.mp4") + 1
    assert names.index("run.json") == names.index("run.mp4") + 1
    assert stored_bytes(here, found.files[names.index("run.json")]) == b"both"
