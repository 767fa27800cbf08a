"""What an ingest can be told, and what it tells: settings, progress and result. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from dstream.errors import InvalidInputError
from dstream.format.root import Generation
from dstream.measure import Snapshot
from dstream.units import GIB, MIB


class Layout(StrEnum):
    """Where the bytes lie afterwards."""

    PACKED = "packed"
    """Original bytes, copied into tar shards of the repository."""
    IN_PLACE = "in_place"
    """Nothing is copied: the tables point into the source objects."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which of several jobs this is."""

    index: int
    """From 1 to ``count``."""
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise InvalidInputError(
                f"part {self.index}/{self.count}: parts are numbered 1/N to N/N",
                index=self.index,
                count=self.count,
            )

    @property
    def label(self) -> str:
        """As it is named in the journal.

        >>> Share(3, 12).label
        '00003-of-00012'
        """
        return f"{self.index:05d}-of-{self.count:05d}"


WHOLE = Share(1, 1)


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """How to ingest. Sizes are in bytes."""

    layout: Layout = Layout.PACKED
    shard_bytes: int = 256 * MIB
    """A shard is closed once it holds at least this much. One file is never split."""
    group_files: int = 256
    """In place: videos whose packet tables share one object."""
    workers: int = 8
    """Files that are read and probed at the same time."""
    spool_bytes: int = 2 * GIB
    """Packed: most local disk that files in flight take, besides the shards being built. One
    file larger than this is still taken, alone."""
    spool_folder: Path | None = None
    """Where files in flight lie; the system's temporary folder by default."""
    checksum: bool = False
    """In place: read everything once to record checksums. Packed always does."""
    decode_check: bool = True
    """Decode the first frame of every video before it is taken."""
    max_index_bytes: int | None = None
    """Quarantine a file whose packets cannot be found by reading at most this much of it."""
    recursive: bool = True
    include: tuple[str, ...] = ()
    """Shell patterns of names to take; empty: all."""
    exclude: tuple[str, ...] = ()
    """Shell patterns of names to leave."""
    quarantine: frozenset[str] = frozenset()
    """Names to leave, as they are: files that failed when they were read."""
    share: Share | None = None
    """Do only this job's share, and commit nothing: :func:`finish_ingest` commits all."""
    session_key: str | None = None
    """Names the session that jobs share and a rerun resumes; derived from the inputs without."""
    replace: bool = False
    """Publish exactly what the source holds now instead of adding to what the name has."""
    retry_quarantined: bool = False
    """Look again at unchanged files that an earlier generation quarantined."""
    message: str = ""
    """Recorded with the generation."""

    def __post_init__(self) -> None:
        for name in ("shard_bytes", "group_files", "workers", "spool_bytes"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)}, expected at least 1")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an ingest is. Quarantined files count as done."""

    files_done: int
    """Videos that are finished."""
    files_total: int
    bytes_done: int
    """Sizes of the finished videos and their side files."""
    bytes_total: int
    quarantined: int
    elapsed_s: float
    bytes_per_s: float
    """Mean rate since the start; 0 before anything is finished."""
    eta_s: float | None
    """Seconds left at that rate; None before anything is finished."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A file that was left out."""

    name: str
    source_uri: str
    size_bytes: int
    etag: str
    reason: str
    """A :class:`dstream.errors.MediaReason`."""
    detail: str


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingest did."""

    name: str
    generation: Generation | None
    """The generation that holds the data now; None when only a share was done, or when there
    was nothing that could be published."""
    published: bool
    """A new generation was made."""
    session_key: str
    share: Share | None
    files: int
    """Files that this generation (or share) adds, side files included."""
    bytes: int
    samples: int
    resumed_files: int
    """Of the videos, those that an earlier, interrupted run had finished."""
    unchanged_files: int
    """Videos that the dataset had already."""
    quarantined: tuple[Quarantined, ...]
    requests: Snapshot = field(default_factory=Snapshot)
    """All counters of this run."""

    @property
    def quarantined_by_reason(self) -> Mapping[str, int]:
        """Reason -> number of files."""
        counts: dict[str, int] = {}
        for row in self.quarantined:
            counts[row.reason] = counts.get(row.reason, 0) + 1
        return dict(sorted(counts.items()))
