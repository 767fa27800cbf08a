"""Whether AV1 pictures have the size that their sequence header gives.

Section numbers are those of the AV1 bitstream specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstream.media.bits import Bits

_SEQUENCE, _FRAME_HEADER, _FRAME = 1, 3, 6
_SEQUENCE_BYTES, _HEAD_BYTES = 1024, 32
"""Read of a sequence header, which 32 operating points make long, and of a frame's header."""
_KEY_FRAME, _SWITCH_FRAME = 0, 3
_BY_FRAME = 2
"""SELECT_SCREEN_CONTENT_TOOLS, SELECT_INTEGER_MV."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    """What of a sequence header tells where a frame's header says that its size is another."""

    size: tuple[int, int]
    """Width and height."""
    is_reduced: bool
    """``reduced_still_picture_header``: frames cannot have another."""
    time_bits: int
    """Of a shown frame's ``frame_presentation_time``."""
    id_bits: int
    """Of ``current_frame_id``."""
    screen_content: int
    integer_mv: int


def av1_keeps_size(packets: Sequence[bytes]) -> bool:
    """Whether all sequence headers give one size, and no frame overrides it.

    Super-resolution and render sizes are no other size: what a decoder puts out is as large.

    Raises:
        ValueError: a header that cannot be read.
    """
    sequence: _Sequence | None = None
    for kind, unit in (found for packet in packets for found in _units(packet)):
        if kind == _SEQUENCE:
            # Not the same bytes: SVT-AV1 gives the container others than the stream.
            before, sequence = sequence, _sequence(Bits(unit[:_SEQUENCE_BYTES]))
            if before is not None and before.size != sequence.size:
                return False
        elif kind in (_FRAME_HEADER, _FRAME):
            if sequence is None:
                raise ValueError("a frame before any sequence header")
            if _overrides(Bits(unit[:_HEAD_BYTES]), sequence):
                return False
    return True


def _units(packet: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and payload of each OBU (5.3)."""
    at = 0
    while at < len(packet):
        head = packet[at]
        at += 2 if head & 4 else 1
        size = len(packet) - at
        if head & 2:
            size, at = _leb128(packet, at)
        if not 0 <= size <= len(packet) - at:
            raise ValueError("an OBU reaches past its packet")
        yield head >> 3 & 15, packet[at : at + size]
        at += size


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    """A number (4.10.5), and where it ends."""
    value = 0
    for place, byte in enumerate(data[at : at + 8]):
        value |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            return value, at + place + 1
    raise ValueError("an OBU's size is cut")


def _sequence(bits: Bits) -> _Sequence:
    """``sequence_header_obu`` (5.5.1), as far as needed."""
    bits.take(4)  # profile, still_picture
    is_reduced = bool(bits.take(1))
    time_bits = 0
    if is_reduced:
        bits.take(5)  # level
    else:
        time_bits = _skip_timing(bits)
    side_bits = bits.take(4) + 1, bits.take(4) + 1
    width, height = (bits.take(count) + 1 for count in side_bits)
    if is_reduced:
        return _Sequence((width, height), True, 0, 0, 0, 0)
    id_bits = 0
    if bits.take(1):  # frame_id_numbers_present_flag
        id_bits = bits.take(4) + 2 + bits.take(3) + 1
    bits.take(3 + 4)  # from use_128x128_superblock to enable_dual_filter
    if bits.take(1):  # enable_order_hint
        bits.take(2)
    screen_content = _BY_FRAME if bits.take(1) else bits.take(1)
    integer_mv = _BY_FRAME
    if screen_content:
        integer_mv = _BY_FRAME if bits.take(1) else bits.take(1)
    return _Sequence((width, height), False, time_bits, id_bits, screen_content, integer_mv)


def _skip_timing(bits: Bits) -> int:
    """To the end of the operating points; bits of a shown frame's time."""
    delay_bits = time_bits = 0
    if bits.take(1):  # timing_info_present_flag
        bits.take(64)
        is_even = bits.take(1)
        if is_even:
            bits.number()  # a uvlc, as long as an Exp-Golomb code
        if bits.take(1):  # decoder_model_info_present_flag
            delay_bits = bits.take(5) + 1
            bits.take(32 + 5)
            presentation_bits = bits.take(5) + 1
            time_bits = 0 if is_even else presentation_bits
    has_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        _skip_operating_point(bits, delay_bits, has_delay)
    return time_bits


def _skip_operating_point(bits: Bits, delay_bits: int, has_delay: int) -> None:
    bits.take(12)
    bits.take(bits.take(5) > 7)  # seq_tier
    if delay_bits and bits.take(1):
        bits.take(2 * delay_bits + 1)
    if has_delay and bits.take(1):
        bits.take(4)


def _overrides(bits: Bits, sequence: _Sequence) -> bool:
    """``frame_size_override_flag`` of ``uncompressed_header`` (5.9.2)."""
    if sequence.is_reduced or bits.take(1):  # show_existing_frame
        return False
    kind, is_shown = bits.take(2), bits.take(1)
    if kind == _SWITCH_FRAME:
        return True
    bits.take(sequence.time_bits if is_shown else 1)  # or showable_frame
    if not (kind == _KEY_FRAME and is_shown):
        bits.take(1)  # error_resilient_mode
    bits.take(1)  # disable_cdf_update
    has_tools = sequence.screen_content
    if has_tools == _BY_FRAME:
        has_tools = bits.take(1)
    if has_tools and sequence.integer_mv == _BY_FRAME:
        bits.take(1)
    bits.take(sequence.id_bits)
    return bool(bits.take(1))
