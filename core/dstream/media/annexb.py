"""H.264 and HEVC as mp4 and Matroska store them, turned into the byte stream of Annex B.

A container keeps NAL units behind length prefixes and the parameter sets apart, in avcC or hvcC
(ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1). Hardware decoders take start codes, and the parameter
sets in the stream. Where the sets go and how long each start code is follows FFmpeg's bitstream
filters ``h264_mp4toannexb`` and ``hevc_mp4toannexb`` (of FFmpeg 8.1), byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, Protocol

from dstream.errors import MediaError, MediaReason

_START = b"\0\0\0\1"
_SHORT_START = b"\0\0\1"
_MIN_AVCC_BYTES = 7
_MIN_HVCC_BYTES = 23
# H.264 Table 7-1.
_SLICE, _IDR, _SEI, _SPS, _PPS = 1, 5, 6, 7, 8
_BUFFERING_PERIOD = b"\0"
# HEVC Table 7-1: pictures to start from, and what a hvcC may hold.
_IRAP = range(16, 24)
_HEVC_SETS = range(32, 35)  # VPS, SPS, PPS
_IN_HVCC = frozenset({*_HEVC_SETS, 39, 40})  # and SEI, before and after the picture


class AnnexB(Protocol):
    """Converts the packets of one run of a decoder, in decode order."""

    header: bytes
    """The track's parameter sets behind start codes; empty where only the packets have them."""

    def convert(self, packet: bytes | memoryview) -> bytes:
        """One packet behind start codes, parameter sets included where a picture can start.

        Raises:
            MediaError: a length prefix reaches past the packet.
        """
        ...


def annexb_of(codec: str, extradata: bytes) -> AnnexB:
    """The converter of a track's packets, fresh for each run.

    Raises:
        MediaError: the track's parameter sets are damaged.
    """
    starts = extradata.startswith((_SHORT_START, _START))
    if codec == "h264" and extradata and not starts:
        return _H264(extradata)
    if codec == "hevc" and len(extradata) >= _MIN_HVCC_BYTES and not starts:
        return _Hevc(extradata)
    return _AsStored(extradata if starts else b"")


def nal_units(stream: bytes) -> Iterator[memoryview]:
    """The units between the start codes of an Annex B stream.

    >>> [bytes(unit) for unit in nal_units(bytes.fromhex("00000001 6742 000001 68 00000001 65"))]
    [b'gB', b'h', b'e']
    """
    view = memoryview(stream)
    position = stream.find(_SHORT_START)
    while position >= 0:
        following = stream.find(_SHORT_START, position + 3)
        stop = len(stream) if following < 0 else following
        if following > 0 and stream[following - 1] == 0:
            stop -= 1
        yield view[position + 3 : stop]
        position = following


class _AsStored:
    """Annex B already."""

    def __init__(self, header: bytes) -> None:
        self.header = header

    def convert(self, packet: bytes | memoryview) -> bytes:
        return bytes(packet)


class _H264:
    """Sets go before the first slice of an IDR picture that brings none of its own.

    Or before its buffering period, a message that speaks of them.

    Sets that a packet brings replace those of the container. What was seen is remembered from
    packet to packet: of a picture in several packets only the first gets the sets.
    """

    def __init__(self, avcc: bytes) -> None:
        if len(avcc) < _MIN_AVCC_BYTES:
            _refuse(f"an avcC of {len(avcc)} bytes, at least {_MIN_AVCC_BYTES} are needed")
        self._prefix_bytes = (avcc[4] & 3) + 1
        self._sps, position = _counted_units(avcc, 6, avcc[5] & 0x1F)
        if position >= len(avcc):
            _refuse("an avcC that ends before its picture parameter sets")
        self._pps, _ = _counted_units(avcc, position + 1, avcc[position])
        self.header = self._sps + self._pps
        self._new_idr = True
        self._sps_seen = self._pps_seen = False

    def convert(self, packet: bytes | memoryview) -> bytes:
        units = [unit for unit in _units(packet, self._prefix_bytes) if unit]
        self._learn(units)
        pieces: list[bytes | memoryview] = []
        for unit in units:
            kind = unit[0] & 0x1F
            is_set = kind in (_SPS, _PPS)
            pieces.extend(filter(None, self._sets_before(kind, unit)))
            pieces.append(_START if is_set or not pieces else _SHORT_START)
            pieces.append(unit)
            if kind == _SLICE:
                self._new_idr, self._sps_seen, self._pps_seen = True, False, False
        return b"".join(pieces)

    def _learn(self, units: list[memoryview]) -> None:
        """Keep the parameter sets of a packet in place of those before."""
        for kind, name in ((_SPS, "_sps"), (_PPS, "_pps")):
            brought = b"".join(_START + bytes(unit) for unit in units if unit[0] & 0x1F == kind)
            if brought:
                setattr(self, name, brought)

    def _sets_before(self, kind: int, unit: memoryview) -> Iterator[bytes]:
        if kind == _SPS:
            self._sps_seen = self._new_idr = True
        elif kind == _PPS:
            self._pps_seen = self._new_idr = True
            if not self._sps_seen and self._sps:
                self._sps_seen = True
                yield self._sps
        elif kind == _SEI and unit[1:2] == _BUFFERING_PERIOD:
            if not self._sps_seen and not self._pps_seen:
                self._sps_seen, self._pps_seen = bool(self._sps), bool(self._pps)
                yield self._sps + self._pps
        elif kind == _IDR:
            # first_mb_in_slice is 0, the single bit 1 in Exp-Golomb: another picture begins.
            self._new_idr = self._new_idr or (len(unit) > 1 and unit[1] & 0x80 != 0)
            if not self._new_idr or self._pps_seen:
                return
            if not self._sps_seen:
                self._new_idr = False
                yield self._sps
            yield self._pps


class _Hevc:
    """All sets of the hvcC go into each packet with a picture that decoding can start at.

    Before the first such slice, and before sets that the packet brings ahead of it: these then
    replace the container's.
    """

    def __init__(self, hvcc: bytes) -> None:
        self._prefix_bytes = (hvcc[21] & 3) + 1
        self.header = b""
        position = _MIN_HVCC_BYTES
        for _ in range(hvcc[22]):
            if position + 3 > len(hvcc):
                _refuse("a hvcC that ends within its parameter sets")
            kind = hvcc[position] & 0x3F
            if kind not in _IN_HVCC:
                _refuse(f"a hvcC with a unit of type {kind} among its parameter sets")
            count = int.from_bytes(hvcc[position + 1 : position + 3], "big")
            units, position = _counted_units(hvcc, position + 3, count, least_bytes=1)
            self.header += units

    def convert(self, packet: bytes | memoryview) -> bytes:
        units = list(_units(packet, self._prefix_bytes))
        for unit in units:
            if len(unit) < 2:
                _refuse(f"a HEVC unit of {len(unit)} bytes, shorter than its header")
        kinds = [unit[0] >> 1 & 0x3F for unit in units]
        header = self.header if any(kind in _IRAP for kind in kinds) else b""
        pieces: list[bytes | memoryview] = []
        for kind, unit in zip(kinds, units, strict=True):
            if kind in _IRAP or kind in _HEVC_SETS:
                pieces.append(header)
                header = b""
            pieces += (_START, unit)
        return b"".join(pieces)


def _counted_units(
    record: bytes, position: int, count: int, *, least_bytes: int = 0
) -> tuple[bytes, int]:
    """``count`` units with 16-bit lengths, behind start codes, and where they end."""
    pieces = []
    for _ in range(count):
        start = position + 2
        size = int.from_bytes(record[position:start], "big")
        position = start + size
        if start > len(record) or position > len(record) or size < least_bytes:
            _refuse(f"a parameter set of {size} bytes in a record with {len(record) - start} left")
        pieces.append(_START + record[start:position])
    return b"".join(pieces), position


def _units(packet: bytes | memoryview, prefix_bytes: int) -> Iterator[memoryview]:
    view = memoryview(packet)
    position = 0
    while position < len(view):
        start = position + prefix_bytes
        size = int.from_bytes(view[position:start], "big")
        position = start + size
        if position > len(view):
            _refuse(f"a unit of {size} bytes in a packet with {max(0, len(view) - start)} left")
        yield view[start:position]


def _refuse(what: str) -> NoReturn:
    raise MediaError(f"the video is damaged: it has {what}", reason=MediaReason.DAMAGED)
