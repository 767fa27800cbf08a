"""Orders that keep clips of one place together: pure functions of (slots, seed, settings).

Two uses. *Affine*: every partition holds the same samples in all epochs, so a node that is dealt
the same partitions finds their bytes in its cache. *Groups*: ``clips_per_gop`` consecutive slots
of one sample are one group, which the rank that gets it can decode at once.

In both, a clip's way is: its position says partition and turn (``lanes.py``); clips change places
within a window of their partition; with groups, whole groups do so within a wider one; and the
line of slots (``spans.py``) says which slot lies there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.loader.lanes import Lanes
from dstream.loader.order import hash64, hash_many, permute_each
from dstream.loader.single_flight import SingleFlightCache, one_each
from dstream.loader.spans import BlockLine, DealtSpans, SpanLine

_CLIPS, _GROUPS, _BLOCKS = 7, 8, 9
"""First words of this module's hashes; see plan.py."""


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """How an order keeps clips together."""

    is_affine: bool
    partitions: int
    """A power of two. Ranks beyond it share partitions."""
    clips_per_gop: int = 1
    """Clips in a group; 1: no groups."""
    window_clips: int = 1024
    """Clips of a partition that change places among themselves; raised to whole groups."""
    wide_window_clips: int = 1024
    """Clips of a partition whose groups do; raised to whole windows."""

    def __post_init__(self) -> None:
        for name in ("partitions", "clips_per_gop", "window_clips", "wide_window_clips"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1, got {getattr(self, name)}")
        window = _whole(self.window_clips, self.clips_per_gop)
        object.__setattr__(self, "window_clips", window)
        object.__setattr__(self, "wide_window_clips", _whole(self.wide_window_clips, window))


def _whole(clips: int, parts_of: int) -> int:
    return -(-clips // parts_of) * parts_of


AFFINE_PARTITIONS, GROUP_PARTITIONS = 512, 8
_LEAST_MIXED_CLIPS, _MOST_MIXED_CLIPS = 1 << 16, 1 << 19
_MIXED_SHARE = 16


def affine_window_clips(clips: int, partitions: int) -> int:
    """The usual window of a partition.

    The windows of all partitions together are what changes places, and what caches should have
    room for: a sixteenth of the data, but enough clips to mix well, and not more than that takes.

    >>> [affine_window_clips(clips, 512) for clips in (10**5, 10**6, 4 * 10**6, 10**9)]
    [128, 128, 488, 1024]
    """
    mixed = min(max(clips // _MIXED_SHARE, _LEAST_MIXED_CLIPS), _MOST_MIXED_CLIPS)
    return max(1, mixed // partitions)


def partition_settings(
    clips: int,
    *,
    is_affine: bool,
    partitions: int | None,
    window_clips: int | None,
    clips_per_gop: int,
) -> PartitionSettings | None:
    """Settings with their defaults; None for an order that keeps nothing together.

    Groups are held decoded until their last clip is due, so their window is small.

    Args:
        clips: of an epoch.
        is_affine, partitions, window_clips, clips_per_gop: see :class:`PartitionSettings`.

    Raises:
        InvalidInputError: one is not positive, or would have no effect.
    """
    if not is_affine and clips_per_gop == 1:
        if partitions is not None or window_clips is not None:
            raise InvalidInputError(
                "partitions= and window_clips= need shuffle='affine' or clips_per_gop="
            )
        return None
    if partitions is None:
        partitions = AFFINE_PARTITIONS if is_affine else GROUP_PARTITIONS
    usual = affine_window_clips(clips, partitions) if partitions > 0 else 1
    if window_clips is None:
        window_clips = usual if clips_per_gop == 1 else clips_per_gop
    return PartitionSettings(is_affine, partitions, clips_per_gop, window_clips, usual)


class Partitions:
    """Which slot is at which position. Thread-safe; memory of a few bytes a span.

    Args:
        first: int64 [N + 1], the first slot of each sample, and the number of slots.
        seed: of everything that is shuffled.
        settings: how clips are kept together.
    """

    def __init__(self, first: NDArray[np.int64], seed: int, settings: PartitionSettings) -> None:
        self.settings = settings
        self.lanes = Lanes(int(first[-1]), settings.partitions)
        self._first, self._seed = first, seed
        self._dealt = DealtSpans(first, seed) if settings.is_affine else None
        # A step may take from two epochs.
        self._epochs: SingleFlightCache[int, _Epoch] = SingleFlightCache(2, one_each)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the settings and of where samples begin, which moves cuts."""
        digest = hashlib.sha256(repr(self.settings).encode())
        digest.update(np.ascontiguousarray(self._first, dtype="<i8").data)
        return digest.hexdigest()

    def slots(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The slot of each position, and its group: int64 [N].

        A group is named by its first slot; -1 without groups.
        """
        slots, groups = np.empty_like(positions), np.empty_like(positions)
        epochs = positions // self.lanes.total
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            slots[chosen], groups[chosen] = self._epoch(epoch).slots(positions[chosen])
        return slots, groups

    def group(self, position: int) -> NDArray[np.int64]:
        """The positions of a position's group, itself among them, in increasing order."""
        epoch = self._epoch(position // self.lanes.total)
        members = epoch.neighbours(position)
        _, groups = epoch.slots(members)
        return np.sort(members[groups == groups[members == position]])

    def _epoch(self, epoch: int) -> _Epoch:
        def make() -> _Epoch:
            cuts = self.lanes.cuts(epoch)
            line = (
                BlockLine(
                    self.lanes.total,
                    self.settings.clips_per_gop,
                    hash64(_BLOCKS, self._seed, epoch),
                )
                if self._dealt is None
                else SpanLine(self._dealt, epoch, cuts)
            )
            return _Epoch(self, epoch, cuts, line, self._first, self._seed)

        return self._epochs.get(epoch, make)


class _Epoch:
    """The order of one epoch."""

    def __init__(
        self,
        partitions: Partitions,
        epoch: int,
        cuts: NDArray[np.int64],
        line: BlockLine | SpanLine,
        first: NDArray[np.int64],
        seed: int,
    ) -> None:
        self._lanes, self._settings = partitions.lanes, partitions.settings
        self._epoch, self._cuts, self._line = epoch, cuts, line
        self._first, self._seed = first, seed

    def slots(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lane, line = self._places(positions)
        size = self._settings.clips_per_gop
        if size > 1:
            line = self._shuffle_clips(lane, line)
        if self._settings.is_affine:
            line = self._shuffle_groups(lane, line)
        slot, lowest = self._line.slots(line)
        if size == 1:
            return slot, np.full_like(slot, -1)
        sample = np.searchsorted(self._first, slot, side="right") - 1
        begin = np.maximum(line - line % size, self._cuts[lane])
        group = np.maximum(slot - (line - begin), np.maximum(lowest, self._first[sample]))
        return slot, group

    def neighbours(self, position: int) -> NDArray[np.int64]:
        """The positions that can share a position's group."""
        size = self._settings.clips_per_gop
        if size == 1:
            return np.array([position], dtype=np.int64)
        lane, line = self._places(np.array([position], dtype=np.int64))
        block = int(self._shuffle_clips(lane, line)[0]) // size * size
        low, high = int(self._cuts[lane[0]]), int(self._cuts[lane[0] + 1])
        members = np.arange(max(low, block), min(high, block + size), dtype=np.int64)
        lanes = np.full_like(members, lane[0])
        turns = self._shuffle_clips(lanes, members, inverse=True) - low
        return self._lanes.position(self._epoch, lanes, turns)

    def _places(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Partition and place on the line before anything is shuffled."""
        lane = self._lanes.of(positions)
        return lane, self._cuts[lane] + self._lanes.rank_in(positions)

    def _window(
        self, lane: NDArray[np.int64], line: NDArray[np.int64], size: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Number, begin and end of each place's window of its partition.

        Windows begin at multiples of their size, as groups do, so none is cut but by partitions.
        """
        number = line // size
        low = np.maximum(number * size, self._cuts[lane])
        return number, low, np.minimum(number * size + size, self._cuts[lane + 1])

    def _shuffle_clips(
        self, lane: NDArray[np.int64], line: NDArray[np.int64], *, inverse: bool = False
    ) -> NDArray[np.int64]:
        number, low, high = self._window(lane, line, self._settings.window_clips)
        keys = hash_many(_CLIPS, self._seed, self._epoch, lane, number)
        return low + permute_each(line - low, high - low, keys, inverse=inverse)

    def _shuffle_groups(
        self, lane: NDArray[np.int64], line: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        size = self._settings.clips_per_gop
        wide = self._settings.window_clips if size == 1 else self._settings.wide_window_clips
        number, low, high = self._window(lane, line, wide)
        first, stop = -(-low // size), high // size  # whole groups; those cut off stay
        group, within = np.divmod(line, size)
        moved = (group >= first) & (group < stop)
        keys = hash_many(_GROUPS, self._seed, self._epoch, lane, number)
        group[moved] = first[moved] + permute_each(
            (group - first)[moved], (stop - first)[moved], keys[moved]
        )
        return group * size + within
