"""The one thing that random access needs to know of H.264's syntax: is a keyframe whole?

An encoder that refreshes the picture gradually (intra refresh) has no I-frames after the first:
its "keyframes" are P-frames with a recovery point some frames later. A decoder that starts at
one knows too little: frames before the recovery point are missing, and where the encoder's frame
counter wraps just there libav's later frames are silently wrong. Starting two GOPs earlier is
exact: the first of them gives the decoder its references, the second refreshes the picture.
"""

from __future__ import annotations

from collections.abc import Iterator

from dstream.media.annexb import nal_units

_NAL_SLICES = frozenset({1, 2, 5})
_NAL_SEI = 6
_SEI_RECOVERY_POINT = 6


def is_gradual(packet: bytes | memoryview, extradata: bytes) -> bool:
    """True for a keyframe whose recovery point lies in a later frame.

    Args:
        packet: a coded H.264 frame, as length-prefixed NAL units or as Annex B.
        extradata: the track's; it says which.
    """
    data = bytes(packet)
    units = (
        _prefixed(data, (extradata[4] & 3) + 1)
        if len(extradata) > 4 and extradata[0] == 1
        else nal_units(data)
    )
    for unit in units:
        kind = unit[0] & 31 if unit else 0
        if kind in _NAL_SLICES:
            return False
        if kind == _NAL_SEI and _waits(unit):
            return True
    return False


def _prefixed(data: bytes, prefix_bytes: int) -> Iterator[bytes | memoryview]:
    position = 0
    while position + prefix_bytes < len(data):
        size = int.from_bytes(data[position : position + prefix_bytes], "big")
        position += prefix_bytes
        yield data[position : position + size]
        position += size


def _waits(unit: bytes | memoryview) -> bool:
    """Whether an SEI unit (ITU-T H.264 7.3.2.3.1) holds a recovery_frame_cnt above zero."""
    position = 1
    while position + 2 < len(unit):
        values = []
        for _ in range(2):
            value = 0
            while position < len(unit) and unit[position] == 255:
                value += 255
                position += 1
            value += unit[position] if position < len(unit) else 0
            position += 1
            values.append(value)
        kind, size = values
        if kind == _SEI_RECOVERY_POINT and position < len(unit):
            return unit[position] < 0x80  # the Exp-Golomb code of zero is a single 1 bit
        position += size
    return False
