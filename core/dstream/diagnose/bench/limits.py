"""How fast the parts of a run could go, each alone: what a verdict is made of. Values only.

Stages that share threads add up: a thread that fetches a clip in 10 ms and reads another one from
the cache in 5 ms does not do both in 10. So what limits a run are its pools of threads, the copy
engine, and the CPUs that all threads share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dstream.diagnose.bench.engines import Engines


class Pool(StrEnum):
    """What stages share."""

    FETCHING = "fetching"
    DECODING = "decoding"
    CONSUMING = "the consumer"
    COPYING = "copying to the device"
    CPU = "the CPUs"
    ENGINES = "NVDEC's engines"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A pool alone once more, with one setting changed."""

    setting: str
    value: str
    clips_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run and its limits."""

    clips_per_second: float
    """Of the whole."""
    stall_share: float
    """Of the wall time, the consumer's wait for the loader."""
    limits: Mapping[Pool, float]
    """Clips/s that each pool allows alone; what could not be measured is not there."""

    busy: Mapping[Pool, float] = field(default_factory=dict)
    """Of the time of a pool's threads in the run, what its stages took."""

    batch_size: int
    prefetch: int
    step_s: float = 0.0
    """What the consumer takes for a batch."""

    fetchers: int = 1
    request_s: float = 0.0
    """Mean time of one request that went well, fetching alone."""
    bytes_per_clip: float = 0.0
    """That came from the store."""
    throttle_share: float = 0.0
    """Answers that asked to slow down, of all."""
    unthrottled: float | None = None
    """Clips/s of fetching alone without those and the waits after them."""
    cache_share: float = 0.0
    """Of the time of fetching, what reading this node's cache takes."""
    uncached: float | None = None
    """Clips/s of fetching everything from the store, where there is a cache."""
    more_fetchers: WhatIf | None = None
    lacks_fast: bool = False
    """Python reads over TLS, because the extra ``fast`` is not installed."""

    workers: int = 1
    cpus: int = 1
    engines: Engines | None = None
    """Of the GPU, where they decode."""
    amplification: float = 1.0
    """Frames decoded over frames delivered."""
    more_workers: WhatIf | None = None
    fewer_frames: WhatIf | None = None
    """Decoding less for each clip."""

    @property
    def slowest(self) -> tuple[Pool, float]:
        """The lowest of the limits."""
        return min(self.limits.items(), key=lambda item: item[1])

    def without(self, lifted: Mapping[Pool, float]) -> tuple[Pool, float]:
        """The lowest of the limits when some of them are others."""
        return min({**self.limits, **lifted}.items(), key=lambda item: item[1])


def together(rates: Iterable[float]) -> float:
    """Clips/s of threads that do one stage after another, each of which alone has such a rate.

    >>> together([100.0, 50.0, math.inf])
    33.333333333333336
    """
    total_s = sum(1 / rate for rate in rates)
    return 1 / total_s if total_s else math.inf
