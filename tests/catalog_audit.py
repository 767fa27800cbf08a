"""Checks a repository by the objects in its store alone, without the catalog's own reading."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import zstandard

from dstream.errors import CorruptDataError, NotFoundError
from dstream.format.references import decode_any_manifest, referenced_objects
from dstream.measure import Purpose
from dstream.store.base import Store

Document = dict[str, Any]
Label = tuple[str, int]


@dataclass
class State:
    """The whole catalog after one commit: the root and its shards, put together."""

    seq: int
    cleared: bool = False
    document: Document = field(default_factory=dict)
    records: dict[Label, Document] = field(default_factory=dict)
    artifacts: dict[str, Document] = field(default_factory=dict)
    aliases: dict[str, dict[str, int]] = field(default_factory=dict)

    def live(self) -> dict[Label, Document]:
        return {k: e for k, e in self.records.items() if "retired_seq" not in e}

    def condemned(self) -> set[Label]:
        return {k for k, e in self.records.items() if "condemned_seq" in e}


@dataclass(frozen=True)
class Audit:
    """What the log says, oldest commit first."""

    roots: list[Document]
    states: list[State]

    @property
    def head(self) -> Document:
        """The newest root with the rows of its shards."""
        state = self.states[-1]
        return {**self.roots[-1], "artifacts": state.artifacts, "aliases": state.aliases}

    def published(self) -> list[tuple[str, int, int]]:
        """(name, version, seq) of every publish in the order of the log."""
        return [
            (op["name"], op["version"], root["seq"])
            for root in self.roots
            for op in root.get("ops", ())
            if op["op"] == "publish"
        ]

    def live(self) -> dict[Label, Document]:
        return self.states[-1].live()


def audit(store: Store) -> Audit:
    """Read the whole log raw and check what must always hold of it."""
    found = {}
    for info in store.list("_ds/log/", purpose=Purpose.OTHER):
        stem = info.key.removeprefix("_ds/log/").removesuffix(".r")
        found[2**64 - 1 - int(stem)] = store.get(info.key).data
    assert sorted(found) == list(range(len(found))), "the log has gaps"
    shards: dict[str, list[list[Any]]] = {}
    roots: list[Document] = []
    states: list[State] = []
    previous = ""
    needed = {len(found) - 1} | {
        pin["seq"] for pin in _unpack(found[len(found) - 1])["pins"].values()
    }
    for seq in range(len(found)):
        root = _unpack(found[seq])
        roots.append({"seq": seq, **root})
        if root.get("tombstone"):
            assert seq not in needed, f"root {seq} is pinned or newest, and cleared"
            states.append(State(seq, cleared=True))
            previous = ""
            continue
        assert root["seq"] == seq
        assert not previous or root["prev_sha256"] == previous, f"root {seq} does not chain"
        previous = hashlib.sha256(found[seq]).hexdigest()
        try:
            states.append(_state(store, root, shards))
        except NotFoundError:
            assert seq not in needed, f"root {seq} is pinned or newest, and a shard is gone"
            states.append(State(seq, cleared=True))
    assert len({root["txn_id"] for root in roots}) == len(roots)
    report = Audit(roots, states)
    _check_state(store, report)
    _check_history(report)
    _check_pins(store, report)
    return report


def _unpack(data: bytes) -> Document:
    document: Document = json.loads(zstandard.ZstdDecompressor().decompress(data))
    return document


def _state(store: Store, root: Document, shards: dict[str, list[list[Any]]]) -> State:
    state = State(root["seq"], document=root)
    gone = {tuple(place) for place in root.get("gone", ())}
    for ref in root["shards"]:
        key = f"_ds/cat/{ref['seq']:016d}-{ref['sha256']}.c"
        if key not in shards:
            data = store.get(key).data
            assert hashlib.sha256(data).hexdigest() == ref["sha256"]
            shards[key] = _unpack(data)["records"]
        for name, slot, document in shards[key]:
            if (name, slot) in gone:
                continue
            if slot == "":
                state.artifacts[name] = document
                state.aliases[name] = document["aliases"]
            elif slot.startswith("v:"):
                state.records[name, document["version"]] = document
    state.artifacts |= root["artifacts"]
    for name in root["artifacts"]:
        state.aliases[name] = root["aliases"].get(name, {})
    state.aliases = {name: row for name, row in state.aliases.items() if row}
    state.records |= {(entry["name"], entry["version"]): entry for entry in root["entries"]}
    return state


def _check_state(store: Store, report: Audit) -> None:
    published = report.published()
    labels = [(name, version) for name, version, _ in published]
    assert len(set(labels)) == len(published), "a number was given twice"
    state = report.states[-1]
    cleared = any(s.cleared for s in report.states)
    if not cleared:
        assert set(state.records) <= set(labels)
        for name, row in state.artifacts.items():
            versions = [version for n, version, _ in published if n == name]
            assert versions == list(range(1, row["next_version"]))
    for name, row in state.aliases.items():
        assert all((name, version) in report.live() for version in row.values())
    for entry in report.live().values():
        check_whole(store, entry)


def check_whole(store: Store, entry: Document) -> None:
    """Manifest and all objects that it names are there with the right bytes."""
    label = f"{entry['name']}@v{entry['version']}"
    try:
        data = store.get(entry["manifest"]["key"]).data
    except NotFoundError as error:
        raise AssertionError(f"the manifest of {label} is gone") from error
    assert hashlib.sha256(data).hexdigest() == entry["manifest"]["sha256"]
    assert len(data) == entry["manifest"]["size"]
    try:
        manifest = decode_any_manifest(entry["kind"], data)
    except CorruptDataError:
        return  # tests of the log alone publish any bytes
    for ref in referenced_objects(manifest):
        if not ref.key.startswith("data/"):
            continue  # made up by tests of the log alone
        try:
            stored = store.get(ref.key).data
        except NotFoundError as error:
            raise AssertionError(f"{ref.key} of {label} is gone") from error
        assert hashlib.sha256(stored).hexdigest() == ref.sha256, f"{ref.key} of {label} changed"


def _check_history(report: Audit) -> None:
    """Nothing goes without having been condemned first, and nothing condemned comes back."""
    for earlier, later in zip(report.states, report.states[1:], strict=False):
        if earlier.cleared or later.cleared:
            continue
        lost = set(earlier.records) - set(later.records) - earlier.condemned()
        assert not lost, f"root {later.seq} lost {lost}"
        revived = earlier.condemned() & set(later.live())
        assert not revived, f"root {later.seq} revived {revived}"
        for label in set(earlier.records) & set(later.records):
            assert earlier.records[label]["manifest"] == later.records[label]["manifest"]


def _check_pins(store: Store, report: Audit) -> None:
    for pin_id, pin in report.roots[-1]["pins"].items():
        state = report.states[pin["seq"]]
        assert not state.cleared, f"the root of pin {pin_id} is cleared"
        for (name, _), entry in state.live().items():
            if name in pin.get("names", [name]):
                check_whole(store, entry)
