"""Where the time of a run's threads went: stages and waits, held against all of it.

Three kinds of threads make a run. The time of each is cut without gaps (``measure/laps.py``), so
what no stage and no wait accounts for is known, and not left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dstream.diagnose.bench.document import Stage


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """All threads of one kind."""

    total_s: float
    stages_s: Mapping[Stage, float]
    waits_s: Mapping[str, float]

    @property
    def explained_share(self) -> float:
        """Of the total, what stages and waits are; 1 of nothing."""
        if self.total_s <= 0:
            return 1.0
        return (sum(self.stages_s.values()) + sum(self.waits_s.values())) / self.total_s

    def share(self, stage: Stage) -> float:
        """Of the total, what one stage is."""
        return self.stages_s[stage] / self.total_s if self.total_s > 0 else 0.0


def thread_times(
    sums: Mapping[str, float], consumer_s: float, own: Mapping[str, float]
) -> tuple[ThreadTime, ThreadTime, ThreadTime]:
    """Of the fetching threads, the decoding threads and the consumer.

    Args:
        sums: a loader's named sums, after it was closed.
        consumer_s: from the first request for a batch to the end of the last step.
        own: what the consumer spent on its own ``step``, on ``release``, letting go of a batch, and
            on ``notes``, counting and telling how far it is.
    """

    def took_s(name: str) -> float:
        return sums.get(f"seconds.{name}", 0.0)

    fetching = ThreadTime(
        took_s("fetch_idle") + took_s("fetch_threads") + took_s("fetch_handover"),
        # What the cache took is part of the fetch stage.
        {Stage.FETCH: took_s("fetch_stage") - took_s("cache"), Stage.CACHE: took_s("cache")},
        {
            "for a task": took_s("fetch_idle"),
            "for memory": took_s("fetch_blocked"),
            # Into the queue, whose lock all threads share.
            "for the queue": took_s("fetch_handover"),
        },
    )
    decoding = ThreadTime(
        took_s("decode_idle") + took_s("decode_threads"),
        # As spans have it: from bytes to frames in the batch, and converting is a part of that.
        {
            Stage.DECODE: took_s("decode_stage") - took_s("convert"),
            Stage.CONVERT: took_s("convert"),
        },
        {"for a clip": took_s("decode_idle")},
    )
    consuming = ThreadTime(
        consumer_s,
        {Stage.COLLATE: took_s("deliver"), Stage.CONSUMER: own.get("step", 0.0)},
        {
            "for a batch": took_s("wait"),
            "for the start": took_s("start"),
            "for the release": own.get("release", 0.0),
            "for the bench": own.get("notes", 0.0),
        },
    )
    return fetching, decoding, consuming


def explained_share(times: tuple[ThreadTime, ...]) -> float:
    """The least that is explained of any kind of thread."""
    return min(time.explained_share for time in times)
