"""Damaged bytes give frames or a typed error: never a hang, a crash or a foreign exception."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dstream.errors import CorruptDataError, MediaError
from dstream.measure.counters import Meter
from dstream.media.clip import ClipRequest, NeedMoreData, plan_clip
from dstream.media.decode import ClipDecoder
from dstream.media.index import index_video
from dstream.media.pixels import PixelSettings
from dstream.media.reader import FileReader
from made_video import make_video


@pytest.mark.parametrize(
    ("codec", "container"),
    [
        ("libx264", "mp4"),
        ("libx264", "mpegts"),
        ("libx265", "mkv"),
        ("libvpx-vp9", "webm"),
        ("libsvtav1", "mp4-fragmented-sidx"),
        ("mpeg4", "avi"),
        ("mpeg2video", "mpegps"),
    ],
)
def test_damaged_bytes_end_in_frames_or_a_typed_error(
    tmp_path: Path, codec: str, container: str
) -> None:
    path = make_video(tmp_path / "video", codec=codec, container=container, frames=30, gop=10)
    with FileReader(path) as reader:
        index = index_video(reader)[0]
    data = path.read_bytes()
    rng = np.random.default_rng(3)
    decoder = ClipDecoder(PixelSettings(), Meter())
    track = index.track
    outcomes = []
    for trial in range(40):
        plan = plan_clip(
            index,
            ClipRequest(
                start_s=rng.uniform(0, track.duration_s),
                frames=3,
                stride=2,
                start_pts=track.start_pts,
                end_pts=track.end_pts,
            ),
        )
        damaged = np.frombuffer(data, np.uint8).copy()
        first = plan.extents[0]
        places = first.offset_bytes + rng.integers(0, first.size_bytes, 1 + trial % 30)
        damaged[places] ^= rng.integers(1, 256, len(places), dtype=np.uint8)
        stored = damaged.tobytes()
        while True:
            got = [stored[e.offset_bytes : e.offset_bytes + e.size_bytes] for e in plan.extents]
            try:
                outcomes.append(len(decoder.decode(index, plan, got).video))
                break
            except NeedMoreData as need:
                plan = need.plan
            except (MediaError, CorruptDataError):
                outcomes.append(0)
                break
    assert len(outcomes) == 40
    assert set(outcomes) <= {0, 3}
