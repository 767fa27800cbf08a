"""Which part sets the pace, and what to change: a function of measured values, nothing else.

The gain that is promised is the next limit over the present one. What the whole falls short of its
limit now, it is taken to fall short of the next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dstream.diagnose.bench.document import Cause, Verdict
from dstream.diagnose.bench.limits import Measured, Pool, WhatIf
from dstream.diagnose.bench.numerals import figures
from dstream.store.options import FAST_EXTRA

_EXPLAINED = 0.75
"""A limit explains a run that comes this near to it, and threads that are busy so much of it."""
_HELPS = 1.25
"""What a changed setting has to bring alone before it is advised."""
_BEYOND = 1.25
"""A run that exceeds what decoding can give alone by so much says that this was measured badly."""
_THROTTLED = 0.01
_MUCH_THROTTLED = 0.1
_AMPLE = 8
"""Prefetched clips for each decoding thread, beyond which more make no difference."""


def judge(run: Measured) -> Verdict:
    """The verdict on a run."""
    if not run.limits or run.clips_per_second <= 0:
        advice = "measure longer, or more clips"
        evidence = "no stage has a rate"
        if run.limits:
            evidence = "nothing was decoded after the first batch"
        return _verdict(run, Cause.UNKNOWN, "Too little was measured", evidence, advice=advice)
    pool, limit = run.slowest
    if run.throttle_share > _MUCH_THROTTLED and Pool.FETCHING not in run.limits:
        return _throttled(run, "so many that fetching alone could not be measured")
    # Who is told to slow down waits on purpose.
    is_throttled = pool is Pool.FETCHING and run.throttle_share > _THROTTLED
    is_busy = is_throttled or run.busy.get(pool, 0.0) >= _EXPLAINED
    if run.clips_per_second < _EXPLAINED * limit and not is_busy:
        return _gap(run, pool, limit)
    kinds = {Pool.FETCHING: _fetching, Pool.CONSUMING: _consuming, Pool.COPYING: _copying}
    return kinds.get(pool, _decoding)(run, limit)


def failed(clips: int, error: Exception) -> Verdict:
    """In a verdict's place, of a run that an error ended."""
    return Verdict(
        cause=Cause.FAILED,
        sentence=f"The run failed after {clips:,} clips, so no stage was measured alone: {error}",
        evidence=str(error),
        setting=None,
        new_value=None,
        expected_gain=1.0,
    )


def interrupted(where: str) -> Verdict:
    """In a verdict's place, of a bench that somebody ended there."""
    return Verdict(
        cause=Cause.INTERRUPTED,
        sentence=f"Interrupted {where}: there is no verdict, and what was measured until then "
        "is told.",
        evidence="",
        setting=None,
        new_value=None,
        expected_gain=1.0,
    )


def _fetching(run: Measured, limit: float) -> Verdict:
    alone = f"{run.fetchers} at once give {_rate(limit)} alone"
    if run.throttle_share > _THROTTLED:
        return _throttled(run, f"and {alone}")
    if run.cache_share > 0.5:
        return _slow_disk(run, limit)
    more = run.more_fetchers
    if more is not None and more.clips_per_second > _HELPS * limit:
        return _delay(run, limit, more)
    _, others = run.without({Pool.FETCHING: math.inf})
    wanted = f"{_megabytes(run, others)} MB/s" if math.isfinite(others) else None
    tried = "" if more is None else f", {more.value} no more"
    # Where Python decrypts, it may be that and not the link: so this comes first.
    faster = f"{FAST_EXTRA} (Python decrypts what is read), else " if run.lacks_fast else ""
    return _verdict(
        run,
        Cause.BANDWIDTH,
        "The link to the store sets the pace",
        f"{alone}, {_megabytes(run, limit)} MB/s{tried}",
        lifted={Pool.FETCHING: math.inf},
        new_value=wanted,
        advice=f"{faster}use a link of {wanted or 'more'}, or a cache if clips come again",
    )


def _throttled(run: Measured, alone: str) -> Verdict:
    return _verdict(
        run,
        Cause.THROTTLING,
        "The store's throttling sets the pace",
        f"it told {run.throttle_share:.0%} of the requests to slow down, {alone}",
        lifted={Pool.FETCHING: math.inf if run.unthrottled is None else run.unthrottled},
        advice="have its limit raised, or spread the data over more prefixes",
    )


def _slow_disk(run: Measured, limit: float) -> Verdict:
    what = "Reading the cache's disk sets the pace"
    evidence = f"it is {run.cache_share:.0%} of fetching, which gives {_rate(limit)} alone"
    if run.uncached is not None and run.uncached > _HELPS * limit:
        return _verdict(
            run,
            Cause.DISK,
            what,
            f"{evidence}, and {_rate(run.uncached)} from the store itself",
            lifted={Pool.FETCHING: run.uncached},
            setting="cache",
            new_value="none",
            advice="leave the cache out",
        )
    advice = "put it on a faster disk"
    lifted = {Pool.FETCHING: math.inf}
    return _verdict(run, Cause.DISK, what, evidence, lifted=lifted, advice=advice)


def _delay(run: Measured, limit: float, more: WhatIf) -> Verdict:
    tried = int(more.value)
    _, others = run.without({Pool.FETCHING: more.clips_per_second})
    fetchers = min(tried, max(run.fetchers + 1, math.ceil(1.25 * run.fetchers * others / limit)))
    reached = min(more.clips_per_second, limit * fetchers / run.fetchers)
    return _verdict(
        run,
        Cause.DELAY,
        "Waiting for answers sets the pace",
        f"a request takes {run.request_s * 1000:.0f} ms, and {run.fetchers} at once give "
        f"{_rate(limit)} alone, {tried} {figures(more.clips_per_second)}",
        lifted={Pool.FETCHING: reached},
        setting="fetchers",
        new_value=str(fetchers),
    )


def _decoding(run: Measured, limit: float) -> Verdict:
    """Decoding is slowest, or the CPUs are, which do little else."""
    if run.clips_per_second > _BEYOND * limit:
        what = "Something else on this machine was in the way of the measuring"
        evidence = f"decoding gives {_rate(limit)} alone, less than the whole with "
        evidence += _rate(run.clips_per_second)
        return _verdict(run, Cause.UNKNOWN, what, evidence, advice="measure on a quieter machine")
    alone = f"{_giving(run.workers)} {_rate(run.limits.get(Pool.DECODING, limit))} alone"
    at_work = run.limits.get(Pool.ENGINES, math.inf)
    is_engines = run.engines is not None and limit >= _EXPLAINED * at_work
    if is_engines and run.engines is not None:
        alone = f"{run.engines.told}, {_rate(at_work)} at most"
    remedies = [
        _threads_verdict(run, run.more_workers, alone) if run.more_workers else None,
        _frames_verdict(run, run.fewer_frames, alone) if run.fewer_frames else None,
    ]
    best = max(filter(None, remedies), key=lambda v: v.expected_gain, default=None)
    if best is not None and best.expected_gain >= _HELPS:
        return best
    if is_engines:
        return _engines(run, limit, alone)
    more_workers = run.more_workers
    tried = (
        f"and {run.cpus} CPUs are all there is"
        if more_workers is None
        else f"{more_workers.value} give {more_workers.clips_per_second:.3g}"
    )
    # Decoding goes with the CPUs; nobody is told to buy more than twice as many at once.
    _, others = run.without({Pool.DECODING: math.inf, Pool.CPU: math.inf})
    wanted = math.ceil(run.cpus * min(2.0, others / limit))
    more = limit * wanted / run.cpus
    return _verdict(
        run,
        Cause.CPU,
        "Decoding sets the pace",
        f"{alone}, {tried}",
        lifted={Pool.DECODING: more, Pool.CPU: more},
        new_value=f"{wanted} CPUs",
        advice=f"use {wanted} CPUs",
    )


def _engines(run: Measured, limit: float, alone: str) -> Verdict:
    lifted = {Pool.DECODING: math.inf, Pool.ENGINES: math.inf}
    _, others = run.without(lifted)
    share = f"{limit / others:.0%} of the pixels" if limit < others < math.inf else None
    return _verdict(
        run,
        Cause.NVDEC,
        "The GPU's decoders set the pace",
        alone,
        lifted=lifted,
        new_value=share,
        advice=f"store {share or 'smaller pictures'}, or shorter GOPs where amplification is high",
    )


def _threads_verdict(run: Measured, more: WhatIf, alone: str) -> Verdict:
    return _verdict(
        run,
        Cause.DECODE_THREADS,
        "Decoding sets the pace with too few threads",
        f"{alone}, {more.value} give {figures(more.clips_per_second)}",
        lifted={Pool.DECODING: more.clips_per_second},
        setting=more.setting,
        new_value=more.value,
    )


def _frames_verdict(run: Measured, fewer: WhatIf, alone: str) -> Verdict:
    # Decoding less needs less of the CPUs and of a GPU's engines in proportion.
    share = fewer.clips_per_second / run.limits.get(Pool.DECODING, fewer.clips_per_second)
    return _verdict(
        run,
        Cause.LONG_GOPS,
        "Decoding long GOPs sets the pace",
        f"{run.amplification:.1f} frames are decoded for each that is wanted, and {alone}, "
        f"{figures(fewer.clips_per_second)} with {fewer.setting}={fewer.value}",
        lifted={
            Pool.DECODING: fewer.clips_per_second,
            **{pool: run.limits.get(pool, math.inf) * share for pool in (Pool.CPU, Pool.ENGINES)},
        },
        setting=fewer.setting,
        new_value=fewer.value,
    )


def _consuming(run: Measured, limit: float) -> Verdict:
    if not run.step_s:
        return _verdict(
            run,
            Cause.COLLATE,
            "Handing batches over sets the pace",
            f"it gives {_rate(limit)} alone",
            lifted={Pool.CONSUMING: math.inf},
            advice="make larger batches of fewer side data",
        )
    _, others = run.without({Pool.CONSUMING: math.inf})
    step_ms = f"{run.batch_size / others * 1000:.0f}"
    return _verdict(
        run,
        Cause.CONSUMER,
        "The training step sets the pace",
        f"{run.step_s * 1000:.0f} ms a batch allow {_rate(limit)}, and it waited for the loader "
        f"{run.stall_share:.0%} of the time",
        lifted={Pool.CONSUMING: math.inf},
        setting="step_ms",
        new_value=step_ms,
        advice=f"shorten it: steps of {step_ms} ms would be fed too",
    )


def _copying(run: Measured, limit: float) -> Verdict:
    return _verdict(
        run,
        Cause.COPY,
        "Copying to the device sets the pace",
        f"it gives {_rate(limit)} alone",
        lifted={Pool.COPYING: math.inf},
        advice="deliver smaller frames (resize), or find a wider slot",
    )


def _gap(run: Measured, pool: Pool, limit: float) -> Verdict:
    """The whole is slower than all of its parts."""
    ahead = run.prefetch * run.batch_size
    evidence = (
        f"{pool}, the slowest part, would allow {_rate(limit)} and the whole gives "
        f"{figures(run.clips_per_second)}"
    )
    if ahead >= _AMPLE * run.workers:
        what = "No stage explains the pace"
        advice = "look for other load on this machine, then at a trace"
        return _verdict(run, Cause.UNKNOWN, what, evidence, advice=advice)
    prefetch = max(2 * run.prefetch, math.ceil(_AMPLE / 2 * run.workers / run.batch_size))
    return _verdict(
        run,
        Cause.QUEUE,
        "The queue is too short to keep the stages busy",
        f"{evidence}, with {ahead} clips decoded ahead by {_threads(run.workers)}",
        lifted={},
        setting="prefetch",
        new_value=str(prefetch),
    )


def _verdict(
    run: Measured,
    cause: Cause,
    what: str,
    evidence: str,
    *,
    lifted: Mapping[Pool, float] | None = None,
    setting: str | None = None,
    new_value: str | None = None,
    advice: str = "",
) -> Verdict:
    """The verdict with its gain: what is left when the limits ``lifted`` are what they are given.

    None: nothing is promised.
    """
    gain, upto = 1.0, ""
    if lifted is not None:
        next_pool, rate = run.without(lifted)
        # A limit that the run exceeded is none; one that it fell short of, it will again.
        pool, limit = run.slowest
        now = max(limit, run.clips_per_second) if pool in lifted else run.clips_per_second
        gain = max(1.0, rate / now) if math.isfinite(rate) else 1.0
        upto = f", up to {next_pool} at {_rate(rate)}" if math.isfinite(rate) else ""
    advice = advice or f"set {setting}={new_value}"
    promised = f" and expect {gain:.2g}x{upto}" if lifted is not None and upto else ""
    return Verdict(
        cause=cause,
        sentence=f"{what}: {evidence}; {advice}{promised}.",
        evidence=evidence,
        setting=setting,
        new_value=new_value,
        expected_gain=gain,
    )


def _rate(clips_per_second: float) -> str:
    return f"{figures(clips_per_second)} clips/s"


def _megabytes(run: Measured, clips_per_second: float) -> str:
    return f"{clips_per_second * run.bytes_per_clip / 1e6:.3g}"


def _threads(count: int) -> str:
    return f"{count} thread" + ("" if count == 1 else "s")


def _giving(threads: int) -> str:
    return f"{_threads(threads)} {'gives' if threads == 1 else 'give'}"
