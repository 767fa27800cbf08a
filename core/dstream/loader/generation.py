"""A generation's tables as a source of samples.

The plan needs a few columns of every row; they are read once, when the data set is opened. The
packet tables lie in groups, one object a shard or a few thousand files: a group is fetched whole
when the first of its videos is needed, then kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dstream.errors import CorruptDataError, InvalidInputError
from dstream.format.chosen_rows import ALL, Choice, StoredTable, choose_rows
from dstream.format.index import VideoIndex, VideoTrack
from dstream.format.index_codec import decode_index_entry
from dstream.format.manifest import Manifest, Part, TableRef
from dstream.format.schema import REPOSITORY
from dstream.format.tables import read_table
from dstream.format.where import Where
from dstream.loader.index_size import index_bytes
from dstream.loader.plan import Window, slot_counts
from dstream.loader.single_flight import SingleFlightCache, one_each
from dstream.loader.source import FileLocation, KeyIndex, Sample
from dstream.measure import Purpose
from dstream.store.base import Store
from dstream.units import MIB

Columns = dict[str, NDArray[Any]]

TABLE_CACHE_BYTES = 256 * MIB
"""Default budget for packet tables, half of it as stored and half unpacked."""

_FILE_COLUMNS = ("name", "object", "store", "offset_bytes", "size_bytes", "etag", "version", "role")
_PICTURE_COLUMNS = (
    "width", "height", "rotation_deg", "mirrored", "sar_num", "sar_den", "pix_fmt",
)  # fmt: skip
_STREAM_COLUMNS = (
    "file", "start_pts", "end_pts", "time_base_num", "time_base_den", "rate_num", "rate_den",
    "index_object", "index_offset_bytes", "index_size_bytes", *_PICTURE_COLUMNS,
)  # fmt: skip


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


@dataclass(frozen=True, slots=True, eq=False)
class _PartTables:
    """The tables of one part, and the samples chosen from it."""

    part: Part
    files: Columns
    streams: Columns
    row: NDArray[np.int32]
    """Row in the sample table of each chosen sample."""
    key: NDArray[np.object_]
    stream: NDArray[np.int32]
    """Row in ``streams``."""
    start_pts: NDArray[np.int64]
    end_pts: NDArray[np.int64]
    side: Columns
    """Columns ``side`` and ``side_suffixes``; empty when the part has no side files."""

    def side_files(self, row: int) -> dict[str, int]:
        """Row in ``files`` of each side file of a sample, by suffix."""
        if not self.side:
            return {}
        suffixes, files = self.side["side_suffixes"][row], self.side["side"][row]
        return {str(suffix): int(file) for suffix, file in zip(suffixes, files, strict=True)}


class GenerationSource:
    """Samples of one generation.

    Args:
        name: what messages call it.
        store: the repository.
        manifest: of the generation.
        open_source: opens a source store by its URL, for data left in place. It is pickled
            along with this.
        choice: which samples, and which of their streams. A filter is evaluated here, once, and
            what it chose is pickled along.
        table_cache_bytes: budget for packet tables.

    Raises:
        InvalidInputError: nothing is chosen, or the filter cannot be evaluated.
        CorruptDataError: tables that contradict the manifest or themselves.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        manifest: Manifest,
        open_source: Callable[[str], Store],
        *,
        choice: Choice = ALL,
        table_cache_bytes: int = TABLE_CACHE_BYTES,
    ) -> None:
        self.name = name
        self._store = store
        self._manifest = manifest
        self._open_source = open_source
        loaded = [_load_part(store, part, choice) for part in manifest.parts]
        if choice.where is not None:
            _check_columns(choice.where, (columns for _, columns in loaded))
        self._parts = [tables for tables, _ in loaded]
        self._first = np.cumsum([0, *(len(tables.stream) for tables in self._parts)])
        if not len(self) and choice != ALL:
            raise InvalidInputError(f"{name} has no sample {choice}", **choice.facts)
        self.fingerprint = _fingerprint(manifest, choice, (tables.row for tables in self._parts))
        self._groups: SingleFlightCache[str, bytes] = SingleFlightCache(table_cache_bytes // 2, len)
        self._indexes: SingleFlightCache[tuple[str, int], VideoIndex] = SingleFlightCache(
            table_cache_bytes // 2, index_bytes
        )
        self._sources: SingleFlightCache[str, Store] = SingleFlightCache(1 << 62, one_each)
        self._keys: SingleFlightCache[str, KeyIndex] = SingleFlightCache(1, one_each)

    def __len__(self) -> int:
        return int(self._first[-1])

    @property
    def has_side_files(self) -> bool:
        """Some sample has side files, so a recipe is needed to read them."""
        return any(
            len(rows) for tables in self._parts if tables.side for rows in tables.side["side"]
        )

    def slot_counts(self, window: Window) -> NDArray[np.int64]:
        """int64 [N] slots of each sample."""
        counts = [np.zeros(0, dtype=np.int64)]
        for tables in self._parts:
            rows, streams = tables.stream, tables.streams
            tick_s = streams["time_base_num"][rows] / streams["time_base_den"][rows]
            with np.errstate(divide="ignore", invalid="ignore"):
                rate = streams["rate_num"][rows] / streams["rate_den"][rows]
            counts.append(slot_counts((tables.end_pts - tables.start_pts) * tick_s, rate, window))
        return np.concatenate(counts)

    def key(self, sample: int) -> str:
        """A sample's key."""
        tables, row = self._locate(sample)
        return str(tables.key[row])

    def keys(self) -> list[str]:
        """All keys in order."""
        return [str(key) for tables in self._parts for key in tables.key]

    def file_of(self, sample: int) -> tuple[str, int]:
        """The part's table of files, and the row in it."""
        tables, row = self._locate(sample)
        return tables.part.files.key, int(tables.streams["file"][int(tables.stream[row])])

    def find(self, key: str) -> int:
        """The number of the sample with this key, or NotFoundError."""
        return self._keys.get("", lambda: KeyIndex(self.name, self.keys())).find(key)

    def resolve(self, sample: int) -> Sample:
        """A sample with its packet table; costs at most one request, for its group."""
        tables, row = self._locate(sample)
        stream = int(tables.stream[row])
        return Sample(
            key=str(tables.key[row]),
            index=self._index(tables, stream),
            start_pts=int(tables.start_pts[row]),
            end_pts=int(tables.end_pts[row]),
            video=self._location(tables, int(tables.streams["file"][stream])),
            side={
                suffix: self._location(tables, file)
                for suffix, file in tables.side_files(row).items()
            },
        )

    def known_tracks(self, slots: NDArray[np.int64]) -> list[tuple[str, VideoTrack]]:
        """One sample key and its track for every kind of picture among samples with slots."""
        found: dict[tuple[Any, ...], str] = {}
        for number, tables in enumerate(self._parts):
            chosen = np.flatnonzero(slots[self._first[number] : self._first[number + 1]])
            streams, position = np.unique(tables.stream[chosen], return_index=True)
            pictures = zip(
                *(tables.streams[name][streams] for name in _PICTURE_COLUMNS), strict=True
            )
            for picture, row in zip(pictures, chosen[position], strict=True):
                found.setdefault(tuple(picture), str(tables.key[row]))
        return [(key, _picture_track(picture)) for picture, key in found.items()]

    def _locate(self, sample: int) -> tuple[_PartTables, int]:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} is outside range({len(self)})")
        number = int(np.searchsorted(self._first, sample, side="right")) - 1
        return self._parts[number], sample - int(self._first[number])

    def _index(self, tables: _PartTables, stream: int) -> VideoIndex:
        group = str(tables.streams["index_object"][stream])
        start = int(tables.streams["index_offset_bytes"][stream])
        stop = start + int(tables.streams["index_size_bytes"][stream])

        def load() -> VideoIndex:
            data = self._groups.get(
                group, lambda: self._store.get(group, purpose=Purpose.TABLE).data
            )
            if not 0 <= start < stop <= len(data):
                raise CorruptDataError(
                    f"{group} in {self._store.url}: {len(data)} bytes, but a table promises an "
                    f"entry at [{start}, {stop})",
                    key=group,
                )
            try:
                return decode_index_entry(data[start:stop])
            except CorruptDataError as error:
                raise CorruptDataError(
                    f"{group} in {self._store.url}: {error}", key=group
                ) from error

        return self._indexes.get((group, start), load)

    def _location(self, tables: _PartTables, file: int) -> FileLocation:
        files = tables.files
        if not 0 <= file < len(files["name"]):
            raise CorruptDataError(f"{self.name}: a table names file {file}, which is not there")
        in_repository = int(files["store"][file]) == REPOSITORY
        version = files["version"][file]
        return FileLocation(
            name=str(files["name"][file]),
            store=self._store if in_repository else self._source_store(tables.part),
            key=str(files["object"][file]),
            offset_bytes=int(files["offset_bytes"][file]),
            size_bytes=int(files["size_bytes"][file]),
            # A shard is written once, under a name of its own; the source's ETag is not its.
            etag=None if in_repository else str(files["etag"][file]),
            version=None if in_repository or version is None else str(version),
        )

    def _source_store(self, part: Part) -> Store:
        url = self._manifest.sources[part.source]
        return self._sources.get(url, lambda: self._open_source(url))


def _load_part(store: Store, part: Part, choice: Choice) -> tuple[_PartTables, frozenset[str]]:
    """The tables of a part, and what a filter could name in it."""

    def stored(ref: TableRef) -> StoredTable:
        return StoredTable(fetch_object(store, ref.key, ref.size_bytes, ref.sha256), ref.rows)

    files, streams, samples = stored(part.files), stored(part.streams), stored(part.samples)
    with _named(part.samples):
        rows = choose_rows(samples, streams, lambda: files, choice)
    with _named(part.files):
        file_columns = read_table(files.data, _FILE_COLUMNS, rows=files.rows)
    with _named(part.streams):
        stream_columns = read_table(streams.data, _STREAM_COLUMNS, rows=streams.rows)
    with _named(part.samples):
        names = ("key", "side", "side_suffixes") if rows.has_side else ("key",)
        found = read_table(samples.data, names, rows=samples.rows)
    chosen = {name: column[rows.row] for name, column in found.items()}
    key = chosen.pop("key")
    tables = _PartTables(
        part,
        file_columns,
        stream_columns,
        rows.row,
        key,
        rows.stream,
        rows.start_pts,
        rows.end_pts,
        chosen,
    )
    return tables, rows.columns


def _check_columns(where: Where, parts: Iterable[frozenset[str]]) -> None:
    """A filter may name what some part has; its other parts have NULL there."""
    known: frozenset[str] = frozenset().union(*parts)
    for name in sorted(where.columns - known):
        tables = [column for column in known if column.endswith(f".{name}")]
        if tables:
            raise InvalidInputError(
                f"where={where.text!r:.200}: several tables have {name!r}; write "
                f"{' or '.join(sorted(tables))}",
                column=name,
            )
        raise InvalidInputError(
            f"where={where.text!r:.200}: there is no column {name!r}; there are "
            f"{', '.join(sorted(column for column in known if '.' not in column))}",
            column=name,
        )


@contextmanager
def _named(ref: TableRef) -> Iterator[None]:
    """Errors of reading a table name it."""
    try:
        yield
    except CorruptDataError as error:
        raise CorruptDataError(f"{ref.key}: {error}", key=ref.key) from error


def _picture_track(picture: tuple[Any, ...]) -> VideoTrack:
    """A track of which only the picture's form is known."""
    width, height, rotation_deg, mirrored, sar_num, sar_den, pix_fmt = picture
    one = Fraction(1)
    return replace(
        VideoTrack(
            "", 0, "", None, b"", 0, 0, 0, False, one, "", 0, 2, 2, 2, one, 0, 0, one, None, None, 0
        ),
        width=int(width),
        height=int(height),
        rotation_deg=int(rotation_deg),
        mirrored=bool(mirrored),
        sar=Fraction(int(sar_num), int(sar_den) or 1) or one,
        pix_fmt=str(pix_fmt),
    )


def _fingerprint(manifest: Manifest, choice: Choice, rows: Iterable[NDArray[np.int32]]) -> str:
    """Hash of the tables and of what was chosen of them: not of how a filter was written."""
    digest = hashlib.sha256()
    for part in manifest.parts:
        for ref in (part.samples, part.streams, part.files):
            digest.update(ref.sha256.encode())
    digest.update(repr((choice.split, choice.stream)).encode())
    if choice.where is not None:
        for chosen in rows:
            digest.update(len(chosen).to_bytes(8, "little"))
            digest.update(chosen.astype("<i4").tobytes())
    return digest.hexdigest()
