"""Ops on pins. Pure; see :mod:`dstream.catalog.transitions`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dstream.catalog.edits import with_op
from dstream.catalog.names import check_name
from dstream.errors import ConflictError, InvalidInputError, NotFoundError
from dstream.format.entries import Pin
from dstream.format.root import Root

MAX_PINS = 2_000
"""Pins live in the root, which every commit writes: one a run, not one a process."""

_PIN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class PinRoot:
    """Keep what a root lists."""

    pin_id: str
    names: tuple[str, ...] | None = None
    """Only these artifacts; None: all."""
    owner: str = ""
    ttl_s: float | None = None
    seq: int | None = None
    """An earlier root; None: the one that this commit writes."""


@dataclass(frozen=True, slots=True)
class RenewPin:
    """Let a pin's time begin anew."""

    pin_id: str
    ttl_s: float | None = None
    """A new length; None: as before."""


@dataclass(frozen=True, slots=True)
class Unpin:
    """Give a pin up."""

    pin_id: str


def check_pin_id(pin_id: str) -> str:
    """Return ``pin_id`` if it can be one, else raise InvalidInputError."""
    if not _PIN_ID.fullmatch(pin_id):
        raise InvalidInputError(
            f"unusable pin id {pin_id[:60]!r}: use up to 100 letters, digits, '.', '_' and '-'",
            pin_id=pin_id,
        )
    return pin_id


def pin_root(root: Root, op: PinRoot, seq: int, time_hint_s: float) -> Root:
    """The state with the pin; ``root`` itself where the same pin is there already.

    A repeat is the same where its names are, and where the root, the owner and the time are too
    as far as it gives them. The time is compared as asked for, not by when it would end: a pin
    that lasts an hour is the same an hour later. Repeating does not renew.

    Raises:
        InvalidInputError: an id, a name or a time that cannot be.
        NotFoundError: a name that does not exist.
        ConflictError: the id stands for another pin, or the root can no longer be pinned.
    """
    check_pin_id(op.pin_id)
    if op.ttl_s is not None and not 0 < op.ttl_s < 1e12:
        raise InvalidInputError(f"a pin lasts longer than nothing, got {op.ttl_s} s")
    names = None if op.names is None else tuple(sorted(set(op.names)))
    if names == ():
        raise InvalidInputError("a pin of no name keeps nothing; give names, or none at all")
    known = root.pins.get(op.pin_id)
    if known is not None:
        _refuse_changed(op, names, known)
        return root
    if len(root.pins) >= MAX_PINS:
        raise ConflictError(
            f"there are {len(root.pins)} pins, the limit is {MAX_PINS}: pin once a run, not once "
            "a process, and unpin what is over",
            reason="too-many-pins",
        )
    for name in names or ():
        if root.row(check_name(name)) is None:
            raise NotFoundError(f"nothing is named {name!r} here; it cannot be pinned", name=name)
    if op.seq is not None and not root.min_pinnable_seq <= op.seq < seq:
        raise ConflictError(
            f"root {op.seq} cannot be pinned: collection has given up what roots before "
            f"{root.min_pinnable_seq} list, and the newest is {seq - 1}",
            reason="snapshot-expired",
            seq=op.seq,
            min_pinnable_seq=root.min_pinnable_seq,
        )
    pinned = seq if op.seq is None else op.seq
    pin = Pin(pinned, seq, names, op.owner, op.ttl_s, time_hint_s)
    done: dict[str, object] = {"op": "pin", "id": op.pin_id, "seq": pinned}
    if names is not None:
        done["names"] = list(names)
    return with_op(replace(root, pins={**root.pins, op.pin_id: pin}), done)


def _refuse_changed(op: PinRoot, names: tuple[str, ...] | None, known: Pin) -> None:
    if known.names != names or op.seq not in (None, known.seq):
        raise ConflictError(
            f"pin {op.pin_id!r} stands for something else: root {known.seq}, "
            f"{'all names' if known.names is None else ', '.join(known.names)}, owner "
            f"{known.owner!r}; use another id, or unpin it first",
            reason="pin-exists",
            pin_id=op.pin_id,
        )
    if op.owner and op.owner != known.owner:
        raise ConflictError(
            f"pin {op.pin_id!r} is there already, of owner {known.owner!r}, not {op.owner!r}, and "
            "was left as it is; an owner never changes: use another id, leave the owner out, or "
            f"let its time begin anew with: dstream renew {op.pin_id}",
            reason="pin-exists",
            pin_id=op.pin_id,
        )
    if op.ttl_s is not None and op.ttl_s != known.ttl_s:
        lasts = "for ever" if known.ttl_s is None else f"{known.ttl_s:.12g} s"
        raise ConflictError(
            f"pin {op.pin_id!r} is there already and lasts {lasts}, not {op.ttl_s:.12g} s; it was "
            f"left as it is. To change that: dstream renew {op.pin_id} --ttl TIME",
            reason="pin-exists",
            pin_id=op.pin_id,
            ttl_s=known.ttl_s,
            asked_ttl_s=op.ttl_s,
        )


def renew_pin(root: Root, op: RenewPin, seq: int, time_hint_s: float) -> Root:
    """The state with the pin's time begun anew; raises ConflictError where it is lost."""
    known = root.pins.get(op.pin_id)
    if known is None:
        raise ConflictError(
            f"there is no pin {op.pin_id!r}; if there was one, its time ran out or it was given "
            "up and it was removed, and what it kept may be deleted: pin again, and check what "
            "was read since. List what there is with: dstream pins",
            reason="pin-lost",
            pin_id=op.pin_id,
        )
    if op.ttl_s is not None and not 0 < op.ttl_s < 1e12:
        raise InvalidInputError(f"a pin lasts longer than nothing, got {op.ttl_s} s")
    pin = replace(
        known,
        since_seq=seq,
        ttl_s=known.ttl_s if op.ttl_s is None else op.ttl_s,
        time_hint_s=time_hint_s,
    )
    after = replace(root, pins={**root.pins, op.pin_id: pin})
    return with_op(after, {"op": "renew", "id": op.pin_id})


def unpin(root: Root, op: Unpin) -> Root:
    """The state without the pin.

    Raises:
        NotFoundError: there is no such pin.
    """
    known = root.pins.get(op.pin_id)
    if known is None:
        raise NotFoundError(
            f"there is no pin {op.pin_id!r}; list them with: dstream pins", pin_id=op.pin_id
        )
    after = without_pins(root, {op.pin_id: known})
    return with_op(after, {"op": "unpin", "id": op.pin_id})


def without_pins(root: Root, gone: dict[str, Pin]) -> Root:
    """Drop pins, and let collection look at their roots again."""
    return replace(
        root,
        pins={name: pin for name, pin in root.pins.items() if name not in gone},
        cleared_below=min([root.cleared_below, *(pin.seq for pin in gone.values())]),
    )
