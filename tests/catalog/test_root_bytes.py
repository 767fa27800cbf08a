from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from catalog_made import empty_root
from dstream.errors import CorruptDataError, FormatVersionError, RefusedError
from dstream.format.catalog_shard import ShardRef, Shards
from dstream.format.entries import Pin
from dstream.format.refs import ObjectRef
from dstream.format.repository import (
    SessionRecord,
    check_format,
    decode_session,
    encode_format,
    encode_session,
)
from dstream.format.root import (
    Artifact,
    Generation,
    Root,
    Tombstone,
    UsedKey,
    check_writable,
    decode_root,
    encode_root,
    encode_tombstone,
    log_key,
    log_seq,
    peek_txn_id,
)


def sample_root() -> Root:
    entry = Generation(
        name="team/clips",
        version=3,
        kind="dataset",
        manifest=ObjectRef("_ds/man/x.m", 12, "a" * 64),
        seq=4,
        session="s",
        base_seq=2,
        created_s=1.5,
        parent=2,
        step=7,
        message="größer",
        idempotency_key="k",
        attrs={"loss": 0.5, "tags": ["a"]},
    )
    return empty_root(
        seq=9,
        prev_sha256="b" * 64,
        ops=({"op": "publish", "name": "team/clips", "version": 3},),
        artifacts={"team/clips": Artifact("dataset", 4, {"k": UsedKey(3, "c" * 64)})},
        entries=(entry,),
        aliases={"team/clips": {"latest": 3}},
        upload_floor=1,
        pins={"p": Pin(3, 4, ("team/clips",), "me", 60.0, 2.0), "q": Pin(3, 3)},
        gone=frozenset({("team/clips", "v:0000000000000000001")}),
        shards=Shards((ShardRef(2, ("a", ""), 3, 40, "d" * 64),)),
    )


def as_doc(root: Root) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        zstandard.ZstdDecompressor().decompress(encode_root(root))
    )
    return document


def pack(document: object) -> bytes:
    return zstandard.ZstdCompressor().compress(json.dumps(document).encode())


def test_round_trip_and_determinism() -> None:
    root = sample_root()
    data = encode_root(root)
    assert decode_root(data, 9) == root
    assert encode_root(replace(root)) == data
    assert peek_txn_id(data, 9) == "t0"


def test_unknown_fields_are_kept_everywhere() -> None:
    document = as_doc(sample_root())
    document["new_root_field"] = {"deep": [1]}
    document["entries"][0]["new_entry_field"] = "x"
    document["artifacts"]["team/clips"]["new_row_field"] = 3
    document["pins"]["p"]["new_pin_field"] = True
    document["v"] = 3
    root = decode_root(pack(document), 9)
    assert isinstance(root, Root)
    assert as_doc(root) == document


def test_newer_reader_needed() -> None:
    document = as_doc(sample_root()) | {"v": 5, "min_reader": 5}
    with pytest.raises(FormatVersionError, match="upgrade dstream"):
        decode_root(pack(document), 9)
    assert peek_txn_id(pack(document), 9) == "t0"


def test_newer_writer_needed() -> None:
    root = decode_root(pack(as_doc(sample_root()) | {"min_writer": 3}), 9)
    assert isinstance(root, Root)
    with pytest.raises(FormatVersionError, match="reading works"):
        check_writable(root)


def test_roots_of_the_first_version_are_read() -> None:
    document = as_doc(empty_root()) | {"v": 1, "min_reader": 1, "min_writer": 1}
    del document["cleared_below"]
    root = decode_root(pack({**document, "superseded": [], "condemned": []}), 0)
    assert isinstance(root, Root)
    check_writable(root)
    assert root == empty_root(v=1, min_reader=1, min_writer=1)


def test_tombstone_keeps_the_transaction() -> None:
    document = {"v": 1, "min_reader": 1, "txn_id": "gone", "tombstone": 1}
    assert decode_root(pack(document), 3) == Tombstone("gone")
    assert decode_root(encode_tombstone("gone"), 3) == Tombstone("gone")
    assert peek_txn_id(pack(document), 3) == "gone"


def test_wrong_number() -> None:
    with pytest.raises(CorruptDataError, match="it says it is root 9"):
        decode_root(encode_root(sample_root()), 8)


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no transaction": lambda d: d.pop("txn_id"),
    "no version": lambda d: d.pop("min_reader"),
    "seq is text": lambda d: d.update(seq="9"),
    "seq is a truth value": lambda d: d.update(seq=True),
    "seq is negative": lambda d: d.update(seq=-1),
    "entries is an object": lambda d: d.update(entries={}),
    "entry is a number": lambda d: d.update(entries=[1]),
    "no manifest": lambda d: d["entries"][0].pop("manifest"),
    "bad hash": lambda d: d["entries"][0]["manifest"].update(sha256="x"),
    "no number": lambda d: d["entries"][0].update(version=None),
    "alias to text": lambda d: d.update(aliases={"a": {"latest": "1"}}),
    "aliases is a list": lambda d: d.update(aliases=[]),
    "row is a number": lambda d: d["artifacts"].update(x=1),
    "op is text": lambda d: d.update(ops=["x"]),
    "pin is a number": lambda d: d.update(pins={"p": 1}),
    "shard without place": lambda d: d["shards"][0].update(first=["x"]),
    "gone is text": lambda d: d.update(gone=["x"]),
}


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_documents(change: Callable[[dict[str, Any]], object]) -> None:
    document = as_doc(sample_root())
    change(document)
    with pytest.raises(CorruptDataError):
        decode_root(pack(document), 9)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_as_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_root(data, 0)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_flipped_bytes_never_crash(position: int, value: int) -> None:
    data = bytearray(encode_root(sample_root()))
    data[position % len(data)] = value
    try:
        decode_root(bytes(data), 9)
    except (CorruptDataError, FormatVersionError):
        return


def test_bombs_are_refused() -> None:
    deep = zstandard.ZstdCompressor().compress(b"[" * 1_000_000)
    wide = zstandard.ZstdCompressor().compress(b" " * (65 << 20))
    for bomb in (deep, wide, b"\0" * (2 << 20)):
        with pytest.raises(CorruptDataError):
            decode_root(bomb, 0)


def test_root_has_a_cap_with_a_clear_error() -> None:
    rng = random.Random(1)
    entry = sample_root().entries[0]
    entries = tuple(
        replace(entry, version=n, manifest=ObjectRef("k", 1, f"{rng.getrandbits(256):064x}"))
        for n in range(40_000)
    )
    with pytest.raises(RefusedError, match=r"limit is 1.05 MB \(40000 generations\)"):
        encode_root(replace(sample_root(), entries=entries))


def test_a_root_whose_text_could_not_be_read_back_is_not_written() -> None:
    entry = replace(sample_root().entries[0], message="like all others " * 600)
    entries = tuple(replace(entry, version=n) for n in range(1_000))
    with pytest.raises(RefusedError, match=r"of text, the limit is 8.39 MB \(1000 generations\)"):
        encode_root(replace(sample_root(), entries=entries))


def test_log_keys_sort_newest_first() -> None:
    keys = [log_key(seq) for seq in (0, 1, 9, 10, 99_999, 2**63)]
    assert keys == sorted(keys, reverse=True)
    assert [log_seq(key) for key in keys] == [0, 1, 9, 10, 99_999, 2**63]
    for foreign in ("_ds/log/1.r", "_ds/log/" + "9" * 20 + ".r", log_key(1) + "x"):
        assert log_seq(foreign) is None


def test_format_file() -> None:
    check_format(encode_format("dstream"))
    with pytest.raises(FormatVersionError):
        check_format(json.dumps({"v": 3, "min_reader": 3}).encode())
    for junk in (b"", b"{", b"[]", b"{}", b"x" * 100_000, b"[" * 50_000):
        with pytest.raises(CorruptDataError):
            check_format(junk)


def test_session_record() -> None:
    record = SessionRecord("s", 4)
    assert decode_session(encode_session(record), "x") == record
    with pytest.raises(CorruptDataError):
        decode_session(b'{"v": 1, "min_reader": 1}', "x")
