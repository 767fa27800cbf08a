"""The columns of the tables of a dataset generation: one place for names, types and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

VERSION = 1
MIN_READER = 1
"""The oldest reader that understands tables of ``VERSION``."""


class Table(StrEnum):
    """The kinds of table."""

    FILES = "files"
    STREAMS = "streams"
    SAMPLES = "samples"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of one table."""

    name: str
    type: str
    """DuckDB's type; Parquet's follows from it."""
    doc: str
    nullable: bool = False

    @property
    def is_list(self) -> bool:
        """Each value is a list."""
        return self.type.endswith("[]")


_TEXT, _INT, _LONG, _REAL, _BOOL = "VARCHAR", "INTEGER", "BIGINT", "DOUBLE", "BOOLEAN"

_FILES = (
    Column("name", _TEXT, "path relative to the source"),
    Column("object", _TEXT, "key of the object that holds the bytes, in the store below"),
    Column("store", _INT, "-1: the repository; 0: the source of this part"),
    Column("offset_bytes", _LONG, "first byte of the file in the object"),
    Column("size_bytes", _LONG, "size of the file"),
    Column("checksum", _TEXT, "`xxh3:` and 16 hex digits, where all bytes were read", True),
    Column("source_uri", _TEXT, "where the file came from"),
    Column("etag", _TEXT, "the source object's ETag when it was read"),
    Column("version", _TEXT, "the source object's VersionId in a versioned bucket", True),
    Column("role", _TEXT, "`video` or `side`"),
)

_STREAMS = (
    Column("file", _INT, "row in this part's files"),
    Column("track_id", _INT, "libav's stream index in the file"),
    Column(
        "container",
        _TEXT,
        "`mp4`, `matroska`, `mpegts`, `mpegps`, `flv` or `avi`; `npy`, `safetensors`",
    ),
    Column("codec", _TEXT, "libav's codec name; `array`"),
    Column("profile", _TEXT, "libav's profile name; an array's own name", True),
    Column("width", _INT, "coded pixels, before rotation"),
    Column("height", _INT, "coded pixels, before rotation"),
    Column("rotation_deg", _INT, "clockwise turn that shows the picture upright"),
    Column("mirrored", _BOOL, "flipped left to right before the turn"),
    Column("sar_num", _INT, "width over height of one pixel"),
    Column("sar_den", _INT, "its denominator"),
    Column(
        "pix_fmt", _TEXT, "libav's pixel format; of arrays, the form of a row: `bfloat16[16,64]`"
    ),
    Column("color_range", _INT, "AVCOL_RANGE"),
    Column("color_space", _INT, "AVCOL_SPC"),
    Column("color_primaries", _INT, "AVCOL_PRI"),
    Column("color_trc", _INT, "AVCOL_TRC"),
    Column("time_base_num", _INT, "seconds a tick"),
    Column("time_base_den", _INT, "its denominator"),
    Column("start_pts", _LONG, "first shown frame, in ticks"),
    Column("end_pts", _LONG, "end of the presentation, in ticks"),
    Column("duration_s", _REAL, "length of the presentation in seconds"),
    Column("rate_num", _LONG, "average frames a second"),
    Column("rate_den", _LONG, "its denominator"),
    Column("frame_count", _LONG, "shown frames; NULL where only a full pass would tell", True),
    Column("vfr", _BOOL, "frame durations differ; NULL where unknown", True),
    Column("keyframes", _LONG, "groups of pictures"),
    Column("longest_gop_bytes", _LONG, "largest byte range of a group of pictures"),
    Column("longest_gop_frames", _LONG, "most packets in one; NULL without packet table", True),
    Column("clock_offset_s", _REAL, "add to the file's time to get the sample's common clock"),
    Column("access", _TEXT, "`packets` or `segments`: how a group's bytes become packets"),
    Column("index_object", _TEXT, "key of the index group in the repository"),
    Column("index_offset_bytes", _LONG, "first byte of this track's entry in it"),
    Column("index_size_bytes", _LONG, "size of the entry"),
    Column("full_pass", _BOOL, "indexing had to read the whole file"),
)

_SAMPLES = (
    Column("key", _TEXT, "unique in the dataset"),
    Column("group", _TEXT, "session, scene or recording"),
    Column("split", _TEXT, "`train`, `val` ..."),
    Column("streams", "INTEGER[]", "rows in this part's streams"),
    Column("names", "VARCHAR[]", "what each stream is called in the sample"),
    Column("start_pts", "BIGINT[]", "start of each stream's span, in its ticks"),
    Column("end_pts", "BIGINT[]", "end of each stream's span, exclusive"),
    Column("side", "INTEGER[]", "rows of side files in this part's files"),
    Column("side_suffixes", "VARCHAR[]", "what follows the stem in each side file's name"),
)

_QUARANTINE = (
    Column("name", _TEXT, "path relative to the source; unusable characters are escaped"),
    Column("source_uri", _TEXT, "where the file is"),
    Column("size_bytes", _LONG, "its size when it was listed"),
    Column("etag", _TEXT, "its ETag when it was listed"),
    Column("reason", _TEXT, "a code: `encrypted`, `no-video-track` ..."),
    Column("detail", _TEXT, "one sentence for people"),
)

SCHEMAS: dict[Table, tuple[Column, ...]] = {
    Table.FILES: _FILES,
    Table.STREAMS: _STREAMS,
    Table.SAMPLES: _SAMPLES,
    Table.QUARANTINE: _QUARANTINE,
}
"""All columns in their order on disk. Readers keep and ignore columns that are not named here."""

REPOSITORY = -1
"""``files.store`` of bytes that lie in the repository."""
