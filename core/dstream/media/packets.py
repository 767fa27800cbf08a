"""A packet as demuxers of byte ranges give it."""

from __future__ import annotations

from dataclasses import dataclass

Bytes = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Packet:
    """One coded frame, as libav's demuxer of the whole file would give it."""

    data: bytes | memoryview
    pts: int
    dts: int | None
    is_key: bool
    is_discard: bool
