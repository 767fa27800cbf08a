from __future__ import annotations

import dataclasses

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dstream.errors import ConflictError, CorruptDataError, FormatVersionError, RefusedError
from dstream.format import manifest as m


def table(name: str, rows: int = 3) -> m.TableRef:
    return m.TableRef(f"data/0/s/{name}.parquet", 100, "ab" * 32, rows)


def manifest(source: str = "s3://raw/a", *, recipe: str = "video", samples: int = 3) -> m.Manifest:
    part = m.Part(
        table("files"),
        table("streams"),
        table("samples", samples),
        None,
        "packed",
        0,
        m.ObjectCount(1, 10),
        m.ObjectCount(2, 20),
    )
    totals = m.Totals(3, 300, samples, 3, 12.5, 1)
    return m.Manifest(m.RecipeRef(recipe, {"x": 1}), (source,), (part,), totals, "dstream 0.1")


def test_a_manifest_comes_back_and_is_deterministic() -> None:
    one = manifest()
    data = m.encode_manifest(one)
    assert m.decode_manifest(data) == one
    assert m.encode_manifest(m.decode_manifest(data)) == data


def test_an_append_keeps_parts_and_moves_only_sources() -> None:
    base, new = manifest("s3://raw/a"), manifest("file:///b", samples=4)
    merged = m.merge_manifests(base, new)
    assert merged.sources == ("s3://raw/a", "file:///b")
    assert merged.parts[0] == base.parts[0]
    assert merged.parts[1] == dataclasses.replace(new.parts[0], source=1)
    assert merged.totals == m.Totals(6, 600, 7, 6, 25.0, 2)
    assert merged.source_url(merged.parts[1], 0) == "file:///b"
    assert merged.source_url(merged.parts[1], -1) is None
    assert m.merge_manifests(merged, manifest("s3://raw/a")).sources == merged.sources
    assert m.merge_manifests(None, new) == new


def test_another_recipe_cannot_append() -> None:
    with pytest.raises(ConflictError, match="gameplay"):
        m.merge_manifests(manifest(), manifest(recipe="gameplay"))


@given(st.binary(max_size=200))
def test_foreign_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        m.decode_manifest(data)


@pytest.mark.parametrize(
    "text", [b"[]", b"{}", b'{"min_reader": 1}', b'{"min_reader": "x"}', b"{" * 5000]
)
def test_other_json_is_damage(text: bytes) -> None:
    with pytest.raises(CorruptDataError):
        m.decode_manifest(zstandard.compress(text))


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(CorruptDataError, match="declares"):
        m.decode_manifest(zstandard.compress(bytes(m.MAX_MANIFEST_BYTES + 1)))


def test_what_could_not_be_read_back_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = len(zstandard.decompress(m.encode_manifest(manifest())))
    monkeypatch.setattr(m, "MAX_MANIFEST_BYTES", size_bytes - 1)
    with pytest.raises(RefusedError, match="manifest: its text would take"):
        m.encode_manifest(manifest())


def test_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "MIN_READER", 5)
    data = m.encode_manifest(manifest())
    with pytest.raises(FormatVersionError, match="5"):
        m.decode_manifest(data)


def test_impossible_values_are_damage() -> None:
    data = m.encode_manifest(dataclasses.replace(manifest(), sources=()))
    with pytest.raises(CorruptDataError, match="source"):
        m.decode_manifest(data)
    part = dataclasses.replace(manifest().parts[0], files=table("files", rows=-1))
    with pytest.raises(CorruptDataError, match="negative"):
        m.decode_manifest(m.encode_manifest(dataclasses.replace(manifest(), parts=(part,))))
