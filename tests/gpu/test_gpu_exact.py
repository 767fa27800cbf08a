"""On a GPU: every file that NVDEC takes gives the CPU's frames, frame for frame by pts."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dstream
from dstream.errors import DstreamError
from dstream.media.pixels import PixelSettings, output_dtype, output_shape
from surfaces import picture, surface_of, track_of

pytestmark = [pytest.mark.gpu, pytest.mark.media]

CLIPS = 40
"""Of each file."""
DEEP_BOUND = 4
"""Of 255: PyAV cannot say where chroma samples of surfaces lie. 8 bits are equal."""


def test_every_file_of_the_media_folder(media_dir: Path) -> None:
    files = sorted(path for path in media_dir.rglob("*") if path.is_file())
    seen: Counter[str] = Counter()
    for path in files:
        try:
            on_cpu = dstream.clips(path, frames=8, stride=1, array="numpy")
            on_gpu = dstream.clips(path, frames=8, stride=1, array="numpy")
            host = on_cpu.loader(1, clips_per_epoch=CLIPS, decoder="cpu", workers=4)
            device = on_gpu.loader(1, clips_per_epoch=CLIPS, decoder="auto", workers=4)
        except DstreamError:
            seen["unreadable"] += 1
            continue
        with host, device:
            for want, got in zip(host, device, strict=True):
                assert got.keys == want.keys, path
                np.testing.assert_array_equal(got.pts_s, want.pts_s, str(path))
                difference = np.abs(want.video.astype(np.int32) - got.video.astype(np.int32))
                assert difference.max() <= DEEP_BOUND, path
            seen["nvdec"] += device.report().nvdec_frames > 0
    assert seen["nvdec"] > 0, dict(seen)


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv420p10le"])
@pytest.mark.parametrize("size", [None, (48, 80), (35, 71), (200, 400)])
def test_conversion_is_that_of_tensors_on_the_cpu(pix_fmt: str, size: Any) -> None:
    torch: Any = import_module("torch")
    device_pixels: Any = import_module("dstream.media.device_pixels")
    settings = PixelSettings(resize=size, pixels="native")
    frame = picture(pix_fmt, noise=True)
    track, surface = track_of(frame), surface_of(frame)
    made: list[Any] = []
    for device in ("cpu", "cuda"):
        out = torch.from_numpy(
            np.zeros(output_shape(track, settings), output_dtype(track, settings))
        ).to(device)
        there = device_pixels.Surface(
            surface.luma.to(device), surface.chroma.to(device), surface.depth
        )
        device_pixels.DeviceConverter(settings).write(there, track, out)
        made.append(out.cpu().numpy().astype(np.int32))
    assert np.abs(made[0] - made[1]).max() <= 1
