"""What a plain decode of a whole file gives: the reference that clips are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import xxhash
from numpy.typing import NDArray

Converter = Callable[[av.VideoFrame], NDArray[np.generic]]


@dataclass(frozen=True)
class Sequential:
    """Frames of one track in the order in which libav puts them out."""

    pts: list[int | None]
    """Of every frame that came out."""
    hashes: Mapping[int, int]
    """Frame number in that order -> hash, for the frames that were wanted."""


def sequential(
    path: Path, track_id: int, convert: Converter, wanted: set[int] | None = None
) -> Sequential:
    """Decode the track in one thread; hash the frames numbered in ``wanted``, or all."""
    pts: list[int | None] = []
    hashes: dict[int, int] = {}
    last = None if wanted is None else max(wanted, default=-1)
    for number, frame in enumerate(all_frames(path, track_id)):
        pts.append(frame.pts)
        if wanted is None or number in wanted:
            hashes[number] = array_hash(convert(frame))
        if number == last:
            break
    return Sequential(pts, hashes)


def all_frames(path: Path, track_id: int) -> Iterator[av.VideoFrame]:
    """Every frame that libav's own demuxer and decoder give; bad packets are passed over."""
    with av.open(str(path)) as container:
        stream = container.streams[track_id]
        assert isinstance(stream, av.VideoStream)
        stream.codec_context.thread_count = 1
        for packet in container.demux(stream):
            try:
                yield from packet.decode()
            except av.error.FFmpegError:
                continue


def array_hash(array: NDArray[np.generic]) -> int:
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(array).data)


def planes(frame: av.VideoFrame) -> list[NDArray[np.generic]]:
    """The planes [H, W] without padding; 8-bit formats as uint8, deeper ones as uint16."""
    dtype = np.dtype(np.uint8 if frame.format.components[0].bits <= 8 else np.uint16)
    return [
        np.frombuffer(memoryview(plane), dtype).reshape(-1, plane.line_size // dtype.itemsize)[
            : plane.height, : plane.width
        ]
        for plane in frame.planes
    ]


def upright_rgb(frame: av.VideoFrame) -> NDArray[np.generic]:
    """[3, H, W] by libav's own conversion and the container's rotation.

    Only for widths that are multiples of 16 with even heights: else swscale leaves the last
    columns of planar RGB unwritten.
    """
    green, blue, red = planes(frame.reformat(format="gbrp", threads=1))
    return np.rot90(np.stack([red, green, blue]), frame.rotation // 90, axes=(1, 2))
