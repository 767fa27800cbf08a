from __future__ import annotations

import string

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dstream.errors import CorruptDataError, FormatVersionError, InvalidInputError
from dstream.format.checkpoint import (
    CheckpointFile,
    CheckpointManifest,
    decode_checkpoint,
    encode_checkpoint,
)
from dstream.format.manifest import Manifest, Part, RecipeRef, TableRef, Totals
from dstream.format.paths import MARKER_NAME, path_clash, path_fault
from dstream.format.references import decode_any_manifest, referenced_objects, table_keys
from dstream.format.refs import ObjectRef
from dstream.format.zjson import encode_document

SHA = "0" * 64


def file(path: str, key: str = "data/k", mode: int = 0o644) -> CheckpointFile:
    return CheckpointFile(path, ObjectRef(key, 3, SHA), mode)


def stored(**changes: object) -> bytes:
    """A manifest as somebody else may have written it."""
    document: dict[str, object] = {
        "version": 1,
        "min_reader": 1,
        "kind": "checkpoint",
        "tool": "hostile",
        "files": [{"path": "a", "key": "data/k", "size": 3, "sha256": SHA, "mode": 0o644}],
    }
    return encode_document(document | changes)


def with_paths(*paths: str) -> bytes:
    files = [{"path": p, "key": "k", "size": 1, "sha256": SHA, "mode": 0o600} for p in paths]
    return stored(files=files)


def test_a_manifest_comes_back_sorted_and_whole() -> None:
    given = CheckpointManifest(
        (file("b/weights"), file("a", mode=0o755)), "test", {"epoch": 3, "position": [1, 2]}
    )
    found = decode_checkpoint(encode_checkpoint(given))
    assert [f.path for f in found.files] == ["a", "b/weights"]
    assert found.files[0].mode == 0o755
    assert found.loader_state == {"epoch": 3, "position": [1, 2]}
    assert found.size_bytes == 6
    assert found.file("a") == file("a", mode=0o755)
    assert found.file("none") is None
    assert encode_checkpoint(found) == encode_checkpoint(given)


def test_no_loader_state_is_none_and_not_empty() -> None:
    assert decode_checkpoint(encode_checkpoint(CheckpointManifest((), "t"))).loader_state is None
    empty = CheckpointManifest((), "t", {})
    assert decode_checkpoint(encode_checkpoint(empty)).loader_state == {}


HOSTILE = [
    "../x", "a/../../x", "/etc/passwd", "", ".", "a//b", "a/", "a\0b", "a\nb", "a\x1b[2J",
    "x" * 256, "/".join(["d" * 200] * 6), "a/\u2028b", MARKER_NAME,
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_paths_are_refused_by_name(path: str) -> None:
    with pytest.raises(CorruptDataError, match="unusable path") as caught:
        decode_checkpoint(with_paths("good", path))
    assert caught.value.facts["path"] == path
    with pytest.raises(InvalidInputError, match="unusable path"):
        encode_checkpoint(CheckpointManifest((file(path),), "t"))


@pytest.mark.parametrize(
    "paths",
    [("a", "a"), ("a/b", "a"), ("a", "a/b/c"), ("A", "a"), ("é", "e\u0301"), ("x/A", "x/a"),
     ("D", "d/x"), ("straße", "STRASSE")],
)  # fmt: skip
def test_paths_that_clash_are_refused_by_name(paths: tuple[str, str]) -> None:
    with pytest.raises(CorruptDataError, match="cannot both be written") as caught:
        decode_checkpoint(with_paths(*paths))
    assert {caught.value.facts["path"], caught.value.facts["clashes_with"]} == set(paths)


@pytest.mark.parametrize("key", ["", "../k", "/k", "a\0", "a//b"])
def test_hostile_keys_are_refused(key: str) -> None:
    files = [{"path": "a", "key": key, "size": 1, "sha256": SHA, "mode": 0o600}]
    with pytest.raises(CorruptDataError, match="'a'"):
        decode_checkpoint(stored(files=files))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "dataset"},
        {"files": {}},
        {"files": ["a"]},
        {"files": [{"path": 1}]},
        {"files": [{"path": "a", "key": "k", "size": -1, "sha256": SHA, "mode": 0}]},
        {"files": [{"path": "a", "key": "k", "size": 1, "sha256": "zz", "mode": 0}]},
        {"files": [{"path": "a", "key": "k", "size": 1, "sha256": SHA, "mode": "x"}]},
        {"loader_state": [1]},
        {"tool": None},
    ],
)
def test_damage_is_called_so(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError):
        decode_checkpoint(stored(**changes))


def test_set_user_id_is_never_restored() -> None:
    files = [{"path": "a", "key": "k", "size": 1, "sha256": SHA, "mode": 0o4777}]
    assert decode_checkpoint(stored(files=files)).files[0].mode == 0o777


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(FormatVersionError):
        decode_checkpoint(stored(version=9, min_reader=9))
    assert decode_checkpoint(stored(version=9, later="x")).files[0].path == "a"


def test_gigabytes_of_zeros_are_refused_before_they_are_unpacked() -> None:
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=1 << 30)
    data = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(1024)) + compressor.flush()
    assert len(data) < 1 << 20
    with pytest.raises(CorruptDataError, match="declares"):
        decode_checkpoint(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_checkpoint(data)


names = st.text(string.ascii_letters + "éß./", min_size=1, max_size=8)


@given(st.lists(names, max_size=6))
def test_what_is_accepted_can_be_written(paths: list[str]) -> None:
    good = [path for path in paths if path_fault(path) is None]
    clash = path_clash(good)
    made = CheckpointManifest(tuple(file(path) for path in good), "t")
    if clash is None:
        assert {f.path for f in decode_checkpoint(encode_checkpoint(made)).files} == set(good)
    else:
        assert set(clash) <= set(good)


def test_the_objects_of_a_checkpoint_are_listed_once() -> None:
    made = CheckpointManifest((file("a", "k1"), file("b", "k1"), file("c", "k2")), "t")
    assert [r.key for r in referenced_objects(made)] == ["k1", "k2"]
    again = decode_any_manifest("checkpoint", encode_checkpoint(made))
    assert referenced_objects(again) == referenced_objects(made)


def test_the_objects_of_a_dataset_are_its_tables_and_what_they_name() -> None:
    def table(key: str) -> TableRef:
        return TableRef(key, 5, SHA, 1)

    part = Part(table("f"), table("t"), table("s"), None, "packed", 0)
    made = Manifest(RecipeRef("video"), ("s3://raw",), (part,), Totals(), "test")
    assert [r.key for r in referenced_objects(made)] == ["f", "t", "s"]
    keys = table_keys(
        {"object": ["shard", "video.mp4"], "store": [-1, 0]}, {"index_object": ["i", "i"]}
    )
    assert keys == {"shard", "i"}
