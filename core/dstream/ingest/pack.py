"""Groups of finished units: one shard (packed) or one span of source files, and its index."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from dstream.errors import StorageError
from dstream.format.index_codec import join_entries
from dstream.format.manifest import ObjectCount
from dstream.format.root import sha256_hex
from dstream.format.schema import REPOSITORY
from dstream.format.tar import BLOCK_BYTES, Member, TarWriter
from dstream.ingest.journal import Covered, Entry, Journal
from dstream.ingest.rows import Row, UnitRows, listed, quarantine_row, sample_row
from dstream.ingest.settings import IngestSettings, Layout
from dstream.ingest.spool import HashingFile, Spool, SpooledFile
from dstream.ingest.work import UnitWork
from dstream.measure import Purpose
from dstream.store.base import ObjectInfo, Store

MAX_GROUP_INDEX_BYTES = 8 << 20
"""A group is closed early when its encoded packet tables reach this."""

_SOURCE = 0
"""``files.store`` of bytes that stay in the part's source."""


@dataclass(slots=True)
class Group:
    """Units collected so far, and the shard being built for them."""

    units: list[UnitRows] = field(default_factory=list)
    index_entries: list[bytes] = field(default_factory=list)
    stream_rows: list[Row] = field(default_factory=list)
    """Row of each index entry; it is told its place when the group is closed."""
    index_bytes: int = 0
    videos: int = 0
    path: Path | None = None
    file: BinaryIO | None = None
    hashed: HashingFile | None = None
    tar: TarWriter | None = None

    def close(self) -> None:
        """Close and delete the shard's local file."""
        if self.file is not None:
            self.file.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Packer:
    """Collects units into groups, stores each group and journals it.

    Groups are stored by one background thread, in order, one ahead. A context manager: leaving
    it waits for what was begun; only :meth:`finish` closes the last group.
    """

    def __init__(
        self,
        store: Store,
        source_url: str,
        settings: IngestSettings,
        journal: Journal,
        spool: Spool | None,
        align_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._store = store
        self._align_bytes = align_bytes
        self._session = journal.session
        self._source_url = source_url
        self._settings = settings
        self._journal = journal
        self._spool = spool
        self._group = Group()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dstream-store")
        self._storing: Future[dict[str, Covered]] | None = None
        self.covered: dict[str, Covered] = {}
        """Units stored and journalled by this run."""

    def __enter__(self) -> Packer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True)
        self._group.close()

    def add(self, work: UnitWork) -> None:
        """Take a unit; its local copies are used up."""
        try:
            self._group.units.append(self._rows_of(work))
        finally:
            work.discard()
        if self._is_full():
            self._store_group()

    def finish(self) -> None:
        """Store the last group and wait until everything is journalled."""
        if self._group.units:
            self._store_group()
        self._settle()

    def _is_full(self) -> bool:
        group = self._group
        if group.tar is not None and group.tar.size_bytes >= self._settings.shard_bytes:
            return True
        if group.index_bytes >= MAX_GROUP_INDEX_BYTES:
            return True
        return self._settings.layout is Layout.IN_PLACE and group.videos >= (
            self._settings.group_files
        )

    def _rows_of(self, work: UnitWork) -> UnitRows:
        unit = work.unit
        rows = UnitRows(unit.stem, tuple(listed(info) for info in unit.objects))
        rows.quarantine = [quarantine_row(row) for row in work.quarantined]
        video_rows: list[int] = []
        for video in work.videos:
            video_rows.append(len(rows.files))
            rows.files.append(self._file_row(video.info, video.copy, "video"))
        side_rows: dict[str, int] = {}
        for suffix, (info, copy) in work.side.items():
            side_rows[suffix] = len(rows.files)
            rows.files.append(self._file_row(info, copy, "side"))
        for file, video in zip(video_rows, work.videos, strict=True):
            places: list[int] = []
            for track, entry in zip(video.track_rows, video.entries, strict=True):
                places.append(len(rows.streams))
                row = track | {"file": file}
                rows.streams.append(row)
                self._group.stream_rows.append(row)
                self._group.index_entries.append(entry)
                self._group.index_bytes += len(entry)
            rows.samples += [sample_row(spec, places, side_rows) for spec in video.samples]
        self._group.videos += len(work.videos)
        return rows

    def _file_row(self, info: ObjectInfo, copy: SpooledFile | None, role: str) -> Row:
        packed = copy is not None
        return {
            "name": info.key,
            "object": "" if packed else info.key,  # a shard is named when it is closed
            "store": REPOSITORY if packed else _SOURCE,
            "offset_bytes": self._into_shard(info, copy) if copy is not None else 0,
            "size_bytes": info.size_bytes,
            "checksum": copy.checksum if copy is not None else None,
            "source_uri": f"{self._source_url}/{info.key}",
            "etag": info.etag,
            "version": info.version,
            "role": role,
        }

    def _into_shard(self, info: ObjectInfo, copy: SpooledFile) -> int:
        if self._spool is None:
            raise StorageError("a packed ingest has no spool")
        group = self._group
        with self._spool.writing():
            if group.tar is None:
                group.path, group.file = self._spool.new_file()
                group.hashed = HashingFile(group.file)
                group.tar = TarWriter(group.hashed, self._align_bytes)
            with open(copy.path, "rb", buffering=0) as payload:
                return group.tar.add(Member(info.key, info.size_bytes), payload)

    def _store_group(self) -> None:
        group, self._group = self._group, Group()
        number = self._journal.reserve()
        try:
            self._settle()
        except BaseException:
            group.close()
            raise
        self._storing = self._pool.submit(self._stored, group, number)

    def _settle(self) -> None:
        storing, self._storing = self._storing, None
        if storing is not None:
            self.covered.update(storing.result())

    def _stored(self, group: Group, number: int) -> dict[str, Covered]:
        """Upload a group's objects, then journal it."""
        try:
            shards = self._upload_shard(group)
            indexes = self._put_index(group)
        finally:
            group.close()
        key = self._journal.append(number, Entry(tuple(group.units), shards, indexes))
        return {unit.stem: Covered(key, unit.objects) for unit in group.units}

    def _upload_shard(self, group: Group) -> ObjectCount:
        if group.tar is None or group.hashed is None or group.path is None or self._spool is None:
            return ObjectCount()
        with self._spool.writing():
            size = group.tar.finish()
        key = f"{self._session.data_prefix}{group.hashed.hexdigest()}.tar"
        info = self._store.upload(key, group.path, purpose=Purpose.COPY)
        if info.size_bytes != size:
            raise StorageError(
                f"shard {key}: the store holds {info.size_bytes} bytes, {size} were sent",
                key=key,
            )
        for unit in group.units:
            for row in unit.files:
                row["object"] = key
        return ObjectCount(1, size)

    def _put_index(self, group: Group) -> ObjectCount:
        if not group.index_entries:
            return ObjectCount()
        data, spans = join_entries(group.index_entries)
        key = f"{self._session.data_prefix}{sha256_hex(data)[:32]}.idx"
        self._store.put(key, data, purpose=Purpose.TABLE)
        for row, (offset, size) in zip(group.stream_rows, spans, strict=True):
            row["index_object"] = key
            row["index_offset_bytes"] = offset
            row["index_size_bytes"] = size
        return ObjectCount(1, len(data))
