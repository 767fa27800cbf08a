"""Where the GOPs of many samples lie in time, as arrays: what a plan on paper reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.loader.plan import SLACK, Draws, Sampling, SlotTable, Window, slot_counts
from dstream.loader.settings import ClipSettings
from dstream.loader.source import Sample, SampleSource


@dataclass(frozen=True, slots=True, eq=False)
class GopLayout:
    """Samples and their GOPs.

    Raises:
        InvalidInputError: no sample is long enough for a clip.
    """

    slots: SlotTable
    window: Window
    sampling: Sampling
    rate: NDArray[np.float64]
    """float64 [N]: frames a second of each sample."""
    duration_s: NDArray[np.float64]
    """float64 [N]: length of a sample."""
    begin_s: NDArray[np.float64]
    """float64 [N]: where a sample begins when all follow one another."""
    key_s: NDArray[np.float64]
    """float64 [G]: where the GOPs begin on that line, in increasing order."""
    size_bytes: NDArray[np.int64]
    """int64 [G]."""

    @classmethod
    def even(
        cls,
        *,
        videos: int,
        seconds: float,
        rate: float,
        gop_frames: int,
        bytes_per_s: float,
        window: Window,
        sampling: Sampling = "uniform",
    ) -> GopLayout:
        """Equal videos with a keyframe every ``gop_frames``, for data that are not there yet."""
        gop_s = gop_frames / rate
        count = max(1, int(np.ceil(seconds / gop_s - SLACK)))
        keys = np.arange(count, dtype=np.float64) * gop_s
        sizes = np.diff(keys, append=seconds) * bytes_per_s
        one = _Gops(seconds, rate, keys, np.rint(sizes).astype(np.int64))
        counts = slot_counts(np.full(videos, seconds), np.full(videos, rate), window)
        return cls._of([one] * videos, counts, window, sampling)

    @classmethod
    def of_source(cls, source: SampleSource, settings: ClipSettings, most: int) -> GopLayout:
        """The layout that the tables of a data set tell, of ``most`` samples spread evenly over it.

        Costs one request for each group of tables, or for each bare video.

        Raises:
            InvalidInputError: no sample is long enough for a clip.
            MediaError, SourceChangedError, NotFoundError: see :meth:`SampleSource.resolve`.
        """
        counts = source.slot_counts(settings.window)
        numbers = np.flatnonzero(counts)
        if len(numbers) > most:
            numbers = numbers[np.linspace(0, len(numbers) - 1, most).astype(np.int64)]
        samples = [_gops_of(source.resolve(number)) for number in numbers.tolist()]
        return cls._of(samples, counts[numbers], settings.window, settings.sampling)

    @classmethod
    def of_sample(cls, sample: Sample, slots: int, settings: ClipSettings) -> GopLayout:
        """The layout of one sample, whose slots are numbered from 0."""
        counts = np.array([slots], dtype=np.int64)
        return cls._of([_gops_of(sample)], counts, settings.window, settings.sampling)

    @classmethod
    def _of(
        cls, samples: list[_Gops], counts: NDArray[np.int64], window: Window, sampling: Sampling
    ) -> GopLayout:
        slots = SlotTable(counts)
        if slots.total == 0:
            raise InvalidInputError(
                f"no sample is long enough for a clip of {window}: ask for fewer frames"
            )
        duration_s = np.array([one.duration_s for one in samples], dtype=np.float64)
        rate = np.array([one.rate for one in samples], dtype=np.float64)
        begin_s = np.cumsum(duration_s) - duration_s
        keys = np.concatenate([one.key_s for one in samples])
        keys += np.repeat(begin_s, [len(one.key_s) for one in samples])
        sizes = np.concatenate([one.size_bytes for one in samples])
        return cls(slots, window, sampling, rate, duration_s, begin_s, keys, sizes)

    def gops_of(self, draws: Draws) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first and the last GOP of each clip: int64 [N]. Places as the loader has them."""
        first = self.slots.first
        sample = np.searchsorted(first, draws.slots, side="right") - 1
        duration_s, rate = self.duration_s[sample], self.rate[sample]
        window_s = self.window.seconds(1.0) / (rate if self.window.fps is None else 1.0)
        width_s = duration_s / (first[sample + 1] - first[sample])
        earliest_s = (draws.slots - first[sample]) * width_s
        latest_s = np.maximum(earliest_s, np.minimum(earliest_s + width_s, duration_s - window_s))
        start_s = earliest_s + draws.drawn * (latest_s - earliest_s)
        start_s = np.clip(start_s, 0.0, np.maximum(0.0, duration_s - window_s))
        begin_s = self.begin_s[sample]
        low = self._at(begin_s + start_s + SLACK)
        if self.sampling == "keyframe":
            start_s = np.maximum(0.0, self.key_s[low] - begin_s)
        if self.window.fps is None:  # the clip begins with the frame that is shown there
            start_s = np.floor((start_s + SLACK) * rate) / rate
        last_s = start_s + window_s * (self.window.frames - 1) / self.window.frames
        high = self._at(begin_s + np.minimum(last_s + SLACK, duration_s - SLACK))
        return low, np.maximum(low, high)

    @property
    def gop_counts(self) -> NDArray[np.int64]:
        """int64 [N]: GOPs of each sample."""
        begin = np.searchsorted(self.key_s, self.begin_s, side="left")
        return np.diff(begin, append=len(self.key_s))

    def gop_at(self, sample: Sample, gop: int) -> int:
        """The number here of a GOP of the only sample."""
        pts = max(int(sample.index.gops.key_pts[gop]) - sample.start_pts, 0)
        return int(self._at(np.array([pts * float(sample.index.track.time_base)]))[0])

    def slots_near(self, gops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first and the last slot whose clips may need each GOP: int64 [N]."""
        sample = np.searchsorted(self.begin_s, self.key_s[gops], side="right") - 1
        begin_s, end_s = self.begin_s[sample], np.append(self.key_s, np.inf)[gops + 1]
        first, stop = self.slots.first[sample], self.slots.first[sample + 1]
        window_s = self.window.seconds(1.0) / (
            self.rate[sample] if self.window.fps is None else 1.0
        )
        width_s = self.duration_s[sample] / (stop - first)
        low = np.floor((self.key_s[gops] - begin_s - window_s) / width_s) - 1
        end_s = np.minimum(end_s - begin_s, self.duration_s[sample])
        high = np.floor(end_s / width_s) + 1
        return (
            first + np.maximum(low, 0).astype(np.int64),
            np.minimum(first + high.astype(np.int64), stop - 1),
        )

    def _at(self, time_s: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.maximum(np.searchsorted(self.key_s, time_s, side="right") - 1, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Gops:
    """One sample: seconds from its start, the first GOP at 0."""

    duration_s: float
    rate: float
    key_s: NDArray[np.float64]
    size_bytes: NDArray[np.int64]


def _gops_of(sample: Sample) -> _Gops:
    gops, tick_s = sample.index.gops, float(sample.index.track.time_base)
    by_time = np.argsort(gops.key_pts, kind="stable")
    keys = gops.key_pts[by_time]
    low = max(0, int(np.searchsorted(keys, sample.start_pts, side="right")) - 1)
    high = max(low + 1, int(np.searchsorted(keys, sample.end_pts, side="left")))
    key_s = np.maximum(keys[low:high] - sample.start_pts, 0) * tick_s
    return _Gops(sample.duration_s, sample.rate, key_s, gops.size_bytes[by_time][low:high])
