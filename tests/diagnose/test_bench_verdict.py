"""The verdict as a table: measured values in, cause, setting and gain out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.diagnose.bench.document import Cause
from dstream.diagnose.bench.engines import Engines
from dstream.diagnose.bench.limits import Measured, Pool, WhatIf, together
from dstream.diagnose.bench.verdict import judge

BALANCED = {
    Pool.FETCHING: 500.0,
    Pool.DECODING: 100.0,
    Pool.CONSUMING: 20_000.0,
    Pool.CPU: 110.0,
}

ENGINES = Engines(7, 700.0, 120.0, decodes_all=True, published=771.0)


def run(limits: dict[Pool, float], whole: float, **facts: Any) -> Measured:
    given: dict[str, Any] = {
        "stall_share": 0.9, "batch_size": 8, "prefetch": 2, "fetchers": 16, "request_s": 0.08,
        "bytes_per_clip": 0.5e6, "workers": 2, "cpus": 2, "amplification": 1.2,
    }  # fmt: skip
    return Measured(clips_per_second=whole, limits={**BALANCED, **limits}, **{**given, **facts})


TABLE = {
    "delay": (
        run({Pool.FETCHING: 25.0}, 24.0, fetchers=2, more_fetchers=WhatIf("fetchers", "8", 98.0)),
        Cause.DELAY, "fetchers", "8", 98 / 25, "takes 80 ms",
    ),
    "delay, where fewer suffice": (
        run({Pool.FETCHING: 50.0}, 49.0, fetchers=4, more_fetchers=WhatIf("fetchers", "16", 190.0)),
        Cause.DELAY, "fetchers", "10", 2.0, "up to decoding at 100",
    ),
    "bandwidth": (
        run({Pool.FETCHING: 40.0}, 38.0, more_fetchers=WhatIf("fetchers", "64", 41.0)),
        Cause.BANDWIDTH, None, "50 MB/s", 2.5, "20 MB/s, 64 no more",
    ),
    "bandwidth, where Python decrypts": (
        run({Pool.FETCHING: 40.0}, 38.0, lacks_fast=True),
        Cause.BANDWIDTH, None, "50 MB/s", 2.5, "pip install 'dstream[fast]'",
    ),
    "throttling": (
        run(
            {Pool.FETCHING: 10.0}, 9.0, throttle_share=0.3, fetchers=2, unthrottled=400.0,
            more_fetchers=WhatIf("fetchers", "8", 40.0),
        ),
        Cause.THROTTLING, None, None, 10.0, "30% of the requests",
    ),
    "throttling, and fetchers that wait as they were told": (
        run(
            {Pool.FETCHING: 10.0}, 6.0, throttle_share=0.3, fetchers=2, unthrottled=400.0,
            busy={Pool.FETCHING: 0.2}, prefetch=8,
        ),
        Cause.THROTTLING, None, None, 10.0, "told 30% of the requests",
    ),
    "throttling that lets nothing be measured alone": (
        replace(run({}, 4.0, throttle_share=0.6), limits={Pool.DECODING: 100.0}),
        Cause.THROTTLING, None, None, 25.0, "60% of the requests",
    ),
    "a part that is slower than the whole": (
        run({Pool.DECODING: 65.0}, 418.0, fewer_frames=WhatIf("sampling", "keyframe", 570.0)),
        Cause.UNKNOWN, None, None, 1.0, "65 clips/s alone, less than the whole with 418",
    ),
    "slow disk, the store is faster": (
        run({Pool.FETCHING: 20.0}, 20.0, cache_share=0.97, uncached=80.0),
        Cause.DISK, "cache", "none", 4.0, "80 clips/s from the store",
    ),
    "slow disk, the store is no faster": (
        run({Pool.FETCHING: 20.0}, 20.0, cache_share=0.97, uncached=15.0),
        Cause.DISK, None, None, 5.0, "faster disk",
    ),
    "long GOPs": (
        run(
            {Pool.DECODING: 20.0, Pool.CPU: 21.0}, 19.0, amplification=8.8,
            fewer_frames=WhatIf("clips_per_gop", "16", 110.0),
        ),
        Cause.LONG_GOPS, "clips_per_gop", "16", 5.5, "8.8 frames",
    ),
    "one decode thread": (
        run(
            {Pool.DECODING: 50.0}, 49.0, workers=1, more_workers=WhatIf("workers", "2", 98.0),
        ),
        Cause.DECODE_THREADS, "workers", "2", 98 / 50, "1 thread gives 50 clips/s alone, 2 give 98",
    ),
    "long GOPs and one thread: what gains more": (
        run(
            {Pool.DECODING: 20.0}, 20.0, workers=1, amplification=8.8,
            more_workers=WhatIf("workers", "2", 39.0),
            fewer_frames=WhatIf("clips_per_gop", "16", 100.0),
        ),
        Cause.LONG_GOPS, "clips_per_gop", "16", 5.0, "",
    ),
    "all CPUs decode": (
        run({}, 98.0), Cause.CPU, None, "4 CPUs", 2.0, "2 CPUs are all there is",
    ),
    "all CPUs decode, and fetching is next": (
        run({Pool.FETCHING: 120.0}, 98.0), Cause.CPU, None, "3 CPUs", 1.2, "up to fetching",
    ),
    "one decode thread, and others use the CPUs": (
        run({Pool.DECODING: 50.0}, 49.0, workers=1, more_workers=WhatIf("workers", "2", 51.0)),
        Cause.CPU, None, "4 CPUs", 2.0, "1 thread gives 50 clips/s alone, 2 give 51",
    ),
    "slow consumer": (
        run({Pool.CONSUMING: 20.0}, 19.9, step_s=0.4, stall_share=0.01),
        Cause.CONSUMER, "step_ms", "80", 5.0, "400 ms a batch",
    ),
    "tiny queue": (
        run({}, 55.0, batch_size=1, prefetch=1),
        Cause.QUEUE, "prefetch", "8", 100 / 55, "1 clips decoded ahead",
    ),
    "busy threads that others slow down": (
        run({}, 55.0, batch_size=1, prefetch=1, busy={Pool.DECODING: 0.94}),
        Cause.CPU, None, "4 CPUs", 2.0, "",
    ),
    "the GPU's decoders": (
        run({Pool.DECODING: 100.0, Pool.ENGINES: 120.0, Pool.CPU: 1e4}, 98.0, engines=ENGINES),
        Cause.NVDEC, None, "20% of the pixels", 5.0,
        "7 NVDEC engines decode 700 frames/s each of 771 that NVIDIA publishes, 120 clips/s at",
    ),
    "the GPU's decoders, in long GOPs": (
        run(
            {Pool.DECODING: 100.0, Pool.ENGINES: 120.0, Pool.CPU: 1e4}, 98.0, engines=ENGINES,
            amplification=8.8, fewer_frames=WhatIf("clips_per_gop", "16", 400.0),
        ),
        Cause.LONG_GOPS, "clips_per_gop", "16", 4.0, "7 NVDEC engines",
    ),
    "idle decoders of a GPU": (
        run({Pool.ENGINES: 400.0}, 98.0, engines=ENGINES),
        Cause.CPU, None, "4 CPUs", 2.0, "2 CPUs are all there is",
    ),
    "copies": (run({Pool.COPYING: 30.0}, 29.0), Cause.COPY, None, None, 100 / 30, ""),
    "handing over": (run({Pool.CONSUMING: 30.0}, 29.0), Cause.COLLATE, None, None, 100 / 30, ""),
    "a long queue is not the cause": (
        run({}, 55.0, prefetch=8), Cause.UNKNOWN, None, None, 1.0, "other load",
    ),
    "nothing measured": (
        replace(run({}, 10.0), limits={}), Cause.UNKNOWN, None, None, 1.0, "Too little",
    ),
    "nothing delivered": (run({}, 0.0), Cause.UNKNOWN, None, None, 1.0, "Too little"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_the_cause_the_advice_and_the_gain(name: str) -> None:
    measured, cause, setting, value, gain, told = TABLE[name]
    verdict = judge(measured)
    assert (verdict.cause, verdict.setting, verdict.new_value) == (cause, setting, value)
    assert verdict.expected_gain == pytest.approx(gain, rel=1e-6)
    assert told in verdict.sentence
    assert verdict.evidence in verdict.sentence
    assert verdict.sentence.count(". ") == 0  # one sentence
    assert verdict.sentence.endswith(".")
    assert "inf" not in verdict.sentence
    assert "None" not in verdict.sentence


def test_a_run_beyond_its_limit_promises_less() -> None:
    limits = {Pool.FETCHING: 25.0}
    more = WhatIf("fetchers", "8", 98.0)
    verdict = judge(run(limits, 30.0, fetchers=2, more_fetchers=more))
    assert verdict.expected_gain == pytest.approx(98 / 30)


_RATE = st.floats(0.01, 1e6)


@given(
    limits=st.dictionaries(st.sampled_from(list(Pool)), _RATE),
    whole=st.just(0.0) | _RATE,
    step_s=st.floats(0, 10),
    throttled=st.floats(0, 1),
    cache_share=st.floats(0, 1),
    whats=st.lists(st.none() | _RATE, min_size=4, max_size=4),
    counts=st.lists(st.integers(1, 64), min_size=4, max_size=4),
)
def test_every_run_gets_one_finite_verdict(
    limits: dict[Pool, float],
    whole: float,
    step_s: float,
    throttled: float,
    cache_share: float,
    whats: list[float | None],
    counts: list[int],
) -> None:
    fetchers, workers, cpus, prefetch = counts
    more, threads, frames, uncached = whats
    verdict = judge(
        Measured(
            clips_per_second=whole,
            stall_share=0.5,
            limits=limits,
            batch_size=8,
            prefetch=prefetch,
            step_s=step_s,
            fetchers=fetchers,
            throttle_share=throttled,
            cache_share=cache_share,
            uncached=uncached,
            unthrottled=uncached,
            more_fetchers=None if more is None else WhatIf("fetchers", str(4 * fetchers), more),
            workers=workers,
            cpus=cpus,
            more_workers=None if threads is None else WhatIf("workers", str(cpus), threads),
            fewer_frames=None if frames is None else WhatIf("clips_per_gop", "4", frames),
        )
    )
    assert math.isfinite(verdict.expected_gain)
    assert verdict.expected_gain >= 1
    assert "inf" not in verdict.sentence
    assert "None" not in verdict.sentence
    assert verdict.setting is None or verdict.new_value
    if verdict.setting is None and verdict.cause is Cause.UNKNOWN:
        assert verdict.expected_gain == 1


def test_stages_of_one_thread_add_up() -> None:
    assert together([100.0, 100.0]) == pytest.approx(50)
    assert together([100.0, math.inf]) == 100
    assert math.isinf(together([]))
