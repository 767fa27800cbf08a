"""From counts to limits and rows: the arithmetic, on values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dstream.diagnose.bench.accounting import explained_share, thread_times
from dstream.diagnose.bench.alone import Pace, undisturbed
from dstream.diagnose.bench.document import Stage
from dstream.diagnose.bench.engines import Engines
from dstream.diagnose.bench.limits import Pool
from dstream.diagnose.bench.roofline import held_share
from dstream.diagnose.bench.run import WholeRun
from dstream.diagnose.bench.stages import Found, Setup, measured, stage_rates
from dstream.loader.report import RunFacts, make_report
from dstream.loader.settings import LoaderSettings
from dstream.measure import Meter, Purpose, RequestTotals, Snapshot

SUMS = {
    "seconds.fetch_idle": 30.0, "seconds.fetch_threads": 9.6, "seconds.fetch_stage": 8.0,
    "seconds.cache": 2.0, "seconds.fetch_blocked": 1.5, "seconds.fetch_handover": 0.4,
    "seconds.decode_idle": 2.0, "seconds.decode_threads": 18.0, "seconds.decode_stage": 17.0,
    "seconds.convert": 5.0, "seconds.start": 0.3, "seconds.wait": 8.0, "seconds.deliver": 0.5,
}  # fmt: skip


def test_each_kind_of_thread_is_held_against_all_of_its_time() -> None:
    own = {"step": 0.6, "notes": 0.1, "release": 0.2, "loader": 9.0}
    fetching, decoding, consuming = thread_times(SUMS, consumer_s=10.0, own=own)
    assert (fetching.total_s, decoding.total_s, consuming.total_s) == (40.0, 20.0, 10.0)
    assert fetching.explained_share == pytest.approx((30 + 8 + 1.5 + 0.4) / 40)
    assert decoding.explained_share == pytest.approx((2 + 12 + 5) / 20)
    assert consuming.explained_share == pytest.approx((8 + 0.3 + 0.5 + 0.6 + 0.1 + 0.2) / 10)
    assert explained_share((fetching, decoding, consuming)) == pytest.approx(0.95)
    assert fetching.share(Stage.CACHE) == pytest.approx(0.05)
    assert thread_times({}, 0.0, {})[0].explained_share == 1


def pace(clips: int, clips_per_second: float, **sums: float) -> Pace:
    meter = Meter()
    for name, amount in sums.items():
        meter.add(name.replace("__", "."), amount)
    meter.request("get", Purpose.DATA, "ok", RequestTotals(clips, 0, clips * 500_000, clips * 0.1))
    meter.request("get", Purpose.DATA, "throttled", RequestTotals(5, 0, 0, 9.0))
    return Pace(clips, clips_per_second, meter.snapshot())


def found(paces: dict[Stage, Pace], counts: Snapshot | None = None, **setup: Any) -> Found:
    facts = RunFacts(10.0, 0.5, fetchers=4, workers=2, prefetch=2)
    counts = counts or Snapshot(sums={"clips.delivered": 80, "clips.decoded": 90})
    given: dict[str, Any] = {
        "slots": 1000, "batch_size": 8, "settings": LoaderSettings(workers=2, prefetch=2),
        "step_s": 0.0, "cpus": 2, "opening_s": 0.5, "opening_requests": 6,
    }  # fmt: skip
    whole = WholeRun(
        report=make_report(counts, counts, facts),
        threads=thread_times(SUMS, 10.0, {}),
        clips_per_second=8.0,
        stall_share=0.8,
        wall_s=10.0,
        cpu_per_clip_s=0.1,
    )
    return Found(Setup(**{**given, **setup}), whole, 4, paces)


PACES = {
    Stage.FETCH: pace(200, 100.0),
    Stage.CACHE: pace(200, 400.0, bytes__cache_hit=100e6),
    Stage.DECODE: pace(
        40, 20.0, seconds__decode=3.0, seconds__convert=1.0, frames__decoded=800,
        frames__delivered=640,
    ),
    Stage.COLLATE: pace(8, 8000.0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "rates", "taken"),
    [
        (9.0, [10.0, 100.0], 10),
        (50.0, [10.0, 100.0], 100),
        (50.0, [100.0, 10.0], 100),
        (500.0, [100.0, 10.0], 100),
    ],
)
def test_a_part_slower_than_the_whole_is_measured_again(
    whole: float, rates: list[float], taken: float
) -> None:
    paces = iter([pace(4, rate) for rate in rates])
    assert undisturbed(paces.__next__, whole).clips_per_second == taken


@pytest.mark.parametrize(
    ("engines", "unit"),
    [
        (None, "frames/s"),
        (Engines(7, 700.0, 25.0, decodes_all=True), "frames/s, nvdec"),
        (Engines(7, 700.0, 25.0, decodes_all=False), "frames/s, nvdec+cpu"),
    ],
)
def test_the_decoder_is_named(engines: Engines | None, unit: str) -> None:
    run = replace(found(PACES), engines=engines)
    assert next(r.own_unit for r in stage_rates(run) if r.name is Stage.DECODE) == unit
    assert measured(run).limits.get(Pool.ENGINES) == (engines and 25.0)


def test_a_part_of_a_cpu_counts_as_one() -> None:
    run = measured(found(PACES, cpus=1.5))
    assert run.limits[Pool.CPU] == pytest.approx(1.5 / 0.1)
    assert run.cpus == 1
    assert measured(found(PACES, cpus=0.5)).cpus == 1


def test_the_limits_of_a_run() -> None:
    run = measured(found(PACES))
    assert run.limits == {
        Pool.FETCHING: 100.0,
        Pool.DECODING: 20.0,
        Pool.CONSUMING: pytest.approx(8000.0),
        Pool.CPU: 2 / 0.1,
    }
    assert run.request_s == pytest.approx(0.1)
    assert run.bytes_per_clip == 500_000
    assert run.unthrottled == pytest.approx(16 / 0.1)  # what ``auto`` begins with
    assert run.uncached == 100
    fixed = replace(LoaderSettings(workers=2, prefetch=2), fetchers=4)
    assert measured(found(PACES, settings=fixed)).unthrottled == pytest.approx(4 / 0.1)


def test_clips_that_come_from_the_cache_by_part() -> None:
    counts = Snapshot(sums={"clips.delivered": 80, "bytes.cache_hit": 75, "bytes.cache_missed": 25})
    run = measured(found(PACES, counts))
    clip_s = 0.25 / 100 + 0.75 / 400
    assert run.limits[Pool.FETCHING] == pytest.approx(1 / clip_s)
    assert run.cache_share == pytest.approx(0.75 / 400 / clip_s)
    del (without := dict(PACES))[Stage.CACHE]
    assert measured(found(without, counts)).limits[Pool.FETCHING] == pytest.approx(400)


def test_a_step_adds_to_handing_over() -> None:
    run = measured(found(PACES, step_s=0.4))
    assert run.limits[Pool.CONSUMING] == pytest.approx(1 / (1 / 20 + 1 / 8000))


def test_copies_limit_only_what_is_copied() -> None:
    paces = {**PACES, Stage.COPY: pace(8, 5.0)}
    assert Pool.COPYING not in measured(found(paces)).limits
    settings = LoaderSettings(workers=2, prefetch=2, device="cuda:0")
    assert measured(found(paces, settings=settings)).limits[Pool.COPYING] == 5


def test_nothing_measured_alone_leaves_the_cpus() -> None:
    assert set(measured(found({})).limits) == {Pool.CPU}


def test_a_row_for_each_stage() -> None:
    rows = {row.name: row for row in stage_rates(found(PACES, step_s=0.4))}
    assert list(rows) == list(Stage)
    assert rows[Stage.LIST].clips_per_second == 2000
    assert rows[Stage.LIST].own_rate == pytest.approx(12)
    assert rows[Stage.FETCH].own_rate == pytest.approx(50)  # MB/s
    assert rows[Stage.FETCH].threads == 4
    assert rows[Stage.FETCH].busy_share == pytest.approx(6 / 40)
    assert rows[Stage.CACHE].own_rate == pytest.approx(200)
    # 3 s of 4 are decoding: without converting, as many clips would take three quarters.
    assert rows[Stage.DECODE].clips_per_second == pytest.approx(20 / 0.75)
    assert rows[Stage.CONVERT].clips_per_second == pytest.approx(20 / 0.25)
    assert rows[Stage.DECODE].own_rate == pytest.approx(20 / 0.75 * 20)
    assert rows[Stage.CONVERT].own_rate == pytest.approx(20 / 0.25 * 16)
    assert rows[Stage.CONSUMER].clips_per_second == pytest.approx(20)
    assert rows[Stage.CONSUMER].own_rate == pytest.approx(2.5)
    assert not rows[Stage.COPY].measured
    assert rows[Stage.COPY].why_not


@pytest.mark.parametrize(
    ("hits", "joined", "misses", "expected"),
    [(0, 0, 0, 0.0), (6, 6, 94, 0.0), (9, 1, 2, 8 / 11), (5, 0, 0, 1.0)],
)
def test_a_cache_holds_what_its_disk_had(
    hits: int, joined: int, misses: int, expected: float
) -> None:
    """And not what one thread had because another was fetching it from the store."""
    sums = {"cache.hits": hits, "cache.joined": joined, "cache.misses": misses}
    assert held_share(Snapshot(sums=sums)) == expected
