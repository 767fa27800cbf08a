"""Making the first part of a large keyframe acceptable to a decoder.

In mp4 and Matroska, H.264 and HEVC packets are units behind length prefixes. Of a cut packet the
last length points past the end, and a decoder then rejects all of it; with that length shortened
it reads the headers and the rows that are there, which is enough to learn the picture format.
"""

from __future__ import annotations


def length_prefix_bytes(codec: str, extradata: bytes) -> int | None:
    """Size of each length prefix, or None where packets are not length-prefixed.

    ISO/IEC 14496-15: ``lengthSizeMinusOne`` is in byte 4 of avcC (5.3.3.1) and byte 21 of hvcC
    (8.3.3.1); both records begin with version 1.
    """
    place = {"h264": 4, "hevc": 21}.get(codec)
    if place is None or len(extradata) <= place or extradata[0] != 1:
        return None
    return (extradata[place] & 3) + 1


def close_cut_unit(data: bytes, codec: str, extradata: bytes) -> bytes:
    """``data`` with a last length that reaches past its end shortened to what is there.

    >>> avcc = bytes([1, 100, 0, 40, 0xFF])
    >>> close_cut_unit(bytes([0, 0, 0, 2, 9, 9, 0, 0, 1, 0, 7]), "h264", avcc).hex(" ")
    '00 00 00 02 09 09 00 00 00 01 07'
    """
    prefix_bytes = length_prefix_bytes(codec, extradata)
    if prefix_bytes is None:
        return data
    position = 0
    while position + prefix_bytes < len(data):
        size = int.from_bytes(data[position : position + prefix_bytes], "big")
        start = position + prefix_bytes
        left = len(data) - start
        if size > left:
            return data[:position] + left.to_bytes(prefix_bytes, "big") + data[start:]
        position = start + size
    return data[:position]
