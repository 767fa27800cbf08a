"""What a loader did and what it cost, in the vocabulary of the counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dstream.loader.report_parts import cache_facts, device_facts, device_memory, ratio
from dstream.loader.settings import LoaderSettings
from dstream.measure import Purpose, Snapshot
from dstream.store.options import engines_used


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderReport:
    """Counts since the loader was made. Ratios are 0 where nothing was counted yet."""

    clips: int
    """Clips delivered to the consumer."""
    components: Mapping[str, int]
    """Clips delivered of each component of a mixture, by its name; empty where it is none."""
    clips_decoded: int
    """Clips made, those in batches that were not taken included."""
    batches: int
    wall_seconds: float
    """From the first request for a batch to the last one's delivery."""
    clips_per_second: float
    """``clips / wall_seconds``."""
    first_batch_seconds: float
    """How long the consumer waited for its first batch."""

    wait_seconds: float
    """Time the consumer was blocked on the loader. Near ``wall_seconds`` means starvation."""
    wait_share: float
    """``wait_seconds / wall_seconds``: 0 the loader keeps up, 1 the consumer only waits."""
    bottleneck: str
    """One sentence: which stage sets the pace, or that the consumer does."""
    slowest_stage: str
    """One sentence: which of the loader's own stages is the busiest, whatever the consumer does."""

    frames_delivered: int
    """Frames in decoded clips, those in batches not yet taken included."""
    frames_decoded: int
    """Frames that the decoders put out, pre-roll included."""
    frames_skipped: int
    """Pre-roll packets that gave no frame: nothing referenced them."""
    decode_amplification: float
    """``frames_decoded / frames_delivered``; 1 is ideal, long GOPs raise it."""
    decode_frames_per_second: float
    """Frames decoded per second of one decoding thread, conversion included."""

    nvdec_frames: int
    """Of the decoded frames, those that a GPU's decoders put out."""
    nvdec_frames_per_second: float
    """Of one session while it decodes, conversion not included."""
    nvdec_frames_per_engine: float
    """A second of the wall time, of one engine; NVIDIA publishes what an engine can do."""
    nvdec_busy_share: float
    """Share of the wall time that the engines had a session at work."""
    nvdec_sessions: Mapping[str, int]
    """Decoder sessions ``opened``, ``reused`` for another run, ``closed`` to make room,
    ``poisoned`` by a failed run and closed, ``not-opened``."""
    device_memory: Mapping[str, int]
    """The most bytes of the GPU's memory that were held at once: ``nvdec_sessions``, the estimate
    that bounds them, and ``torch``, of its allocator; both of the whole process, the second since
    it began or last called ``torch.cuda.reset_peak_memory_stats``. Empty where neither is used."""
    bytes_to_device: int
    """Copied from the host: packets to the decoders, clips and batches, side data."""
    bytes_on_device: int
    """Copied within the GPU's memory: frames into clips, clips into batches."""
    bytes_from_device: int
    """Copied to the host: what NVDEC decoded for batches there."""
    copies_per_byte: float
    """The three for each delivered byte; 1 is ideal for what was decoded on the host."""

    data_requests: int
    """Requests for media bytes, failed ones included."""
    data_requests_per_clip: float
    """Per fetched clip; 1 is ideal without a cache."""
    bytes_requested: int
    """Media bytes asked for."""
    bytes_received: int
    """Media bytes that arrived."""
    bytes_needed: int
    """Bytes of the packets that the decoded clips needed."""
    bytes_of_gops: int
    """Bytes of the groups of pictures that hold them."""
    byte_amplification: float
    """``bytes_received / bytes_needed``; interleaved audio and the rest of the last GOP
    raise it."""
    bytes_delivered: int
    """Bytes of the delivered frames in memory."""
    bytes_unverified: int
    """Media bytes that had no checksum to be held against."""

    side_requests: int
    """Requests for side files, and their bytes."""
    side_bytes: int
    table_requests: int
    """Requests for manifests, tables and packet tables since the data set was opened, and their
    bytes; each once, then kept."""
    table_bytes: int
    index_requests: int
    """Requests that indexed videos of a bare listing, and their bytes."""
    index_bytes: int
    index_full_passes: int
    """Videos of a bare listing that had to be read from end to end to be indexed."""
    listing_requests: int
    """Pages of listings since the data set was opened."""

    cache_hits: int
    """Pieces (GOPs, side files) that this node had, or was fetching for another clip already."""
    cache_misses: int
    """Pieces that had to be fetched in spite of a cache. 0 as well where there is none."""
    cache_hit_rate: float
    """``cache_hits / (cache_hits + cache_misses)``."""
    cache_bytes_hit: int
    cache_bytes_missed: int
    cache_byte_hit_rate: float
    """The same by bytes."""
    cache_bytes_admitted: int
    """Missed bytes that were kept."""
    cache_bytes_refused: int
    """Missed bytes that were not kept; ``cache_refusals`` has the reasons."""
    cache_evictions: int
    """Segments deleted to make room."""
    cache_bytes_evicted: int
    cache_bytes_moved: int
    """Copied from such segments to new ones, since they are read again soon."""
    cache_seconds: float
    """Time spent reading and verifying hits, summed over threads."""
    cache_refusals: Mapping[str, int]
    """Pieces that were not kept, by reason."""
    cache_rot: Mapping[str, int]
    """Kept pieces that were torn or had rotted, by what was broken; fetched again."""
    cache_off: Mapping[str, int]
    """Why the cache stopped keeping anything, if it did; since the data set was opened."""

    retries: Mapping[str, int]
    """Requests tried again, by reason."""
    throttles: int
    """Requests that the store asked to slow down."""
    engines: Mapping[str, int]
    """Readers of ranges of S3 that were made, by engine, since the data set was opened: one a
    store, and another after new credentials; ``lacks_fast``: over TLS by Python, because the
    extra ``fast`` is not installed."""
    fallbacks: Mapping[str, int]
    """Slower or wider ways taken, by reason."""
    gds_reads: int
    """Reads of arrays from a disk into a GPU's memory by GPUDirect Storage."""
    skips: Mapping[str, int]
    """Clips replaced by others, by reason."""
    not_listed: Mapping[str, int]
    """What listings left out since the data set was opened, by reason: empty videos, names that
    are not UTF-8, folders that cannot be read."""
    refetches: Mapping[str, int]
    """Bytes read once more, by reason."""

    pin_renewals: Mapping[str, int]
    """Renewals of the pin that is read through, by outcome: ``renewed``, ``failed`` (tried
    again), ``no-permission``, ``lost``."""

    deadlines: Mapping[str, int]
    """Threads left behind in the middle of something that did not end, by what it was."""
    outages: int
    """Times that the store did not answer at all, and how long the threads waited for it."""
    outage_seconds: float

    fetchers: int
    """Clips that are fetched at the same time, now."""
    fetch_busy_seconds: float
    """Time spent placing and fetching clips, summed over the fetching threads."""
    fetch_busy_share: float
    """Its share of what those threads could have done in the wall time."""
    fetch_blocked_seconds: float
    """Time fetching threads waited for room in the byte budget."""
    decode_busy_seconds: float
    """Time spent decoding and converting, summed over the decoding threads."""
    decode_busy_share: float
    """Its share of what those threads could have done in the wall time."""
    queue_occupancy: float
    """Average share of the prefetched batches that were ready when the consumer came."""

    def as_json(self) -> dict[str, object]:
        """A plain document, for ``--json``."""
        document: dict[str, object] = {}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Mapping):
                value = dict(value)
            document[spec.name] = round(value, 6) if isinstance(value, float) else value
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksReport:
    """The reports of all ranks."""

    ranks: tuple[LoaderReport, ...]
    """In the order of their ranks in the process group."""
    slowest_rank: int
    """Whose consumer waited longest for its loader: in a synchronous training the others wait
    for it, and their loaders do not count that."""
    clips: int
    """Clips delivered to all ranks."""
    clips_per_second: float
    """Sum over the ranks."""
    wait_seconds: float
    """That of the slowest rank."""
    wait_spread_seconds: float
    """How much longer the slowest rank waited than the one that waited least."""
    summary: str
    """One sentence: who is the slowest, and what holds it up."""

    @property
    def slowest(self) -> LoaderReport:
        """The report of the slowest rank."""
        return self.ranks[self.slowest_rank]

    def as_json(self) -> dict[str, object]:
        """A plain document."""
        names = [spec.name for spec in dataclasses.fields(self) if spec.name != "ranks"]
        return {
            **{name: getattr(self, name) for name in names},
            "ranks": [report.as_json() for report in self.ranks],
        }


def gather_reports(reports: Sequence[LoaderReport]) -> RanksReport:
    """All ranks' reports as one."""
    waits = [report.wait_seconds for report in reports]
    slowest = waits.index(max(waits))
    return RanksReport(
        ranks=tuple(reports),
        slowest_rank=slowest,
        clips=sum(report.clips for report in reports),
        clips_per_second=sum(report.clips_per_second for report in reports),
        wait_seconds=waits[slowest],
        wait_spread_seconds=waits[slowest] - min(waits),
        summary=f"Rank {slowest} of {len(reports)} waited longest, {waits[slowest]:.1f} s; the "
        f"least was {min(waits):.1f} s. {reports[slowest].bottleneck}",
    )


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a report needs besides counters."""

    wall_seconds: float
    first_batch_seconds: float
    fetchers: int
    workers: int
    prefetch: int
    engines: int = 0
    """Of the GPU's decoders, once they were used."""
    device_memory: Mapping[str, int] = field(default_factory=dict)
    """See :attr:`LoaderReport.device_memory`."""

    @classmethod
    def of(
        cls, settings: LoaderSettings, wall_s: float, first_batch_s: float, fetchers: int
    ) -> RunFacts:
        """Of a loader with these settings."""
        nvdec = settings.decoder.nvdec()
        return cls(
            wall_s,
            first_batch_s,
            fetchers,
            settings.workers,
            settings.prefetch,
            engines=0 if nvdec is None else nvdec.engines,
            device_memory=device_memory(nvdec, settings.device),
        )


def make_report(counts: Snapshot, since_open: Snapshot, facts: RunFacts) -> LoaderReport:
    """The report of a loader.

    Args:
        counts: what happened since the loader was made.
        since_open: what happened since its data set was opened; tables and listings are counted
            from there.
        facts: times and settings.
    """
    sums = counts.sums

    def whole(name: str) -> int:
        return int(sums.get(name, 0))

    data, side, index = (
        counts.total(purpose=purpose) for purpose in (Purpose.DATA, Purpose.SIDE, Purpose.INDEX)
    )
    table, listing = (
        since_open.total(purpose=purpose) for purpose in (Purpose.TABLE, Purpose.LISTING)
    )
    wall_s = facts.wall_seconds
    wait_s = min(sums.get("seconds.wait", 0.0), wall_s)
    fetch_s = sums.get("seconds.fetch_stage", 0.0)
    decode_s = sums.get("seconds.decode_stage", 0.0)
    codec_s = sums.get("seconds.decode", 0.0) + sums.get("seconds.convert", 0.0)
    shares = {
        "fetch": min(1.0, ratio(fetch_s, wall_s * facts.fetchers)),
        "decode": min(1.0, ratio(decode_s, wall_s * facts.workers)),
    }
    wait_share = ratio(wait_s, wall_s)
    fetched = sums.get("clips.fetched", sums.get("clips.decoded", 0))
    return LoaderReport(
        clips=whole("clips.delivered"),
        components=counts.event("component"),
        clips_decoded=whole("clips.decoded"),
        batches=whole("batches.delivered"),
        wall_seconds=wall_s,
        clips_per_second=ratio(sums.get("clips.delivered", 0), wall_s),
        first_batch_seconds=facts.first_batch_seconds,
        wait_seconds=wait_s,
        wait_share=wait_share,
        bottleneck=_bottleneck(wait_share, shares, facts, bool(sums.get("clips.delivered"))),
        slowest_stage=f"{_slowest_stage(shares, facts)}.",
        frames_delivered=whole("frames.delivered"),
        frames_decoded=whole("frames.decoded"),
        frames_skipped=whole("frames.skipped"),
        decode_amplification=ratio(sums.get("frames.decoded", 0), sums.get("frames.delivered", 0)),
        decode_frames_per_second=ratio(sums.get("frames.decoded", 0), codec_s),
        **device_facts(counts, wall_s, facts.engines),
        device_memory=facts.device_memory,
        data_requests=data.count,
        data_requests_per_clip=ratio(data.count, fetched),
        bytes_requested=data.bytes_requested,
        bytes_received=data.bytes_received,
        bytes_needed=whole("bytes.needed"),
        bytes_of_gops=whole("bytes.gops"),
        byte_amplification=ratio(data.bytes_received, sums.get("bytes.needed", 0)),
        bytes_delivered=whole("bytes.delivered"),
        bytes_unverified=whole("bytes.unverified"),
        side_requests=side.count,
        side_bytes=side.bytes_received,
        table_requests=table.count,
        table_bytes=table.bytes_received,
        index_requests=index.count,
        index_bytes=index.bytes_received,
        index_full_passes=counts.event("index").get("full-pass", 0),
        listing_requests=listing.count,
        **cache_facts(counts, since_open),
        retries=counts.event("retry"),
        throttles=sum(counts.event("throttle").values()),
        engines=engines_used(since_open.sums),
        fallbacks=counts.event("fallback"),
        skips=counts.event("skip"),
        not_listed=since_open.event("list-skip"),
        refetches=counts.event("refetch"),
        pin_renewals=counts.event("pin"),
        deadlines=counts.event("deadline"),
        outages=sum(counts.event("outage").values()),
        outage_seconds=sums.get("seconds.outage", 0.0),
        fetchers=facts.fetchers,
        fetch_busy_seconds=fetch_s,
        fetch_busy_share=shares["fetch"],
        fetch_blocked_seconds=sums.get("seconds.fetch_blocked", 0.0),
        decode_busy_seconds=decode_s,
        decode_busy_share=shares["decode"],
        queue_occupancy=ratio(
            sums.get("queue.ready", 0), sums.get("queue.looks", 0) * facts.prefetch
        ),
    )


_KEEPS_UP = 0.05
"""Below this share of waiting the loader is not what holds the consumer up."""


def _bottleneck(
    wait_share: float, shares: Mapping[str, float], facts: RunFacts, delivered: bool
) -> str:
    if not delivered:
        return "Nothing was delivered yet."
    if wait_share < _KEEPS_UP:
        return f"The consumer sets the pace: it waited for the loader {wait_share:.0%} of the time."
    stage = _slowest_stage(shares, facts)
    return f"{stage}; the consumer waited {wait_share:.0%} of the time."


def _slowest_stage(shares: Mapping[str, float], facts: RunFacts) -> str:
    fetch, decode = shares["fetch"], shares["decode"]
    if decode >= fetch:
        return (
            f"Decoding sets the pace: its {facts.workers} threads were busy {decode:.0%} of the "
            f"time, fetching {fetch:.0%}"
        )
    return (
        f"Fetching sets the pace: its {facts.fetchers} threads were busy {fetch:.0%} of the time, "
        f"decoding {decode:.0%}"
    )
