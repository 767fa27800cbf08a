"""Table rows of one unit, as they are journalled, and their way into a part's tables. Pure.

Inside a unit, rows refer to each other by their place in the unit; a part shifts them to places
in its own tables. Rows are dicts of JSON values named as the columns of ``format.schema``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dstream.errors import CorruptDataError
from dstream.format.index import VideoIndex
from dstream.format.schema import SCHEMAS, Table
from dstream.ingest.settings import Quarantined
from dstream.recipe import SampleSpec
from dstream.store.base import ObjectInfo

Row = dict[str, Any]
Listed = tuple[str, int, str]
"""(name, size in bytes, ETag) of a source object, as it was listed."""


def listed(info: ObjectInfo) -> Listed:
    """How the journal remembers a source object."""
    return (info.key, info.size_bytes, info.etag)


@dataclass(slots=True)
class UnitRows:
    """All that is stored of one unit."""

    stem: str
    objects: tuple[Listed, ...]
    """What the unit consisted of; a unit with other objects is another one."""
    files: list[Row] = field(default_factory=list)
    streams: list[Row] = field(default_factory=list)
    """``file`` counts within the unit."""
    samples: list[Row] = field(default_factory=list)
    """``streams`` and ``side`` count within the unit; ``labels`` is a dict."""
    quarantine: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "stem": self.stem,
            "objects": [list(entry) for entry in self.objects],
            "files": self.files,
            "streams": self.streams,
            "samples": self.samples,
            "quarantine": self.quarantine,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> UnitRows:
        """The unit that :meth:`as_json` gave.

        Raises:
            CorruptDataError: rows refer to rows that are not there, or fields are missing.
        """
        try:
            objects = tuple((str(n), int(s), str(e)) for n, s, e in document["objects"])
            unit = cls(
                str(document["stem"]),
                objects,
                *(
                    [dict(row) for row in document[table]]
                    for table in ("files", "streams", "samples", "quarantine")
                ),
            )
            _check(unit)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptDataError(f"journal: a unit cannot be read: {error!r}") from error
        return unit


def _check(unit: UnitRows) -> None:
    for row in unit.streams:
        if not 0 <= row["file"] < len(unit.files):
            raise ValueError(f"stream of file {row['file']}")
    for row in unit.samples:
        if not all(0 <= i < len(unit.streams) for i in row["streams"]) or not all(
            0 <= i < len(unit.files) for i in row["side"]
        ):
            raise ValueError(f"sample {row['key']!r:.100} refers to rows that are not there")


def track_row(index: VideoIndex) -> Row:
    """What the stream table says of a track, but for its file and its index entry's place."""
    track = index.track
    gops = index.gops
    frames = None
    if index.packets is not None and len(gops):
        first = gops.first_packet
        stops = [*(int(i) for i in first[1:]), len(index.packets)]
        frames = max(b - int(a) for a, b in zip(first, stops, strict=True))
    return {
        "track_id": track.track_id,
        "container": track.container,
        "codec": track.codec,
        "profile": track.profile,
        "width": track.width,
        "height": track.height,
        "rotation_deg": track.rotation_deg,
        "mirrored": track.mirrored,
        "sar_num": track.sar.numerator,
        "sar_den": track.sar.denominator,
        "pix_fmt": track.pix_fmt,
        "color_range": int(track.color_range),
        "color_space": int(track.color_space),
        "color_primaries": int(track.color_primaries),
        "color_trc": int(track.color_trc),
        "time_base_num": track.time_base.numerator,
        "time_base_den": track.time_base.denominator,
        "start_pts": int(track.start_pts),
        "end_pts": int(track.end_pts),
        "duration_s": track.duration_s,
        "rate_num": track.rate.numerator,
        "rate_den": track.rate.denominator,
        "frame_count": None if track.frame_count is None else int(track.frame_count),
        "vfr": None if track.vfr is None else bool(track.vfr),
        "keyframes": len(gops),
        "longest_gop_bytes": int(gops.size_bytes.max()) if len(gops) else 0,
        "longest_gop_frames": frames,
        "clock_offset_s": 0.0,
        "access": str(index.access),
        "full_pass": bool(index.cost.full_pass),
    }


def sample_row(
    spec: SampleSpec, stream_of_track: Sequence[int], file_of_suffix: Mapping[str, int]
) -> Row:
    """The row of one sample of a file whose tracks and side files have these rows."""
    return {
        "key": spec.key,
        "group": spec.group,
        "split": spec.split,
        "streams": [stream_of_track[span.track] for span in spec.streams],
        "names": [span.name for span in spec.streams],
        "start_pts": [int(span.start_pts) for span in spec.streams],
        "end_pts": [int(span.end_pts) for span in spec.streams],
        "side": [file_of_suffix[suffix] for suffix in spec.side],
        "side_suffixes": list(spec.side),
        "labels": dict(spec.labels),
    }


def quarantine_row(row: Quarantined) -> Row:
    """The row of a file that was left out."""
    return {
        "name": row.name,
        "source_uri": row.source_uri,
        "size_bytes": row.size_bytes,
        "etag": row.etag,
        "reason": row.reason,
        "detail": row.detail,
    }


class PartRows:
    """Collects units into the columns of one part's tables."""

    def __init__(self) -> None:
        self._columns: dict[Table, dict[str, list[Any]]] = {
            table: {column.name: [] for column in SCHEMAS[table]} for table in Table
        }
        self._labels: dict[str, list[Any]] = {}

    def rows(self, table: Table) -> int:
        """Rows so far."""
        return len(next(iter(self._columns[table].values())))

    def add(self, unit: UnitRows) -> None:
        """Append a unit's rows, shifted to their places here."""
        file_shift, stream_shift = self.rows(Table.FILES), self.rows(Table.STREAMS)
        for row in unit.files:
            self._append(Table.FILES, row)
        for row in unit.streams:
            self._append(Table.STREAMS, row | {"file": row["file"] + file_shift})
        for row in unit.samples:
            shifted = {
                "streams": [i + stream_shift for i in row["streams"]],
                "side": [i + file_shift for i in row["side"]],
            }
            before = self.rows(Table.SAMPLES)
            self._append(Table.SAMPLES, row | shifted)
            self._append_labels(row["labels"], before)
        for row in unit.quarantine:
            self._append(Table.QUARANTINE, row)

    def columns(self, table: Table) -> Mapping[str, Sequence[Any]]:
        """What ``write_table`` takes."""
        if table is Table.SAMPLES:
            return self._columns[table] | self._labels
        return self._columns[table]

    def _append(self, table: Table, row: Row) -> None:
        for name, values in self._columns[table].items():
            values.append(row[name])

    def _append_labels(self, labels: Mapping[str, Any], before: int) -> None:
        for name in labels:
            if name not in self._labels:
                self._labels[name] = [None] * before
        for name, values in self._labels.items():
            values.append(labels.get(name))
