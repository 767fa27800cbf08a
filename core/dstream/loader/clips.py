"""A data set seen as clips: by number, by key, or as batches."""

from __future__ import annotations

import operator
import os
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dstream.cache.cache import ExtentCache
from dstream.clock import Clock, SystemClock
from dstream.loader.batch import ArrayMaker, Clip, device_name, make_clip
from dstream.loader.direct import DirectRows, direct_rows
from dstream.loader.failures import OnError
from dstream.loader.groups import group_place
from dstream.loader.loader import Loader
from dstream.loader.pins import FrozenView
from dstream.loader.plan import Draw, Last, Order, Shuffle, shuffle_of, whole
from dstream.loader.ranks import node_count, place_of
from dstream.loader.reader import ClipReader, ReadClip
from dstream.loader.settings import (
    ArrayKind,
    ClipSettings,
    Fetchers,
    LoaderSettings,
    check_array,
    default_prefetch,
    default_workers,
)
from dstream.loader.source import SampleSource
from dstream.loader.steps import Ranks
from dstream.measure import Meter, Snapshot
from dstream.measure.spans import SpanSink
from dstream.media.decode import ClipDecoder
from dstream.media.decoders.selection import DecoderName, decoder_choice
from dstream.recipe import Recipe
from dstream.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from dstream.loader.torch_data import ClipsDataset


class Clips:
    """All clips of a data set. Safe to use from many threads, and in forked processes.

    Pickled to another process it opens its connections there and begins with empty caches and
    counters.

    ``len()`` is the number of slots; ``clips[number]`` is the clip of one slot as epoch 0 draws
    it, ``clips[key]`` the clip at a sample's start, :meth:`clip` one at any place, and
    :meth:`loader` delivers batches.

    Args:
        source: the samples.
        settings: what a clip is.
        meter: counts everything that this object and its loaders do.
        recipe: reads side files, where there are any.
        array: ``torch``, ``numpy``, or None: torch where it is installed.
        clock: measures waiting.
        opened: the counters before the data set was opened, so that reports include it.
        view: the frozen view that ``source`` is of; loaders hold its pin while they run.
        cache: keeps what was fetched on this node's disk.
    """

    _may_be_affine = True

    def __init__(
        self,
        source: SampleSource,
        settings: ClipSettings,
        meter: Meter,
        recipe: Recipe | None = None,
        *,
        array: ArrayKind | None = None,
        clock: Clock | None = None,
        opened: Snapshot | None = None,
        view: FrozenView | None = None,
        cache: ExtentCache | None = None,
    ) -> None:
        check_array(array)
        self.source = source
        self.settings = settings
        self.meter = meter
        self._view = view
        self.cache = cache
        """What is kept on this node's disk; None where nothing is."""
        self._recipe = recipe
        self._array = array
        self._opened: Snapshot | None = opened
        self._clock: Clock = clock or SystemClock()
        self._begin()

    def _begin(self) -> None:
        self._reader = self.reader(0)
        self._local = threading.local()

    def __getstate__(self) -> dict[str, object]:
        kept = ("source", "settings", "meter", "_view", "cache", "_recipe", "_array", "_clock")
        return {"_opened": None, **{name: self.__dict__[name] for name in kept}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        return self._reader.slots.total

    @property
    def fingerprint(self) -> str:
        """Hash of what is listed; ranks that see the same data have the same."""
        return self.source.fingerprint

    @property
    def pin(self) -> str | None:
        """Token of the frozen view that is read; None where it was not opened through one."""
        return None if self._view is None else self._view.token

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.source)

    @property
    def too_short(self) -> int:
        """Samples that have no slot, being shorter than one clip."""
        return self._reader.slots.too_short

    def keys(self) -> list[str]:
        """Keys of all samples, in order."""
        return self.source.keys()

    def __getitem__(self, which: int | str) -> Clip:
        """The clip of a slot (by number), or the one at the start of a sample (by key).

        Raises:
            IndexError: there is no such slot.
            NotFoundError: there is no such sample.
            InvalidInputError: the sample is too short.
        """
        if isinstance(which, str):
            return self.clip(which)
        slot = operator.index(which)
        number = slot + len(self) if slot < 0 else slot
        if not 0 <= number < len(self):
            raise IndexError(f"slot {which} is outside range({len(self)})")
        order = Order(len(self), self.settings.seed, self.settings.sampling)
        planned = self._reader.plan(order.draw_slot(number, 0, number))
        data = self._reader.fetch(planned)
        return self._finish(self._reader.decode(self._decoder(), planned, data), number)

    def clip(self, key: str, *, start_s: float = 0.0, frames: int | None = None) -> Clip:
        """A clip at any place of a sample.

        Args:
            key: the sample.
            start_s: seconds from its start. A clip that would cross the end starts earlier.
            frames: how many; as many as the other clips have by default.

        Raises:
            NotFoundError: there is no such sample.
            InvalidInputError: it is too short, or an argument is impossible.
        """
        sample = self.source.resolve(self.source.find(key))
        draw = Draw(position=0, epoch=0, slot=0, drawn=0.0)
        planned = self._reader.plan_at(sample, start_s, draw, frames)
        data = self._reader.fetch(planned)
        return self._finish(self._reader.decode(self._decoder(), planned, data))

    def _decoder(self) -> ClipDecoder:
        decoder: ClipDecoder | None = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = ClipDecoder(
                self.settings.pixels, self.meter, clock=self._clock
            )
        return decoder

    def _finish(self, read: ReadClip, slot: int = -1) -> Clip:
        fps = self.settings.window.clip_fps(read.planned.sample.rate)
        return make_clip(read, fps, self._arrays, slot)

    @cached_property
    def _arrays(self) -> ArrayMaker:
        # Late, since it imports torch.
        return ArrayMaker(self._array)

    def loader(
        self,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        replicas: int = 1,
        epochs: int | None = 1,
        clips_per_epoch: int | None = None,
        last: Last = "wrap",
        shuffle: Shuffle | Literal["auto"] | bool = "auto",
        partitions: int | None = None,
        window_clips: int | None = None,
        clips_per_gop: int = 1,
        decoded_bytes: int = 4 * GIB,
        workers: int | None = None,
        fetchers: Fetchers = "auto",
        prefetch: int | None = None,
        inflight_bytes: int = 256 * MIB,
        merge_gap_bytes: int = 64 * KIB,
        on_error: OnError = "raise",
        max_failures: int = 100,
        quarantine: str | os.PathLike[str] | None = None,
        decode_timeout_s: float = 60.0,
        max_outage_s: float = 900.0,
        decoder: DecoderName = "cpu",
        device: str | None = None,
        direct: bool = False,
        array: ArrayKind | None = None,
        spans: SpanSink | None = None,
    ) -> Loader:
        """Batches of clips in a seeded order, made by background threads.

        Args:
            batch_size: clips in a batch of one rank.
            rank: which of the ranks this is. With ``world_size`` left out too, it is found:
                from torch.distributed, torchrun, MPI or Slurm; else there is one.
            world_size: how many ranks share each step.
            replicas: so many consecutive ranks get the same clips (one model-parallel group).
            epochs: how many epochs a loop lasts; None for ever.
            clips_per_epoch: an epoch ends after so many clips; the next goes on in the order.
            last: what a step does at the end of an epoch: ``wrap`` takes from the next one,
                ``drop`` leaves the rest out, ``short`` makes it smaller.
            shuffle: ``global``, ``affine``, ``auto`` (or True): which of them suits; None (or
                False): in the order of the tables.
            partitions: a power of two: how many parts an affine order has, or one with groups.
            window_clips: clips of a partition that change places among themselves.
            clips_per_gop: so many consecutive slots of a sample are read and decoded at once, and
                spread over a window.
            decoded_bytes: bound of their frames that wait; a group beyond is made clip by clip.
            workers: decoding threads; one for each CPU by default.
            fetchers: fetching threads; ``auto`` finds how many it takes.
            prefetch: batches decoded ahead of the one in use; by default two, and where batches
                are small up to eight, to keep the workers busy; on a GPU two.
            inflight_bytes: bound of compressed bytes that wait for a decoder.
            merge_gap_bytes: ranges of one file at most this far apart are one request.
            on_error: ``raise``, or ``skip``: a clip that fails is counted and replaced.
            max_failures: distinct files that may fail before the loader gives up; a failure that
                may pass (a short read) counts each time.
            quarantine: a file that gets a line for each file that failed and was skipped, for
                ``dstream ingest --quarantine``; ranks may share it.
            decode_timeout_s: longest time in a codec for one clip, which has failed then.
            max_outage_s: longest time to wait for a store that does not answer at all.
            decoder: ``cpu``; ``auto``: NVDEC for what it takes, the rest on the CPU, counted by
                reason; ``nvdec``: nothing on the CPU.
            device: ``cuda`` (the caller's current one) or ``cuda:N`` copies batches there.
            direct: arrays on this machine's disks are read straight into the GPU's memory, past
                their checksums; see docs/gpu.md.
            array: ``torch`` or ``numpy``.
            spans: hears when each stage of each clip began and ended, from any thread.

        Raises:
            InvalidInputError: there is no clip, sizes differ, or an argument is impossible.
        """
        place = place_of(rank, world_size, os.environ, group_place())
        ranks = Ranks(batch_size, place.rank, place.world_size, last, replicas)
        device = device_name(device)
        workers = default_workers() if workers is None else whole("workers", workers)
        settings = LoaderSettings(
            workers=workers,
            fetchers=fetchers,
            prefetch=default_prefetch(ranks.batch_size, workers, device)
            if prefetch is None
            else prefetch,
            inflight_bytes=inflight_bytes,
            merge_gap_bytes=merge_gap_bytes,
            shuffle=shuffle_of(
                shuffle,
                has_cache=self._may_be_affine and self.cache is not None,
                nodes=node_count(os.environ, place.world_size),
            ),
            partitions=partitions,
            window_clips=window_clips,
            clips_per_gop=clips_per_gop,
            decoded_bytes=decoded_bytes,
            clips_per_epoch=clips_per_epoch,
            on_error=on_error,
            max_failures=max_failures,
            quarantine=None if quarantine is None else Path(quarantine),
            decode_timeout_s=decode_timeout_s,
            max_outage_s=max_outage_s,
            decoder=decoder_choice(decoder, device),
            device=device,
            array=array or self._array,
        )
        rows = direct_rows(device, self.meter, self.cache) if direct else None
        reader = self.reader(settings.merge_gap_bytes, spans=spans, direct=rows)
        return Loader(
            reader,
            ranks,
            settings,
            epochs=epochs,
            clock=self._clock,
            opened=self._opened,
            view=self._view,
            arrange=self.arrange,
        )

    def reader(
        self,
        merge_gap_bytes: int = 64 * KIB,
        *,
        meter: Meter | None = None,
        use_cache: bool = True,
        settings: ClipSettings | None = None,
        spans: SpanSink | None = None,
        direct: DirectRows | None = None,
    ) -> ClipReader:
        """What makes clips of slots, step by step.

        Args:
            merge_gap_bytes: ranges of one file at most this far apart are one request.
            meter: gets its byte and frame counters; these clips' by default. Requests are counted
                where the source counts.
            use_cache: read through this node's cache, where there is one.
            settings: of another clip than these.
            spans: see :meth:`loader`.
            direct: reads rows of arrays into a device's memory.
        """
        return ClipReader(
            self.source,
            settings or self.settings,
            meter or self.meter,
            self._recipe,
            merge_gap_bytes,
            self.cache if use_cache else None,
            spans,
            self._clock,
            direct,
        )

    def arrange(self, alike: Order) -> Order:
        """The order of these clips, where ``alike`` is that of so many slots of one data set."""
        return alike

    def iterable(self, batch_size: int, **options: Any) -> ClipsDataset:
        """The same batches for torch's DataLoader, or torchdata's StatefulDataLoader.

        ``DataLoader(clips.iterable(8), batch_size=None, num_workers=4)``. It needs torch, and is
        not needed otherwise: :meth:`loader` has threads of its own.

        Args:
            batch_size: clips in a batch of one rank.
            options: those of :meth:`loader`, ``device`` not among them.

        Raises:
            InvalidInputError: torch is not there, or as :meth:`loader`.
        """
        from dstream.loader.torch_data import ClipsDataset

        return ClipsDataset(self, batch_size, options)
