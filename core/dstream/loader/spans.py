"""Samples dealt to partitions: which slots are a partition's, and in what order of an epoch.

The slots of all samples, in the order of the tables, are one line. It is cut into *spans*, at
samples' ends wherever one is near and inside of long samples otherwise, so nothing of any packet
table is needed. Spans are shuffled once and laid out again; equal stretches of that are the
partitions, so a partition holds the same samples in every epoch. An epoch shuffles the spans of
each partition anew.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dstream.loader.order import Permutation, hash64, hash_many, permute_each
from dstream.loader.ranges import written_out

MIN_SPAN_CLIPS = 512
"""A cut inside of a GOP reads it twice: with GOPs of 16 clips, one in 32."""

_MAX_SPANS = 1 << 19
_CHUNK = 1 << 15
"""Spans that are worked on at once: bounds the memory while tables are made."""

_DEALT, _IN_EPOCH = 5, 6
"""First words of this module's hashes; see plan.py."""


class Spans:
    """The cuts of the line of slots.

    Args:
        first: int64 [N + 1], the first slot of each sample, and the number of slots.
    """

    def __init__(self, first: NDArray[np.int64]) -> None:
        self.total = int(first[-1])
        self.size = max(MIN_SPAN_CLIPS, -(-self.total // _MAX_SPANS))
        self.count = max(1, self.total // self.size)
        self.starts = np.empty(self.count + 1, dtype=np.int64)
        """int64 [S + 1]: the first slot of each span, and the number of slots."""
        for low in range(0, self.count, _CHUNK):
            numbers = np.arange(low, min(low + _CHUNK, self.count))
            self.starts[numbers] = self._cuts(first, numbers * self.size)
        self.starts[-1] = self.total

    def _cuts(self, first: NDArray[np.int64], cut: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where cuts that would be every ``size`` slots are made.

        One moves to the nearest end of a sample, if one is within half of ``size``. So samples up
        to ``size`` stay whole, and no piece of another is below half of it.
        """
        sample = np.searchsorted(first, cut, side="right") - 1
        sample = np.minimum(sample, len(first) - 2)
        before, after = first[sample], first[sample + 1]
        near = np.where(cut - before <= after - cut, before, after)
        return np.where(2 * np.abs(cut - near) <= self.size, near, cut)


class SpanLine:
    """All slots, partition after partition, the spans of each in an order of the epoch's own.

    Args:
        dealt: how the spans are dealt to partitions.
        epoch: which epoch.
        cuts: int64 [P + 1], where the partitions begin in this epoch.
    """

    def __init__(self, dealt: DealtSpans, epoch: int, cuts: NDArray[np.int64]) -> None:
        begin = np.searchsorted(dealt.ends, cuts[:-1], side="right")
        end = np.searchsorted(dealt.ends, cuts[1:], side="left") + 1
        pieces = np.where(cuts[1:] > cuts[:-1], end - begin, 0)
        lengths = np.empty(int(pieces.sum()), dtype=np.int64)
        self._slots = np.empty_like(lengths)
        done = 0
        chunks = -(-len(lengths) // _CHUNK)
        for lanes in np.array_split(np.arange(len(pieces)), min(chunks, len(pieces)) or 1):
            count = pieces[lanes]
            which, within = written_out(np.zeros_like(count), count)
            lane = lanes[which]
            keys = hash_many(_IN_EPOCH, dealt.seed, epoch, lane)
            number = begin[lane] + permute_each(within, pieces[lane], keys)
            low, high, slot = dealt.spans_at(number)
            cut_low, cut_high = np.maximum(low, cuts[lane]), np.minimum(high, cuts[lane + 1])
            stop = done + len(lane)
            lengths[done:stop] = cut_high - cut_low
            self._slots[done:stop] = slot + (cut_low - low)
            done = stop
        self._places = np.cumsum(lengths) - lengths

    def slots(self, line: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The slot at each place of the line, and the first slot of its span there: int64 [N]."""
        piece = np.searchsorted(self._places, line, side="right") - 1
        lowest = self._slots[piece]
        return lowest + (line - self._places[piece]), lowest


class DealtSpans:
    """Spans in the order in which they are dealt, the same in all epochs.

    Args:
        first: int64 [N + 1], the first slot of each sample, and the number of slots.
        seed: of the dealing.
    """

    def __init__(self, first: NDArray[np.int64], seed: int) -> None:
        self.seed = seed
        self._starts = Spans(first).starts
        count = len(self._starts) - 1
        self._order = Permutation(count, hash64(_DEALT, seed))
        self.ends = np.empty(count, dtype=np.int64)
        """Where each dealt span ends on the new line."""
        for low in range(0, len(self.ends), _CHUNK):
            high = min(low + _CHUNK, len(self.ends))
            number = self._order.many(np.arange(low, high))
            self.ends[low:high] = self._starts[number + 1] - self._starts[number]
        np.cumsum(self.ends, out=self.ends)

    def spans_at(
        self, number: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Where dealt spans begin and end on the new line, and their first slots: int64 [N]."""
        original = self._order.many(number)
        slot = self._starts[original]
        high = self.ends[number]
        return high - (self._starts[original + 1] - slot), high, slot


class BlockLine:
    """All slots in runs of ``size``, the runs in an order of the epoch's own. No memory.

    Args:
        total: number of slots.
        size: slots in a run; the last, shorter one stays the last.
        key: of the order.
    """

    def __init__(self, total: int, size: int, key: int) -> None:
        self._size = size
        self._whole = total // size * size
        self._order = Permutation(total // size, key) if self._whole else None

    def slots(self, line: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The slot at each place of the line, and the first slot of its run: int64 [N]."""
        block, within = np.divmod(line, self._size)
        lowest = block * self._size
        moved = np.flatnonzero(line < self._whole)
        if self._order is not None and len(moved):
            lowest[moved] = self._order.many(block[moved]) * self._size
        return lowest + within, lowest
