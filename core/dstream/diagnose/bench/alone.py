"""Each stage of a loader alone, on the run's own clips, by the loader's own parts.

Nothing else runs meanwhile, and nothing is waited for: what comes out is how fast a stage could
go. Each measurement lasts a given time; clips come again when there are too few.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from dstream.clock import Clock
from dstream.diagnose.bench.interruption import INTERRUPTED, Interruption
from dstream.errors import DstreamError
from dstream.format.index import VideoTrack
from dstream.loader.batch import ArrayMaker, make_batch
from dstream.loader.buffers import BufferPool
from dstream.loader.clips import Clips
from dstream.loader.loader import Loader
from dstream.loader.ordering import order_of
from dstream.loader.pictures import picture_of
from dstream.loader.plan import Draw, Order
from dstream.loader.reader import ClipReader, PlannedClip, ReadClip
from dstream.loader.shared import GroupPlan, SharedGroup, Sharing
from dstream.measure import Meter, Snapshot
from dstream.media.decode import ClipDecoder
from dstream.store.patience import Outage, patient
from dstream.units import GIB, MIB

_MOST_CLIPS = 256
"""Of the run, from its beginning."""
_HELD_BYTES = 128 * MIB
"""Of them that are kept for the decoders."""
_PATIENCE_S = 10.0
"""With a store that does not answer; the loader has more."""

Work = Callable[[int], int]
"""Does the n-th piece of work and returns how many clips it was."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast something went."""

    clips: int
    clips_per_second: float
    """Of all threads together."""
    counts: Snapshot
    """What was counted meanwhile."""

    def per_clip(self, name: str) -> float:
        """A named sum, divided by the clips."""
        return self.counts.sums.get(name, 0.0) / max(1, self.clips)


@dataclass(frozen=True, slots=True)
class FetchedUnit:
    """What is decoded at once: a clip, or a group of clips."""

    planned: PlannedClip | GroupPlan
    data: list[bytes]
    draws: list[Draw]


def undisturbed(measure: Callable[[], Pace], whole: float) -> Pace:
    """A pace, measured once more where it is below that of the whole.

    A part is no slower alone than together with all others: then something else was in its way.

    Args:
        measure: a part alone.
        whole: clips/s that the part did in the run.
    """
    pace = measure()
    if pace.clips_per_second >= whole:
        return pace
    return max(pace, measure(), key=lambda pace: pace.clips_per_second)


class Units:
    """The first clips of a run, each alone or with its group.

    Args:
        reader: makes clips; its meter counts.
        order: of the run.
        count: clips from its beginning.
        failed: keys of samples that gave no clip.
    """

    def __init__(
        self, reader: ClipReader, order: Order, count: int, failed: frozenset[str]
    ) -> None:
        self.reader = reader
        self._sharing = Sharing(reader, order, 0, 4 * GIB)
        self._pool = BufferPool(_MOST_CLIPS)
        draws = [
            draw
            for draw in order.draw_many(range(min(count, _MOST_CLIPS)))
            if reader.sample_key(draw) not in failed
        ]
        groups = {(draw.epoch, draw.group) if draw.group >= 0 else draw: draw for draw in draws}
        self._units = [order.group(draw.position) for draw in groups.values()]

    def __len__(self) -> int:
        return len(self._units)

    @property
    def has_groups(self) -> bool:
        """Several clips are decoded at once."""
        return any(len(draws) > 1 for draws in self._units)

    def first_track(self) -> VideoTrack:
        """Of the video that the first clip is of."""
        return self.reader.plan(self._units[0][0]).sample.index.track

    def fetch(self, number: int) -> FetchedUnit:
        """Plan and fetch a unit, as a fetching thread does."""
        draws = self._units[number % len(self._units)]
        if len(draws) > 1:
            planned = self._sharing.plan(SharedGroup(draws))
            if planned is not None:
                return FetchedUnit(planned, self._sharing.fetch(planned), draws)
        clip = self.reader.plan(draws[0])
        return FetchedUnit(clip, self.reader.fetch(clip), draws[:1])

    def decode(self, decoder: ClipDecoder, unit: FetchedUnit) -> list[ReadClip]:
        """Decode a unit, as a decoding thread does; empty where a group has no room."""
        if isinstance(unit.planned, GroupPlan):
            group = SharedGroup(unit.draws)
            found = self._sharing.decode(decoder, group, unit.planned, unit.data)
            return [] if found is None else list(found.values())
        settings = self.reader.settings
        picture = picture_of(unit.planned.sample.index.track, settings.pixels)
        out = self._pool.take((settings.window.frames, *picture.shape), picture.dtype)
        return [self.reader.decode(decoder, unit.planned, unit.data, out)]


class Alone:
    """Measures the stages of one loader.

    Args:
        clips: what the loader delivered.
        loader: the loader, closed.
        taken: clips that it delivered.
        limit_s: how long each measurement lasts.
        clock: measures.
        interruption: ends a measurement, which is not told then.
    """

    def __init__(
        self,
        clips: Clips,
        loader: Loader,
        taken: int,
        limit_s: float,
        clock: Clock,
        interruption: Interruption,
    ) -> None:
        self._interruption = interruption
        self._clips, self._loader, self._taken = clips, loader, taken
        self._limit_s, self._clock = limit_s, clock
        self._failed = frozenset(failure.sample_key for failure in loader.failures)
        self._held: dict[Units, list[FetchedUnit]] = {}

    def units(self, *, use_cache: bool = False) -> Units:
        """The run's own clips; from the store, or through the cache."""
        return self._units(self._reader(use_cache), self._loader.order)

    def grouped(self, clips_per_gop: int) -> Units | None:
        """The same with so many clips from one decode; None where the data do not allow it."""
        settings = self._loader.settings
        if settings.shuffle is None:
            return None
        reader = self._reader(use_cache=False)
        wanted = replace(settings, clips_per_gop=clips_per_gop, window_clips=None)
        units = self._units(reader, order_of(reader, wanted))
        return units if units.has_groups else None

    def at_keyframes(self) -> Units:
        """As many clips, each from the keyframe before its place on."""
        settings = replace(self._clips.settings, sampling="keyframe")
        reader = self._clips.reader(meter=Meter(), use_cache=False, settings=settings)
        return self._units(reader, self._loader.order)

    def _reader(self, use_cache: bool) -> ClipReader:
        gap_bytes = self._loader.settings.merge_gap_bytes
        return self._clips.reader(gap_bytes, meter=Meter(), use_cache=use_cache)

    def _units(self, reader: ClipReader, order: Order) -> Units:
        return Units(reader, order, self._taken, self._failed)

    def fetch(self, units: Units, threads: int) -> Pace:
        """Plan and fetch, and nothing else. Requests and bytes are in the counts."""
        held = self._held.setdefault(units, [])

        def work(number: int) -> int:
            unit = units.fetch(number)
            if number < len(units) and sum(len(d) for u in held for d in u.data) < _HELD_BYTES:
                held.append(unit)
            return len(unit.draws)

        return self._pace(threads, lambda: work, self._clips.meter)

    def decode(self, units: Units, threads: int) -> Pace:
        """Decode and convert what :meth:`fetch` of the same units fetched, from memory."""
        held = self._held[units]

        def worker() -> Work:
            decoder = self._decoder(units)
            return lambda number: len(units.decode(decoder, held[number % len(held)]))

        return self._pace(threads, worker, units.reader.meter)

    def collate(self, units: Units) -> Pace:
        """Hand a batch over again and again."""
        size = self._loader.ranks.batch_size
        decoder, held = self._decoder(units), itertools.cycle(self._held[units])
        clips: list[ReadClip] = []
        while len(clips) < size:
            clips += units.decode(decoder, next(held))[: size - len(clips)]
        first = clips[0].decoded.video
        video = np.empty((size, *first.shape), first.dtype)
        arrays = ArrayMaker(self._loader.settings.array)

        def work(_: int) -> int:
            make_batch(video, clips, [1.0] * size, arrays)
            return size

        return self._pace(1, lambda: work, Meter())

    def copy(self, clip_bytes: int, device: str) -> Pace:
        """Copy batches of page-locked memory to the device.

        Raises:
            InvalidInputError: there is no torch, or no such device.
        """
        size = self._loader.ranks.batch_size
        arrays = ArrayMaker("torch", device)
        host = arrays.allocate(size * clip_bytes)

        def work(_: int) -> int:
            import torch

            arrays.hand_over(host)
            torch.cuda.synchronize()
            return size

        return self._pace(1, lambda: work, Meter())

    def _decoder(self, units: Units) -> ClipDecoder:
        # In the host's memory also where NVDEC would leave clips on the GPU.
        choice = replace(self._loader.settings.decoder, device=None)
        settings, meter = units.reader.settings, units.reader.meter
        return ClipDecoder(settings.pixels, meter, clock=self._clock, choice=choice)

    def _pace(self, threads: int, worker: Callable[[], Work], meter: Meter) -> Pace:
        """Let threads begin work until the time is up, and count until the last one is done.

        So a link that they share is full all the time, however long each waits for its part.
        The first work of each does not count: decoders cost a clip's time to begin, and a plan may
        read a table that all others find in memory.

        Raises:
            DstreamError: of the work; or the bench was interrupted, and this is no pace.
        """

        def is_over() -> bool:
            return self._interruption.came

        numbers = itertools.count()
        outage = Outage(_PATIENCE_S, self._clips.source.name, meter, self._clock)
        works = [worker() for _ in range(threads)]

        def one(work: Work) -> int:
            with patient(outage, is_over):
                return work(next(numbers))

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, works))
            before, began_s = meter.snapshot(), self._clock.monotonic_s()

            def many(work: Work) -> int:
                clips = one(work)
                while self._clock.monotonic_s() - began_s < self._limit_s and not is_over():
                    clips += one(work)
                return clips

            clips = sum(pool.map(many, works))
        if is_over():
            raise DstreamError(INTERRUPTED)
        seconds = max(self._clock.monotonic_s() - began_s, 1e-9)
        return Pace(clips, clips / seconds, meter.snapshot().minus(before))
