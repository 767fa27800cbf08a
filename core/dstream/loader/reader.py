"""The way of one clip: place it, plan its reads, fetch its bytes, decode its frames."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dstream.cache.cache import ExtentCache
from dstream.clock import Clock, SystemClock
from dstream.errors import (
    CorruptDataError,
    InvalidInputError,
    MediaError,
    MediaReason,
)
from dstream.format.index import VideoIndex
from dstream.loader.direct import DirectRows
from dstream.loader.failures import ClipTooShortError
from dstream.loader.foresight import Foresight, NodeReads
from dstream.loader.order import fraction
from dstream.loader.plan import SLACK, Draw, Order, SlotTable, start_in_sample, whole
from dstream.loader.settings import ClipSettings
from dstream.loader.single_flight import SingleFlightCache
from dstream.loader.source import FileLocation, Sample, SampleSource
from dstream.measure import Meter, Purpose
from dstream.measure.spans import ClipId, SpanSink, SpanStage
from dstream.media.clip import ClipPlan, ClipRequest, Extent, NeedMoreData, coalesce, plan_clip
from dstream.media.decode import ClipDecoder, DecodedClip
from dstream.recipe import ClipFacts, Recipe
from dstream.units import MIB

SideArrays = Mapping[str, NDArray[np.generic]]

_CROP = 4
"""First word of the hashes that place random crops."""

_MAX_WIDENINGS = 8
_MAX_TRIES = 4
"""How often bytes are fetched whose checksum does not fit, before they count as damaged."""
_SIDE_CACHE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class PlannedClip:
    """One clip of one sample, its place fixed and its reads known."""

    sample: Sample
    plan: ClipPlan
    draw: Draw
    start_s: float
    """Seconds from the sample's start."""
    crop_at: tuple[float, float]

    @property
    def size_bytes(self) -> int:
        """Bytes of its GOPs."""
        return sum(extent.size_bytes for extent in self.plan.extents)

    @property
    def id(self) -> ClipId:
        """What spans call it."""
        return ClipId(self.draw.position, self.draw.slot, self.sample.key)


@dataclass(frozen=True, slots=True, eq=False)
class ReadClip:
    """A decoded clip and what rides along."""

    planned: PlannedClip
    decoded: DecodedClip
    side: SideArrays


class ClipReader:
    """Turns slots into clips, step by step. Thread-safe; decoders are the callers'.

    Args:
        source: the samples.
        settings: what a clip is.
        meter: gets the byte and frame counters.
        recipe: reads side files; None when there are none.
        merge_gap_bytes: ranges at most this far apart are fetched as one.
        cache: keeps what was fetched on this node's disk; None for none.
        spans: hears what each stage of each clip took; None: nobody does.
        clock: measures the cache's part.
        direct: reads rows of arrays into a device's memory; None: everything comes to the host.
    """

    def __init__(
        self,
        source: SampleSource,
        settings: ClipSettings,
        meter: Meter,
        recipe: Recipe | None = None,
        merge_gap_bytes: int = 0,
        cache: ExtentCache | None = None,
        spans: SpanSink | None = None,
        clock: Clock | None = None,
        direct: DirectRows | None = None,
    ) -> None:
        self.source = source
        self.settings = settings
        self.meter = meter
        self.spans = spans
        self._clock = clock or SystemClock()
        self._foresight: Foresight | None = None
        self.slots = SlotTable(source.slot_counts(settings.window))
        self._recipe = recipe
        self._merge_gap_bytes = merge_gap_bytes
        self._cache = cache
        self._direct = direct
        self._side: SingleFlightCache[tuple[str, str, int], bytes] = SingleFlightCache(
            _SIDE_CACHE_BYTES, len
        )

    def follow(self, order: Order, reads: NodeReads) -> None:
        """From now on tell the cache when GOPs are read again, as far as the order tells."""
        self._foresight = Foresight.of(
            order, self.slots, self.settings, reads, self.source.fingerprint
        )

    def sample_key(self, draw: Draw) -> str:
        """Key of the sample that a draw falls into."""
        return self.source.key(self.slots.locate(draw.slot)[0])

    def file_of(self, draw: Draw) -> Hashable:
        """Which video file a draw falls into."""
        return self.source.file_of(self.slots.locate(draw.slot)[0])

    def plan(self, draw: Draw) -> PlannedClip:
        """Place a drawn clip in its sample and plan its reads.

        Raises:
            ClipTooShortError: the sample has too few frames.
            MediaError, SourceChangedError, NotFoundError: see :meth:`SampleSource.resolve`.
        """
        number, slot, slots = self.slots.locate(draw.slot)
        sample = self.source.resolve(number)
        window_s = self.settings.window.seconds(sample.rate or 1.0)
        if sample.duration_s < window_s * (1 - SLACK):
            raise ClipTooShortError(
                f"sample {sample.key!r} lasts {sample.duration_s:.3f} s, a clip {window_s:.3f} s",
                sample_key=sample.key,
            )
        start_s = start_in_sample(sample.duration_s, window_s, slot, slots, draw.drawn)
        if self.settings.sampling == "keyframe":
            start_s = keyframe_start(sample, start_s)
        try:
            return self.plan_at(sample, start_s, draw)
        except InvalidInputError as error:
            raise ClipTooShortError(
                f"sample {sample.key!r} gives no clip at {start_s:.3f} s: {error}",
                sample_key=sample.key,
                start_s=start_s,
            ) from error

    def plan_at(
        self, sample: Sample, start_s: float, draw: Draw, frames: int | None = None
    ) -> PlannedClip:
        """Plan a clip at a given place of a sample.

        Raises:
            InvalidInputError: the clip does not fit into the sample.
        """
        window = self.settings.window
        request = ClipRequest(
            start_s=start_s,
            frames=window.frames if frames is None else whole("frames", frames),
            stride=window.stride,
            fps=window.fps,
            start_pts=sample.start_pts,
            end_pts=sample.end_pts,
        )
        with naming(sample):
            plan = plan_clip(sample.index, request)
        words = (self.settings.seed, draw.epoch, draw.slot)
        crop_at = fraction(_CROP, 0, *words), fraction(_CROP, 1, *words)
        return PlannedClip(sample, plan, draw, start_s, crop_at)

    def fetch(self, planned: PlannedClip) -> list[bytes]:
        """The bytes of the plan's extents, in their order; none where :meth:`decode` reads them
        directly into a device's memory."""
        sample, plan, data = planned.sample, planned.plan, list[bytes]()
        if self._direct is None or not self._direct.takes(sample.index, sample.video, plan):
            data = self.fetch_extents(sample.video, plan.extents, clips=[planned])
        self.meter.add("clips.fetched", 1)
        self.count_bytes(planned.plan)
        return data

    def fetch_extents(
        self,
        video: FileLocation,
        extents: Sequence[Extent],
        *,
        fresh: bool = False,
        clips: Sequence[PlannedClip] = (),
    ) -> list[bytes]:
        """Bytes of the extents, from the cache where it has them and ``fresh`` is not asked.

        Args:
            video: of which file.
            extents: which parts of it.
            fresh: what the cache has is wrong.
            clips: whose spans name the cache's part; none for a read beside the usual one.
        """
        if self._cache is None:
            return self._fetch_merged(video, extents)
        ranges = [video.byte_range(e.offset_bytes, e.size_bytes, e.checksum) for e in extents]
        began_s, store_s = self._clock.monotonic_s(), 0.0

        def fetch(missing: Sequence[int]) -> list[bytes]:
            nonlocal store_s
            asked_s = self._clock.monotonic_s()
            data = self._fetch_merged(video, [extents[place] for place in missing])
            store_s += self._clock.monotonic_s() - asked_s
            return data

        uses = None
        if clips and self._foresight is not None:
            gops = [extent.gop for extent in extents]
            uses = self._foresight.uses(clips[0].sample, clips[0].draw, gops)
        data = self._cache.read(video.identity, ranges, fetch, fresh=fresh, uses=uses)
        if self.spans is not None and clips:
            ended_s = self._clock.monotonic_s() - store_s
            self.spans.span(SpanStage.CACHE, began_s, ended_s, ids_of(clips))
        return data

    def _fetch_merged(self, video: FileLocation, extents: Sequence[Extent]) -> list[bytes]:
        pieces: dict[int, bytes] = {}
        for start, stop in coalesce(extents, self._merge_gap_bytes):
            data = video.read(start, stop, Purpose.DATA)
            for extent in extents:
                low = extent.offset_bytes - start
                if 0 <= low <= len(data) - extent.size_bytes:
                    # Slicing the whole of a bytes object copies nothing.
                    pieces[extent.gop] = data[low : low + extent.size_bytes]
        return [pieces[extent.gop] for extent in extents]

    def decode(
        self,
        decoder: ClipDecoder,
        planned: PlannedClip,
        data: Sequence[bytes],
        out: NDArray[np.generic] | None = None,
    ) -> ReadClip:
        """The clip's frames, written into ``out`` where it is given, and its side arrays.

        Reads on when the decoder needs a neighbouring GOP, and again, a few times, when bytes
        with a checksum arrived damaged.

        Raises:
            CorruptDataError: the stored bytes are damaged.
            MediaError: the frames cannot be decoded.
            ClipTooShortError: only the packets told that the sample has too few frames.
        """
        with naming(planned.sample):
            if not data and self._direct is not None:
                rows = self._direct.rows(planned.sample.index, planned.sample.video, planned.plan)
                if rows is not None:
                    self.meter.add("clips.decoded", 1)
                    return ReadClip(planned, rows, self.side_arrays(planned.sample, rows))
                data = self.fetch_extents(
                    planned.sample.video, planned.plan.extents, clips=[planned]
                )
            return self._decode(decoder, planned, data, out)

    def _decode(
        self,
        decoder: ClipDecoder,
        planned: PlannedClip,
        data: Sequence[bytes],
        out: NDArray[np.generic] | None,
    ) -> ReadClip:
        sample, plan = planned.sample, planned.plan
        held = dict(zip((extent.gop for extent in plan.extents), data, strict=True))
        tries = 1
        for _ in range(_MAX_WIDENINGS + _MAX_TRIES):
            try:
                pieces = [held[extent.gop] for extent in plan.extents]
                decoded = decoder.decode(sample.index, plan, pieces, out, crop_at=planned.crop_at)
            except NeedMoreData as need:
                plan = need.plan
                missing = [extent for extent in plan.extents if extent.gop not in held]
                pieces = self.fetch_extents(sample.video, missing)
                held |= dict(zip((extent.gop for extent in missing), pieces, strict=True))
            except CorruptDataError:
                verified = any(extent.checksum is not None for extent in plan.extents)
                if tries == _MAX_TRIES or not verified:
                    raise
                tries += 1
                self.meter.event("refetch", "checksum")
                pieces = self.fetch_extents(sample.video, plan.extents, fresh=True)
                held |= dict(zip((extent.gop for extent in plan.extents), pieces, strict=True))
            else:
                self.meter.add("clips.decoded", 1)
                if plan is not planned.plan:  # widened since it was fetched
                    self.count_bytes(planned.plan, -1)
                    self.count_bytes(plan)
                return ReadClip(planned, decoded, self.side_arrays(sample, decoded))
        raise MediaError(
            f"sample {sample.key!r}: after {_MAX_WIDENINGS} reads the frames at "
            f"{planned.start_s:.3f} s are still undecided; index the file with its packets",
            reason=MediaReason.UNDECODABLE,
            sample_key=sample.key,
        )

    def count_bytes(self, plan: ClipPlan, times: int = 1) -> None:
        """Count what a plan needs, at once when its bytes are there.

        A run that ends early leaves clips fetched and undecoded: their bytes were received, so
        they must be among those needed, or the ratio would tell of waste that there was not.
        """
        # By ranges: GOPs of one cluster share its header, which is read once.
        gop_bytes = sum(stop - start for start, stop in coalesce(plan.extents))
        needed = plan.payload_bytes if plan.payload_bytes >= 0 else gop_bytes
        self.meter.add("bytes.gops", times * gop_bytes)
        self.meter.add("bytes.needed", times * needed)

    def side_arrays(self, sample: Sample, decoded: DecodedClip) -> SideArrays:
        """What the recipe gives for a clip's frames."""
        if not sample.side or self._recipe is None:
            return {}
        side = {suffix: self._side_bytes(file) for suffix, file in sample.side.items()}
        facts = ClipFacts(sample.key, decoded.pts_s, decoded.frame_index)
        arrays = self._recipe.side_data(facts, side)
        for name, array in arrays.items():
            if len(array) != len(decoded.pts):
                raise MediaError(
                    f"recipe {self._recipe.name!r} gave {len(array)} rows of {name!r} for a clip "
                    f"of {len(decoded.pts)} frames of sample {sample.key!r}",
                    reason=MediaReason.BAD_SIDE_FILE,
                    sample_key=sample.key,
                )
        return arrays

    def _side_bytes(self, file: FileLocation) -> bytes:
        return self._side.get(
            (file.store.url, file.key, file.offset_bytes), lambda: self._read_side(file)
        )

    def _read_side(self, file: FileLocation) -> bytes:
        if not file.size_bytes:
            return b""
        if self._cache is None:
            return file.read(0, file.size_bytes, Purpose.SIDE)
        whole_file = [file.byte_range(0, file.size_bytes)]
        return self._cache.read(
            file.identity,
            whole_file,
            lambda missing: [file.read(0, file.size_bytes, Purpose.SIDE) for _ in missing],
        )[0]


def ids_of(clips: Iterable[PlannedClip]) -> tuple[ClipId, ...]:
    """What spans call the clips."""
    return tuple(clip.id for clip in clips)


@contextmanager
def naming(sample: Sample) -> Iterator[None]:
    """Name the sample, its file and object in errors that come from bytes alone."""
    try:
        yield
    except (MediaError, CorruptDataError) as error:
        if "sample_key" in error.facts:
            raise
        video = sample.video
        where = f"file {video.name!r}"
        if isinstance(error, CorruptDataError):
            where += f", object {video.key!r} in {video.store.url}"
        named = {"sample_key": sample.key, "file": video.name, "object": video.key}
        raise type(error)(
            f"sample {sample.key!r} ({where}): {error}",
            **{**error.facts, **named},  # type: ignore[arg-type]
        ) from error


def keyframe_start(sample: Sample, start_s: float) -> float:
    """Where the keyframe at or before ``start_s`` lies in the sample, in seconds from its start.

    ``start_s`` itself where the sample has no keyframe that early.
    """
    index: VideoIndex = sample.index
    tick_s = index.track.time_base
    start_pts = sample.start_pts + round(start_s / float(tick_s))
    keys = index.gops.key_pts
    earlier = keys[(keys >= sample.start_pts) & (keys <= start_pts)]
    if not len(earlier):
        return start_s
    return float((int(earlier.max()) - sample.start_pts) * tick_s)
