from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog_audit import audit
from catalog_made import create_catalog, empty_root, open_catalog, ref
from dstream.catalog import Catalog, compaction
from dstream.catalog.compaction import compact, tail_size
from dstream.catalog.edits import with_entries, without
from dstream.catalog.shards import ShardObjects
from dstream.errors import CorruptDataError, NotFoundError
from dstream.format.catalog_shard import ShardRef, Shards, decode_shard, encode_shard
from dstream.format.root import Artifact, Generation, Root, UsedKey, sha256_hex
from dstream.store.memory import MemoryStore

NAMES = ("a", "a/b", "b", "a-b")


def generation(name: str, version: int, seq: int = 1) -> Generation:
    return Generation(name, version, "checkpoint", ref(f"m{seq}"), seq, "s", 0, 1.0)


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setattr("dstream.catalog.commit.MAX_TAIL", 2)
    monkeypatch.setattr(compaction, "MAX_TAIL", 2)
    made = create_catalog(MemoryStore(), "creator")
    session = made.begin_session()
    for number in range(20):
        made.publish(session, NAMES[number % 4], "checkpoint", b"%d" % number)
    return made


def test_everything_is_found_through_shards(catalog: Catalog) -> None:
    reader = open_catalog(catalog.store, "reader")
    root = reader.head()
    assert root.shards.refs
    assert reader.names() == sorted(NAMES)
    for name in NAMES:
        assert [g.version for g in reader.generations(name)] == [1, 2, 3, 4, 5]
        assert reader.resolve(f"{name}@newest").version == 5
        assert reader.aliases(name) == {"latest": 5}
        assert root.record(name, 6) is None
    assert root.row("none") is None
    assert len(audit(catalog.store).live()) == 20


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("put", "put", "put", "drop", "compact", "compact-all")),
            st.sampled_from(NAMES),
            st.integers(1, 6),
        ),
        max_size=40,
    )
)
@settings(max_examples=60)
def test_a_root_and_its_shards_are_one_table(steps: list[tuple[str, str, int]]) -> None:
    """Against a dictionary: whatever is put, dropped and moved into shards in between."""
    objects = ShardObjects(MemoryStore())
    root = empty_root(shards=Shards((), objects.load))
    expected: dict[tuple[str, int], Generation] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "MAX_TAIL", 4)
        patch.setattr(compaction, "SHARD_TEXT_BYTES", 700)
        for seq, (what, name, version) in enumerate(steps):
            if what == "put":
                entry = generation(name, version, seq)
                root, expected[name, version] = with_entries(root, [entry]), entry
                row = Artifact("checkpoint", seq + 1, {f"k{seq}": UsedKey(version, "c" * 64, seq)})
                root = replace(
                    root,
                    artifacts={**root.artifacts, name: row},
                    aliases={**root.aliases, name: {"latest": version}},
                )
            elif what == "drop":
                root = without(root, [generation(name, version)], [(name, f"k:k{seq - 1}")])
                expected.pop((name, version), None)
            else:
                root = compact(root, seq, objects.write, whole=what == "compact-all")
                assert what == "compact" or tail_size(root) == 0
            check_table(root, expected)


def check_table(root: Root, expected: dict[tuple[str, int], Generation]) -> None:
    assert {(g.name, g.version): g for g in root.all_records()} == expected
    for name in NAMES:
        versions = sorted(v for n, v in expected if n == name)
        assert [g.version for g in root.generations(name)] == versions
        newest = root.newest(name)
        assert (newest.version if newest else None) == max(versions, default=None)
        for version in range(1, 7):
            assert root.record(name, version) == expected.get((name, version))
    firsts = [ref.first for ref in root.shards.refs]
    assert firsts == sorted(firsts)


def test_keys_move_into_shards_and_are_still_known(catalog: Catalog) -> None:
    objects = ShardObjects(MemoryStore())
    row = Artifact("checkpoint", 2, {"job": UsedKey(1, "c" * 64, 7)})
    root = empty_root(artifacts={"a": row}, shards=Shards((), objects.load))
    moved = compact(root, 1, objects.write, whole=True)
    assert moved.artifacts == {}
    assert moved.used_key("a", "job") == UsedKey(1, "c" * 64, 7)
    assert moved.used_key("a", "other") is None
    found = moved.row("a")
    assert found is not None
    assert found.artifact == Artifact("checkpoint", 2)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-1],
    "other bytes": lambda data: encode_shard([(("z", ""), {})]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_shard_is_named(catalog: Catalog, damage: Callable[[bytes], bytes]) -> None:
    ref_ = catalog.head().shards.refs[0]
    catalog.store.put(ref_.key, damage(catalog.store.get(ref_.key).data))
    reader = open_catalog(catalog.store, "reader")
    with pytest.raises(CorruptDataError, match=ref_.key[:20]):
        reader.resolve(f"{ref_.first[0]}@v1")
    assert not reader.verify().is_whole


def test_a_missing_shard_is_named(catalog: Catalog) -> None:
    ref_ = catalog.head().shards.refs[0]
    catalog.store.delete_many([(ref_.key, None)])
    with pytest.raises(NotFoundError, match="open the repository again"):
        open_catalog(catalog.store, "reader").resolve(f"{ref_.first[0]}@v1")


@pytest.mark.parametrize(
    "records", [[], [1], [["a"]], [["a", "", 1]], [["b", "", {}]], [["a", "", {}], ["b", "", {}]]]
)
def test_what_is_no_such_shard(records: list[object]) -> None:
    import json

    text = json.dumps({"v": 1, "min_reader": 1, "records": records})
    data = zstandard.ZstdCompressor().compress(text.encode())
    with pytest.raises(CorruptDataError):
        decode_shard(data, ShardRef(1, ("a", ""), 1, len(data), sha256_hex(data)))
