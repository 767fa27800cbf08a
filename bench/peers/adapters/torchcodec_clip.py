"""Clips by torchcodec, for the peers that leave decoding to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torchcodec.decoders import VideoDecoder
from torchcodec.transforms import Resize

Size = tuple[int, int] | None


def open_decoder(source: Any, size: Size, *, mode: str = "approximate", threads: int = 1) -> Any:
    """A decoder of a path, bytes or a file object; ``size`` is (height, width)."""
    return VideoDecoder(
        source,
        seek_mode="approximate" if mode == "approximate" else "exact",
        num_ffmpeg_threads=threads,
        transforms=[Resize(size)] if size else None,
    )


def read_clip(decoder: Any, frame: int, frames: int) -> Any:
    """uint8 tensor [T, C, H, W]."""
    return decoder.get_frames_in_range(frame, frame + frames).data


def random_clip(source: Any, size: Size, frames: int, draw: float) -> tuple[int, Any]:
    """A clip at ``draw`` [0, 1) of the source's room: its first frame, and the clip."""
    decoder = open_decoder(source, size)
    total = decoder.metadata.num_frames
    frame = int(draw * (total - frames + 1))
    return frame, read_clip(decoder, frame, frames)


def draws(seed: int) -> Iterator[float]:
    """An endless seeded stream of numbers in [0, 1)."""
    generator = random.Random(seed)
    while True:
        yield generator.random()
