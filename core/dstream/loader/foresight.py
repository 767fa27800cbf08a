"""When GOPs are read again, by the plan: pure functions of it, for a cache that asks.

An order without partitions tells at which position of an epoch a slot comes, so the next uses of a
GOP are those of the few slots whose clips may need it. A position belongs to one rank of a step;
those of all ranks of the node count, since they share its cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dstream.cache.lifetimes import Uses
from dstream.loader.gop_layout import GopLayout
from dstream.loader.plan import Draw, Draws, Order, SlotTable
from dstream.loader.ranges import written_out
from dstream.loader.ranks import node_ranks
from dstream.loader.settings import ClipSettings
from dstream.loader.source import Sample
from dstream.loader.steps import Ranks

_EPOCHS = 2
"""Uses are told of this epoch and the next."""
_LEAST_USES = 1.5
"""A GOP that the node reads less often in an epoch is not told of: what is read once an epoch is
kept as well by whoever admits the first that come, and with fewer writes."""


@dataclass(frozen=True, slots=True)
class NodeReads:
    """Which positions of the endless sequence are read on one node."""

    ranks: Ranks
    local: range
    """The ranks on this node."""
    epoch_size: int
    """Where epochs end, for ``ranks.last``."""
    begin: int = 0
    """The position at which a step begins; those before it are over."""
    workers: int = 1
    """Processes that make a rank's batches in turn."""

    @classmethod
    def of(
        cls, ranks: Ranks, environment: Mapping[str, str], epoch_size: int, begin: int, workers: int
    ) -> NodeReads:
        """Those of this process's node, as far as its launcher tells."""
        local = node_ranks(environment, ranks.rank, ranks.world_size)
        return cls(ranks, local, epoch_size, begin, workers)

    @property
    def shares(self) -> range:
        """Those of a step that come here."""
        each = self.ranks.replicas
        return range(self.local.start // each, (self.local.stop - 1) // each + 1)

    @property
    def readers(self) -> int:
        """Processes that share these reads."""
        return len(self.shares) * self.workers

    def has(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the positions are read here: bool [N]. As ``steps.step_at`` deals them."""
        size = self.ranks.step_size
        if self.ranks.last == "wrap":
            share = (positions - self.begin) % size // self.ranks.batch_size
            return (share >= self.shares.start) & (share < self.shares.stop)
        epoch = positions // self.epoch_size * self.epoch_size
        begin = np.maximum(epoch, self.begin)
        length = epoch + self.epoch_size - begin
        whole = length // size * size
        is_last = positions - begin >= whole
        sizes = np.where(is_last, length - whole, size)
        share = (((positions - begin) % size + 1) * self.ranks.shares - 1) // np.maximum(sizes, 1)
        here = (share >= self.shares.start) & (share < self.shares.stop)
        return here & ~is_last if self.ranks.last == "drop" else here


def upcoming(
    order: Order,
    layout: GopLayout,
    reads: NodeReads,
    gops: NDArray[np.int64],
    now: NDArray[np.int64],
    first_slot: int = 0,
) -> list[list[int]]:
    """The positions after ``now`` at which a node reads each GOP, in this epoch and the next.

    Args:
        order: of all slots; it is invertible.
        layout: of the GOPs and the slots that may need them.
        reads: what the node reads.
        gops: int64 [N].
        now: int64 [N] the position at which each is read.
        first_slot: of the order, where the layout is that of one sample.
    """
    if not len(gops):
        return []
    low, high = layout.slots_near(gops)
    which, near = written_out(low, np.maximum(high - low + 1, 0))
    epoch = now // order.total
    found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for number in {int(e) + more for e in np.unique(epoch) for more in range(_EPOCHS)}:
        asked = (epoch[which] <= number) & (epoch[which] > number - _EPOCHS)
        of, slots = which[asked], near[asked]
        draws = order.draw_slots(number, slots + first_slot)
        first, last = layout.gops_of(
            Draws(draws.positions, draws.epochs, slots, draws.drawn, draws.groups)
        )
        needs = (first <= gops[of]) & (gops[of] <= last) & (draws.positions > now[of])
        of, positions = of[needs], draws.positions[needs]
        here = reads.has(positions)
        found.append((of[here], positions[here]))
    of = np.concatenate([part for part, _ in found])
    positions = np.concatenate([part for _, part in found])
    by_gop = np.lexsort((positions, of))
    cuts = np.searchsorted(of[by_gop], np.arange(1, len(gops)))
    return [part.tolist() for part in np.split(positions[by_gop], cuts)]


def is_foreseen(order: Order) -> bool:
    """Whether a cache is told when clips come again: not where an order keeps them together."""
    return order.shuffle == "global" and order.is_invertible


def least_slots(gops: NDArray[np.int64], reads: NodeReads) -> NDArray[np.float64]:
    """How many slots samples must have for the uses of their GOPs to matter.

    Args:
        gops: int64 [N] of each sample.
        reads: what the node reads.
    """
    each = _LEAST_USES * reads.ranks.shares / len(reads.shares)
    return gops.astype(np.float64) * each


class Foresight:
    """Tells a cache when the GOPs of a clip are read again. Thread-safe.

    Args:
        order: of the slots; it is shuffled over whole epochs.
        slots: of all samples.
        settings: what a clip is.
        reads: what the node reads.
        data: what the slots are of: two data sets may have orders that look the same.
    """

    def __init__(
        self, order: Order, slots: SlotTable, settings: ClipSettings, reads: NodeReads, data: str
    ) -> None:
        self._order, self._slots = order, slots
        self._settings, self._reads = settings, reads
        self._plan = f"{order.fingerprint} {data} {settings.window}"

    @classmethod
    def of(
        cls, order: Order, slots: SlotTable, settings: ClipSettings, reads: NodeReads, data: str
    ) -> Foresight | None:
        """None for an order of which a cache is not told."""
        return cls(order, slots, settings, reads, data) if is_foreseen(order) else None

    def uses(self, sample: Sample, draw: Draw, gops: Sequence[int]) -> list[Uses] | None:
        """The uses of some GOPs of a clip's sample; None where they do not matter.

        Args:
            sample: of the clip.
            draw: the clip.
            gops: by their numbers in the sample's index.
        """
        number, _, count = self._slots.locate(draw.slot)
        keys = sample.index.gops.key_pts
        here = np.count_nonzero((keys >= sample.start_pts) & (keys < sample.end_pts))
        if count < least_slots(np.array([here]), self._reads)[0]:
            return None

        @cache
        def found() -> list[list[int]]:
            layout = GopLayout.of_sample(sample, count, self._settings)
            places = np.array([layout.gop_at(sample, gop) for gop in gops], dtype=np.int64)
            now = np.full(len(places), draw.position, dtype=np.int64)
            first = int(self._slots.first[number])
            return upcoming(self._order, layout, self._reads, places, now, first)

        def use(place: int) -> Uses:
            return Uses(self._plan, draw.position, self._reads.readers, lambda: found()[place])

        return [use(place) for place in range(len(gops))]
