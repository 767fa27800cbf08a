from __future__ import annotations

import pytest

from dstream.media.h264 import is_gradual

AVCC = bytes.fromhex("0142c00cffe1")
IDR, SLICE = b"\x65\x88", b"\x41\x9a"
WAITS = bytes.fromhex("0606023c4080")  # recovery_frame_cnt 6, as x264 writes it
AT_ONCE = bytes.fromhex("060601c480")
OTHER_FIRST = b"\x06" + b"\xff\x05" + b"\xff\x10" + bytes(271) + bytes.fromhex("06023c4080")


def prefixed(*units: bytes) -> bytes:
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)


def annex_b(*units: bytes) -> bytes:
    return b"".join(b"\0\0\0\1" + unit for unit in units)


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([IDR], False),
        ([SLICE], False),
        ([WAITS, SLICE], True),
        ([AT_ONCE, SLICE], False),
        ([b"\x09\xf0", b"\x67\x42", b"\x68\xce", WAITS, SLICE], True),
        ([OTHER_FIRST, SLICE], True),
        ([SLICE, WAITS], False),
        ([], False),
        ([b""], False),
        ([b"\x06"], False),
        ([b"\x06\xff\xff"], False),
        ([b"\x06\x06\x02"], False),
    ],
)
def test_a_recovery_point_in_a_later_frame_is_seen(units: list[bytes], expected: bool) -> None:
    assert is_gradual(prefixed(*units), AVCC) is expected
    assert is_gradual(memoryview(annex_b(*units)), b"") is expected
