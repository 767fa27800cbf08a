from __future__ import annotations

import pytest

from dstream.media.vpx import is_hidden


@pytest.mark.parametrize(
    ("codec", "first", "last", "expected"),
    [
        ("vp8", 0b0001_0000, 0, False),
        ("vp8", 0b0000_0001, 0, True),
        ("vp9", 0b1000_0010, 0, False),  # shown keyframe
        ("vp9", 0b1000_0100, 0, True),  # hidden inter frame
        ("vp9", 0b1000_0000, 0, True),
        ("vp9", 0b1000_1000, 0, False),  # shows a frame that exists
        ("vp9", 0b1000_0100, 0xC9, False),  # superframe
        ("vp9", 0b1001_0100, 0, True),  # profile 2
        ("vp9", 0b1001_0110, 0, False),
        ("vp9", 0b1011_0010, 0, True),  # profile 3: everything one bit later
        ("vp9", 0b1011_0001, 0, False),
        ("vp9", 0b1011_0100, 0, False),
        ("vp9", 0b0100_0000, 0, False),  # no VP9: the decoder shall say so
        ("h264", 0, 0, False),
    ],
)
def test_hidden_packets_are_told_from_shown_ones(
    codec: str, first: int, last: int, expected: bool
) -> None:
    assert is_hidden(codec, bytes([first]), last) is expected


def test_an_empty_packet_is_not_hidden() -> None:
    assert not is_hidden("vp9", b"", 0)
