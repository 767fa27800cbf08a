"""Rows of unchanged units, taken over from an earlier generation without copying a byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dstream.errors import CorruptDataError
from dstream.format.manifest import Manifest, ObjectCount, Part
from dstream.format.schema import SCHEMAS, Table
from dstream.format.tables import Columns
from dstream.ingest.known import load_table
from dstream.ingest.rows import Row, UnitRows, listed
from dstream.ingest.scan import Unit
from dstream.store.base import Store

_SAMPLE_COLUMNS = frozenset(column.name for column in SCHEMAS[Table.SAMPLES])


class Carried:
    """Units that a generation holds just as the source does.

    Args:
        store: the repository's.
        manifest: of the generation.
        units: the unchanged units.
        source_url: where they lie.
        layout: only parts of this layout are taken.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        units: tuple[Unit, ...],
        source_url: str,
        layout: str,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._layout = layout
        self._units = {unit.stem: unit for unit in units}
        self._stems = {
            f"{source_url}/{info.key}": unit.stem for unit in units for info in unit.objects
        }

    def parts(self) -> Iterator[tuple[list[UnitRows], ObjectCount, ObjectCount]]:
        """(units, shards, indexes) of every earlier part that holds some.

        Raises:
            CorruptDataError: tables contradict each other.
        """
        for part in self._manifest.parts:
            if part.layout != self._layout:
                continue
            units = self._of(part)
            if units:
                yield (
                    units,
                    _objects(units, "files", "object"),
                    _objects(units, "streams", "index_object"),
                )

    def _of(self, part: Part) -> list[UnitRows]:
        found: dict[str, UnitRows] = {}
        file_places: dict[int, tuple[UnitRows, int]] = {}
        for number, row in enumerate(_rows(load_table(self._store, part.files))):
            stem = self._stems.get(row["source_uri"])
            if stem is None:
                continue
            objects = tuple(listed(info) for info in self._units[stem].objects)
            unit = found.setdefault(stem, UnitRows(stem, objects))
            file_places[number] = (unit, len(unit.files))
            unit.files.append(row)
        stream_places: dict[int, tuple[UnitRows, int]] = {}
        for number, row in enumerate(_rows(load_table(self._store, part.streams))):
            if row["file"] in file_places:
                unit, place = file_places[row["file"]]
                stream_places[number] = (unit, len(unit.streams))
                unit.streams.append(row | {"file": place})
        for row in _rows(load_table(self._store, part.samples)):
            self._take_sample(row, file_places, stream_places)
        return list(found.values())

    def _take_sample(
        self,
        row: Row,
        file_places: Mapping[int, tuple[UnitRows, int]],
        stream_places: Mapping[int, tuple[UnitRows, int]],
    ) -> None:
        if not any(stream in stream_places for stream in row["streams"]):
            return
        try:
            units = {id(stream_places[i][0]) for i in row["streams"]}
            units |= {id(file_places[i][0]) for i in row["side"]}
            unit = stream_places[row["streams"][0]][0]
            streams = [stream_places[i][1] for i in row["streams"]]
            side = [file_places[i][1] for i in row["side"]]
        except KeyError as error:
            raise CorruptDataError(
                f"sample {row['key']!r:.200} mixes files of several units", key=row["key"]
            ) from error
        if len(units) != 1:
            raise CorruptDataError(
                f"sample {row['key']!r:.200} mixes files of several units", key=row["key"]
            )
        labels = {
            name: value
            for name, value in row.items()
            if name not in _SAMPLE_COLUMNS and value is not None
        }
        known = {name: row[name] for name in _SAMPLE_COLUMNS}
        unit.samples.append(known | {"streams": streams, "side": side, "labels": labels})


def _rows(columns: Columns) -> Iterator[Row]:
    values = {name: _plain(column) for name, column in columns.items()}
    for row in zip(*values.values(), strict=True):
        yield dict(zip(values, row, strict=True))


def _plain(column: NDArray[Any]) -> list[Any]:
    items: list[Any] = column.tolist()
    return [item.tolist() if isinstance(item, np.ndarray) else item for item in items]


def _objects(units: list[UnitRows], table: str, column: str) -> ObjectCount:
    """How many objects the rows name, and the bytes of them that the rows use."""
    size_column = "size_bytes" if table == "files" else "index_size_bytes"
    rows: list[Row] = [row for unit in units for row in getattr(unit, table)]
    if table == "files":
        rows = [row for row in rows if row["store"] < 0]
    return ObjectCount(len({row[column] for row in rows}), sum(row[size_column] for row in rows))
