"""Real files: packet tables against another implementation's, presentation times, and cost."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dstream.errors import MediaError, MediaReason
from dstream.format.index import PacketFlag, VideoIndex
from dstream.media.index import index_video
from dstream.media.mp4_boxes import read_layout
from dstream.media.reader import FileReader
from dstream.media.window import Window

pytestmark = pytest.mark.media

VIDEO_SUFFIXES = frozenset((".mp4", ".mov", ".3gp", ".mkv", ".webm", ".ts", ".flv", ".avi"))


@dataclass(frozen=True)
class Difference:
    """Why a table is not what ``*.expected.json`` says, and what settles it."""

    kind: str
    """``refused``, ``origin``, ``order`` or ``sizes``."""
    why: str


_ENCRYPTED = Difference(
    "refused",
    "The only sample entry is 'encv' with a 'sinf' (ISO/IEC 14496-12 8.12: a protected entry must"
    " not be decoded as its original format; ISO/IEC 23001-7): frames would be noise.",
)
_ENCRYPTED_WEBM = Difference(
    "refused",
    "The track has a ContentEncryption (RFC 9559 5.1.4.1.31.8): its blocks are ciphertext.",
)
_ORIGIN = Difference(
    "origin",
    "PTS count from an arbitrary origin of the program's clock (ISO/IEC 13818-1 2.4.2.1 and"
    " 2.4.3.7). The other extractor subtracts the first one's offset; the index keeps the"
    " stored values, as libav does, and start_pts says where the presentation starts.",
)
DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "sample_fragmented_sgpd_v2.mp4": (_ENCRYPTED,),
    "sample_fragmented_variable_length_sgpd.mp4": (_ENCRYPTED,),
    "subsample_encrypted_altref.webm": (_ENCRYPTED_WEBM,),
    "subsample_encrypted_noaltref.webm": (_ENCRYPTED_WEBM,),
    "sample_fragmented_uuid.mp4": (
        Difference(
            "refused",
            "Its tfhd boxes give base_data_offset, which is a place in the file (ISO/IEC 14496-12"
            " 8.8.7.1), but 8192 bytes of 'uuid' were inserted before the fragments without"
            " adapting it: by the specification the samples lie in that box and are no video."
            " The other extractor ignores the field.",
        ),
    ),
    "sample_h264.ts": (_ORIGIN,),
    "sample_h264_mpeg_audio.ts": (_ORIGIN,),
    "sample_h265_rps_pred.ts": (_ORIGIN,),
    "sample_h263.ts": (
        _ORIGIN,
        Difference(
            "sizes",
            "An access unit of an MPEG-4 visual stream is the coded picture with all the headers"
            " before it (ISO/IEC 13818-1 2.1.1, ISO/IEC 14496-2 6.2.2): the 47 bytes of visual"
            " object and layer headers belong to each keyframe. The other extractor keeps them"
            " apart as codec data.",
        ),
    ),
    "sample-with-large-length.avi": (
        Difference(
            "order",
            "AVI has no presentation times, only a chunk number in decode order. H.264 frames are"
            " shown in the order of their picture order counts (ISO/IEC 14496-10 C.4), which the"
            " index gives and the other extractor does not.",
        ),
    ),
}


def _expected_names(media_dir: Path) -> list[Path]:
    return sorted(media_dir.rglob("*.expected.json"))


def _index(path: Path, *, need_packets: bool = False) -> list[VideoIndex]:
    with FileReader(path) as reader:
        return index_video(reader, need_packets=need_packets)


def _times_us(index: VideoIndex) -> np.ndarray:
    assert index.packets is not None
    base = index.track.time_base
    return np.array(
        [t * base.numerator * 1_000_000 // base.denominator for t in index.packets.pts.tolist()]
    )


def _differences(index: VideoIndex, samples: np.ndarray) -> set[str]:
    """Which kinds of difference there are; times may be off by the rounding to microseconds."""
    table = index.packets
    assert table is not None
    assert len(table) == len(samples)
    found = set()
    if (table.size_bytes != samples[:, 2]).any():
        found.add("sizes")
    if ((table.flags & PacketFlag.KEY) != (samples[:, 1] & 1)).any():
        found.add("keyframes")
    offset = _times_us(index) - samples[:, 0]
    if np.abs(offset).max() > 1:
        found.add("origin" if np.ptp(offset) <= 1 else "order")
    return found


def test_packet_tables_equal_another_implementation(media_dir: Path) -> None:
    outcomes: Counter[str] = Counter()
    for expected_path in _expected_names(media_dir):
        path = expected_path.with_name(expected_path.name.removesuffix(".expected.json"))
        explained = {difference.kind for difference in DIFFERENCES.get(path.name, ())}
        tracks = json.loads(expected_path.read_text())
        if "refused" in explained:
            with pytest.raises(MediaError) as caught:
                _index(path, need_packets=True)
            assert caught.value.reason in (MediaReason.ENCRYPTED, MediaReason.UNDECODABLE), path
            outcomes["refused"] += 1
            continue
        found = sorted(_index(path, need_packets=True), key=lambda i: i.track.track_id)
        assert len(found) == len(tracks), path
        for index, track in zip(found, tracks, strict=True):
            samples = np.array(track["samples"], np.int64).reshape(-1, 3)
            assert _differences(index, samples) == explained, path
        outcomes["explained" if explained else "equal"] += 1
    assert outcomes == {"equal": 26, "explained": 5, "refused": 5}


@pytest.mark.parametrize("stream", [0, 3])
def test_every_frame_of_nasa_has_its_pts(media_dir: Path, stream: int) -> None:
    path = media_dir / "torchcodec" / "nasa_13013.mp4"
    frames = json.loads(
        path.with_name(f"{path.name}.stream{stream}.all_frames_info.json").read_text()
    )
    index = next(i for i in _index(path) if i.track.track_id == stream)
    table = index.packets
    assert table is not None
    shown = np.unique(table.pts[(table.flags & PacketFlag.DISCARD) == 0])
    seconds = [f"{float(pts * index.track.time_base):.6f}" for pts in shown.tolist()]
    assert seconds == [f"{float(frame['pts_time']):.6f}" for frame in frames]


def test_what_indexing_all_files_gives_and_costs(media_dir: Path) -> None:
    outcomes: Counter[str] = Counter()
    for path in sorted(media_dir.rglob("*")):
        if path.suffix not in VIDEO_SUFFIXES:
            continue
        try:
            found = _index(path)
        except MediaError as error:
            outcomes[str(error.reason)] += 1
            continue
        outcomes["indexed"] += 1
        _check_cost(path, found[0])
    assert outcomes == {
        "indexed": 81,
        "no-video-track": 39,
        "encrypted": 10,
        "undecodable": 3,
        "no-frames": 2,
        "damaged": 1,
    }


def _check_cost(path: Path, index: VideoIndex) -> None:
    cost = index.cost
    if index.track.container == "mp4":
        with FileReader(path) as reader:
            moov = read_layout(Window(reader)).moov
        assert cost.runs <= 4, path
        assert cost.bytes_read <= moov.stop - moov.start + 512 * 1024, path
        assert not cost.full_pass, path
    elif index.track.container == "matroska":
        assert cost.runs <= 4, path
        assert cost.bytes_read <= 512 * 1024, path
    else:
        assert cost.full_pass, path
        assert cost.bytes_read <= path.stat().st_size, path


def test_rotation_is_told_clockwise(media_dir: Path) -> None:
    turns = {
        name: _index(media_dir / "decord" / name)[0].track.rotation_deg
        for name in ("video_0.mov", "video_90.mov", "video_180.mov")
    }
    assert turns == {"video_0.mov": 0, "video_90.mov": 90, "video_180.mov": 180}


def test_frames_outside_the_edit_list_are_not_counted(media_dir: Path) -> None:
    path = media_dir / "androidx" / "sample_edit_list_only_preroll_sync_sample.mp4"
    (index,) = _index(path)
    table = index.packets
    assert table is not None
    hidden = int(np.count_nonzero(table.flags & PacketFlag.DISCARD))
    assert hidden > 0
    assert index.track.frame_count == len(table) - hidden
    assert index.track.start_pts == 0
