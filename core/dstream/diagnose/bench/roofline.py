"""Measures the stages of a loader alone after its run, and what a changed setting would bring."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from dstream.clock import Clock
from dstream.diagnose.bench.alone import Alone, Pace, Units, undisturbed
from dstream.diagnose.bench.document import Stage
from dstream.diagnose.bench.engines import engines_of, published_frames_per_second
from dstream.diagnose.bench.interruption import INTERRUPTED, Interruption
from dstream.diagnose.bench.limits import Measured, Pool, WhatIf
from dstream.diagnose.bench.stages import Found
from dstream.errors import DstreamError
from dstream.loader.clips import Clips
from dstream.loader.loader import Loader
from dstream.measure import Snapshot
from dstream.media.decoders.choice import DEPTHS

_LONGEST_S, _SHORTEST_S = 2.0, 0.2
_PART = 1 / 8
"""Of the run's own time, what one measurement may take."""

_MANY_FETCHERS = 64
_AMPLIFIED = 2.0
"""Frames decoded for a delivered one, from which on decoding less is tried."""
_MOST_PER_GOP = 16
_MOSTLY_HELD = 0.9
"""Of what clips need, from which on reading it is reading the cache."""


def seconds_alone(wall_s: float) -> float:
    """How long each stage is measured, by how long the run was.

    >>> seconds_alone(0.5), seconds_alone(8.0), seconds_alone(60.0)
    (0.2, 1.0, 2.0)
    """
    return min(_LONGEST_S, max(_SHORTEST_S, wall_s * _PART))


def held_share(counts: Snapshot) -> float:
    """Of what was read through a cache, what its disk had.

    A piece that another thread was fetching is a hit, but says nothing of the disk.
    """
    hits, joined, misses = (
        counts.sums.get(f"cache.{name}", 0.0) for name in ("hits", "joined", "misses")
    )
    return (hits - joined) / max(hits + misses, 1.0)


def why_no_gpu() -> str:
    """Why nothing can be copied to a GPU here; empty where it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA device"


class Roofline:
    """Measurements of one loader.

    Args:
        clips: what it delivered.
        loader: closed.
        found: its run; what is measured is put there.
        clock: measures.
        interruption: what was not measured before it is not.
    """

    def __init__(
        self,
        clips: Clips,
        loader: Loader,
        found: Found,
        clock: Clock,
        interruption: Interruption,
    ) -> None:
        self.seconds = seconds_alone(found.whole.wall_s)
        """Of each measurement."""
        self._found, self._has_cache = found, clips.cache is not None
        taken, self._interruption = found.whole.report.clips, interruption
        self._alone = Alone(clips, loader, taken, self.seconds, clock, interruption)
        self._units = self._alone.units()

    def measure(self) -> None:
        """Every stage alone, one after the other."""
        alone, units, found = self._alone, self._units, self._found
        report, settings = found.whole.report, found.setup.settings
        fetch, stored = partial(alone.fetch, units, found.fetchers), 1 - report.cache_byte_hit_rate
        at_least = stored * found.whole.clips_per_second
        self._try(Stage.FETCH, lambda: undisturbed(fetch, at_least))
        if self._has_cache:
            self._try(Stage.CACHE, self._cache)
        if Stage.FETCH in found.paces:
            decode, whole = partial(alone.decode, units, settings.workers), found.whole
            self._try(Stage.DECODE, lambda: undisturbed(decode, whole.clips_per_second))
            self._engines()
            self._try(Stage.COLLATE, lambda: alone.collate(units))
        clip_bytes = report.bytes_delivered // max(1, report.clips)
        if no_gpu := why_no_gpu():
            found.why_not[Stage.COPY] = no_gpu
        else:
            self._try(Stage.COPY, lambda: alone.copy(clip_bytes, settings.device or "cuda"))
        for stage in (Stage.DECODE, Stage.COLLATE):  # of what was fetched
            found.why_not.setdefault(stage, found.why_not.get(Stage.FETCH, ""))
        found.why_not.setdefault(Stage.CACHE, "no --cache was given")
        found.why_not.setdefault(Stage.CONSUMER, "no --step-ms was given")
        found.why_not.setdefault(Stage.CONVERT, found.why_not.get(Stage.DECODE, ""))

    def _try(self, stage: Stage, pace: Callable[[], Pace]) -> None:
        """What a failing clip or a missing part keeps from being measured is said, not lost."""
        if self._interruption.came:
            self._found.why_not[stage] = INTERRUPTED
            return
        try:
            self._found.paces[stage] = pace()
        except DstreamError as error:
            self._found.why_not[stage] = str(error)

    def _engines(self) -> None:
        """Those of NVDEC, by what was counted while decoding alone."""
        pace = self._found.paces.get(Stage.DECODE)
        choice = self._found.setup.settings.decoder
        nvdec = choice.nvdec()
        if pace is None or nvdec is None:
            return
        published = None
        if not why_no_gpu():
            import torch

            track = self._units.first_track()
            published = published_frames_per_second(
                torch.cuda.get_device_capability(choice.gpu),
                track.codec,
                DEPTHS.get(track.pix_fmt, 0),
                track.width * track.height,
            )
        self._found.engines = engines_of(pace.counts, pace.clips, nvdec.engines, published)

    def _cache(self) -> Pace:
        pace = self._alone.fetch(self._alone.units(use_cache=True), self._found.fetchers)
        share = held_share(pace.counts)
        if share < _MOSTLY_HELD:
            raise DstreamError(f"it holds {share:.0%} of what these clips need")
        return pace

    def what_if(self, run: Measured) -> Measured:
        """The run with what a changed setting of its slowest pool brings alone.

        A setting that fails is not there, and so not advised.
        """
        pool = run.slowest[0] if run.limits and not self._interruption.came else None
        with suppress(DstreamError):
            if pool is Pool.FETCHING:
                run = replace(run, more_fetchers=self._more_fetchers(run))
            if pool in (Pool.DECODING, Pool.ENGINES, Pool.CPU):
                run = replace(run, more_workers=self._more_workers(run))
                run = replace(run, fewer_frames=self._fewer_frames(run))
        return run

    def _more_fetchers(self, run: Measured) -> WhatIf:
        more = min(4 * run.fetchers, max(2 * run.fetchers, _MANY_FETCHERS))
        pace = self._alone.fetch(self._alone.units(), more)
        return WhatIf("fetchers", str(more), pace.clips_per_second)

    def _more_workers(self, run: Measured) -> WhatIf | None:
        if run.workers >= run.cpus:
            return None
        pace = self._alone.decode(self._units, run.cpus)
        return WhatIf("workers", str(run.cpus), pace.clips_per_second)

    def _fewer_frames(self, run: Measured) -> WhatIf | None:
        """Several clips from one decode, where clips share GOPs; else clips from keyframes on."""
        if run.amplification < _AMPLIFIED:
            return None
        # A clip needs half a GOP before it on average: so many fit into a whole one.
        wanted = min(_MOST_PER_GOP, max(2, round(2 * (run.amplification - 1))))
        units: Units | None = self._alone.grouped(wanted)
        setting, value = ("clips_per_gop", str(wanted)) if units else ("sampling", "keyframe")
        units = units or self._alone.at_keyframes()
        self._alone.fetch(units, run.fetchers)
        pace = self._alone.decode(units, run.workers)
        return WhatIf(setting, value, pace.clips_per_second)
