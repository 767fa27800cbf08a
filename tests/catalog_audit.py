"""Checks a repository by the objects in its store alone, without the catalog's own reading."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import zstandard

from dstream.measure import Purpose
from dstream.store.base import Store


@dataclass(frozen=True)
class Audit:
    """What the log says, oldest commit first."""

    roots: list[dict[str, Any]]

    @property
    def head(self) -> dict[str, Any]:
        return self.roots[-1]

    def published(self) -> list[tuple[str, int, int]]:
        """(name, version, seq) of every publish in the order of the log."""
        return [
            (op["name"], op["version"], root["seq"])
            for root in self.roots
            for op in root["ops"]
            if op["op"] == "publish"
        ]

    def live(self) -> dict[tuple[str, int], dict[str, Any]]:
        return {(entry["name"], entry["version"]): entry for entry in self.head["entries"]}


def audit(store: Store) -> Audit:
    """Read the whole log raw and check what must always hold of it."""
    found = {}
    for info in store.list("_ds/log/", purpose=Purpose.OTHER):
        stem = info.key.removeprefix("_ds/log/").removesuffix(".r")
        found[2**64 - 1 - int(stem)] = store.get(info.key).data
    assert sorted(found) == list(range(len(found))), "the log has gaps"
    roots: list[dict[str, Any]] = []
    previous = ""
    for seq in range(len(found)):
        root = json.loads(zstandard.ZstdDecompressor().decompress(found[seq]))
        assert root["seq"] == seq
        assert root["prev_sha256"] == previous, f"root {seq} does not chain"
        previous = hashlib.sha256(found[seq]).hexdigest()
        roots.append(root)
    assert len({root["txn_id"] for root in roots}) == len(roots)
    report = Audit(roots)
    _check_state(store, report)
    return report


def _check_state(store: Store, report: Audit) -> None:
    published = report.published()
    names_and_versions = [(name, version) for name, version, _ in published]
    assert len(set(names_and_versions)) == len(published), "a number was given twice"
    # No retirement yet: whatever was ever published is live, and nothing else is.
    assert set(report.live()) == set(names_and_versions)
    for name, row in report.head["artifacts"].items():
        versions = [version for n, version, _ in published if n == name]
        assert versions == list(range(1, row["next_version"]))
    for name, row in report.head["aliases"].items():
        assert all((name, version) in report.live() for version in row.values())
    for entry in report.head["entries"]:
        data = store.get(entry["manifest"]["key"]).data
        assert hashlib.sha256(data).hexdigest() == entry["manifest"]["sha256"]
        assert len(data) == entry["manifest"]["size"]
    for earlier, later in zip(report.roots, report.roots[1:], strict=False):
        lost = {_id(e) for e in earlier["entries"]} - {_id(e) for e in later["entries"]}
        assert not lost, f"root {later['seq']} lost {lost}"


def _id(entry: dict[str, Any]) -> tuple[str, int, str]:
    return entry["name"], entry["version"], entry["manifest"]["key"]
