"""Conversion on the device, here the CPU's tensors, against FFmpeg's; tolerances as documented."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from dstream.errors import MediaError
from dstream.media.pixels import FrameConverter, PixelSettings, output_dtype, output_shape
from surfaces import picture, surface_of, track_of

torch: Any = pytest.importorskip("torch")
device_pixels = pytest.importorskip("dstream.media.device_pixels")


def distance(
    frame: av.VideoFrame, settings: PixelSettings, crop_at: Any = None, **facts: Any
) -> int:
    track = track_of(frame, **facts)
    dtype = output_dtype(track, settings)
    want = np.zeros(output_shape(track, settings), dtype)
    FrameConverter(settings).write(frame, track, want, crop_at)
    got = torch.from_numpy(np.zeros_like(want))
    device_pixels.DeviceConverter(settings).write(surface_of(frame), track, got, crop_at)
    difference: NDArray[np.int64] = got.numpy().astype(np.int64) - want.astype(np.int64)
    return int(np.abs(difference).max())


@pytest.mark.parametrize("matrix", [1, 2, 4, 5, 6, 7, 9])
@pytest.mark.parametrize("range_", [0, 1, 2])
@pytest.mark.parametrize(("pix_fmt", "bound"), [("yuv420p", 3), ("yuv420p10le", 1)])
def test_matrix_and_range_are_the_files(matrix: int, range_: int, pix_fmt: str, bound: int) -> None:
    frame = picture(pix_fmt, noise=True, matrix=matrix, range_=range_)
    assert distance(frame, PixelSettings()) <= bound


def test_full_range_formats_are_full_range_whatever_the_tag_says() -> None:
    assert distance(picture("yuvj420p", noise=True, range_=2), PixelSettings()) <= 3


@pytest.mark.parametrize("size", [(48, 80), (36, 60), (35, 71), (200, 400), (96, 90), (120, 150)])
@pytest.mark.parametrize(
    ("pix_fmt", "pixels", "noise", "shrunk", "enlarged"),
    [
        ("yuv420p", "rgb", True, 5, 16),
        ("yuv420p", "rgb", False, 5, 5),
        ("yuv420p10le", "rgb", False, 1, 1),
        ("yuv420p10le", "native", True, 6, None),  # FFmpeg's own overshoots wrap
        ("yuv420p10le", "native", False, 6, 6),
    ],
)
def test_resized_pictures(
    size: tuple[int, int], pix_fmt: str, pixels: str, noise: bool, shrunk: int, enlarged: int | None
) -> None:
    shrinks = size[0] <= 96 and size[1] <= 160
    bound = shrunk if shrinks else enlarged
    if bound is None:
        return
    frame = picture(pix_fmt, noise=noise)
    assert distance(frame, PixelSettings(resize=size, pixels=pixels)) <= bound


@pytest.mark.parametrize("rotation_deg", [0, 90, 180, 270])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("settings", "crop_at"),
    [
        (PixelSettings(), None),
        (PixelSettings(resize=48, crop=(40, 44)), None),
        (PixelSettings(crop=(31, 57), crop_mode="random"), (0.3, 0.9)),
    ],
)
def test_turned_and_cut_out(
    rotation_deg: int, mirrored: bool, settings: PixelSettings, crop_at: Any
) -> None:
    frame = picture("yuv420p", noise=True)
    facts = {"rotation_deg": rotation_deg, "mirrored": mirrored}
    assert distance(frame, settings, crop_at, **facts) <= 5


@pytest.mark.parametrize("matrix", [0, 8, 10, 14])
def test_unknown_matrices_are_refused(matrix: int) -> None:
    with pytest.raises(MediaError, match=f"matrix {matrix}"):
        device_pixels.luma_shares(matrix)


def test_another_size_is_refused() -> None:
    frame = picture("yuv420p", noise=False)
    track = replace(track_of(frame), width=64)
    converter = device_pixels.DeviceConverter(PixelSettings())
    with pytest.raises(MediaError, match="64x96 to 160x96"):
        converter.write(surface_of(frame), track, torch.zeros((3, 96, 64), dtype=torch.uint8))
