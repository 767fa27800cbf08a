"""Clips from every kind of access, bit for bit against a decode of the whole file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dstream.format.index import Access
from dstream.media.index import index_video
from dstream.media.reader import FileReader
from made_video import make_video
from media_outcomes import EXACT, check_clips, fetch_from_file

H264 = "libx264"
OPEN_GOP = {"x264-params": "threads=1:sliced-threads=0:bframes=3:open-gop=1"}
FILES: dict[str, dict[str, Any]] = {
    "mp4-front": {"container": "mp4", "codec": H264, "audio": True},
    "mp4-fragmented": {"container": "mp4-fragmented", "codec": H264},
    "mp4-sidx": {"container": "mp4-fragmented-sidx", "codec": H264},
    "mp4-mfra-hevc": {"container": "mp4-fragmented-mfra", "codec": "libx265", "b_frames": 3},
    "mkv-h264": {"container": "mkv", "codec": H264, "b_frames": 3, "audio": True},
    "mkv-h264-open-gop": {"container": "mkv", "codec": H264, "options": OPEN_GOP},
    "mkv-hevc-open-gop": {"container": "mkv", "codec": "libx265", "b_frames": 3},
    "mkv-no-cues": {"container": "mkv-no-cues", "codec": H264},
    "mkv-vfr": {"container": "mkv", "codec": "libvpx-vp9", "vfr": True},
    "webm-vp9-hidden": {
        "container": "webm",
        "codec": "libvpx-vp9",
        "options": {"lag-in-frames": "16", "auto-alt-ref": "1", "cpu-used": "4"},
    },
    "webm-vp8-hidden": {
        "container": "webm",
        "codec": "libvpx",
        "options": {"lag-in-frames": "16", "auto-alt-ref": "1", "deadline": "good"},
    },
    "webm-vp8-hidden-no-cues": {
        "container": "webm-no-cues",
        "codec": "libvpx",
        "options": {"lag-in-frames": "16", "auto-alt-ref": "1", "deadline": "good"},
    },
    "webm-av1": {"container": "webm", "codec": "libsvtav1"},
    "ts-h264": {"container": "mpegts", "codec": H264, "audio": True},
    "ts-hevc-open-gop": {"container": "mpegts", "codec": "libx265", "b_frames": 3},
    "ts-mpeg2": {"container": "mpegts", "codec": "mpeg2video"},
    "m2ts-h264": {"container": "m2ts", "codec": H264},
    "flv-h264": {"container": "flv", "codec": H264, "audio": True},
    "avi-mpeg4": {"container": "avi", "codec": "mpeg4", "b_frames": 0},
    "avi-mpeg4-b": {"container": "avi", "codec": "mpeg4", "b_frames": 2},
    "ps-mpeg2": {"container": "mpegps", "codec": "mpeg2video", "audio": True},
}


@pytest.mark.parametrize("need_packets", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_clips_of_every_container_are_exact(tmp_path: Path, name: str, need_packets: bool) -> None:
    path = make_video(tmp_path / name, **{"frames": 90, "gop": 15, **FILES[name]})
    with FileReader(path) as reader:
        index = index_video(reader, need_packets=need_packets)[0]
    assert index.packets is not None or not need_packets
    if index.packets is not None and index.track.frame_count is not None:
        assert index.track.frame_count == 90
    found = check_clips(path, index, fetch_from_file(path), seed=3)
    assert (found.outcome, found.refused_clips, found.detail) == (EXACT, 0, "")
    assert found.exact_frames == 16 * 8
    if index.access is Access.SEGMENTS and index.packets is None and "open" not in name:
        assert found.reads <= 18
