"""Runs on paper: against a slow model, against real processes with real caches, at scale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dstream
import plan_nodes
from dstream.loader.gop_layout import GopLayout
from dstream.loader.partitions import partition_settings
from dstream.loader.plan import Order, Shuffle, Window
from dstream.loader.reader import ClipReader
from dstream.loader.simulate import Cluster, EpochCost, simulate
from dstream.loader.steps import Ranks, steps
from dstream.store.opening import open_store
from loader_data import fill, publish, videos


def layout_of(videos: int, seconds: float, **options: Any) -> GopLayout:
    options = {"rate": 25, "gop_frames": 250, "bytes_per_s": 1000, **options}
    return GopLayout.even(videos=videos, seconds=seconds, window=Window(16, 1), **options)


def order_of(layout: GopLayout, shuffle: Shuffle, partitions: int | None = None) -> Order:
    kept = partition_settings(
        is_affine=shuffle == "affine", partitions=partitions, window_clips=None, clips_per_gop=1
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
    layout = layout_of(videos, 30)  # three GOPs of equal size each
    order = order_of(layout, shuffle, 8 if shuffle == "affine" else None)
    cluster = Cluster(nodes, ranks, batch, gops_held * int(layout.size_bytes[0]))
    read = [0, 0]
    held: list[set[int]] = [set() for _ in range(nodes)]
    for parts in zip(
        *(
            steps(0, 2 * order.total, order.total, order, Ranks(batch, rank, nodes * ranks))
            for rank in range(nodes * ranks)
        ),
        strict=True,
    ):
        for rank, part in enumerate(parts):
            for position in part.positions:
                if position >= 2 * order.total:
                    continue
                draws = order.draw_many([position])
                first, last = layout.gops_of(draws)
                mine = held[rank // ranks]
                for gop in range(int(first[0]), int(last[0]) + 1):
                    if gop not in mine:
                        read[int(draws.epochs[0])] += int(layout.size_bytes[gop])
                        if len(mine) < gops_held:
                            mine.add(gop)
    costs = simulate(order, layout, cluster)
    assert [cost.bytes_read for cost in costs] == read


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


@pytest.mark.parametrize(("nodes", "shuffle"), [(2, "affine"), (4, "affine"), (2, "global")])
def test_real_processes_read_what_the_paper_says(
    repo: str, tmp_path: Path, nodes: int, shuffle: Any
) -> None:
    partitions = 8 if shuffle == "affine" else None
    common = {"repo": repo, "frames": 4, "batch_size": 12 // nodes, "world_size": nodes}
    common |= {"shuffle": shuffle, "partitions": partitions}
    running = [
        subprocess.Popen(
            [
                sys.executable,
                plan_nodes.__file__,
                json.dumps({**common, "rank": rank, "cache": str(tmp_path / str(rank))}),
            ],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for rank in range(nodes)
    ]
    told = [json.loads(process.communicate()[0]) for process in running]
    clips = dstream.open(repo).clips("d", frames=4, array="numpy")
    layout = GopLayout.of_source(clips.source, clips.settings, 1000)
    order = order_of(layout, shuffle, partitions)
    costs = simulate(order, layout, Cluster(nodes, 1, 12 // nodes, 1 << 30))
    for epoch, cost in enumerate(costs):
        got = [slot for one in told for slot in one["slots"][epoch]]
        assert sorted(got) == list(range(order.total))
        assert sum(one["missed"][epoch] for one in told) == cost.bytes_read
        assert max(one["missed"][epoch] for one in told) == cost.bytes_read_busiest
    check_affinity(costs, shuffle)


def check_affinity(costs: list[EpochCost], shuffle: str) -> None:
    first, second = costs
    if shuffle == "affine":
        assert first.amplification < 1.5  # 48 GOPs, and 8 partitions cut some
        assert second.amplification < 0.1
    else:
        assert first.amplification > 1.5
