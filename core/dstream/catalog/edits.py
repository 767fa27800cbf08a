"""Changes to a root's records, that later changes of the same record replace. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dstream.format.catalog_shard import Place, version_slot
from dstream.format.entries import Generation, Json
from dstream.format.root import Root


def with_op(root: Root, done: Json) -> Root:
    """Tell in the log what was done."""
    return replace(root, ops=(*root.ops, done))


def with_row(root: Root, name: str) -> Root:
    """Have the row of a known name in the root itself, so that it can be changed."""
    if name in root.artifacts:
        return root
    row = root.row(name)
    if row is None:
        return root
    return replace(
        root,
        artifacts={**root.artifacts, name: row.artifact},
        aliases={**root.aliases, name: row.aliases} if row.aliases else root.aliases,
    )


def with_aliases(root: Root, name: str, aliases: Mapping[str, int]) -> Root:
    """Set all aliases of a name whose row exists."""
    root = with_row(root, name)
    rest = {other: row for other, row in root.aliases.items() if other != name}
    return replace(root, aliases={**rest, name: dict(aliases)} if aliases else rest)


def with_alias(root: Root, name: str, alias: str, version: int) -> Root:
    """Point one alias at a version."""
    return with_aliases(root, name, {**root.aliases_of(name), alias: version})


def with_entries(root: Root, changed: Iterable[Generation]) -> Root:
    """Set records of generations, new or not."""
    places = {(entry.name, entry.version): entry for entry in changed}
    kept = tuple(e for e in root.entries if (e.name, e.version) not in places)
    return replace(root, entries=(*kept, *places.values()))


def without(root: Root, generations: Iterable[Generation], keys: Iterable[Place] = ()) -> Root:
    """Forget records of generations, and idempotency keys by their places."""
    labels = {(entry.name, entry.version) for entry in generations}
    places = {(name, version_slot(version)) for name, version in labels} | set(keys)
    if not places:
        return root
    slots = {(name, slot.removeprefix("k:")) for name, slot in keys}
    artifacts = {
        name: replace(
            row, keys={key: used for key, used in row.keys.items() if (name, key) not in slots}
        )
        for name, row in root.artifacts.items()
    }
    return replace(
        root,
        artifacts=artifacts if slots else root.artifacts,
        entries=tuple(e for e in root.entries if (e.name, e.version) not in labels),
        gone=root.gone | places if root.shards.refs else root.gone,
    )
