"""What is left of packet and GOP tables after guessing each column from others: mostly zeros.

All columns are int64 and wrap at 64 bits, so any table comes back exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dstream.errors import CorruptDataError
from dstream.format.columns import Int64s
from dstream.format.index import GopTable, PacketTable


def packet_residuals(packets: PacketTable) -> dict[str, Int64s]:
    """Each packet column less its guess."""
    return {
        "dts": packets.dts,
        "pts": packets.pts - packets.dts,
        "size_bytes": packets.size_bytes,
        "offset_bytes": packets.offset_bytes - _chained(packets.offset_bytes, packets.size_bytes),
        "duration": packets.duration,
        "flags": packets.flags.astype(np.int64),
    }


def restore_packets(stored: Mapping[str, Int64s]) -> PacketTable:
    """The packet table of columns of equal length.

    Raises:
        CorruptDataError: flags that do not fit into a byte.
    """
    sizes = stored["size_bytes"]
    flags = stored["flags"]
    if len(flags) and not 0 <= int(flags.min()) <= int(flags.max()) < 256:
        raise CorruptDataError("index entry: packet flags are out of range")
    return PacketTable(
        offset_bytes=_unchain(stored["offset_bytes"], sizes),
        size_bytes=sizes,
        pts=stored["pts"] + stored["dts"],
        dts=stored["dts"],
        duration=stored["duration"],
        flags=flags.astype(np.uint8),
    )


def gop_residuals(gops: GopTable, packets: PacketTable | None) -> dict[str, Int64s]:
    """Each GOP column less its guess."""
    guess = _gop_guess(gops.first_packet, packets)
    offsets = gops.offset_bytes - guess.offset_bytes
    return {
        "first_packet": gops.first_packet,
        "key_pts": gops.key_pts - guess.key_pts,
        "offset_bytes": offsets,
        "size_bytes": gops.size_bytes - _up_to_next(gops.offset_bytes),
        "payload_bytes": gops.payload_bytes - guess.payload_bytes,
    }


def restore_gops(stored: Mapping[str, Int64s], packets: PacketTable | None) -> GopTable:
    """The GOP table of columns of equal length, behind its packet table."""
    guess = _gop_guess(stored["first_packet"], packets)
    offsets = stored["offset_bytes"] + guess.offset_bytes
    return GopTable(
        offset_bytes=offsets,
        size_bytes=stored["size_bytes"] + _up_to_next(offsets),
        key_pts=stored["key_pts"] + guess.key_pts,
        first_packet=stored["first_packet"],
        payload_bytes=stored["payload_bytes"] + guess.payload_bytes,
    )


@dataclass(frozen=True, slots=True)
class _GopGuess:
    key_pts: Int64s
    offset_bytes: Int64s
    payload_bytes: Int64s


def _gop_guess(first_packet: Int64s, packets: PacketTable | None) -> _GopGuess:
    """What the packet table says of each GOP; zeros where it says nothing."""
    zeros = np.zeros(len(first_packet), dtype=np.int64)
    if packets is None or len(first_packet) == 0 or len(packets) == 0:
        return _GopGuess(zeros, zeros, zeros)
    known = (first_packet >= 0) & (first_packet < len(packets))
    at = np.where(known, first_packet, 0)
    ends = np.append(at[1:], len(packets))
    total = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(packets.size_bytes)))
    return _GopGuess(
        np.where(known, packets.pts[at], 0),
        np.where(known, packets.offset_bytes[at], 0),
        np.where(known, total[ends] - total[at], 0),
    )


def _chained(offsets: Int64s, sizes: Int64s) -> Int64s:
    """Where each unit would start if it followed the one before: 0, then offset + size."""
    return np.concatenate((np.zeros(min(1, len(offsets)), np.int64), (offsets + sizes)[:-1]))


def _unchain(gaps: Int64s, sizes: Int64s) -> Int64s:
    """Undo the subtraction of :func:`_chained`: offset = sum of gaps so far + sizes before."""
    return np.cumsum(gaps) + np.cumsum(sizes) - sizes


def _up_to_next(offsets: Int64s) -> Int64s:
    """Distance to the next offset; 0 for the last."""
    return np.append(np.diff(offsets), np.zeros(min(1, len(offsets)), np.int64))
