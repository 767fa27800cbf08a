"""A run on paper: what nodes with caches read of the store, by the plan that the loader follows.

No clock and no bytes: positions, ranks and slots are those of the real order, and a cache keeps
whole GOPs until it is full, then what it has. Clips of one node that need a GOP at the same time
read it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.loader.gop_layout import GopLayout
from dstream.loader.plan import Order
from dstream.loader.steps import Ranks, steps

_CLIPS_AT_ONCE = 1 << 16


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
    caches = _Caches(layout.size_bytes, cluster.nodes, cluster.cache_bytes)
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


def _dealt(order: Order, cluster: Cluster, position: int, stop: int) -> Iterator[_Chunk]:
    # One rank that takes whole steps has them in the order in which ranks take their parts.
    step_size = cluster.world_size * cluster.batch_size
    whole = steps(position, stop, order.total, order, Ranks(step_size))
    node = np.arange(step_size) // (cluster.batch_size * cluster.ranks_per_node)
    while some := list(islice(whole, max(1, _CLIPS_AT_ONCE // step_size))):
        positions = np.array([list(step.positions) for step in some], dtype=np.int64)
        yield _Chunk(positions.ravel(), np.tile(node, len(some)), some[-1].stop)


def _read(
    order: Order, layout: GopLayout, caches: _Caches, chunk: _Chunk, books: Sequence[_Book]
) -> None:
    draws = order.draw_many(chunk.positions)
    first, last = layout.gops_of(draws)
    for epoch in np.unique(draws.epochs).tolist():
        if epoch >= len(books):  # a last step takes from the next epoch
            continue
        chosen = draws.epochs == epoch
        count = (last - first + 1)[chosen]
        clip = np.repeat(np.arange(len(count)), count)
        within = np.arange(len(clip)) - np.repeat(np.cumsum(count) - count, count)
        gops, nodes = first[chosen][clip] + within, chunk.nodes[chosen][clip]
        books[epoch].enter(draws.slots[chosen], gops, *caches.read(nodes, gops))


class _Caches:
    """What each node holds."""

    def __init__(self, sizes: NDArray[np.int64], nodes: int, cache_bytes: int) -> None:
        self._sizes = sizes
        self._nodes, self._cache_bytes = nodes, cache_bytes
        self._held = np.zeros((nodes, len(self._sizes)), dtype=np.bool_)
        self._used = np.zeros(nodes, dtype=np.int64)

    def read(
        self, nodes: NDArray[np.int64], gops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], int]:
        """Bytes that each node reads from the store for its GOPs, and the bytes of hits."""
        missed = ~self._held[nodes, gops]
        hit_bytes = int(self._sizes[gops[~missed]].sum())
        keys, place, times = np.unique(
            nodes[missed] * len(self._sizes) + gops[missed], return_index=True, return_counts=True
        )
        in_order = np.lexsort((place, keys // len(self._sizes)))
        node, gop = np.divmod(keys[in_order], len(self._sizes))
        times, sizes = times[in_order], self._sizes[gop]
        # Bytes of a node's misses up to each one: those that fit are kept.
        running = np.cumsum(sizes)
        begin = np.searchsorted(node, np.arange(self._nodes))
        before = np.concatenate([np.zeros(1, dtype=np.int64), running])[begin]
        kept = self._used[node] + running - before[node] <= self._cache_bytes
        self._held[node[kept], gop[kept]] = True
        np.add.at(self._used, node[kept], sizes[kept])
        read = np.zeros(self._nodes, dtype=np.int64)
        np.add.at(read, node, np.where(kept, 1, times) * sizes)
        return read, hit_bytes + int(((times - 1) * sizes)[kept].sum())

    def moved_to(self, nodes: int, cache_bytes: int) -> _Caches:
        """The same job on other nodes: those there were before keep what they have."""
        moved = _Caches(self._sizes, nodes, cache_bytes)
        same = min(nodes, self._nodes)
        moved._held[:same] = self._held[:same]
        moved._used[:same] = self._used[:same]
        return moved


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
        gops: NDArray[np.int64],
        read: NDArray[np.int64],
        hit_bytes: int,
    ) -> None:
        np.add.at(self._times, slots, 1)
        self._needed[gops] = True
        self._read[: len(read)] += read
        self._hit += hit_bytes

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
