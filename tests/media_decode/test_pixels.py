from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from coded_order import TRACK
from dstream.errors import InvalidInputError, MediaError
from dstream.format.index import VideoTrack
from dstream.media.pixels import FrameConverter, PixelSettings, output_dtype, output_shape
from sequential import planes

# AVCOL_SPC -> (Kr, Kb): ITU-R BT.709, BT.601, BT.2020; untagged video is read as BT.601
MATRICES = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}
MATRICES[2] = MATRICES[6]


def track_of(frame: av.VideoFrame, **values: Any) -> VideoTrack:
    facts: dict[str, Any] = {
        "width": frame.width,
        "height": frame.height,
        "pix_fmt": frame.format.name,
    }
    return replace(TRACK, **{**facts, **values})


def picture(
    pix_fmt: str, size: tuple[int, int] = (64, 48), matrix: int = 1, full: bool = False
) -> av.VideoFrame:
    """Noise in which chroma is constant over blocks of 8x8, inside the legal range."""
    width, height = size
    frame = av.VideoFrame(width, height, pix_fmt)
    frame.colorspace, frame.color_range = matrix, 2 if full else 1
    rng = np.random.default_rng(5)
    depth = frame.format.components[0].bits
    for plane in planes(frame):
        blocks = rng.integers(90, 166, (height // 8 + 1, width // 8 + 1)) << (depth - 8)
        rows, columns = 8 * plane.shape[0] // height or 1, 8 * plane.shape[1] // width or 1
        plane[:] = blocks.repeat(rows, 0).repeat(columns, 1)[: plane.shape[0], : plane.shape[1]]
    return frame


def convert(
    frame: av.VideoFrame, settings: PixelSettings | None = None, **facts: Any
) -> NDArray[np.generic]:
    settings = settings or PixelSettings()
    track = track_of(frame, **facts)
    out = np.zeros(output_shape(track, settings), output_dtype(track, settings))
    FrameConverter(settings).write(frame, track, out)
    return out


def distance(got: NDArray[np.generic], want: NDArray[np.float64]) -> float:
    return float(np.abs(got.astype(np.float64) - want).max())


def expected_rgb(frame: av.VideoFrame, matrix: int, full: bool) -> NDArray[np.float64]:
    """[3, H, W] in 0..1, from the planes by the standards' formulas in floating point."""
    depth = frame.format.components[0].bits
    peak, unit = 2**depth - 1, 2 ** (depth - 8)
    y, u, v = (plane.astype(np.float64) for plane in planes(frame))
    height, width = y.shape
    u, v = (
        c.repeat(-(-height // c.shape[0]), 0).repeat(-(-width // c.shape[1]), 1)[:height, :width]
        for c in (u, v)
    )
    if full:
        y, u, v = y / peak, (u - 128 * unit) / peak, (v - 128 * unit) / peak
    else:
        y, u, v = (
            (y - 16 * unit) / (219 * unit),
            (u - 128 * unit) / (224 * unit),
            (v - 128 * unit) / (224 * unit),
        )
    kr, kb = MATRICES[matrix]
    red, blue = y + 2 * (1 - kr) * v, y + 2 * (1 - kb) * u
    green = (y - kr * red - kb * blue) / (1 - kr - kb)
    rgb: NDArray[np.float64] = np.clip(np.stack([red, green, blue]), 0, 1)
    return rgb


@pytest.mark.parametrize("matrix", sorted(MATRICES))
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("pix_fmt", "tolerance"),
    # swscale's fast path truncates three table values each: up to 3 too low, as in every
    # FFmpeg-based loader; other formats are rounded.
    [("yuv420p", 3), ("yuv422p", 3), ("yuv444p", 1), ("yuv444p10le", 2), ("yuv444p12le", 2)],
)
def test_colours_follow_the_tags(pix_fmt: str, matrix: int, full: bool, tolerance: float) -> None:
    frame = picture(pix_fmt, matrix=matrix, full=full)
    want = expected_rgb(frame, matrix, full) * 255
    assert distance(convert(frame), want) <= tolerance


def test_the_old_full_range_formats_are_full_range() -> None:
    frame = picture("yuvj420p", full=True)
    frame.color_range = 0
    assert distance(convert(frame), expected_rgb(frame, 1, True) * 255) <= 3


@pytest.mark.parametrize("matrix", [1, 6, 9])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("pix_fmt", "depth"), [("yuv444p10le", 10), ("yuv444p12le", 12)])
def test_native_keeps_the_depth(pix_fmt: str, depth: int, matrix: int, full: bool) -> None:
    frame = picture(pix_fmt, matrix=matrix, full=full)
    got = convert(frame, PixelSettings(pixels="native"))
    want = expected_rgb(frame, matrix, full) * (2**depth - 1)
    assert got.dtype == np.uint16
    assert distance(got, want) <= 2 ** (depth - 8)


@pytest.mark.parametrize("pix_fmt", ["gray", "gray10le", "gray12le", "gray16le"])
def test_native_grey_is_left_alone(pix_fmt: str) -> None:
    frame = picture(pix_fmt)
    got = convert(frame, PixelSettings(pixels="native"))
    assert got.shape == (1, 48, 64)
    assert np.array_equal(got[0], planes(frame)[0])


@pytest.mark.parametrize(
    ("pix_fmt", "channels", "dtype"),
    [
        ("yuv420p", 3, np.uint8),
        ("yuv420p9le", 3, np.uint16),
        ("yuv422p14le", 3, np.uint16),
        ("rgb48le", 3, np.uint16),
        ("gbrpf32le", 3, np.uint16),
        ("pal8", 3, np.uint8),
        ("monob", 1, np.uint8),
        ("ya16le", 1, np.uint16),
    ],
)
def test_native_shapes_and_types(pix_fmt: str, channels: int, dtype: type) -> None:
    frame = av.VideoFrame(32, 16, pix_fmt)
    got = convert(frame, PixelSettings(pixels="native"))
    assert got.shape == (channels, 16, 32)
    assert got.dtype == dtype


def test_an_unknown_pixel_format_is_refused() -> None:
    with pytest.raises(MediaError, match="unknown pixel format"):
        output_dtype(replace(TRACK, pix_fmt="nonesuch"), PixelSettings(pixels="native"))


def test_native_rgb_is_left_alone_and_put_in_order() -> None:
    frame = picture("gbrp")
    frame.colorspace = 0
    green, blue, red = planes(frame)
    assert np.array_equal(convert(frame, PixelSettings(pixels="native")), [red, green, blue])


@pytest.mark.parametrize("width", [2, 18, 24, 30, 40, 63, 130, 136, 161, 1080])
@pytest.mark.parametrize("height", [32, 33])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p"])
def test_every_column_and_row_is_written(width: int, height: int, pix_fmt: str) -> None:
    """swscale alone leaves ``width % 16`` columns of planar RGB as the memory was."""
    frame = picture(pix_fmt, (width, height))
    assert distance(convert(frame), expected_rgb(frame, 1, False) * 255) <= 3


@pytest.mark.parametrize(
    ("rotation_deg", "mirrored", "expected"),
    [
        (0, False, [[0, 1, 2], [3, 4, 5]]),
        (90, False, [[3, 0], [4, 1], [5, 2]]),
        (180, False, [[5, 4, 3], [2, 1, 0]]),
        (270, False, [[2, 5], [1, 4], [0, 3]]),
        (0, True, [[2, 1, 0], [5, 4, 3]]),
        (90, True, [[5, 2], [4, 1], [3, 0]]),
    ],
)
def test_pictures_are_turned_upright(
    rotation_deg: int, mirrored: bool, expected: list[list[int]]
) -> None:
    frame = av.VideoFrame(3, 2, "gray")
    planes(frame)[0][:] = [[0, 1, 2], [3, 4, 5]]
    got = convert(
        frame, PixelSettings(pixels="native"), rotation_deg=rotation_deg, mirrored=mirrored
    )
    assert got[0].tolist() == expected


@pytest.mark.parametrize("quarter_turns", [0, 1, 2, 3])
@pytest.mark.parametrize("mirrored", [False, True])
def test_turned_pictures_of_any_size_are_whole(quarter_turns: int, mirrored: bool) -> None:
    frame = picture("yuv420p", (59, 37))
    plain = convert(frame)[:, :, ::-1] if mirrored else convert(frame)
    turned = convert(frame, rotation_deg=90 * quarter_turns, mirrored=mirrored)
    assert np.array_equal(turned, np.rot90(plain, -quarter_turns, axes=(1, 2)))


@pytest.mark.parametrize(
    ("settings", "facts", "shape"),
    [
        (PixelSettings(), {}, (3, 720, 1280)),
        (PixelSettings(), {"rotation_deg": 90}, (3, 1280, 720)),
        (PixelSettings(resize=256), {}, (3, 256, 456)),
        (PixelSettings(resize=256), {"rotation_deg": 270}, (3, 456, 256)),
        (PixelSettings(resize=256), {"sar": Fraction(4, 3)}, (3, 256, 606)),
        (PixelSettings(resize=256), {"sar": Fraction(4, 3), "rotation_deg": 90}, (3, 606, 256)),
        (PixelSettings(resize=256), {"sar": Fraction(9, 32)}, (3, 512, 256)),
        (PixelSettings(resize=(90, 160)), {"rotation_deg": 90}, (3, 90, 160)),
        (PixelSettings(resize=256, crop=(224, 224)), {}, (3, 224, 224)),
        (PixelSettings(crop=(720, 1280), pixels="native"), {"pix_fmt": "gray16le"}, (1, 720, 1280)),
    ],
)
def test_shapes(settings: PixelSettings, facts: Any, shape: tuple[int, int, int]) -> None:
    assert output_shape(replace(TRACK, width=1280, height=720, **facts), settings) == shape


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv420p10le", "yuv444p", "gray", "gbrp"])
@pytest.mark.parametrize("size", [(16, 24), (25, 33), (130, 171)])
def test_resizing_keeps_what_is_seen(pix_fmt: str, size: tuple[int, int]) -> None:
    frame = av.VideoFrame(64, 48, pix_fmt)
    frame.colorspace, frame.color_range = 0 if "b" in pix_fmt[:3] else 1, 1
    ramp = np.linspace(60, 180, 48 * 64).reshape(48, 64)
    for number, plane in enumerate(planes(frame)):
        source = ramp if number == 0 or pix_fmt == "gbrp" else np.full(plane.shape, 128)
        plane[:] = source * (4 if pix_fmt.endswith("10le") else 1)
    got = convert(frame, PixelSettings(resize=size))
    assert got.shape == (3, *size)
    whole = convert(frame)
    rows = ((np.arange(size[0]) + 0.5) * 48 / size[0]).astype(int)
    middle = got[:, :, size[1] // 2].astype(float)
    assert np.abs(middle - whole[:, rows, 32]).max() <= 8


def test_crops_lie_where_they_are_asked() -> None:
    frame = av.VideoFrame(10, 6, "gray")
    planes(frame)[0][:] = np.arange(60).reshape(6, 10)
    center = convert(frame, PixelSettings(crop=(2, 4), pixels="native"))
    assert center[0].tolist() == [[23, 24, 25, 26], [33, 34, 35, 36]]
    settings = PixelSettings(crop=(2, 4), crop_mode="random", pixels="native")
    track = track_of(frame)
    out = np.empty((1, 2, 4), np.uint8)
    corners = {}
    for at in ((0.0, 0.0), (0.999, 0.999), (0.5, 0.25)):
        FrameConverter(settings).write(frame, track, out, at)
        corners[at] = int(out[0, 0, 0])
    assert corners == {(0.0, 0.0): 0, (0.999, 0.999): 46, (0.5, 0.25): 21}
    for bad in (None, (1.0, 0.0), (-0.1, 0.0)):
        with pytest.raises(InvalidInputError):
            FrameConverter(settings).write(frame, track, out, bad)


def test_a_crop_larger_than_the_picture_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="does not fit"):
        output_shape(TRACK, PixelSettings(crop=(49, 64)))


@pytest.mark.parametrize(
    "values",
    [
        {"resize": 0},
        {"resize": (4, 0)},
        {"crop": (0, 4)},
        {"crop_mode": "left"},
        {"pixels": "yuv"},
    ],
)
def test_settings_that_mean_nothing_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        PixelSettings(**values)


def test_a_change_of_size_is_refused() -> None:
    frame = picture("yuv420p")
    with pytest.raises(MediaError, match="changes from 32x48 to 64x48"):
        convert(frame, width=32)


def test_a_colour_matrix_that_nobody_converts_is_refused() -> None:
    frame = picture("yuv420p", matrix=10)
    with pytest.raises(MediaError, match="colour matrix 10"):
        convert(frame)


def test_the_reserved_colour_matrix_is_read_as_unknown() -> None:
    frame = picture("yuv420p", matrix=3)
    got = convert(frame)
    frame.colorspace = 2
    assert np.array_equal(got, convert(frame))
