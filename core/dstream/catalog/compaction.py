"""Moving records from a root that has grown into catalog shards.

The root keeps what changed lately. When that is more than :data:`MAX_TAIL` records, the shards
with most changes are written anew until half of it is left. Choosing and merging are pure.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dstream.format.catalog_shard import (
    ROW,
    Place,
    Record,
    ShardRef,
    key_slot,
    version_slot,
)
from dstream.format.entries import artifact_doc, generation_doc, used_key_doc
from dstream.format.root import Root
from dstream.units import KIB

MAX_TAIL = 256
"""Most changed records that a root keeps to itself."""

MAX_INLINE_BYTES = 128 * KIB
"""Size of a stored root, its list of shards left out, from which on it is emptied anyway."""

SHARD_TEXT_BYTES = 384 * KIB
"""Text of a shard from which on the next begins: 1,400 generations, at least 60 kB stored."""

_REF_BYTES = 120

Write = Callable[[int, Sequence[Record]], ShardRef]


def tail_size(root: Root) -> int:
    """How many records a root keeps to itself; names' rows beside their generations are free."""
    keys = sum(len(row.keys) for row in root.artifacts.values())
    return max(len(root.entries), len(root.artifacts)) + len(root.gone) + keys


def is_large(root: Root, stored_bytes: int) -> bool:
    """Whether a root should be emptied because of its size."""
    limit = MAX_INLINE_BYTES + _REF_BYTES * len(root.shards.refs)
    return stored_bytes > limit and tail_size(root) > 16


def compact(root: Root, seq: int, write: Write, *, whole: bool = False) -> Root:
    """The same catalog with fewer records in the root itself.

    Args:
        root: what root ``seq`` is to say.
        seq: the log number that it will try for; part of the shards' keys.
        write: stores one shard.
        whole: move everything, not only until half of ``MAX_TAIL`` is left.
    """
    changes = _changes(root)
    groups: dict[int, dict[Place, dict[str, object] | None]] = defaultdict(dict)
    for place, document in changes.items():
        groups[root.shards.covering(place) if root.shards.refs else 0][place] = document
    chosen: dict[int, dict[Place, dict[str, object] | None]] = {}
    left = len(changes)
    for number in sorted(groups, key=lambda n: len(groups[n]), reverse=True):
        if left <= MAX_TAIL // 2 and not whole:
            break
        chosen[number] = groups[number]
        left -= len(groups[number])
    refs: list[ShardRef] = []
    at = 0
    for start, stop in _runs(sorted(chosen)):
        refs += root.shards.refs[at:start]
        old = [r for ref in root.shards.refs[start:stop] for r in root.shards.load(ref).records()]
        merged = {n: d for number in range(start, stop) for n, d in chosen[number].items()}
        refs += [write(seq, piece) for piece in _pieces(_merged(old, merged))]
        at = stop
    refs += root.shards.refs[at:]
    moved = {place for group in chosen.values() for place in group}
    return _without_moved(replace(root, shards=replace(root.shards, refs=tuple(refs))), moved)


def _changes(root: Root) -> dict[Place, dict[str, object] | None]:
    """Every record of the root itself; None for one that is gone."""
    found: dict[Place, dict[str, object] | None] = dict.fromkeys(root.gone)
    for name, row in root.artifacts.items():
        document = artifact_doc(replace(row, keys={}))
        found[name, ROW] = {**document, "aliases": dict(root.aliases.get(name, {}))}
        for key, used in row.keys.items():
            found[name, key_slot(key)] = used_key_doc(used)
    for entry in root.entries:
        found[entry.name, version_slot(entry.version)] = generation_doc(entry)
    return found


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring numbers as half-open ranges.

    >>> list(_runs([0, 1, 4]))
    [(0, 2), (4, 5)]
    """
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], numbers[i - 1] + 1
            start = i


def _merged(old: Sequence[Record], changed: dict[Place, dict[str, object] | None]) -> list[Record]:
    records = {**dict(old), **changed}
    return [(p, document) for p, document in sorted(records.items()) if document is not None]


def _pieces(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    start, size_bytes = 0, 0
    for at, (place, document) in enumerate(records):
        size_bytes += len(json.dumps(document)) + len(place[0]) + len(place[1])
        if size_bytes >= SHARD_TEXT_BYTES:
            yield records[start : at + 1]
            start, size_bytes = at + 1, 0
    if start < len(records):
        yield records[start:]


def _without_moved(root: Root, moved: set[Place]) -> Root:
    artifacts = {}
    for name, row in root.artifacts.items():
        keys = {key: used for key, used in row.keys.items() if (name, key_slot(key)) not in moved}
        if keys or (name, ROW) not in moved:
            artifacts[name] = replace(row, keys=keys)
    return replace(
        root,
        artifacts=artifacts,
        aliases={name: row for name, row in root.aliases.items() if name in artifacts},
        entries=tuple(e for e in root.entries if (e.name, version_slot(e.version)) not in moved),
        gone=root.gone - moved,
    )
