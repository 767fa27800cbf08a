"""Made pictures, as libav's frames and as the surfaces that NVDEC would give."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import av
import numpy as np

from coded_order import TRACK
from dstream.format.index import VideoTrack
from sequential import planes


def picture(pix_fmt: str, *, noise: bool, matrix: int = 1, range_: int = 1) -> av.VideoFrame:
    frame = av.VideoFrame(160, 96, pix_fmt)
    frame.colorspace, frame.color_range = matrix, range_
    rng = np.random.default_rng(7)
    depth = frame.format.components[0].bits
    for number, plane in enumerate(planes(frame)):
        y, x = np.mgrid[: plane.shape[0], : plane.shape[1]]
        smooth = 128 + 90 * np.sin(x / 17 + number) * np.cos(y / 13 - number)
        values = rng.integers(16, 236, plane.shape) if noise else smooth
        plane[:] = (values * (1 << (depth - 8))).astype(plane.dtype)
    return frame


def surface_of(frame: av.VideoFrame) -> Any:
    """The frame as NVDEC would give it: NV12, or P010 with samples in the high bits."""
    y, u, v = (np.array(plane) for plane in planes(frame))
    depth = frame.format.components[0].bits
    if depth > 8:
        y, u, v = (plane << (16 - depth) for plane in (y, u, v))
    torch: Any = import_module("torch")
    surface: Any = import_module("dstream.media.device_pixels").Surface
    return surface(torch.from_numpy(y), torch.from_numpy(np.stack((u, v), axis=-1)), depth)


def track_of(frame: av.VideoFrame, **facts: Any) -> VideoTrack:
    return replace(
        TRACK,
        width=frame.width,
        height=frame.height,
        pix_fmt=frame.format.name,
        color_space=int(frame.colorspace),
        color_range=int(frame.color_range),
        **facts,
    )
