"""Which VP8 and VP9 packets are never shown.

Encoders make frames that only others refer to. Matroska stores each as a block with a time of
its own, so a table of blocks lists more frames than a decoder puts out.
"""

from __future__ import annotations


def is_hidden(codec: str, head: bytes | memoryview, last_byte: int) -> bool:
    """True for a packet that gives no frame.

    Args:
        codec: libav's name; other codecs have no such packets.
        head: the packet's first byte, at least.
        last_byte: the packet's last: it tells a VP9 superframe, which ends with a shown frame.
    """
    if not len(head):
        return False
    first = head[0]
    if codec == "vp8":
        return not first & 0x10  # RFC 6386 9.1: show_frame
    if codec != "vp9" or first >> 6 != 2 or last_byte & 0xE0 == 0xC0:
        return False
    # VP9 bitstream specification 6.2: marker, profile (one bit more in profile 3),
    # show_existing_frame, frame_type, show_frame.
    shift = 0 if first & 0x30 == 0x30 else 1
    return not first >> shift & 0b101
