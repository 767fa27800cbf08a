"""Runs on paper: against a slow model, against real processes with real caches, at scale."""

from __future__ import annotations

import bisect
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dstream
import plan_nodes
from dstream.cache.lifetimes import Uses
from dstream.cache.paper import PaperCache
from dstream.loader.gop_layout import GopLayout
from dstream.loader.partitions import PartitionSettings, partition_settings
from dstream.loader.plan import Order, Shuffle, Window
from dstream.loader.reader import ClipReader
from dstream.loader.simulate import Cluster, EpochCost, shrunk, simulate
from dstream.loader.steps import Ranks, steps
from dstream.store.opening import open_store
from dstream.units import MIB
from loader_data import fill, publish, videos


def layout_of(videos: int, seconds: float, **options: Any) -> GopLayout:
    options = {"rate": 25, "gop_frames": 250, "bytes_per_s": 1000, **options}
    return GopLayout.even(videos=videos, seconds=seconds, window=Window(16, 1), **options)


def order_of(
    layout: GopLayout,
    shuffle: Shuffle,
    partitions: int | None = None,
    window_clips: int | None = None,
) -> Order:
    kept = partition_settings(
        layout.slots.total,
        is_affine=shuffle == "affine",
        partitions=partitions,
        window_clips=window_clips,
        clips_per_gop=1,
    )
    return Order.of(layout.slots, 0, layout.sampling, shuffle, kept)


def test_64_nodes_read_each_gop_once_and_nothing_in_the_second_epoch() -> None:
    layout = layout_of(400, 360)  # 562 clips each, 35 minutes of data for every node
    data = int(layout.size_bytes.sum())
    cluster = Cluster(64, 8, 4, cache_bytes=data // 16)
    first, second = simulate(order_of(layout, "affine"), layout, cluster)
    assert first.amplification < 1.1
    assert second.amplification < 0.05
    assert first.clips_lost == first.clips_repeated == second.clips_lost == 0
    dear, _ = simulate(order_of(layout, "global"), layout, cluster)
    assert dear.amplification > 10


def test_a_run_that_goes_on_with_half_the_nodes_loses_and_repeats_nothing() -> None:
    layout = layout_of(60, 120)
    order = order_of(layout, "affine", 64)
    cluster = Cluster(64, 2, 1, cache_bytes=1 << 40)
    costs = simulate(
        order, layout, cluster, resumed=Cluster(32, 2, 1, 1 << 40), resumed_at=order.total // 3
    )
    assert [(cost.clips, cost.clips_lost, cost.clips_repeated) for cost in costs] == [
        (order.total, 0, 0)
    ] * 2


def test_caches_of_half_the_data_do_when_a_window_fits_into_them() -> None:
    layout = layout_of(300, 60, rate=30, bytes_per_s=600_000)  # 33,600 clips, 15 a GOP
    cluster = Cluster(4, 2, 4, cache_bytes=int(layout.size_bytes.sum()) // 8)
    window = 33_600 // 128 // 16
    affine = simulate(order_of(layout, "affine", 128, window), layout, cluster, epochs=3)
    assert affine[0].amplification < 1.1
    assert max(cost.amplification for cost in affine[1:]) < 0.9
    dear = simulate(order_of(layout, "global"), layout, cluster, epochs=2)
    assert min(cost.amplification for cost in dear) > 5


def test_full_caches_learn_what_half_of_the_nodes_read() -> None:
    layout = layout_of(300, 60, rate=30, bytes_per_s=600_000)
    cluster = Cluster(8, 2, 4, cache_bytes=int(layout.size_bytes.sum()) // 8)
    half = replace(cluster, nodes=4)
    order = order_of(layout, "affine", 128, 16)
    costs = simulate(order, layout, cluster, epochs=5, resumed=half, resumed_at=order.total)
    assert costs[-1].amplification < 0.88  # 0.92 if they kept what nobody reads, 0.7 at best


@pytest.mark.parametrize(
    ("share", "nodes", "partitions", "window_clips"),
    [
        (1.0, [64], 512, 1024),
        (0.25, [64, 32], 128, 1024),
        (0.01, [64, 32], 64, 82),
        (0.01, [48], 512, 10),  # 48 nodes share partitions, as in the whole
        (1e-9, [1], 1, 1),
    ],
)
def test_what_stands_for_more_mixes_as_large_a_part(
    share: float, nodes: list[int], partitions: int, window_clips: int
) -> None:
    found = shrunk(PartitionSettings(True, 512, 1, 1024), share, nodes)
    assert (found.partitions, found.window_clips) == (partitions, window_clips)


@settings(max_examples=15)
@given(
    videos=st.integers(1, 6),
    shuffle=st.sampled_from(["affine", "global"]),
    nodes=st.integers(1, 5),
    ranks=st.integers(1, 3),
    batch=st.integers(1, 3),
    gops_held=st.integers(0, 20),
)
def test_the_fast_simulation_is_the_slow_one(
    videos: int, shuffle: Any, nodes: int, ranks: int, batch: int, gops_held: int
) -> None:
    layout = layout_of(videos, 30, bytes_per_s=100_000)  # three GOPs each, a segment for each GOP
    order = order_of(layout, shuffle, 8 if shuffle == "affine" else None)
    cluster = Cluster(nodes, ranks, batch, gops_held * MIB)
    read = [0, 0, 0]  # the last step may take from a third epoch
    later: list[dict[int, list[int]]] = [{} for _ in range(nodes)]  # GOP -> when it is read
    for rank in range(nodes * ranks):
        for part in steps(
            0, 5 * order.total, order.total, order, Ranks(batch, rank, nodes * ranks)
        ):
            for position in part.positions:
                for gop in gops_at(layout, order, position):
                    bisect.insort(later[rank // ranks].setdefault(gop, []), position)
    held = [PaperCache(cluster.cache_bytes) for _ in range(nodes)]
    for parts in zip(
        *(
            steps(0, 2 * order.total, order.total, order, Ranks(batch, rank, nodes * ranks))
            for rank in range(nodes * ranks)
        ),
        strict=True,
    ):
        for rank, part in enumerate(parts):
            for position in part.positions:
                epoch, node = position // order.total, rank // ranks
                for gop in gops_at(layout, order, position):
                    end = (epoch + 2) * order.total
                    known = [p for p in later[node][gop] if position < p < end]
                    uses = Uses("plan", position, 1, partial(list, known))
                    size_bytes = int(layout.size_bytes[gop])
                    told = uses if shuffle == "global" else None
                    if not held[node].read(gop, size_bytes, told):
                        read[epoch] += size_bytes
    costs = simulate(order, layout, cluster)
    assert [cost.bytes_read for cost in costs] == read[:2]


def gops_at(layout: GopLayout, order: Order, position: int) -> range:
    first, last = layout.gops_of(order.draw_many([position]))
    return range(int(first[0]), int(last[0]) + 1)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plan")
    source, url = str(folder / "source"), str(folder / "repo")
    fill(open_store(source), videos(folder, 6, frames=96, gop=12, size=(64, 64)))
    publish(url, source, packed=True)
    return url


@pytest.mark.parametrize("sampling", ["uniform", "grid", "keyframe"])
def test_clips_need_the_gops_that_the_loader_reads(repo: str, sampling: Any) -> None:
    clips = dstream.open(repo).clips("d", frames=5, sampling=sampling, array="numpy")
    layout = GopLayout.of_source(clips.source, clips.settings, 1000)
    assert layout.slots.total == len(clips)
    reader = ClipReader(clips.source, clips.settings, clips.meter)
    draws = order_of(layout, "global").draw_many(range(len(clips)))
    first, last = layout.gops_of(draws)
    planned = [sum(e.size_bytes for e in reader.plan(draw).plan.extents) for draw in draws]
    on_paper = [
        int(layout.size_bytes[low : high + 1].sum()) for low, high in zip(first, last, strict=True)
    ]
    assert on_paper == planned


CASES = [(2, "affine"), (4, "affine"), (2, "global")]


def partitions_of(shuffle: str) -> int | None:
    return 8 if shuffle == "affine" else None


@pytest.fixture(scope="module")
def told(repo: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[Any]]:
    """What the nodes of each case read. A process is a node of each, one after the other."""
    folder = tmp_path_factory.mktemp("nodes")

    def task(rank: int, case: tuple[int, str]) -> dict[str, Any]:
        nodes, shuffle = case
        cache = str(folder / f"{nodes}-{shuffle}-{rank}")
        task = {"repo": repo, "frames": 4, "cache": cache, "rank": rank, "world_size": nodes}
        task |= {"batch_size": 12 // nodes, "shuffle": shuffle}
        return {**task, "partitions": partitions_of(shuffle)}

    cases = [[case for case in CASES if rank < case[0]] for rank in range(4)]
    running = [
        subprocess.Popen(
            [sys.executable, plan_nodes.__file__, json.dumps([task(rank, case) for case in mine])],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for rank, mine in enumerate(cases)
    ]
    told: dict[tuple[int, str], list[Any]] = {case: [] for case in CASES}
    for process, mine in zip(running, cases, strict=True):
        for case, one in zip(mine, json.loads(process.communicate()[0]), strict=True):
            told[case].append(one)
    return told


@pytest.mark.parametrize(("nodes", "shuffle"), CASES)
def test_real_processes_read_what_the_paper_says(
    repo: str, told: dict[tuple[int, str], list[Any]], nodes: int, shuffle: Any
) -> None:
    clips = dstream.open(repo).clips("d", frames=4, array="numpy")
    layout = GopLayout.of_source(clips.source, clips.settings, 1000)
    order = order_of(layout, shuffle, partitions_of(shuffle))
    costs = simulate(order, layout, Cluster(nodes, 1, 12 // nodes, 1 << 30))
    real = told[nodes, shuffle]
    for epoch, cost in enumerate(costs):
        got = [slot for one in real for slot in one["slots"][epoch]]
        assert sorted(got) == list(range(order.total))
        assert sum(one["missed"][epoch] for one in real) == cost.bytes_read
        assert max(one["missed"][epoch] for one in real) == cost.bytes_read_busiest
    check_affinity(costs, shuffle)


def check_affinity(costs: list[EpochCost], shuffle: str) -> None:
    first, second = costs
    if shuffle == "affine":
        assert first.amplification < 1.5  # 48 GOPs, and 8 partitions cut some
        assert second.amplification < 0.1
    else:
        assert first.amplification > 1.5
