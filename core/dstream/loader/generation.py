"""A generation's tables as a source of samples.

The plan needs a few numbers of every sample, which are read when the data set is opened; names
and places come with them where there are few, else when the first sample of a part is read
(``loader.part``). The packet tables lie in groups, one object a shard or a few hundred files: a
group is fetched whole when the first of its videos is needed, then kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dstream.errors import CorruptDataError, InvalidInputError
from dstream.format.chosen_rows import ALL, Choice
from dstream.format.index import VideoIndex, VideoTrack
from dstream.format.index_codec import decode_index_entry
from dstream.format.manifest import Manifest, Part
from dstream.format.schema import REPOSITORY
from dstream.format.where import Where
from dstream.loader.index_size import index_bytes
from dstream.loader.part import LoadedPart
from dstream.loader.plan import Window, slot_counts
from dstream.loader.single_flight import SingleFlightCache, one_each
from dstream.loader.source import FileLocation, KeyIndex, Sample
from dstream.measure import Purpose
from dstream.store.base import Store
from dstream.units import MIB

TABLE_CACHE_BYTES = 256 * MIB
"""Default budget for packet tables, half of it as stored and half unpacked."""

_OPENERS = 8
"""Parts that are read at the same time: each is a few round trips and a little work."""

EAGER_ROWS = 1 << 18
"""Up to so many samples all columns are read when a data set is opened."""


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
        samples = sum(part.samples.rows for part in manifest.parts)
        with ThreadPoolExecutor(_OPENERS) as pool:
            self._parts = list(
                pool.map(
                    lambda part: LoadedPart(store, part, choice, whole=samples <= EAGER_ROWS),
                    manifest.parts,
                )
            )
        if choice.where is not None:
            _check_columns(choice.where, (part.columns for part in self._parts))
        self._first = np.cumsum([0, *map(len, self._parts)])
        if not len(self) and choice != ALL:
            raise InvalidInputError(f"{name} has no sample {choice}", **choice.facts)
        self.fingerprint = _fingerprint(manifest, choice, (part.row for part in self._parts))
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
        return any(part.has_side for part in self._parts)

    def slot_counts(self, window: Window) -> NDArray[np.int64]:
        """int64 [N] slots of each sample."""
        counts = [slot_counts(part.duration_s, part.rate, window) for part in self._parts]
        return np.concatenate([np.zeros(0, dtype=np.int64), *counts])

    def key(self, sample: int) -> str:
        """A sample's key."""
        part, row = self._locate(sample)
        return part.key(row)

    def keys(self) -> list[str]:
        """All keys in order."""
        return list(self._all_keys())

    def _all_keys(self) -> Iterator[str]:
        return chain.from_iterable(part.keys() for part in self._parts)

    def file_of(self, sample: int) -> tuple[str, int]:
        """The part's table of files, and the row in it."""
        part, row = self._locate(sample)
        return part.part.files.key, part.file_row(row)

    def find(self, key: str) -> int:
        """The number of the sample with this key, or NotFoundError."""
        return self._keys.get("", lambda: KeyIndex(self.name, self._all_keys(), self.key)).find(key)

    def resolve(self, sample: int) -> Sample:
        """A sample with its packet table; costs at most one request, for its group."""
        part, row = self._locate(sample)
        return Sample(
            key=part.key(row),
            index=self._index(part.index_place(row)),
            start_pts=int(part.start_pts[row]),
            end_pts=int(part.end_pts[row]),
            video=self._location(part, part.file_row(row)),
            side={
                suffix: self._location(part, file) for suffix, file in part.side_files(row).items()
            },
        )

    def known_tracks(self, slots: NDArray[np.int64]) -> list[tuple[str, VideoTrack]]:
        """One sample key and its track for every kind of picture among samples with slots."""
        found: dict[tuple[Any, ...], str] = {}
        for first, part in zip(self._first, self._parts, strict=False):
            for kind, row in part.first_of_kinds(slots[first : first + len(part)]):
                if kind not in found:
                    found[kind] = part.key(row)
        return [(key, _picture_track(picture)) for picture, key in found.items()]

    def _locate(self, sample: int) -> tuple[LoadedPart, int]:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} is outside range({len(self)})")
        number = int(np.searchsorted(self._first, sample, side="right")) - 1
        return self._parts[number], sample - int(self._first[number])

    def _index(self, place: tuple[str, int, int]) -> VideoIndex:
        group, start, stop = place

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

    def _location(self, part: LoadedPart, number: int) -> FileLocation:
        file = part.file(number)
        in_repository = file.store == REPOSITORY
        return FileLocation(
            name=file.name,
            store=self._store if in_repository else self._source_store(part.part),
            key=file.object,
            offset_bytes=file.offset_bytes,
            size_bytes=file.size_bytes,
            # A shard is written once, under a name of its own; the source's ETag is not its.
            etag=None if in_repository else file.etag,
            version=None if in_repository else file.version,
        )

    def _source_store(self, part: Part) -> Store:
        url = self._manifest.sources[part.source]
        return self._sources.get(url, lambda: self._open_source(url))


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
