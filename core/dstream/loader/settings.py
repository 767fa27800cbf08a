"""What a user can set: which clips, and how they are delivered."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Literal

from dstream.errors import InvalidInputError
from dstream.loader.failures import OnError
from dstream.loader.plan import Sampling, Shuffle, Window, shuffle_of, whole
from dstream.media.decoders.selection import DecoderChoice
from dstream.media.pixels import PixelSettings
from dstream.units import GIB, KIB, MIB

ArrayKind = Literal["torch", "numpy"]
Fetchers = int | Literal["auto"]


def check_array(array: str | None) -> None:
    """Raise InvalidInputError for what is no kind of array."""
    if array not in (None, "torch", "numpy"):
        raise InvalidInputError(f"array must be 'torch' or 'numpy', got {array!r}")


@dataclass(frozen=True, slots=True)
class ClipSettings:
    """What a clip is."""

    window: Window
    sampling: Sampling = "uniform"
    seed: int = 0
    pixels: PixelSettings = field(default_factory=PixelSettings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole("seed", self.seed))
        if self.sampling not in ("uniform", "grid", "keyframe"):
            raise InvalidInputError(
                f"sampling must be 'uniform', 'grid' or 'keyframe', got {self.sampling!r}"
            )


def default_workers() -> int:
    """Decoding threads: one for each CPU that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_MOST_AHEAD = 8
"""Batches that are decoded ahead unless asked for: they hold memory."""


def default_prefetch(batch_size: int, workers: int, device: str | None = None) -> int:
    """Batches decoded ahead: two, and up to eight for two clips a thread and two more.

    Clips come in order and differ in cost, so behind a slow one threads wait that are not ahead.
    On a GPU two, since each of them has a buffer there.

    >>> default_prefetch(8, 2), default_prefetch(1, 2), default_prefetch(1, 64)
    (2, 6, 8)
    """
    on_gpu = device is not None and device != "cpu"
    return 2 if on_gpu else min(_MOST_AHEAD, max(2, -(-(2 * workers + 2) // batch_size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How clips are delivered."""

    workers: int = field(default_factory=default_workers)
    """Decoding threads."""
    fetchers: Fetchers = "auto"
    """Fetching threads, each with one request at a time; ``auto`` finds how many it takes."""
    prefetch: int
    """Batches decoded ahead of the one in use; see :func:`default_prefetch`."""
    inflight_bytes: int = 256 * MIB
    """Compressed bytes that are fetched and not yet decoded."""
    merge_gap_bytes: int = 64 * KIB
    """Ranges of one file at most this far apart are one request; the gap is wasted."""
    shuffle: Shuffle = "global"
    partitions: int | None = None
    """Of an affine order, or one with groups; None: 512, or 8."""
    window_clips: int | None = None
    """Clips of a partition that change places among themselves; None: 8192, or a group."""
    clips_per_gop: int = 1
    """Consecutive slots of a sample that are read and decoded at once; 1: each alone."""
    decoded_bytes: int = 4 * GIB
    """Frames of such groups that wait for their batches; a group beyond is made clip by clip."""
    clips_per_epoch: int | None = None
    """None: all of them."""
    on_error: OnError = "raise"
    max_failures: int = 100
    """Distinct files; a failure that may pass counts each time."""
    quarantine: Path | None = None
    """Gets a line of JSON for each file that failed and was skipped; ranks may share it."""
    decode_timeout_s: float = 60.0
    """Longest time in a codec for one clip; then the thread is left behind and the clip failed."""
    max_outage_s: float = 900.0
    """Longest time that the store may not answer at all; 0 ends with the usual retries."""
    decoder: DecoderChoice = field(default_factory=DecoderChoice)
    device: str | None = None
    """None or ``cpu``: memory of this process. ``cuda`` or ``cuda:N``: copied there."""
    array: ArrayKind | None = None
    """None: torch tensors where torch is installed, else numpy arrays."""

    def __post_init__(self) -> None:
        counts = ("workers", "prefetch", "inflight_bytes", "decoded_bytes")
        for name in ("decode_timeout_s", "max_outage_s"):
            if not isinstance(getattr(self, name), Real):
                raise InvalidInputError(f"{name} must be a number, got {getattr(self, name)!r}")
        for name in counts if self.fetchers == "auto" else (*counts, "fetchers"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.decode_timeout_s > 0 or not self.max_outage_s >= 0:
            raise InvalidInputError(
                f"decode_timeout_s must be above 0 and max_outage_s not negative, got "
                f"{self.decode_timeout_s} and {self.max_outage_s}"
            )
        if whole("merge_gap_bytes", self.merge_gap_bytes) < 0:
            raise InvalidInputError(f"merge_gap_bytes is negative: {self.merge_gap_bytes}")
        check_array(self.array)
        object.__setattr__(self, "shuffle", shuffle_of(self.shuffle))
        for name in ("partitions", "window_clips", "clips_per_gop", "clips_per_epoch"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name)))
        if self.clips_per_epoch is not None and self.clips_per_epoch < 1:
            raise InvalidInputError(
                f"clips_per_epoch must be at least 1, or None for all, got {self.clips_per_epoch}"
            )
        if self.shuffle is None and self.clips_per_gop != 1:
            raise InvalidInputError("clips_per_gop= needs a shuffled order")
