"""Pins as people see them: their tokens, and the bytes that each alone keeps alive."""

from __future__ import annotations

from dataclasses import dataclass

from dstream.catalog.contents import Contents
from dstream.errors import CorruptDataError, NotFoundError
from dstream.format.entries import Pin
from dstream.format.root import Generation, Root
from dstream.measure import Purpose
from dstream.store.base import Store


@dataclass(frozen=True, slots=True)
class Pinned:
    """One pin."""

    pin_id: str
    token: str
    """Opens the pinned listing anywhere; see :meth:`Catalog.open_at`."""
    pin: Pin
    generations: tuple[str, ...] = ()
    """Those that only this pin keeps alive."""
    bytes_alone: int | None = None
    """What they keep stored that nothing else does; None where it was not asked."""


def kept_alone(root: Root, pin_id: str) -> list[Generation]:
    """Generations that would be condemned next if this pin were given up."""
    pin = root.pins[pin_id]
    others = [other for name, other in root.pins.items() if name != pin_id]
    return [
        g
        for g in root.all_records()
        if not g.is_live
        and g.condemned_seq is None
        and pin.covers(g)
        and not any(other.covers(g) for other in others)
    ]


def bytes_of(store: Store, contents: Contents, root: Root, alone: list[Generation]) -> int:
    """Stored bytes of generations that no other generation shares.

    Reads the manifests of all generations, and only where ``alone`` is not empty.
    """
    if not alone:
        return 0
    labels = {g.label for g in alone}
    shared: set[str] = set()
    for generation in root.all_records():
        if generation.label not in labels:
            shared |= _keys(contents, generation)
    sizes = {g.manifest.key: g.manifest.size_bytes for g in alone}
    for generation in alone:
        known = {ref.key: ref.size_bytes for ref in contents.named(generation)}
        for key in contents.keys(generation) - shared:
            sizes[key] = known.get(key) or store.head(key, purpose=Purpose.OTHER).size_bytes
    return sum(sizes.values())


def _keys(contents: Contents, generation: Generation) -> set[str]:
    try:
        return contents.keys(generation)
    except (NotFoundError, CorruptDataError):
        return set()
