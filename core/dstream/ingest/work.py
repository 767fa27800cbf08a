"""What a worker thread does with one unit: fetch it, prepare its videos, or say what is wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from dstream.clock import Clock
from dstream.errors import (
    CorruptDataError,
    DstreamError,
    MediaError,
    MediaReason,
    NotFoundError,
    PermissionDeniedError,
    SourceChangedError,
    StorageError,
)
from dstream.format.index_codec import encode_index_entry
from dstream.ingest.journal import TRANSIENT
from dstream.ingest.prepare import PreparedVideo, prepare_video
from dstream.ingest.rows import Row, track_row
from dstream.ingest.scan import Unit
from dstream.ingest.settings import IngestSettings, Quarantined
from dstream.ingest.spool import Spool, SpooledFile, SpoolError
from dstream.measure import Meter, Purpose
from dstream.media.decode import ClipDecoder
from dstream.media.pixels import PixelSettings
from dstream.media.reader import FileReader, StoreReader
from dstream.recipe import Recipe, SampleSpec, SideFile
from dstream.store.base import ObjectInfo, Store

MAX_FAILURES_IN_A_ROW = 8
"""So many files that the store cannot read, one after the other, mean that it is down."""

DETAIL_CHARS = 500


@dataclass(slots=True)
class VideoWork:
    """One video that will be stored."""

    info: ObjectInfo
    copy: SpooledFile | None
    """Its local copy; None in place."""
    checksum: str | None
    track_rows: list[Row]
    entries: list[bytes]
    """Encoded index entries, one a track."""
    samples: tuple[SampleSpec, ...]


@dataclass(slots=True)
class UnitWork:
    """What became of one unit."""

    unit: Unit
    videos: list[VideoWork] = field(default_factory=list)
    side: dict[str, tuple[ObjectInfo, SpooledFile | None]] = field(default_factory=dict)
    """Side files by suffix; only where a video is stored."""
    quarantined: list[Quarantined] = field(default_factory=list)

    def discard(self) -> None:
        """Delete its local copies."""
        for video in self.videos:
            if video.copy is not None:
                video.copy.discard()
        for _, copy in self.side.values():
            if copy is not None:
                copy.discard()


def reason_of(error: DstreamError) -> MediaReason | None:
    """Why a file is quarantined after ``error``; None where it is not the file's fault."""
    if isinstance(error, MediaError):
        return error.reason
    if isinstance(error, SourceChangedError | NotFoundError):
        return MediaReason.CHANGED
    if isinstance(error, CorruptDataError):
        return MediaReason.DAMAGED
    if isinstance(error, StorageError) and not isinstance(error, SpoolError):
        return MediaReason.UNREADABLE
    return None


class Worker:
    """Turns units into :class:`UnitWork`. Called from many threads.

    Args:
        source: where the files are.
        recipe: makes samples.
        settings: how.
        spool: takes local copies; None in place.
        meter: counts.
        clock: measures decoding.
    """

    def __init__(
        self,
        source: Store,
        recipe: Recipe,
        settings: IngestSettings,
        spool: Spool | None,
        meter: Meter,
        clock: Clock,
    ) -> None:
        self._source = source
        self._recipe = recipe
        self._settings = settings
        self._spool = spool
        self._meter = meter
        self._clock = clock
        self._local = threading.local()
        self._lock = threading.Lock()
        self._failures_in_a_row = 0

    def __call__(self, unit: Unit) -> UnitWork:
        """Do one unit. Files that cannot be used end up in ``quarantined``."""
        work = UnitWork(unit)
        with ExitStack() as cleanup:
            cleanup.callback(work.discard)
            self._side_files(work)
            side_fault = work.quarantined.copy()
            work.quarantined.clear()
            for info in unit.videos:
                if side_fault:
                    work.quarantined.append(self._blamed_on(info, side_fault[0]))
                    continue
                self._guarded(info, work, partial(self._video, info, work))
            cleanup.pop_all()
        if not work.videos:
            work.discard()
            work.side.clear()
        for row in work.quarantined:
            self._meter.event("quarantine", row.reason)
        return work

    def _side_files(self, work: UnitWork) -> None:
        stem_length = len(work.unit.stem)
        for info in work.unit.side:
            suffix = info.key[stem_length:]
            self._guarded(info, work, partial(self._side_file, info, suffix, work))

    def _side_file(self, info: ObjectInfo, suffix: str, work: UnitWork) -> None:
        if self._spool is None:
            work.side[suffix] = (self._with_version(info), None)
        else:
            work.side[suffix] = (info, self._spool.fetch(self._source, info))

    def _with_version(self, info: ObjectInfo) -> ObjectInfo:
        """The object with its VersionId, which listings do not tell: old bytes stay readable."""
        if info.version is not None or not self._source.capabilities.versioned:
            return info
        found = self._source.head(info.key, purpose=Purpose.INDEX)
        if (found.etag, found.size_bytes) != (info.etag, info.size_bytes):
            raise SourceChangedError(
                f"{info.key} was replaced after it was listed", key=info.key, etag=found.etag
            )
        return replace(info, version=found.version)

    def _blamed_on(self, info: ObjectInfo, fault: Quarantined) -> Quarantined:
        detail = f"its side file {fault.name}: {fault.reason}: {fault.detail}"
        # What may be gone next time is so for the video too: else it would never be tried again.
        passing = fault.reason in TRANSIENT
        reason = MediaReason(fault.reason) if passing else MediaReason.BAD_SIDE_FILE
        return self._row(info, reason, detail)

    def _guarded(self, info: ObjectInfo, work: UnitWork, action: Callable[[], None]) -> None:
        """Run ``action``; a failure that is the file's own becomes a quarantine row."""
        try:
            action()
        except DstreamError as error:
            reason = reason_of(error)
            if reason is None:
                raise
            self._note(error, reason)
            work.quarantined.append(self._row(info, reason, str(error)))
        else:
            with self._lock:
                self._failures_in_a_row = 0

    def _note(self, error: DstreamError, reason: MediaReason) -> None:
        outage = reason is MediaReason.UNREADABLE and not isinstance(error, PermissionDeniedError)
        with self._lock:
            self._failures_in_a_row = self._failures_in_a_row + 1 if outage else 0
            stop = self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW
        if stop:
            raise StorageError(
                f"{MAX_FAILURES_IN_A_ROW} files in a row could not be read from "
                f"{self._source.url}, the last because: {error}; run again when the store is "
                "well: what is finished is kept",
                source=self._source.url,
                retry=False,
            ) from error

    def _row(self, info: ObjectInfo, reason: MediaReason, detail: str) -> Quarantined:
        return Quarantined(
            info.key,
            f"{self._source.url}/{info.key}",
            info.size_bytes,
            info.etag,
            str(reason),
            detail[:DETAIL_CHARS].encode("utf-8", "backslashreplace").decode(),
        )

    def _video(self, info: ObjectInfo, work: UnitWork) -> None:
        side = self._side_of(info, work)
        if self._spool is None:
            info = self._with_version(info)
            self._keep(info, work, None, self._prepare_in_place(info, side))
            return
        copy = self._spool.fetch(self._source, info)
        try:
            with FileReader(copy.path) as reader:
                reader.name = info.key
                prepared = self._prepare(info.key, reader, reader.read, side, checksums=True)
            self._keep(info, work, copy, prepared)
        except BaseException:
            copy.discard()
            raise

    def _prepare_in_place(self, info: ObjectInfo, side: Mapping[str, SideFile]) -> PreparedVideo:
        reader = StoreReader(self._source, info, Purpose.INDEX, info.version)
        media = StoreReader(self._source, info, Purpose.DATA, info.version)
        return self._prepare(info.key, reader, media.read, side, checksums=self._settings.checksum)

    def _prepare(
        self,
        name: str,
        reader: FileReader | StoreReader,
        read_media: Callable[[int, int], bytes],
        side: Mapping[str, SideFile],
        *,
        checksums: bool,
    ) -> PreparedVideo:
        return prepare_video(
            name,
            reader,
            read_media,
            side,
            recipe=self._recipe,
            settings=self._settings,
            decoder=self._decoder(),
            checksums=checksums,
        )

    def _keep(
        self, info: ObjectInfo, work: UnitWork, copy: SpooledFile | None, prepared: PreparedVideo
    ) -> None:
        for index in prepared.indexes:
            if index.cost.full_pass:
                self._meter.event("full-pass", index.track.container)
        work.videos.append(
            VideoWork(
                info,
                copy,
                None if copy is None else copy.checksum,
                [track_row(index) for index in prepared.indexes],
                [encode_index_entry(index) for index in prepared.indexes],
                prepared.samples,
            )
        )

    def _side_of(self, info: ObjectInfo, work: UnitWork) -> dict[str, SideFile]:
        def reader(entry: ObjectInfo, copy: SpooledFile | None) -> Callable[[], bytes]:
            if copy is not None:
                return copy.read
            return lambda: (
                self._source.get(
                    entry.key,
                    expect_etag=entry.etag,
                    version=entry.version,
                    purpose=Purpose.SIDE,
                ).data
            )

        return {
            suffix: SideFile(entry.key, suffix, entry.size_bytes, reader(entry, copy))
            for suffix, (entry, copy) in work.side.items()
        }

    def _decoder(self) -> ClipDecoder:
        decoder: ClipDecoder | None = getattr(self._local, "decoder", None)
        if decoder is None:
            # Its own meter: what the check decodes is not what a loader delivers.
            decoder = ClipDecoder(PixelSettings(), Meter(), clock=self._clock)
            self._local.decoder = decoder
        return decoder
