"""How large the pictures of a VP9 packet are.

Inter frames may change the size as well as keyframes. They either take it from a frame that they
refer to or give it, so a run that gives one size alone has no other.
"""

from __future__ import annotations

from collections.abc import Iterator

from dstream.media.bits import Bits

_HEAD_BYTES = 32
"""Of a frame: its size stands within 20."""
_MARKER = 2
_SYNC_CODE = 0x498342
_SRGB = 7
_REFERENCES = 3


def vp9_sizes(packet: bytes) -> set[tuple[int, int]]:
    """The (width, height) that the frames of a packet give, hidden ones included.

    Raises:
        ValueError: a frame that cannot be read.
    """
    sizes = (_size(Bits(frame[:_HEAD_BYTES])) for frame in _frames(packet))
    return {size for size in sizes if size is not None}


def _frames(packet: bytes) -> Iterator[bytes]:
    """Those of a superframe, whose index ends the packet (VP9 bitstream specification, annex B)."""
    last = packet[-1] if packet else 0
    width, count = (last >> 3 & 3) + 1, (last & 7) + 1
    index_bytes = 2 + width * count
    if last & 0xE0 != 0xC0 or len(packet) < index_bytes or packet[-index_bytes] != last:
        yield packet
        return
    begin = 0
    for at in range(len(packet) - index_bytes + 1, len(packet) - 1, width):
        end = begin + int.from_bytes(packet[at : at + width], "little")
        if end > begin:
            yield packet[begin:end]
        begin = end


def _size(bits: Bits) -> tuple[int, int] | None:
    """What ``uncompressed_header`` (6.2) gives; None where it refers to another frame's."""
    if bits.take(2) != _MARKER:
        raise ValueError("no VP9 frame")
    profile = bits.take(1) | bits.take(1) << 1
    bits.take(profile == 3)
    if bits.take(1):  # show_existing_frame
        return None
    is_inter, is_shown, is_resilient = bits.take(1), bits.take(1), bits.take(1)
    if not is_inter:
        _sync(bits)
        _skip_colours(bits, profile)
        return _frame_size(bits)
    is_intra_only = 0 if is_shown else bits.take(1)
    bits.take(0 if is_resilient else 2)  # reset_frame_context
    if is_intra_only:
        _sync(bits)
        if profile:
            _skip_colours(bits, profile)
        bits.take(8)  # refresh_frame_flags
        return _frame_size(bits)
    bits.take(8 + _REFERENCES * 4)
    if any(bits.take(1) for _ in range(_REFERENCES)):  # found_ref
        return None
    return _frame_size(bits)


def _sync(bits: Bits) -> None:
    if bits.take(24) != _SYNC_CODE:
        raise ValueError("no VP9 sync code")


def _skip_colours(bits: Bits, profile: int) -> None:
    """``color_config`` (6.2.2)."""
    bits.take(profile >= 2)
    if bits.take(3) != _SRGB:
        bits.take(4 if profile & 1 else 1)  # range; subsampling
    elif profile & 1:
        bits.take(1)


def _frame_size(bits: Bits) -> tuple[int, int]:
    return bits.take(16) + 1, bits.take(16) + 1
