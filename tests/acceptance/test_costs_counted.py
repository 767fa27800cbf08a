"""What indexing and clips cost, read from the counters of the stores, after a real ingest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest

import dstream
from acceptance_made import large_video, placed
from dstream.ingest import Layout
from dstream.measure import Purpose
from dstream.media.ebml import parse_element
from dstream.media.mp4_boxes import parse_header
from dstream.store.opening import StoreOptions, open_store
from ingest_made import Place, fill
from loader_data import new_url
from s3_services import S3Place

SLACK_BYTES = 512 * 1024


@dataclass(frozen=True)
class Opened:
    """An empty repository beside an empty source."""

    here: Place
    options: StoreOptions | None

    def fill(self, files: dict[str, bytes]) -> Place:
        """Give the source its files."""
        for name, data in files.items():
            self.here.source.put(name, data)
        return self.here

    def repo(self) -> dstream.Repo:
        """The repository as a user opens it, with a meter of its own."""
        return dstream.open(self.here.repository.url, options=self.options)


@pytest.fixture(params=["local", pytest.param("rgw", marks=pytest.mark.rgw)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    options: StoreOptions | None = None
    repository, source = str(tmp_path / "repo"), str(tmp_path / "source")
    if request.param == "rgw":
        server: S3Place = request.getfixturevalue("rgw_bucket")
        repository, source = f"{server.url}/repo", f"{server.url}/source"
        options = server.options
    with placed(repository, source, options) as here:
        yield Opened(here, options)


def _box_bytes(data: bytes, kind: bytes) -> int:
    position = 0
    while (box := parse_header(data[position : position + 16], position, len(data))) is not None:
        if box.kind == kind:
            return box.stop - box.start
        position = box.stop
    raise AssertionError(f"no {kind!r}")


def _head_and_cues_bytes(data: bytes) -> int:
    """Everything before the first cluster, and the Cues."""
    cues_at = data.rfind(bytes.fromhex("1c53bb6b"))
    cues = parse_element(data, cues_at, cues_at)
    assert cues is not None
    return data.find(bytes.fromhex("1f43b675")) + cues.size + 12


@pytest.mark.parametrize("container", ["mp4", "mp4-moov-end", "mov"])
def test_indexing_a_progressive_mp4_reads_its_moov_and_little_more(
    opened: Opened, container: str
) -> None:
    data = large_video(container)
    here = opened.fill({"a.mp4": data})
    spent = here.ingest(layout=Layout.IN_PLACE).requests.total("get", Purpose.INDEX)
    limit = _box_bytes(data, b"moov") + SLACK_BYTES
    assert limit < len(data) // 3, "the file must be large enough to tell"
    assert 0 < spent.bytes_received <= limit
    assert 0 < spent.bytes_requested <= limit
    assert spent.count <= 4


@pytest.mark.parametrize("container", ["mkv", "mkv-cues-front", "webm"])
def test_indexing_a_matroska_file_with_cues_reads_its_header_its_cues_and_little_more(
    opened: Opened, container: str
) -> None:
    data = large_video(container, codec="libvpx-vp9" if container == "webm" else "libx264")
    here = opened.fill({"a.mkv": data})
    spent = here.ingest(layout=Layout.IN_PLACE).requests.total("get", Purpose.INDEX)
    limit = _head_and_cues_bytes(data) + SLACK_BYTES
    assert limit < len(data) * 2 // 3, "the file must be large enough to tell"
    assert 0 < spent.bytes_received <= limit
    assert spent.count <= 4


def _keyframe_groups(path: Path) -> tuple[list[float], list[int]]:
    """Seconds from the first frame to each GOP, and the bytes of its packets: by libav."""
    begins: list[float] = []
    sizes: list[int] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        for packet in container.demux(stream):
            if packet.pts is None:
                continue
            if packet.is_keyframe:
                begins.append(float(packet.pts * stream.time_base))
                sizes.append(0)
            sizes[-1] += packet.size
    return [begin - begins[0] for begin in begins], sizes


CONTAINERS = ["mp4", "mp4-moov-end", "mkv", "mp4-fragmented-sidx", "mp4-fragmented-mfra"]


@pytest.mark.parametrize("layout", list(Layout))
def test_a_clip_costs_one_request_and_the_bytes_of_its_gops(
    opened: Opened, tmp_path: Path, layout: Layout
) -> None:
    files = {f"{name}.mkv": large_video(name, seed) for seed, name in enumerate(CONTAINERS)}
    groups = {
        name: _keyframe_groups(fill(tmp_path / "looked-at", {name: data}) / name)
        for name, data in files.items()
    }
    opened.fill(files).ingest(layout=layout)
    expected = clips = 0
    with (
        opened.repo() as repo,
        repo.clips("clips", frames=8, stride=2, array="numpy").loader(
            2, last="short", epochs=2
        ) as loader,
    ):
        for batch in loader:
            for key, pts_s in zip(batch.keys, batch.pts_s, strict=True):
                begins, sizes = groups[key]
                first, last = np.searchsorted(begins, pts_s[[0, -1]] + 2e-3, side="right")
                expected += sum(sizes[first - 1 : last])
                clips += 1
        report = loader.report()
        counted = repo.meter.snapshot()
    assert clips == report.clips == report.clips_decoded >= 50
    data = counted.total(purpose=Purpose.DATA)
    assert data.count == report.data_requests == clips
    assert data.bytes_received == report.bytes_received
    assert 0.999 * expected <= data.bytes_received <= 1.05 * expected
    assert data.bytes_requested == data.bytes_received
    # Manifest, three tables, and each group of packet tables once, counted apart.
    groups_stored = counted.total("get", Purpose.TABLE).count - 4
    assert 1 <= groups_stored <= len(files)
    assert report.table_requests == groups_stored + 4
    assert report.table_bytes > 0


@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_with_audio_between_the_ratio_is_reported(opened: Opened, container: str) -> None:
    opened.fill({"a.mkv": large_video(container, audio=True)}).ingest()
    with opened.repo() as repo, repo.clips("clips", frames=8).loader(2) as loader:
        list(loader)
        report = loader.report()
    assert report.data_requests_per_clip == 1.0
    assert report.byte_amplification == report.bytes_received / report.bytes_needed >= 1.0
    assert report.as_json()["byte_amplification"] == pytest.approx(report.byte_amplification)


@pytest.mark.parametrize(
    "container",
    ["mp4", "mp4-moov-end", "mkv", "mkv-cues-front", "mp4-fragmented-sidx", "mp4-fragmented-mfra"],
)
def test_ten_thousand_objects_start_after_a_listing_and_five_round_trips_a_video(
    container: str,
) -> None:
    url, data = new_url(), large_video(container)
    store = open_store(url)
    for number in range(10_000):
        store.put(f"part{number % 10}/{number:05d}.mkv", data)
    clips = dstream.clips(url, frames=4, resize=32, array="numpy")
    counted = clips.meter.snapshot()
    assert len(clips) == 10_000
    assert counted.total(purpose=Purpose.LISTING).count == counted.total().count
    with clips.loader(4, prefetch=1, fetchers=1) as loader:
        batch = next(loader)
        loader.close()
        report = loader.report()
    assert len(set(batch.keys)) == 4
    # Of the videos that were begun, those of the second batch may not be finished.
    begun = 4 * 2
    assert report.index_requests + report.data_requests <= 5 * begun
    assert report.index_bytes <= begun * (2 * SLACK_BYTES)
    assert report.index_full_passes == 0
    assert report.listing_requests == counted.total(purpose=Purpose.LISTING).count
    one = dstream.clips(url, frames=4, resize=32, array="numpy")
    before = one.meter.snapshot()
    assert one.clip("part7/00007.mkv", start_s=2.0).key == "part7/00007.mkv"
    assert one.meter.snapshot().minus(before).total().count <= 5


@pytest.mark.parametrize(
    ("container", "codec"), [("mkv-no-cues", "libx264"), ("mpegts", "libx264"), ("flv", "libx264"),
                             ("avi", "mpeg4"), ("mp4-fragmented", "libx264")],
)  # fmt: skip
def test_a_full_pass_is_counted_and_can_be_refused(
    tmp_path: Path, container: str, codec: str
) -> None:
    data = large_video(container, codec=codec)
    source = fill(tmp_path / "source", {"a.mkv": data, "b.mp4": large_video("mp4")})
    with placed(str(tmp_path / "repo"), str(source)) as here:
        free = here.ingest("free", layout=Layout.IN_PLACE)
        assert sum(free.requests.event("full-pass").values()) == 1
        assert free.requests.total("get", Purpose.INDEX).bytes_received >= 0.9 * len(data)
        bound = here.ingest("bound", layout=Layout.IN_PLACE, max_index_bytes=600_000)
        assert bound.quarantined_by_reason == {"index-too-large": 1}
        assert bound.requests.total("get", Purpose.INDEX).bytes_received <= 2 * 600_000
    bare = dstream.clips(source, frames=2, resize=32, array="numpy")
    with bare.loader(1) as loader:
        assert sorted(batch.keys[0] for batch in loader) == ["a.mkv", "b.mp4"]
        assert loader.report().index_full_passes == 1
    bounded = dstream.clips(source, frames=2, max_index_bytes=600_000)
    with pytest.raises(dstream.MediaError, match=r"a\.mkv") as caught:
        bounded.clip("a.mkv")
    assert caught.value.reason == "index-too-large"
    assert bounded.clip("b.mp4").key == "b.mp4"
