"""A run on paper: what nodes with caches read of the store, by the plan that the loader follows.

No clock and no bytes: positions, ranks and slots are those of the real order, and what a cache
keeps of the GOPs is what the real one's policy says. Clips of one node that need a GOP at the same
time read it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat

import numpy as np
from numpy.typing import NDArray

from dstream.cache.lifetimes import Uses
from dstream.cache.paper import PaperCache
from dstream.errors import InvalidInputError
from dstream.loader.foresight import NodeReads, is_foreseen, least_slots, upcoming
from dstream.loader.gop_layout import GopLayout
from dstream.loader.partitions import PartitionSettings
from dstream.loader.plan import Order
from dstream.loader.ranges import written_out
from dstream.loader.steps import Ranks, steps

_CLIPS_AT_ONCE, _GOPS_AT_ONCE = 1 << 16, 1 << 12


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes that run one job together."""

    nodes: int
    ranks_per_node: int
    batch_size: int
    cache_bytes: int
    """Of each node; 0: none has a cache."""

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks_per_node", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What one epoch reads."""

    epoch: int
    """From 0."""
    clips: int
    clips_lost: int
    """Slots that no rank got."""
    clips_repeated: int
    """Times that a slot came again."""
    bytes_read: int
    """From the store, by all nodes."""
    bytes_unique: int
    """Of the GOPs that some clip needed."""
    bytes_hit: int
    """From caches: what clips needed and nobody had to read for them."""
    bytes_read_busiest: int
    """By the node that read most."""

    @property
    def amplification(self) -> float:
        """Bytes read over unique bytes."""
        return self.bytes_read / self.bytes_unique if self.bytes_unique else 0.0


def shrunk(settings: PartitionSettings, share: float, nodes: Sequence[int]) -> PartitionSettings:
    """What stands for an order's settings where only a share of the clips is followed.

    As large a part of the clips as in the whole changes places: in fewer partitions as long as
    each node has one, then in smaller windows.

    Args:
        settings: of an order without groups.
        share: of the clips, above 0, that are followed.
        nodes: all numbers of nodes that go through the order.
    """
    whole = settings.partitions
    even = all(whole % count == 0 for count in nodes)
    least = max(nodes) if even else whole  # with others, partitions at the borders have two nodes
    count = whole
    while count // 2 >= max(least, whole * share):
        count //= 2
    window_clips = max(1, round(whole * settings.window_clips * share / count))
    return replace(settings, partitions=count, window_clips=window_clips, wide_window_clips=1)


def simulate(
    order: Order,
    layout: GopLayout,
    cluster: Cluster,
    *,
    epochs: int = 2,
    resumed: Cluster | None = None,
    resumed_at: int = 0,
) -> list[EpochCost]:
    """The cost of each of some epochs.

    Args:
        order: of the layout's slots.
        layout: which GOPs the clips need.
        cluster: who runs the job.
        epochs: how many.
        resumed: who goes on with it; nodes that both have keep their caches.
        resumed_at: at the first step that ends at this position or later.

    Raises:
        InvalidInputError: one step takes all clips of all these epochs.
    """
    most_nodes = max(cluster.nodes, resumed.nodes if resumed else 0)
    books = [_Book(layout, most_nodes) for _ in range(epochs)]
    caches = _Caches(
        layout.size_bytes.tolist(), [PaperCache(cluster.cache_bytes) for _ in range(cluster.nodes)]
    )
    end = epochs * order.total
    _check_step(cluster, order.total, epochs)
    if resumed is not None:
        _check_step(resumed, order.total, epochs)
    stop = end if resumed is None else min(resumed_at, end)
    position = 0
    for chunk in _dealt(order, cluster, 0, stop):
        position = chunk.stop
        _read(order, layout, caches, chunk, books)
    if resumed is not None and position < end:
        caches = caches.moved_to(resumed.nodes, resumed.cache_bytes)
        for chunk in _dealt(order, resumed, position, end):
            _read(order, layout, caches, chunk, books)
    return [book.cost(epoch) for epoch, book in enumerate(books)]


def _check_step(cluster: Cluster, total: int, epochs: int) -> None:
    size = cluster.world_size * cluster.batch_size
    if size > max(epochs * total, _CLIPS_AT_ONCE):
        raise InvalidInputError(
            f"one step of {cluster.nodes:,} nodes, {cluster.ranks_per_node:,} ranks on each and "
            f"{cluster.batch_size:,} clips a batch takes {size:,} clips, {epochs:,} epochs have "
            f"{epochs * total:,}: ask for fewer nodes or smaller batches, or follow more samples",
            step_clips=size,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Some steps, dealt out."""

    positions: NDArray[np.int64]
    nodes: NDArray[np.int64]
    """The node that gets each."""
    stop: int
    reads: Sequence[NodeReads]
    """Of every node; empty where none has a cache."""


def _dealt(order: Order, cluster: Cluster, position: int, stop: int) -> Iterator[_Chunk]:
    # One rank that takes whole steps has them in the order in which ranks take their parts.
    step_size = cluster.world_size * cluster.batch_size
    whole = steps(position, stop, order.total, order, Ranks(step_size))
    node = np.arange(step_size) // (cluster.batch_size * cluster.ranks_per_node)
    ranks, each = Ranks(cluster.batch_size, 0, cluster.world_size), cluster.ranks_per_node
    reads = [
        NodeReads(ranks, range(first, first + each), order.total, position)
        for first in range(0, cluster.world_size if cluster.cache_bytes else 0, each)
    ]
    while some := list(islice(whole, max(1, _CLIPS_AT_ONCE // step_size))):
        positions = np.array([list(step.positions) for step in some], dtype=np.int64)
        yield _Chunk(positions.ravel(), np.tile(node, len(some)), some[-1].stop, reads)


def _read(
    order: Order, layout: GopLayout, caches: _Caches, chunk: _Chunk, books: Sequence[_Book]
) -> None:
    draws = order.draw_many(chunk.positions)
    first, last = layout.gops_of(draws)
    clip, gops = written_out(first, last - first + 1)
    nodes, epochs = chunk.nodes[clip], draws.epochs[clip]
    samples = np.searchsorted(layout.slots.first, draws.slots, side="right") - 1
    hit = caches.read(nodes, gops, _uses(order, layout, chunk, clip, gops, samples))
    for epoch, book in enumerate(books):  # a last step takes from an epoch that nobody asks for
        if (mine := epochs == epoch).any():
            book.enter(draws.slots[draws.epochs == epoch], nodes[mine], gops[mine], hit[mine])


def _uses(
    order: Order,
    layout: GopLayout,
    chunk: _Chunk,
    clip: NDArray[np.int64],
    gops: NDArray[np.int64],
    samples: NDArray[np.int64],
) -> Iterator[Uses | None]:
    """When nodes read the GOPs of a chunk's clips again, as the loader tells their caches."""
    if not chunk.reads or not is_foreseen(order):
        yield from repeat(None, len(gops))
        return
    plan = order.fingerprint
    told = np.diff(layout.slots.first) >= least_slots(layout.gop_counts, chunk.reads[0])
    for low in range(0, len(gops), _GOPS_AT_ONCE):
        part = slice(low, low + _GOPS_AT_ONCE)
        now, node = chunk.positions[clip[part]], chunk.nodes[clip[part]]
        found: dict[int, list[int]] = {}
        for number in np.unique(node).tolist():
            mine = np.flatnonzero((node == number) & told[samples[clip[part]]])
            later = upcoming(order, layout, chunk.reads[number], gops[part][mine], now[mine])
            found |= zip(mine.tolist(), later, strict=True)
        for place, position in enumerate(now.tolist()):
            known = found.get(place)
            yield None if known is None else Uses(plan, position, 1, partial(list, known))


class _Caches:
    """What each node holds."""

    def __init__(self, sizes: Sequence[int], nodes: Sequence[PaperCache]) -> None:
        self._sizes, self._nodes = sizes, nodes

    def read(
        self, nodes: NDArray[np.int64], gops: NDArray[np.int64], uses: Iterable[Uses | None]
    ) -> NDArray[np.bool_]:
        """Which of the GOPs, one after the other, their nodes had: bool [N]."""
        return np.array(
            [
                self._nodes[node].read(gop, self._sizes[gop], known)
                for node, gop, known in zip(nodes.tolist(), gops.tolist(), uses, strict=True)
            ],
            dtype=np.bool_,
        )

    def moved_to(self, nodes: int, cache_bytes: int) -> _Caches:
        """The same job on other nodes: those there were before keep what they have."""
        moved = [node.reopened(cache_bytes) for node in self._nodes[:nodes]]
        moved += [PaperCache(cache_bytes) for _ in range(nodes - len(moved))]
        return _Caches(self._sizes, moved)


class _Book:
    """What one epoch has read so far."""

    def __init__(self, layout: GopLayout, nodes: int) -> None:
        self._sizes = layout.size_bytes
        self._times = np.zeros(layout.slots.total, dtype=np.uint8)
        self._needed = np.zeros(len(self._sizes), dtype=np.bool_)
        self._read = np.zeros(nodes, dtype=np.int64)
        self._hit = 0

    def enter(
        self,
        slots: NDArray[np.int64],
        nodes: NDArray[np.int64],
        gops: NDArray[np.int64],
        hit: NDArray[np.bool_],
    ) -> None:
        np.add.at(self._times, slots, 1)
        self._needed[gops] = True
        np.add.at(self._read, nodes[~hit], self._sizes[gops[~hit]])
        self._hit += int(self._sizes[gops[hit]].sum())

    def cost(self, epoch: int) -> EpochCost:
        lost = int(np.count_nonzero(self._times == 0))
        clips = int(self._times.sum(dtype=np.int64))
        return EpochCost(
            epoch=epoch,
            clips=clips,
            clips_lost=lost,
            clips_repeated=clips - (len(self._times) - lost),
            bytes_read=int(self._read.sum()),
            bytes_unique=int(self._sizes[self._needed].sum()),
            bytes_hit=self._hit,
            bytes_read_busiest=int(self._read.max()),
        )
