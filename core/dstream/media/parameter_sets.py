"""Parameter sets of H.264 and HEVC: which units they are, what they say of fields and cropping."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dstream.media.annexb import nal_units
from dstream.media.bits import Bits

_SETS = {"h264": (7, 8), "hevc": (32, 33, 34)}
_SEQUENCE = {"h264": 7, "hevc": 33}
_HAS_CHROMA_FORMAT = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})
_CHROMA_444 = 3
_HEAD_BYTES = {"h264": 1, "hevc": 2}


def parameter_sets(codec: str, stream: bytes) -> list[bytes]:
    """The units of an Annex B stream that hold parameter sets; none of other codecs."""
    kinds = _SETS.get(codec, ())
    return [bytes(unit) for unit in nal_units(stream) if _kind(codec, unit) in kinds]


def sequence_sets(codec: str, sets: Iterable[bytes]) -> set[bytes]:
    """Those that say how large pictures are, among others."""
    return {unit for unit in sets if _kind(codec, unit) == _SEQUENCE.get(codec)}


def is_progressive(codec: str, sets: Iterable[bytes]) -> bool:
    """Whether all sequence parameter sets among ``sets`` speak of whole frames.

    False as well where there is none, or one that cannot be read.
    """
    return _all_say(codec, sets, {"h264": _frames_only, "hevc": _hevc_is_progressive}[codec])


def starts_at_corner(codec: str, sets: Iterable[bytes]) -> bool:
    """Whether all of them crop nothing off a picture's left and top.

    False as well where there is none, or one that cannot be read.
    """
    return _all_say(codec, sets, {"h264": _h264_at_corner, "hevc": _hevc_at_corner}[codec])


def _all_say(codec: str, sets: Iterable[bytes], reads: Callable[[Bits], bool]) -> bool:
    sequence = sequence_sets(codec, sets)
    try:
        return bool(sequence) and all(
            reads(Bits(_unescaped(unit)[_HEAD_BYTES[codec] :])) for unit in sequence
        )
    except ValueError:
        return False


def _kind(codec: str, unit: bytes | memoryview) -> int:
    """``nal_unit_type``; -1 of an empty unit."""
    if not unit:
        return -1
    return unit[0] & 0x1F if codec == "h264" else unit[0] >> 1 & 0x3F


def _hevc_is_progressive(bits: Bits) -> bool:
    """No ``general_interlaced_source_flag`` (ITU-T H.265 7.3.2.2, 7.3.3).

    It follows a byte of identifiers, the profile (1), its compatibility flags (4) and
    ``general_progressive_source_flag``.
    """
    bits.take(49)
    return bits.take(1) == 0


def _hevc_at_corner(bits: Bits) -> bool:
    """Of the conformance window (ITU-T H.265 7.3.2.2.1)."""
    bits.take(4)  # sps_video_parameter_set_id
    layers = bits.take(3)  # sps_max_sub_layers_minus1
    bits.take(1 + 96)  # nesting; the general profile, tier and level (7.3.3)
    present = [bits.take(2) for _ in range(8 if layers else 0)][:layers]
    for flags in present:
        bits.take(88 * (flags >> 1) + 8 * (flags & 1))
    bits.number()  # sps_seq_parameter_set_id
    if bits.number() == _CHROMA_444:
        bits.take(1)
    bits.number()  # width and height
    bits.number()
    return _window_at_corner(bits)


def _h264_at_corner(bits: Bits) -> bool:
    """Of ``frame_cropping`` (ITU-T H.264 7.3.2.1.1)."""
    if not _frames_only(bits):
        bits.take(1)
    bits.take(1)  # direct_8x8_inference_flag
    return _window_at_corner(bits)


def _window_at_corner(bits: Bits) -> bool:
    """A flag, then what is cut off left, right, top and bottom."""
    if not bits.take(1):
        return True
    left, _, top, _ = (bits.number() for _ in range(4))
    return left == top == 0


def _unescaped(unit: bytes) -> bytes:
    """Without the bytes that keep start codes out of a unit."""
    return unit.replace(b"\0\0\3", b"\0\0")


def _frames_only(bits: Bits) -> bool:
    """``frame_mbs_only_flag`` (ITU-T H.264 7.3.2.1.1)."""
    profile = bits.take(8)
    bits.take(16)  # constraints, level
    bits.number()  # seq_parameter_set_id
    if profile in _HAS_CHROMA_FORMAT:
        _skip_chroma_and_scaling(bits)
    bits.number()  # log2_max_frame_num_minus4
    order_type = bits.number()
    if order_type == 0:
        bits.number()
    elif order_type == 1:
        bits.take(1)
        bits.number()
        bits.number()
        for _ in range(_bounded(bits.number())):
            bits.number()
    bits.number()  # max_num_ref_frames
    bits.take(1)
    bits.number()  # width and height in macroblocks
    bits.number()
    return bits.take(1) == 1


def _skip_chroma_and_scaling(bits: Bits) -> None:
    chroma = bits.number()
    if chroma == _CHROMA_444:
        bits.take(1)
    bits.number()  # bit depths
    bits.number()
    bits.take(1)
    if not bits.take(1):
        return
    for matrix in range(12 if chroma == _CHROMA_444 else 8):
        if bits.take(1):
            _skip_scaling_list(bits, 16 if matrix < 6 else 64)


def _skip_scaling_list(bits: Bits, size: int) -> None:
    following = 8
    for _ in range(size):
        following = (following + bits.signed()) % 256
        if following == 0:
            return


def _bounded(count: int) -> int:
    if count > 255:
        raise ValueError("more than 255 offsets in a cycle of picture order counts")
    return count
