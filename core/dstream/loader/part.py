"""One part of a generation: its chosen samples, and where their bytes lie.

Numbers that the plan needs are read at once, and take some 40 bytes a sample. Names and places
are read with them, or when the first is asked for, and are kept compressed.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dstream.errors import CorruptDataError, StorageError
from dstream.forks import ready_before_fork, renew_after_fork
from dstream.format.chosen_rows import Choice, StoredTable, choose_rows
from dstream.format.compact import read_compact
from dstream.format.manifest import Part, TableRef
from dstream.format.text_column import TextColumn
from dstream.measure import Purpose
from dstream.store.base import Store

_FILE_COLUMNS = ("name", "object", "store", "offset_bytes", "size_bytes", "etag", "version")
_STREAM_COLUMNS = ("file", "index_object", "index_offset_bytes", "index_size_bytes")
_SIDE_COLUMNS = ("side", "side_suffixes")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A row of the table of files."""

    name: str
    object: str
    store: int
    offset_bytes: int
    size_bytes: int
    etag: str
    version: str | None


@dataclass(frozen=True, slots=True, eq=False)
class _Details:
    """Columns by name of a part's tables: arrays, and text columns."""

    files: dict[str, Any]
    streams: dict[str, Any]
    samples: dict[str, Any]


class LoadedPart:
    """The chosen samples of one part, N of them, numbered from 0. Thread-safe.

    Args:
        store: the repository.
        part: of the manifest.
        choice: which samples.
        whole: read names and places now as well.

    Raises:
        CorruptDataError: tables that contradict the manifest or themselves.
        InvalidInputError: the filter cannot be evaluated.
    """

    def __init__(self, store: Store, part: Part, choice: Choice, *, whole: bool) -> None:
        self.part = part
        self._store = store
        tables = _Tables(store)
        rows = choose_rows(
            tables[part.samples], tables[part.streams], lambda: tables[part.files], choice
        )
        self.row = rows.row
        self.columns = rows.columns
        self.has_side = rows.has_side
        self.start_pts, self.end_pts = rows.start_pts, rows.end_pts
        self.duration_s, self.rate = rows.duration_s, rows.rate
        self._stream = rows.stream
        self._kinds, self._kind = rows.kinds, rows.kind
        self._details: _Details | None = None
        self._begin()
        if whole:
            self._details = self._load(tables)

    def _begin(self) -> None:
        self._is_forked = False
        self._lock = threading.Lock()
        renew_after_fork(self)
        ready_before_fork(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def renew(self) -> None:
        """In a forked child: a lock of its own, and no more DuckDB."""
        self._lock = threading.Lock()
        self._is_forked = True

    def make_ready(self) -> None:
        """Before a fork: read what is missing, so that children have it, and share its memory."""
        self._all()

    def __len__(self) -> int:
        return len(self.row)

    def key(self, number: int) -> str:
        """A sample's key."""
        return _text(self._all().samples["key"], int(self.row[number]))

    def keys(self) -> Iterator[str]:
        """All keys in order."""
        if len(self):
            keys = self._all().samples["key"]
            chosen = iter(self.row.tolist())
            wanted = next(chosen)
            for row, key in enumerate(keys):
                if row == wanted:
                    yield str(key)
                    wanted = next(chosen, -1)

    def file_row(self, number: int) -> int:
        """Row of a sample's video in the table of files."""
        return int(self._all().streams["file"][self._stream[number]])

    def index_place(self, number: int) -> tuple[str, int, int]:
        """The object that has a sample's packet table, and the range of bytes in it."""
        streams, row = self._all().streams, int(self._stream[number])
        start = int(streams["index_offset_bytes"][row])
        size_bytes = int(streams["index_size_bytes"][row])
        return _text(streams["index_object"], row), start, start + size_bytes

    def file(self, row: int) -> StoredFile:
        """A row of the table of files."""
        files = self._all().files
        if not 0 <= row < self.part.files.rows:
            raise CorruptDataError(
                f"{self.part.files.key}: a table names file {row}, which is not there",
                key=self.part.files.key,
            )
        return StoredFile(
            name=_text(files["name"], row),
            object=_text(files["object"], row),
            store=int(files["store"][row]),
            offset_bytes=int(files["offset_bytes"][row]),
            size_bytes=int(files["size_bytes"][row]),
            etag=_text(files["etag"], row),
            version=files["version"][row],
        )

    def side_files(self, number: int) -> dict[str, int]:
        """Row in the table of files of each side file of a sample, by suffix."""
        if not self.has_side:
            return {}
        samples, row = self._all().samples, int(self.row[number])
        files, suffixes = (json.loads(_text(samples[name], row)) for name in _SIDE_COLUMNS)
        if len(files) != len(suffixes):
            raise CorruptDataError(
                f"{self.part.samples.key}: {len(files)} side files with {len(suffixes)} suffixes",
                key=self.part.samples.key,
            )
        return dict(zip(suffixes, files, strict=True))

    def first_of_kinds(self, slots: NDArray[np.int64]) -> list[tuple[tuple[Any, ...], int]]:
        """Each kind of picture among the samples with slots, and the first sample that has it.

        Args:
            slots: int64 [N] slots of each sample.
        """
        chosen = np.flatnonzero(slots)
        if not len(chosen):
            return []
        if len(self._kinds) == 1:
            return [(self._kinds[0], int(chosen[0]))]
        _, places = np.unique(self._kind[chosen], return_index=True)
        firsts = chosen[np.sort(places)].tolist()
        return [(self._kinds[int(self._kind[first])], first) for first in firsts]

    def _all(self) -> _Details:
        details = self._details
        if details is None:
            with self._lock:
                if self._details is None:
                    self._details = self._load(_Tables(self._store))
                details = self._details
        return details

    def _load(self, tables: _Tables) -> _Details:
        if self._is_forked:
            raise StorageError(
                f"{self.part.files.key} was not read before this process was forked, and cannot be "
                "read after: read a clip before the fork, or start processes by spawn",
                key=self.part.files.key,
            )
        names = ("key", *_SIDE_COLUMNS) if self.has_side else ("key",)
        return _Details(
            files=tables.columns(self.part.files, _FILE_COLUMNS),
            streams=tables.columns(self.part.streams, _STREAM_COLUMNS),
            samples=tables.columns(self.part.samples, names),
        )


class _Tables:
    """Tables of a part, each fetched once and checked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fetched: dict[str, StoredTable] = {}

    def __getitem__(self, ref: TableRef) -> StoredTable:
        if ref.key not in self._fetched:
            data = fetch_object(self._store, ref.key, ref.size_bytes, ref.sha256)
            self._fetched[ref.key] = StoredTable(data, ref.rows, ref.key)
        return self._fetched[ref.key]

    def columns(self, ref: TableRef, names: Sequence[str]) -> dict[str, Any]:
        """Columns by name."""
        table = self[ref]
        with table.named():
            return dict(read_compact(table.data, names, rows=table.rows))


def fetch_object(store: Store, key: str, size_bytes: int, sha256: str) -> bytes:
    """A whole object of the repository, checked.

    Raises:
        CorruptDataError: its bytes are not those that were published.
    """
    data = store.get(key, purpose=Purpose.TABLE).data
    if len(data) != size_bytes or hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptDataError(
            f"{key} in {store.url}: {len(data)} bytes that do not match the published hash "
            f"(expected {size_bytes} bytes); restore the object, or publish the data again",
            key=key,
        )
    return data


def _text(column: TextColumn, row: int) -> str:
    return column[row] or ""
