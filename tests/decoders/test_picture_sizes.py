"""The sizes that VP9 and AV1 packets give, told from their headers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from decoder_runs import Video
from dstream.media.av1_size import av1_keeps_size
from dstream.media.decoders.nvdec_backend import feed_of
from dstream.media.vp9_size import vp9_sizes

SYNC, SIZE = f"{0x498342:024b}", f"{159:016b}{95:016b}"


def packed(bits: str) -> bytes:
    """The fields of a header as bytes."""
    bits = "".join(bits.split())
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def superframe(*frames: bytes) -> bytes:
    mark = bytes([0xC0 | 1 << 3 | len(frames) - 1])
    return b"".join(frames) + mark + b"".join(len(f).to_bytes(2, "little") for f in frames) + mark


KEY = packed(f"10 00 0 0 1 0 {SYNC} 001 0 {SIZE}")
INTER = packed(f"10 00 0 1 1 0 00 {0:08b} {0:012b} 000 {SIZE}")


@pytest.mark.parametrize(
    ("packet", "sizes"),
    [
        (KEY, {(160, 96)}),
        (packed(f"10 10 0 0 1 0 {SYNC} 001 0 110 {SIZE}"), {(160, 96)}),  # profile 1
        (packed(f"10 01 0 0 1 0 {SYNC} 1 001 0 {SIZE}"), {(160, 96)}),  # profile 2
        (packed(f"10 11 0 0 0 1 0 {SYNC} 1 111 0 {SIZE}"), {(160, 96)}),  # profile 3, RGB
        (packed(f"10 00 0 1 0 0 1 00 {SYNC} {0:08b} {SIZE}"), {(160, 96)}),  # intra only
        (INTER, {(160, 96)}),
        (packed(f"10 00 0 1 1 1 {0:08b} {0:012b} 000 {SIZE}"), {(160, 96)}),  # error resilient
        (packed(f"10 00 0 1 1 0 00 {0:08b} {0:012b} 01"), set()),  # as large as another
        (packed("10 00 1 000"), set()),  # shows an earlier one
        (superframe(KEY, packed("10 00 1 000")), {(160, 96)}),
    ],
)
def test_vp9_frames_say_how_large_they_are(packet: bytes, sizes: set[tuple[int, int]]) -> None:
    assert vp9_sizes(packet) == sizes


def test_a_hidden_vp9_frame_of_another_size_is_told() -> None:
    other = packed(f"10 00 0 1 1 0 00 {0:08b} {0:012b} 000 {79:016b}{47:016b}")
    assert vp9_sizes(superframe(KEY, other)) == {(160, 96), (80, 48)}


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libvpx-vp9", {"lag-in-frames": "16", "auto-alt-ref": "1"}),
        ("libsvtav1", {}),
        ("libsvtav1", {"preset": "10", "svtav1-params": "lp=1:superres-mode=1:superres-denom=12"}),
    ],
)
def test_streams_of_one_size_are_constant(
    tmp_path: Path, codec: str, options: dict[str, str]
) -> None:
    made = Video(tmp_path / "v", codec=codec, frames=20, gop=10, options=options)
    run = made.run(frames=20)
    feed = feed_of(run)
    assert feed.coding.is_constant
    if run.track.codec == "vp9":
        assert set().union(*map(vp9_sizes, feed.packets)) == {(run.track.width, run.track.height)}


def test_av1_frames_that_are_resized_are_told(tmp_path: Path) -> None:
    options = {"preset": "10", "svtav1-params": "lp=1:resize-mode=1:resize-denom=12"}
    made = Video(tmp_path / "v", codec="libsvtav1", frames=20, gop=10, options=options)
    assert not feed_of(made.run(frames=20)).coding.is_constant


def test_headers_that_cannot_be_read_raise_nothing_else() -> None:
    rng = np.random.default_rng(3)
    seen = 0
    for size in range(40):
        for reads in (vp9_sizes, lambda data: av1_keeps_size([data])):
            try:
                reads(rng.bytes(size))
            except ValueError:
                seen += 1
    assert seen > 40
