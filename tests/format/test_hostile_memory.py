"""Bytes that a stranger wrote are refused before they take much memory."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import duckdb
import pytest
import xxhash
import zstandard

from dstream.errors import CorruptDataError, InvalidInputError, MediaError
from dstream.format import columns, index_codec, tables
from dstream.units import MIB
from hostile_child import Outcome, read_in_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/status")

MOST_BYTES = 200 * MIB
TRACK = {
    "container": "mp4", "track_id": 0, "codec": "h264", "profile": None, "width": 64,
    "height": 64, "rotation_deg": 0, "mirrored": False, "sar": [1, 1], "pix_fmt": "yuv420p",
    "color_range": 0, "color_space": 2, "color_primaries": 2, "color_trc": 2,
    "time_base": [1, 25], "start_pts": 0, "end_pts": 1, "rate": [25, 1], "frame_count": None,
    "vfr": None, "reorder_depth": 0,
}  # fmt: skip
PACKETS = ("dts", "pts", "size_bytes", "offset_bytes", "duration", "flags")
GOPS = ("first_packet", "key_pts", "offset_bytes", "size_bytes", "payload_bytes")


def column(rows: int) -> dict[str, object]:
    """A column of zeros, for which no bytes are stored."""
    return {"rows": rows, "order": 0, "seeds": [], "width": 0, "fill": 0}


def entry(rows: int, tail_bytes: int = 0, **changes: object) -> bytes:
    """An index entry of two tables that take no bytes, and bytes that nobody needs."""
    document = {
        "track": TRACK, "access": "packets", "size_bytes": 1 << 50, "cost": [0, 0, False],
        "extradata_bytes": 0, "header_bytes": 0, "has_checksums": False,
        "packets": {name: column(rows) for name in PACKETS},
        "gops": {name: column(rows) for name in GOPS},
    } | changes  # fmt: skip
    text = json.dumps(document).encode()
    raw = len(text).to_bytes(4, "little") + text + bytes(tail_bytes)
    frame = zstandard.ZstdCompressor(level=3).compress(raw)
    digest = xxhash.xxh3_64_intdigest(raw)
    return struct.pack("<4sHHQQQ", b"DSIE", 1, 1, len(raw), digest, len(frame)) + frame


def decode_entry(data: bytes) -> Outcome:
    return read_in_child("dstream.format.index_codec:decode_index_entry", data)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (entry(1 << 25), "rows, the limit is"),
        (entry(columns.MAX_ROWS), "rows in an entry of"),
        (entry(1 << 21, size_bytes=1 << 20), "but the video has only 1048576 bytes"),
        (entry(1 << 20, track={}), "'container'"),
        (entry(1 << 20, access="sideways"), "sideways"),
        (entry(1 << 20, has_checksums=True), "ends before its last column"),
        (
            entry(1 << 20, gops={name: column(n) for n, name in enumerate(GOPS)}),
            "differ in length",
        ),
    ],
    ids=["rows", "no-bytes", "small-video", "track", "access", "checksums", "lengths"],
)
def test_an_index_entry_is_refused_before_it_takes_memory(data: bytes, fault: str) -> None:
    outcome = decode_entry(data)
    assert outcome.verdict.startswith("CorruptDataError"), outcome
    assert fault in outcome.verdict
    assert outcome.grown_bytes < 64 * MIB


def test_an_entry_of_padding_is_refused_before_it_is_unpacked() -> None:
    outcome = decode_entry(entry(1, tail_bytes=200 * MIB))
    assert "impossible size" in outcome.verdict
    assert outcome.grown_bytes < 16 * MIB


def test_the_longest_table_that_takes_no_bytes_fits_into_memory() -> None:
    outcome = decode_entry(entry(index_codec.FREE_ROWS))
    assert outcome.verdict == "read"
    assert outcome.grown_bytes < MOST_BYTES


def test_what_would_be_refused_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_codec.decode_index_entry(entry(100))
    monkeypatch.setattr(columns, "MAX_ROWS", 99)
    with pytest.raises(MediaError, match="a table of 100 rows") as caught:
        index_codec.encode_index_entry(index)
    assert str(caught.value.reason) == "index-too-large"


def test_a_root_of_empty_lists_fits_into_memory() -> None:
    where = {"seq": 0}
    most = zstandard.compress(b'{"a":[' + b"[]," * 2_700_000 + b"0]}")
    outcome = read_in_child("dstream.format.root:decode_root", most, **where)
    assert outcome.verdict.startswith("CorruptDataError")
    assert "declares" not in outcome.verdict
    assert outcome.grown_bytes < 1.25 * MOST_BYTES
    more = zstandard.compress(b'{"a":[' + b"[]," * 3_000_000 + b"0]}")
    outcome = read_in_child("dstream.format.root:decode_root", more, **where)
    assert "declares" in outcome.verdict
    assert outcome.grown_bytes < 16 * MIB


def test_a_manifest_of_empty_lists_is_refused_before_it_takes_memory() -> None:
    data = zstandard.compress(b'{"a":[' + b"[]," * 12_000_000 + b"0]}")
    outcome = read_in_child("dstream.format.manifest:decode_manifest", data)
    assert "declares" in outcome.verdict
    assert outcome.grown_bytes < 16 * MIB


@pytest.fixture(scope="module")
def long_table(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sample table of six million equal rows."""
    path = tmp_path_factory.mktemp("hostile") / "samples.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT 'x' AS \"key\", 'g' AS \"group\", 'train' AS split, [0] AS streams, "
            "['v'] AS names, [0::BIGINT] AS start_pts, [10::BIGINT] AS end_pts, []::INT[] AS side, "
            f"[]::VARCHAR[] AS side_suffixes FROM range(6000000)) TO '{path}' (FORMAT parquet, "
            "COMPRESSION zstd, ROW_GROUP_SIZE 100000, KV_METADATA {'dstream.table': 'samples', "
            "'dstream.version': '1', 'dstream.min_reader': '1'})"
        )
    return path.read_bytes()


@pytest.mark.parametrize("function", ["tables:read_table", "compact:read_compact"])
@pytest.mark.parametrize(
    ("rows", "fault"),
    [(2, "6000000 rows, expected 2"), (6_000_000, "limits are"), (None, "limits are")],
)
def test_a_table_of_too_many_rows_is_refused_before_any_is_read(
    long_table: bytes, function: str, rows: int | None, fault: str
) -> None:
    assert len(long_table) < MIB
    columns = ["key", "start_pts"]
    outcome = read_in_child(f"dstream.format.{function}", long_table, columns=columns, rows=rows)
    assert outcome.verdict.startswith("CorruptDataError"), outcome
    assert fault in outcome.verdict
    assert outcome.grown_bytes < 64 * MIB


def test_a_text_that_thousands_of_rows_share_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shared.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT repeat('x', 1000000) AS detail FROM range(3000)) TO '{path}' (FORMAT "
            "parquet, COMPRESSION zstd, KV_METADATA {'dstream.table': 'quarantine', "
            "'dstream.version': '1', 'dstream.min_reader': '1'})"
        )
    assert path.stat().st_size < MIB
    outcome = read_in_child("dstream.format.tables:read_table", path.read_bytes(), rows=3000)
    assert outcome.verdict.startswith("CorruptDataError"), outcome
    assert "hold 3000000000 bytes of text, the limit is" in outcome.verdict
    assert outcome.grown_bytes < 64 * MIB


def test_more_text_than_would_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {name: ["x" * 100] * 3 for name in ("name", "source_uri", "etag", "reason", "detail")}
    monkeypatch.setattr(tables, "MAX_TEXT_BYTES", 1499)
    with pytest.raises(InvalidInputError, match="hold 1500 bytes of text, the limit is 1499"):
        tables.write_table("quarantine", {**row, "size_bytes": [1] * 3})


def test_a_footer_that_understates_its_rows_is_refused() -> None:
    rows = 1000
    text = {name: ["x"] * rows for name in ("name", "source_uri", "etag", "reason", "detail")}
    data = bytearray(tables.write_table("quarantine", {**text, "size_bytes": [1] * rows}))
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    stated = data.index(b"\x16\xd0\x0f", footer)  # thrift: field of 64 bits, zigzag of 1000
    data[stated + 1 : stated + 3] = b"\x84\x00"  # 2, in two bytes
    with pytest.raises(CorruptDataError, match="footer says 2 rows, its row groups 1000"):
        tables.read_table(bytes(data), rows=2)


def test_a_table_that_would_be_refused_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {name: ["x"] * 3 for name in ("name", "source_uri", "etag", "reason", "detail")}
    monkeypatch.setattr(tables, "MAX_TABLE_ROWS", 2)
    with pytest.raises(InvalidInputError, match="3 rows and up to 3 values"):
        tables.write_table("quarantine", {**row, "size_bytes": [1] * 3})
