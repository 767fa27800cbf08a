"""What was measured of a run and of its stages alone, as limits and as the rows of a page. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dstream.diagnose.bench.alone import Pace
from dstream.diagnose.bench.document import Stage, StageRate
from dstream.diagnose.bench.engines import Engines
from dstream.diagnose.bench.limits import Measured, Pool, together
from dstream.diagnose.bench.run import WholeRun
from dstream.loader.concurrency import FIRST
from dstream.loader.settings import LoaderSettings
from dstream.measure import Purpose
from dstream.store.options import LACKS_FAST

_UNITS = {
    Stage.LIST: "requests/s",
    Stage.FETCH: "MB/s",
    Stage.CACHE: "MB/s",
    Stage.DECODE: "frames/s",
    Stage.CONVERT: "frames/s",
    Stage.COLLATE: "batches/s",
    Stage.COPY: "MB/s",
    Stage.CONSUMER: "batches/s",
}

_OF_THREADS = (Pool.FETCHING, Pool.DECODING, Pool.CONSUMING)
"""In the order of a run's threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was run."""

    slots: int
    """Clips of an epoch."""
    batch_size: int
    settings: LoaderSettings
    step_s: float
    """What the consumer took for a batch."""
    cpus: float
    """That the process may keep busy; a container may have a part of one."""
    opening_s: float
    """Listing and opening, before anything was delivered."""
    opening_requests: int


@dataclass(slots=True)
class Found:
    """The run, the paces of its stages alone, and why some have none."""

    setup: Setup
    whole: WholeRun
    fetchers: int
    """Clips that the run fetched at the same time, on average."""
    paces: dict[Stage, Pace] = field(default_factory=dict)
    why_not: dict[Stage, str] = field(default_factory=dict)
    engines: Engines | None = None
    """Of the GPU, while decoding alone."""

    def alone(self, stage: Stage) -> float | None:
        """Clips/s of a stage alone; None where it was not measured."""
        pace = self.paces.get(stage)
        return None if pace is None or not pace.clips_per_second else pace.clips_per_second


def measured(found: Found) -> Measured:
    """The run as a verdict needs it; what a changed setting would bring is not known yet."""
    setup, whole, report = found.setup, found.whole, found.whole.report
    fetch, cache = found.paces.get(Stage.FETCH), found.alone(Stage.CACHE)
    limits = _limits(found)
    cached = report.cache_byte_hit_rate
    return Measured(
        clips_per_second=whole.clips_per_second,
        stall_share=whole.stall_share,
        limits=limits,
        busy={
            pool: sum(map(threads.share, threads.stages_s))
            for pool, threads in zip(_OF_THREADS, whole.threads, strict=True)
        },
        batch_size=setup.batch_size,
        prefetch=setup.settings.prefetch,
        step_s=setup.step_s,
        fetchers=found.fetchers,
        request_s=0.0 if fetch is None else _request_s(fetch),
        bytes_per_clip=0.0 if fetch is None else _bytes(fetch) / fetch.clips,
        throttle_share=report.throttles / max(1, report.data_requests),
        unthrottled=None if fetch is None else _unthrottled(setup, found.fetchers, fetch),
        cache_share=cached / cache * limits[Pool.FETCHING] if cache and cached else 0.0,
        uncached=found.alone(Stage.FETCH) if cache else None,
        lacks_fast=LACKS_FAST in report.engines,
        workers=setup.settings.workers,
        cpus=max(1, int(setup.cpus)),
        engines=found.engines,
        amplification=report.decode_amplification,
    )


def _limits(found: Found) -> dict[Pool, float]:
    setup, report = found.setup, found.whole.report
    limits: dict[Pool, float] = {}
    cached = report.cache_byte_hit_rate
    fetching = [
        rate / share
        for stage, share in ((Stage.FETCH, 1 - cached), (Stage.CACHE, cached))
        if (rate := found.alone(stage)) and share > 0
    ]
    if fetching:
        limits[Pool.FETCHING] = together(fetching)
    if rate := found.alone(Stage.DECODE):
        limits[Pool.DECODING] = rate
    if found.engines is not None:
        limits[Pool.ENGINES] = found.engines.clips_per_second
    if rate := found.alone(Stage.COLLATE):
        step = setup.batch_size / setup.step_s if setup.step_s else math.inf
        limits[Pool.CONSUMING] = together([rate, step])
    if (rate := found.alone(Stage.COPY)) and setup.settings.device not in (None, "cpu"):
        limits[Pool.COPYING] = rate
    if found.whole.cpu_per_clip_s > 0:
        limits[Pool.CPU] = setup.cpus / found.whole.cpu_per_clip_s
    return limits


def _request_s(fetch: Pace) -> float:
    went_well = fetch.counts.total(purpose=Purpose.DATA, outcome="ok")
    return went_well.seconds / max(1, went_well.count)


def _bytes(fetch: Pace) -> int:
    return fetch.counts.total(purpose=Purpose.DATA).bytes_received


def _unthrottled(setup: Setup, fetchers: int, fetch: Pace) -> float | None:
    """Clips/s of requests that go well, without failed ones and the waits after them."""
    went_well = fetch.counts.total(purpose=Purpose.DATA, outcome="ok")
    if not went_well.seconds:
        return None
    # Once nothing is throttled, no fewer are fetched at once than at the beginning.
    threads = max(fetchers, FIRST) if setup.settings.fetchers == "auto" else fetchers
    return threads * fetch.clips / went_well.seconds


def stage_rates(found: Found) -> tuple[StageRate, ...]:
    """Every stage's rate alone, in clips/s and in its own unit, and its share of the run."""
    fetching, decoding, _ = found.whole.threads
    settings = found.setup.settings
    rates, amounts = _clips_per_second(found), _amounts(found)
    busy = {s: pool.share(s) for pool in found.whole.threads for s in pool.stages_s}
    threads = {s: found.fetchers for s in fetching.stages_s}
    threads |= {s: settings.workers for s in decoding.stages_s}
    rows = []
    for stage in Stage:
        rate = rates.get(stage)
        rows.append(
            StageRate(
                name=stage,
                clips_per_second=rate,
                own_rate=None if rate is None else rate * amounts[stage],
                own_unit=_UNITS[stage] + (_decoder(found) if stage is Stage.DECODE else ""),
                busy_share=busy.get(stage),
                threads=threads.get(stage, 1),
                why_not="" if rate is not None else found.why_not.get(stage, "none was needed"),
            )
        )
    return tuple(rows)


def _decoder(found: Found) -> str:
    """What decodes, where it is not the CPU."""
    if found.engines is None:
        return ""
    return ", nvdec" if found.engines.decodes_all else ", nvdec+cpu"


def _clips_per_second(found: Found) -> dict[Stage, float]:
    setup = found.setup
    rates = {stage: rate for stage in found.paces if (rate := found.alone(stage))}
    rates[Stage.LIST] = setup.slots / max(setup.opening_s, 1e-9)
    if setup.step_s:
        rates[Stage.CONSUMER] = setup.batch_size / setup.step_s
    both = found.paces.get(Stage.DECODE)
    if both is not None:
        # One thread does both by turns: each alone would have the other's time as well.
        decode_s, convert_s = both.per_clip("seconds.decode"), both.per_clip("seconds.convert")
        for stage, seconds in ((Stage.DECODE, decode_s), (Stage.CONVERT, convert_s)):
            if seconds:
                rates[stage] = both.clips_per_second * (decode_s + convert_s) / seconds
    return rates


def _amounts(found: Found) -> Mapping[Stage, float]:
    """What a clip is, in the stages' own units."""
    setup, report = found.setup, found.whole.report
    fetch, cache = found.paces.get(Stage.FETCH), found.paces.get(Stage.CACHE)
    decode = found.paces.get(Stage.DECODE)
    return {
        Stage.LIST: setup.opening_requests / max(1, setup.slots),
        Stage.FETCH: _bytes(fetch) / max(1, fetch.clips) / 1e6 if fetch else 0.0,
        Stage.CACHE: cache.per_clip("bytes.cache_hit") / 1e6 if cache else 0.0,
        Stage.DECODE: decode.per_clip("frames.decoded") if decode else 0.0,
        Stage.CONVERT: decode.per_clip("frames.delivered") if decode else 0.0,
        Stage.COLLATE: 1 / setup.batch_size,
        Stage.COPY: report.bytes_delivered / max(1, report.clips) / 1e6,
        Stage.CONSUMER: 1 / setup.batch_size,
    }
