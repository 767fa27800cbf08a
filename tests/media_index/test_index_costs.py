"""What finding the packets costs, in reads and bytes, on files larger than the first read."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest

from dstream.errors import MediaError, MediaReason
from dstream.format.index import Access
from dstream.media.ebml import parse_element
from dstream.media.index import index_video
from dstream.media.mp4_boxes import HOP_BYTES, parse_header
from dstream.media.reader import BytesReader
from made_video import make_video

SLACK_BYTES = 512 * 1024


class RecordingReader(BytesReader):
    """Keeps which ranges were asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, "recorded")
        self.ranges: list[tuple[int, int]] = []

    def read(self, start_byte: int, stop_byte: int) -> bytes:
        if stop_byte > start_byte:
            self.ranges.append((start_byte, stop_byte))
        return super().read(start_byte, stop_byte)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs")


def _large(folder: Path, container: str, codec: str = "libx264") -> bytes:
    """Well above the 128 KB that are read first."""
    path = folder / container
    if not path.exists():
        options = {"crf": "1"} if codec == "libx264" else {"b": "12M"}
        make_video(
            path, codec=codec, container=container, frames=180, size=(480, 360), options=options
        )
    return path.read_bytes()


def _box_bytes(data: bytes, kind: bytes) -> int:
    position = 0
    while (box := parse_header(data[position : position + 16], position, len(data))) is not None:
        if box.kind == kind:
            return box.stop - box.start
        position = box.stop
    raise AssertionError(f"no {kind!r}")


@pytest.mark.parametrize("container", ["mp4", "mp4-moov-end", "mov"])
def test_progressive_files_cost_moov_and_little_more(folder: Path, container: str) -> None:
    data = _large(folder, container)
    reader = RecordingReader(data)
    (index,) = index_video(reader)
    assert index.cost.runs == len(reader.ranges) <= 4
    assert index.cost.bytes_read <= _box_bytes(data, b"moov") + SLACK_BYTES
    assert index.cost.bytes_read < len(data) // 2
    assert not index.cost.full_pass


@pytest.mark.parametrize("container", ["mkv", "mkv-cues-front"])
def test_cues_cost_two_small_reads_and_a_keyframe(folder: Path, container: str) -> None:
    data = _large(folder, container)
    reader = RecordingReader(data)
    (index,) = index_video(reader)
    cues_at = data.find(bytes.fromhex("1c53bb6b"), 500)
    cues = parse_element(data, cues_at, cues_at)
    assert cues is not None
    assert index.cost.runs == len(reader.ranges) <= 4
    assert index.cost.bytes_read <= cues.size + SLACK_BYTES
    assert index.packets is None
    assert not index.cost.full_pass


@pytest.mark.parametrize("container", ["mp4-fragmented-sidx", "mp4-fragmented-mfra"])
def test_segment_indexes_cost_a_few_reads(folder: Path, container: str) -> None:
    data = _large(folder, container)
    (index,) = index_video(BytesReader(data))
    assert index.cost.runs <= 5
    assert index.cost.bytes_read <= SLACK_BYTES
    assert index.access is Access.SEGMENTS
    assert not index.cost.full_pass


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mkv-no-cues", "libx264"),
        ("flv", "libx264"),
        ("avi", "mpeg4"),
        ("mpegts", "libx264"),
        ("mpegps", "mpeg2video"),
    ],
)
def test_one_pass_reads_no_byte_twice_and_says_so(folder: Path, container: str, codec: str) -> None:
    data = _large(folder, container, codec)
    reader = RecordingReader(data)
    (index,) = index_video(reader)
    assert index.cost.full_pass
    assert index.cost.bytes_read == reader.bytes_read <= len(data)
    ordered = sorted(reader.ranges)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))


def test_fragments_without_an_index_are_walked(folder: Path) -> None:
    data = _large(folder, "mp4-fragmented")
    (index,) = index_video(BytesReader(data))
    assert index.cost.full_pass
    # Its end is looked at first, for a random access table.
    assert index.cost.bytes_read <= len(data) + HOP_BYTES


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mkv-no-cues", "libx264"),
        ("flv", "libx264"),
        ("avi", "mpeg4"),
        ("mpegts", "libx264"),
        ("mp4-fragmented", "libx264"),
    ],
)
def test_a_pass_is_refused_before_it_starts(folder: Path, container: str, codec: str) -> None:
    data = _large(folder, container, codec)
    reader = BytesReader(data)
    with pytest.raises(MediaError) as caught:
        index_video(reader, max_index_bytes=250_000)
    assert caught.value.reason is MediaReason.INDEX_TOO_LARGE
    assert reader.bytes_read <= 250_000


def test_fragments_far_apart_are_jumped_to(folder: Path) -> None:
    """A moof is read where its box says; the media data between two are not."""
    data = _large(folder, "mp4-fragmented")
    spread = bytearray()
    position = 0
    while (box := parse_header(data[position : position + 16], position, len(data))) is not None:
        if box.kind == b"moof" and position:
            spread += struct.pack(">I4s", 3 << 20, b"free") + bytes((3 << 20) - 8)
        spread += data[position : box.stop]
        position = box.stop
    (index,) = index_video(BytesReader(bytes(spread)))
    (plain,) = index_video(BytesReader(data))
    assert index.cost.bytes_read < len(spread) // 3
    assert index.track.frame_count == plain.track.frame_count == 180


def test_small_files_cost_one_read(folder: Path) -> None:
    for container in ("mp4", "mp4-moov-end", "mkv", "mp4-fragmented", "mp4-fragmented-sidx"):
        path = make_video(folder / f"small-{container}", container=container, frames=40)
        (index,) = index_video(BytesReader(path.read_bytes()))
        assert index.cost.runs == 1
        assert index.packets is not None
