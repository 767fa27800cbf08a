"""A keyframe larger than the index budget still tells its picture format."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from dstream.media.index import index_video
from dstream.media.reader import FileReader


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_keyframe_beyond_the_budget(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "large.mp4"
    noise = np.random.default_rng(1).integers(0, 255, (1080, 1280), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=30)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = {
            "preset": "ultrafast",
            "crf": "4",
            "x265-params": "bframes=0:pools=1:frame-threads=1:log-level=none",
        }
        for number in range(2):
            frame = av.VideoFrame.from_ndarray(noise, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    reader = FileReader(path)
    index = index_video(reader)[0]
    assert index.packets is not None
    assert index.packets.size_bytes[0] > 512 * 1024
    assert (index.track.pix_fmt, index.track.width, index.track.height) == ("yuv420p", 1280, 720)
    assert reader.bytes_read < 512 * 1024
