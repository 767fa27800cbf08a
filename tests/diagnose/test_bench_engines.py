"""NVDEC's engines in a bench: NVIDIA's figures and the measured ones, as tables."""

from __future__ import annotations

import pytest

from dstream.diagnose.bench.engines import Engines, engines_of, published_frames_per_second
from dstream.measure import Snapshot

HD, UHD = 1920 * 1080, 3840 * 2160


@pytest.mark.parametrize(
    ("capability", "codec", "bit_depth", "pixels", "expected"),
    [
        ((7, 5), "hevc", 8, HD, 1316),
        ((8, 0), "h264", 8, HD, 771),
        ((9, 0), "hevc", 10, HD, 1158),
        ((9, 0), "hevc", 8, UHD, 329),
        ((9, 0), "av1", 8, HD, None),
        ((9, 0), "h264", 10, HD, None),
        ((8, 6), "vp9", 8, HD, 1075),
        ((8, 9), "av1", 8, HD, 1018),
        ((12, 0), "h264", 8, HD, 2172),
        ((6, 1), "h264", 8, HD, None),
        ((9, 0), "h264", 8, 0, None),
    ],
)
def test_what_nvidia_publishes(
    capability: tuple[int, int], codec: str, bit_depth: int, pixels: int, expected: float | None
) -> None:
    assert published_frames_per_second(capability, codec, bit_depth, pixels) == expected


@pytest.mark.parametrize(
    ("sums", "count", "expected"),
    [
        (
            {"frames.nvdec": 1400.0, "seconds.nvdec": 2.0, "frames.decoded": 1400.0},
            7,
            Engines(7, 700.0, 350.0, decodes_all=True, published=771.0),
        ),
        (
            {"frames.nvdec": 1400.0, "seconds.nvdec": 2.0, "frames.decoded": 1500.0},
            1,
            Engines(1, 700.0, 50.0, decodes_all=False, published=771.0),
        ),
        ({"frames.decoded": 1500.0}, 7, None),
        ({"frames.nvdec": 1400.0, "seconds.nvdec": 2.0}, 0, None),
    ],
)
def test_what_engines_gave(sums: dict[str, float], count: int, expected: Engines | None) -> None:
    assert engines_of(Snapshot(sums=sums), 100, count, 771.0) == expected


def test_a_rate_without_a_published_one() -> None:
    assert Engines(4, 650.0, 9.0, decodes_all=True).told == (
        "4 NVDEC engines decode 650 frames/s each"
    )
