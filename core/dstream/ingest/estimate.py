"""What an ingest would cost: a sample is indexed in place, the rest is arithmetic. Never writes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dstream.clock import Clock, SystemClock
from dstream.errors import DstreamError, InvalidInputError, MediaError, MediaReason
from dstream.format.index_codec import encode_index_entry
from dstream.ingest.prepare import prepare_video
from dstream.ingest.scan import Scan, SkipLog, Unit, scan
from dstream.ingest.settings import IngestSettings, Layout
from dstream.ingest.spool import PIECE_BYTES
from dstream.ingest.work import reason_of
from dstream.measure import Meter, Purpose
from dstream.media.decode import ClipDecoder
from dstream.media.pixels import PixelSettings
from dstream.media.reader import StoreReader
from dstream.recipe import Recipe, SideFile, files_of
from dstream.store.base import ObjectInfo, Store
from dstream.units import MIB

T = TypeVar("T")

MAX_SAMPLE_BYTES = 256 * MIB
"""A sampled file that needs more than this to be indexed counts with its whole size, unread."""

_COPIED_BYTES = 16 * MIB
_COPIED_FILES = 8
_KEYS_A_LISTING = 1000
_UPLOAD_PART_BYTES = 8 * MIB
_COMMIT_PUTS = 8  # session, four tables, manifest, root, slack for one lost race
_COMMIT_LISTS = 6
_TABLE_BYTES_A_FILE = 200


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars; the defaults are S3 Standard's list prices in us-east-1."""

    put_per_million: float = 5.0
    """PUT, COPY, POST and LIST."""
    get_per_million: float = 0.4
    """GET and HEAD."""
    storage_per_gb_month: float = 0.023
    egress_per_gb: float = 0.0
    """For bytes that leave the source's region."""


@dataclass(frozen=True, slots=True)
class LayoutEstimate:
    """What to expect of one layout."""

    layout: Layout
    bytes_read: int
    """From the source."""
    bytes_written: int
    """To the repository."""
    objects_written: int
    """Shards and index groups."""
    get_requests: int
    put_requests: int
    list_requests: int
    hours: float
    """At the rate of the sample, with the settings' workers, from this machine."""
    dollars: float
    """Requests and egress, once."""
    dollars_per_month: float
    """Storage of what is written."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a dry run found."""

    source: str
    videos: int
    side_files: int
    bytes: int
    """Of both."""
    sampled_videos: int
    sampled_bytes: int
    """Bytes that the sample itself read."""
    usable_videos: int
    """Expected: scaled up from the sample."""
    full_pass_videos: int
    """Expected: in place they must be read from end to end to be indexed."""
    duration_s: float
    """Expected length of all usable videos."""
    bytes_per_s: float
    """Rate of plain reading that was measured."""
    packed: LayoutEstimate
    in_place: LayoutEstimate
    prices: Prices
    quarantined: dict[str, int] = field(default_factory=dict)
    """Reason -> files of the sample."""


@dataclass(frozen=True, slots=True)
class FileCost:
    """What one sampled video cost."""

    size_bytes: int
    requests: int
    bytes_read: int
    entry_bytes: int
    duration_s: float
    full_pass: bool
    reason: str | None
    """Why it would be quarantined."""


def dry_run(
    source: Store,
    *,
    recipe: Recipe,
    settings: IngestSettings | None = None,
    sample_files: int = 32,
    prices: Prices | None = None,
    meter: Meter | None = None,
    clock: Clock | None = None,
    skips: SkipLog | None = None,
) -> Estimate:
    """Estimate both layouts from the listing and a few files spread evenly over it.

    Args:
        source: rooted at what would be ingested.
        recipe: as for ingest; side files of the sample are read if it reads them.
        settings: as for ingest.
        sample_files: how many videos to index.
        prices: of requests, storage and egress.
        meter: where skips are counted.
        clock: measures rates.
        skips: what the source's listing leaves out.

    Raises:
        NotFoundError: no such source, or no videos in it.
        InvalidInputError: ``sample_files`` is below 1.
    """
    if sample_files < 1:
        raise InvalidInputError(f"sample_files is {sample_files}, expected at least 1")
    settings = settings or IngestSettings()
    clock = clock or SystemClock()
    found = scan(source, settings, meter or Meter(), skips, files_of(recipe))
    chosen = spread(found.units, sample_files)
    sampler = _Sampler(source, recipe, settings, clock)
    with ThreadPoolExecutor(settings.workers, thread_name_prefix="dstream-sample") as pool:
        begun_s = clock.monotonic_s()
        costs = list(pool.map(sampler.cost, chosen))
        index_s = clock.monotonic_s() - begun_s
        copied = [unit.videos[0] for unit in chosen if unit.videos[0].size_bytes][:_COPIED_FILES]
        begun_s = clock.monotonic_s()
        copied_bytes = sum(pool.map(sampler.copy, copied))
        copy_s = clock.monotonic_s() - begun_s
    rate = copied_bytes / copy_s if copy_s > 0 else 0.0
    return estimate(
        source.url, found, costs, settings, prices or Prices(), index_s, copied_bytes, rate
    )


def spread(units: Sequence[T], count: int) -> list[T]:
    """At most ``count`` units, evenly spread, the same ones every time.

    >>> spread(range(10), 3)
    [1, 5, 8]
    """
    total = len(units)
    if total <= count:
        return list(units)
    return [units[(2 * i + 1) * total // (2 * count)] for i in range(count)]


def estimate(
    url: str,
    found: Scan,
    costs: Sequence[FileCost],
    settings: IngestSettings,
    prices: Prices,
    index_s: float,
    copied_bytes: int,
    bytes_per_s: float,
) -> Estimate:
    """Scale a sample up to the whole listing. Pure."""
    objects = [info for unit in found.units for info in unit.objects]
    videos = sum(len(unit.videos) for unit in found.units)
    total = sum(info.size_bytes for info in objects)
    scale = videos / len(costs) if costs else 0.0
    usable = [cost for cost in costs if cost.reason is None]
    reasons: dict[str, int] = {}
    for cost in costs:
        if cost.reason is not None:
            reasons[cost.reason] = reasons.get(cost.reason, 0) + 1
    sample_bytes = sum(cost.size_bytes for cost in costs)
    kept = sum(cost.size_bytes for cost in usable) / sample_bytes if sample_bytes else 1.0
    index_bytes = round(scale * sum(cost.entry_bytes for cost in usable))
    lists = -(-found.listed // _KEYS_A_LISTING) + _COMMIT_LISTS
    tables = _TABLE_BYTES_A_FILE * len(objects)
    packed = _packed(objects, round(total * kept) + index_bytes + tables, settings)
    packed = replace(packed, list_requests=lists, hours=_hours(total, bytes_per_s))
    groups = -(-videos // settings.group_files)
    in_place = LayoutEstimate(
        layout=Layout.IN_PLACE,
        bytes_read=total if settings.checksum else round(scale * sum(c.bytes_read for c in costs)),
        bytes_written=index_bytes + tables,
        objects_written=groups,
        get_requests=round(scale * sum(cost.requests for cost in costs)),
        put_requests=2 * groups + _COMMIT_PUTS,
        list_requests=lists,
        hours=_hours(total, bytes_per_s) if settings.checksum else scale * index_s / 3600,
        dollars=0.0,
        dollars_per_month=0.0,
    )
    return Estimate(
        source=url,
        videos=videos,
        side_files=len(objects) - videos,
        bytes=total,
        sampled_videos=len(costs),
        sampled_bytes=sum(cost.bytes_read for cost in costs if cost.requests) + copied_bytes,
        usable_videos=round(scale * len(usable)),
        full_pass_videos=round(scale * sum(cost.full_pass for cost in costs)),
        duration_s=scale * sum(cost.duration_s for cost in usable),
        bytes_per_s=bytes_per_s,
        packed=_priced(packed, prices),
        in_place=_priced(in_place, prices),
        prices=prices,
        quarantined=dict(sorted(reasons.items())),
    )


def _packed(
    objects: Sequence[ObjectInfo], written: int, settings: IngestSettings
) -> LayoutEstimate:
    shards = max(1, -(-written // settings.shard_bytes))
    parts = -(-min(written, settings.shard_bytes) // _UPLOAD_PART_BYTES)
    uploads = parts + 2 if parts > 1 else 1
    return LayoutEstimate(
        layout=Layout.PACKED,
        bytes_read=sum(info.size_bytes for info in objects),
        bytes_written=written,
        objects_written=2 * shards,
        get_requests=sum(-(-info.size_bytes // PIECE_BYTES) for info in objects) + shards,
        put_requests=shards * (uploads + 2) + _COMMIT_PUTS,
        list_requests=0,
        hours=0.0,
        dollars=0.0,
        dollars_per_month=0.0,
    )


def _priced(costs: LayoutEstimate, prices: Prices) -> LayoutEstimate:
    once = (
        costs.get_requests * prices.get_per_million
        + (costs.put_requests + costs.list_requests) * prices.put_per_million
    ) / 1e6
    return replace(
        costs,
        dollars=once + costs.bytes_read / 1e9 * prices.egress_per_gb,
        dollars_per_month=costs.bytes_written / 1e9 * prices.storage_per_gb_month,
    )


def _hours(size_bytes: int, bytes_per_s: float) -> float:
    return size_bytes / bytes_per_s / 3600 if bytes_per_s > 0 else 0.0


class _Sampler:
    """Indexes sampled videos in place. Called from many threads."""

    def __init__(
        self, source: Store, recipe: Recipe, settings: IngestSettings, clock: Clock
    ) -> None:
        limit = settings.max_index_bytes
        self._source = source
        self._recipe = recipe
        self._clock = clock
        self._settings = replace(
            settings, max_index_bytes=min(limit or MAX_SAMPLE_BYTES, MAX_SAMPLE_BYTES)
        )
        self._refuses = limit is not None and limit <= MAX_SAMPLE_BYTES

    def cost(self, unit: Unit) -> FileCost:
        """What a unit's first video costs in place."""
        info = unit.videos[0]
        reader = StoreReader(self._source, info, Purpose.INDEX, info.version)
        media = StoreReader(self._source, info, Purpose.DATA, info.version)
        reason, entry_bytes, duration_s, full_pass = None, 0, 0.0, False
        try:
            prepared = prepare_video(
                info.key,
                reader,
                media.read,
                self._side(unit),
                recipe=self._recipe,
                settings=self._settings,
                decoder=ClipDecoder(PixelSettings(), Meter(), clock=self._clock),
                checksums=False,
            )
            entry_bytes = sum(len(encode_index_entry(index)) for index in prepared.indexes)
            duration_s = sum(index.track.duration_s for index in prepared.indexes)
            full_pass = any(index.cost.full_pass for index in prepared.indexes)
        except DstreamError as error:
            found = reason_of(error)
            if found is None:
                raise
            reason = str(found)
            if found is MediaReason.INDEX_TOO_LARGE and isinstance(error, MediaError):
                full_pass = True
                reason = reason if self._refuses else None
        bytes_read = reader.bytes_read + media.bytes_read
        if full_pass and reason is None:
            bytes_read = max(bytes_read, info.size_bytes)
        return FileCost(
            info.size_bytes,
            reader.runs + media.runs,
            bytes_read,
            entry_bytes,
            duration_s,
            full_pass,
            reason,
        )

    def copy(self, info: ObjectInfo) -> int:
        """Read the beginning of a file, as a packed ingest would; returns the bytes."""
        stop = min(info.size_bytes, _COPIED_BYTES)
        try:
            blob = self._source.get(info.key, 0, stop, expect_etag=info.etag, purpose=Purpose.COPY)
        except DstreamError as error:
            if reason_of(error) is None:
                raise
            return 0
        return len(blob.data)

    def _side(self, unit: Unit) -> dict[str, SideFile]:
        def side(info: ObjectInfo) -> SideFile:
            def read() -> bytes:
                return self._source.get(info.key, expect_etag=info.etag, purpose=Purpose.SIDE).data

            return SideFile(info.key, info.key[len(unit.stem) :], info.size_bytes, read)

        return {file.suffix: file for file in map(side, unit.side)}
