"""An explicit-state model of the commit log with its whole lifecycle, and broken variants of it.

Every reachable state of a few short-lived processes is visited: writes that arrive late, twice or
never, a crash before any step, a collector that stalls between any two deletes. After each step
the promises are checked (:func:`broken_promise`). Names of variants are in :data:`MUTANTS`; each
leaves out one rule of the protocol, and the search must find where that loses data.

What is modelled: publishing (also with objects of an earlier generation), reviving, pins with
scope, expiry and renewal, retention, the fence, condemned generations, sweeping, catalog shards,
tombstones. What is not: bytes, more than five processes, a process that acts twice (but for
collection, which commits twice), time. Expiry and grace are therefore decided freely: a collector
may take any pin for expired, and waits for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MUTANTS = {
    "no-fence-check": "a publisher does not compare its session with the fence",
    "no-condemned-check": "a promotion does not look whether its target is being deleted",
    "no-parent-check": "a publisher shares objects of a generation that is being deleted",
    "pin-files": "pins are objects beside the log",
    "pin-expired-by-name": "a pin taken for expired is removed though it was renewed since",
    "pin-any-root": "a pin of an old root ignores what was condemned since",
    "pin-keeps-newest": "a pin protects the newest generation of its names, not those it listed",
    "log-deleted": "old log entries are deleted instead of cleared",
    "clear-pinned": "pinned roots are cleared like others",
    "failed-is-final": "a lost answer is taken for a failure, and its bytes are cleaned up",
    "shards-by-content": "catalog shards are named by their content, not by their log number",
    "orphans-by-session": "objects of sessions that no generation names are swept unread",
    "sweep-before-commit": "collection deletes before its own commit is confirmed",
}


class Obj(NamedTuple):
    """One stored object: whose it is, and the head when its session began."""

    owner: str
    base: int


class Gen(NamedTuple):
    """A generation's record. ``retired`` and ``condemned`` are log numbers, or -1."""

    name: str
    label: str
    objects: frozenset[Obj]
    seq: int
    retired: int = -1
    condemned: int = -1

    @property
    def live(self) -> bool:
        return self.retired < 0

    def live_at(self, seq: int) -> bool:
        """Whether root ``seq`` lists it."""
        return self.seq <= seq and (self.retired < 0 or self.retired > seq)


class Pin(NamedTuple):
    """What a pin protects: generations of ``scope`` (empty: all) that root ``seq`` lists."""

    pin: str
    seq: int
    scope: str
    since: int
    """The root that made or last renewed it."""

    def covers(self, gen: Gen) -> bool:
        return gen.live_at(self.seq) and self.scope in ("", gen.name)


class Root(NamedTuple):
    txn: str
    gens: frozenset[Gen]
    pins: frozenset[Pin]
    floor: int
    min_pin: int
    shard: tuple[int, str] | None
    """Key of the catalog shard that the root needs: (log number, content)."""
    applied: frozenset[str]
    """Every transaction up to here; only for checking."""


class Slot(NamedTuple):
    root: Root
    cleared: bool = False


class Proc(NamedTuple):
    """One process. Its kind is the first letter of its name."""

    name: str
    at: str = "start"
    base: int = -1
    slot: int = -1
    root: Root | None = None
    guess: frozenset[Pin] = frozenset()
    """Pins that this collector takes for expired."""
    plan: Root | None = None
    """The root whose deletes are being carried out."""

    @property
    def kind(self) -> str:
        return self.name[0]


class World(NamedTuple):
    log: tuple[Slot | None, ...]
    objects: frozenset[Obj]
    shards: frozenset[tuple[int, str]]
    net: frozenset[tuple[int, Root]]
    """Writes of roots on their way: each may arrive at any time, once more or never."""
    procs: tuple[Proc, ...]
    pin_files: frozenset[Pin] = frozenset()

    @property
    def head(self) -> int:
        return max(seq for seq, slot in enumerate(self.log) if slot is not None)

    def root(self, seq: int) -> Root:
        slot = self.log[seq]
        if slot is None:
            raise LookupError(f"log number {seq} is gone")
        return slot.root


DONE = ("ok", "aborted", "dead", "gave-up")
OLD = Gen("a", "a0", frozenset({Obj("a0", 0)}), 0)
OTHER = Gen("b", "b0", frozenset({Obj("b0", 0)}), 0)


def first_world(procs: Sequence[str]) -> World:
    """A repository with a generation of ``a`` and one of ``b``.

    Revivers find ``a0`` retired. A cast with ``-swept`` finds it forgotten, and its bytes in use
    by ``b0``.
    """
    old = OLD._replace(retired=1) if any(p[0] == "R" for p in procs) else OLD
    other = OTHER
    if any(p.endswith("-swept") for p in procs):
        old = Gen("a", "a1", frozenset({Obj("a1", 0)}), 0)
        other = OTHER._replace(objects=OTHER.objects | OLD.objects)
    gens = frozenset({old, other})
    first = frozenset({old._replace(retired=-1), other})
    zero = Root("init", first, frozenset(), 0, 0, None, frozenset())
    log: tuple[Slot | None, ...] = (Slot(zero),)
    if not old.live:
        log = (*log, Slot(zero._replace(txn="retire", gens=gens)))
    objects = old.objects | other.objects
    return World(log, objects, frozenset(), frozenset(), tuple(Proc(p) for p in procs))


def broken_promise(world: World, mutant: str) -> str | None:
    """The promise that this state breaks, in words; None when all hold."""
    head = world.root(world.head)
    for gen in head.gens:
        if gen.live and not gen.objects <= world.objects:
            return f"LIVE DATA LOST {gen.label}"
    if head.shard is not None and head.shard not in world.shards:
        return f"CATALOG SHARD LOST {head.shard}"
    for pin in head.pins | world.pin_files:
        slot = world.log[pin.seq]
        if slot is None or slot.cleared:
            return f"PINNED ROOT LOST {pin.seq}"
        if slot.root.shard is not None and slot.root.shard not in world.shards:
            return f"CATALOG SHARD OF A PINNED ROOT LOST {slot.root.shard}"
        for gen in slot.root.gens:
            if pin.covers(gen) and not gen.objects <= world.objects:
                return f"PINNED DATA LOST {gen.label}"
    for proc in world.procs:
        if proc.kind == "W" and proc.at == "ok" and not _still_renewed(proc, head, world):
            return "RENEWED PIN LOST"
        in_log = proc.name in head.applied
        if proc.at == "ok" and not in_log and not (mutant == "pin-files" and proc.kind == "N"):
            return f"ACKNOWLEDGED BUT NOT IN THE LOG {proc.name}"
        if proc.at == "aborted" and in_log:
            return f"REPORTED FAILED BUT COMMITTED {proc.name}"
    return None


def _still_renewed(proc: Proc, head: Root, world: World) -> bool:
    """A renewal holds until a collector takes this very renewal for expired."""
    held = any(pin.since == proc.slot for pin in head.pins)
    return held or any(pin.since == proc.slot for p in world.procs for pin in p.guess)


# --- what each kind of transaction makes of the root below it -----------------------------------


def build(proc: Proc, world: World, head: int, mutant: str) -> Root | None:
    """The root that ``proc`` writes on top of root ``head``; None where it must give up."""
    root = world.root(head)
    seq = head + 1
    after = root._replace(txn=proc.name, applied=root.applied | {proc.name})
    if proc.kind in "PSF":
        return _publish(proc, root, after, seq, mutant)
    if proc.kind == "R":
        return _revive(after, mutant)
    if proc.kind == "N":
        return _pin(proc, world, root, after, mutant)
    if proc.kind == "W":
        pins = frozenset(pin._replace(since=seq) for pin in root.pins)
        return after._replace(pins=pins) if pins else None
    if proc.at == "read-swept" and proc.plan is not None:
        gone = {g.label for g in proc.plan.gens if g.condemned >= 0}
        return after._replace(gens=frozenset(g for g in root.gens if g.label not in gone))
    return _condemn(proc, world, root, after, seq, mutant)


def _publish(proc: Proc, root: Root, after: Root, seq: int, mutant: str) -> Root | None:
    if mutant != "no-fence-check" and proc.base < root.floor:
        return None
    objects = frozenset({Obj(proc.name, proc.base)})
    if proc.kind == "S":  # shares the bytes of a0
        old = next((gen for gen in root.gens if gen.label == "a0"), None)
        if mutant != "no-parent-check" and (old is None or not old.live):
            return None
        objects |= OLD.objects
    made = Gen("a", proc.name, objects, seq)
    after = after._replace(gens=root.gens | {made})
    if proc.kind == "F":  # its root is full: part of the catalog moves into a shard
        content = "full"
        after = after._replace(shard=(0 if mutant == "shards-by-content" else seq, content))
    return after


def _revive(after: Root, mutant: str) -> Root | None:
    old = next((gen for gen in after.gens if gen.label == "a0"), None)
    if old is None:
        if mutant != "no-condemned-check":
            return None
        return after._replace(gens=after.gens | {OLD})
    if old.condemned >= 0 and mutant != "no-condemned-check":
        return None
    return after._replace(gens=after.gens - {old} | {old._replace(retired=-1, condemned=-1)})


def _pin(proc: Proc, world: World, root: Root, after: Root, mutant: str) -> Root | None:
    """Pins the root that the process had read, if nothing of it was condemned since."""
    if mutant != "pin-any-root" and proc.base < root.min_pin:
        return None
    scope = "a" if proc.name.endswith("a") else ""
    slot = len(world.log)
    return after._replace(pins=root.pins | {Pin(proc.name, proc.base, scope, slot)})


def _condemn(
    proc: Proc, world: World, root: Root, after: Root, seq: int, mutant: str
) -> Root | None:
    """Expired pins go; what neither retention nor a pin keeps is condemned; the fence rises."""
    if mutant == "pin-expired-by-name":
        expired = {pin.pin for pin in proc.guess}
        pins = frozenset(pin for pin in root.pins if pin.pin not in expired)
    else:
        pins = root.pins - proc.guess
    protecting = pins | world.pin_files if mutant == "pin-files" else pins
    newest = {name: max(g.seq for g in root.gens if g.name == name) for name in _names(root)}
    gens = set()
    condemned = False
    for gen in root.gens:
        kept = gen.live and gen.seq == newest[gen.name]  # retention: the newest of each name
        pinned = any(pin.covers(gen) for pin in protecting)
        if mutant == "pin-keeps-newest":
            pinned = False
        if gen.condemned < 0 and not kept and not pinned:
            retired = seq if gen.live else gen.retired
            gen = gen._replace(retired=retired, condemned=seq)
            condemned = True
        gens.add(gen)
    return after._replace(
        gens=frozenset(gens),
        pins=pins,
        floor=max(root.floor, seq - 1),
        min_pin=seq if condemned else max(root.min_pin, seq - 1),
    )


def _names(root: Root) -> set[str]:
    return {gen.name for gen in root.gens}


# --- steps ----------------------------------------------------------------------------------------


def steps(world: World, mutant: str) -> Iterator[tuple[str, World]]:
    """Everything that can happen next, with the state after it."""
    for slot, root in world.net:
        yield from _arrive(world, slot, root)
    for number, proc in enumerate(world.procs):
        if proc.at in DONE:
            continue
        for what, after, changed in _advance(proc, world, mutant):
            procs = (*world.procs[:number], after, *world.procs[number + 1 :])
            yield f"{proc.name}:{what}", changed._replace(procs=procs)
        dead = Proc(proc.name, "dead", guess=proc.guess)
        procs = (*world.procs[:number], dead, *world.procs[number + 1 :])
        yield f"{proc.name}:crash", world._replace(procs=procs)


def _arrive(world: World, slot: int, root: Root) -> Iterator[tuple[str, World]]:
    left = world._replace(net=world.net - {(slot, root)})
    if slot == len(world.log):
        yield f"land {root.txn}@{slot}", left._replace(log=(*world.log, Slot(root)))
    elif slot < len(world.log) and world.log[slot] is None:
        log = list(world.log)
        log[slot] = Slot(root)
        yield f"land again {root.txn}@{slot}", left._replace(log=tuple(log))
    else:
        yield f"refuse {root.txn}@{slot}", left


def _advance(proc: Proc, world: World, mutant: str) -> Iterator[tuple[str, Proc, World]]:
    if proc.at == "start":
        yield from _begin(proc, world, mutant)
    elif proc.at == "pin-file":
        pin = Pin(proc.name, proc.base, "", proc.base)
        yield (
            "pin file",
            proc._replace(at="ok"),
            world._replace(pin_files=world.pin_files | {pin}),
        )
    elif proc.at == "upload":
        made = Obj(proc.name, proc.base)
        changed = world._replace(objects=world.objects | {made})
        yield "upload", proc._replace(at="read"), changed
    elif proc.at in ("read", "read-swept"):
        yield from _read(proc, world, mutant)
    elif proc.at in ("shard", "send", "send-swept"):
        yield from _write(proc, world)
    elif proc.at in ("wait", "wait-swept"):
        yield from _wait(proc, world, mutant)
    elif proc.at == "sweep":
        yield from _sweep(proc, world, mutant)


def _begin(proc: Proc, world: World, mutant: str) -> Iterator[tuple[str, Proc, World]]:
    head = world.head
    if proc.kind in "PSF":
        yield f"begin@{head}", proc._replace(at="upload", base=head), world
    elif proc.kind == "N":
        at = "pin-file" if mutant == "pin-files" else "read"
        yield f"begin@{head}", proc._replace(at=at, base=head), world
    elif proc.kind == "G":
        pins = world.root(head).pins
        yield "begin", proc._replace(at="read"), world
        if pins:
            yield "begin, pins expired", proc._replace(at="read", guess=pins), world
    else:
        yield "begin", proc._replace(at="read"), world


def _read(proc: Proc, world: World, mutant: str) -> Iterator[tuple[str, Proc, World]]:
    head = world.head
    made = build(proc, world, head, mutant)
    swept = proc.at == "read-swept"
    if made is None:
        yield f"abort@{head}", proc._replace(at="aborted"), world
        return
    at = "send-swept" if swept else "shard" if proc.kind == "F" else "send"
    if mutant == "sweep-before-commit" and proc.kind == "G" and not swept:
        yield "sweep first", proc._replace(at="sweep", slot=head + 1, plan=made), world
    yield f"build@{head + 1}", proc._replace(at=at, slot=head + 1, root=made), world


def _write(proc: Proc, world: World) -> Iterator[tuple[str, Proc, World]]:
    if proc.root is None:
        raise ValueError("nothing to write")
    if proc.at == "shard" and proc.root.shard is not None:
        shards = world.shards | {proc.root.shard}
        yield "write shard", proc._replace(at="send"), world._replace(shards=shards)
        return
    at = "wait" if proc.at == "send" else "wait-swept"
    net = world.net | {(proc.slot, proc.root)}
    yield f"send@{proc.slot}", proc._replace(at=at), world._replace(net=net)


def _wait(proc: Proc, world: World, mutant: str) -> Iterator[tuple[str, Proc, World]]:
    if proc.root is None:
        raise ValueError("nothing was written")
    swept = proc.at == "wait-swept"
    slot = world.log[proc.slot] if proc.slot < len(world.log) else None
    if slot is not None and slot.root.txn == proc.name and slot.root.applied == proc.root.applied:
        if proc.kind == "G" and not swept:
            yield "committed", proc._replace(at="sweep", plan=slot.root, root=None), world
        else:
            yield "committed", proc._replace(at="ok", root=None), world
    elif slot is not None:
        at = "read-swept" if swept else "read"
        yield "lost the race", proc._replace(at=at, root=None), world
    else:
        net = world.net | {(proc.slot, proc.root)}
        yield "send again", proc, world._replace(net=net)
        if mutant == "failed-is-final" and proc.kind == "P":
            left = frozenset(obj for obj in world.objects if obj.owner != proc.name)
            yield "clean up", proc._replace(at="gave-up"), world._replace(objects=left)


def _sweep(proc: Proc, world: World, mutant: str) -> Iterator[tuple[str, Proc, World]]:
    """Deletes, one at a time and in any order; then the commit that forgets what is gone."""
    if proc.plan is None:
        raise ValueError("nothing to sweep")
    left = False
    for obj in world.objects:
        if _is_garbage(obj, proc.plan, mutant):
            left = True
            yield f"delete {obj.owner}", proc, world._replace(objects=world.objects - {obj})
    protected = {pin.seq for pin in proc.plan.pins}
    needed = {world.root(s).shard for s in protected if s < len(world.log) and world.log[s]}
    for shard in world.shards:
        if shard[0] <= proc.slot and shard != proc.plan.shard and shard not in needed:
            left = True
            yield f"delete shard {shard}", proc, world._replace(shards=world.shards - {shard})
    for seq in range(proc.slot - 1):
        if seq < proc.plan.min_pin and (seq not in protected or mutant == "clear-pinned"):
            slot = world.log[seq]
            if slot is not None and not slot.cleared:
                log = list(world.log)
                log[seq] = None if mutant == "log-deleted" else slot._replace(cleared=True)
                yield f"clear {seq}", proc, world._replace(log=tuple(log))
    if not left:
        yield "all swept", proc._replace(at="read-swept"), world


def _is_garbage(obj: Obj, plan: Root, mutant: str) -> bool:
    kept = {o for gen in plan.gens if gen.condemned < 0 for o in gen.objects}
    doomed = {o for gen in plan.gens if gen.condemned >= 0 for o in gen.objects}
    if mutant == "orphans-by-session" and obj.base < plan.floor:
        return obj.owner not in {gen.label for gen in plan.gens}
    return obj not in kept and (obj in doomed or obj.base < plan.floor)


# --- the search -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How a search ended."""

    states: int
    complete: bool
    violation: str | None
    trace: tuple[str, ...]


def search(procs: Sequence[str], mutant: str = "", limit: int = 100_000) -> Result:
    """Visit reachable states, nearest first, until a promise is broken or ``limit`` is reached."""
    if mutant and mutant not in MUTANTS:
        raise ValueError(f"unknown variant {mutant!r}")
    first = first_world(procs)
    came: dict[World, tuple[str, World] | None] = {first: None}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        violation = broken_promise(world, mutant)
        if violation is not None:
            return Result(len(came), False, violation, _trace(came, world))
        if len(came) > limit:
            return Result(len(came), False, None, ())
        for what, after in steps(world, mutant):
            if after not in came:
                came[after] = (what, world)
                queue.append(after)
    return Result(len(came), True, None, ())


def _trace(came: dict[World, tuple[str, World] | None], world: World) -> tuple[str, ...]:
    found: list[str] = []
    at = came[world]
    while at is not None:
        found.append(at[0])
        at = came[at[1]]
    return tuple(reversed(found))


PROTOCOL: tuple[tuple[str, ...], ...] = (
    ("P1", "G1"),
    ("P1", "P2"),
    ("S1", "G1"),
    ("P1", "R1", "G1"),
    ("N1", "P1", "G1"),
    ("N1a", "P1", "G1"),
    ("N1", "W1", "G1"),
    ("P1", "G1-swept"),
    ("F1", "G1"),
    ("F1", "F2", "G1"),
    ("S1", "P1", "G1"),
    ("G1", "G2", "P1"),
    ("N1", "P1", "G1", "G2"),
    ("N1", "W1", "P1", "G1"),
    ("N1", "S1", "P1", "G1", "G2"),
)
"""Casts of the honest protocol: P publishes, S shares a0's bytes, F also fills a shard, R revives
a0, N pins what it read (with ``a``: only name a), W renews, G collects."""

MUTANT_CASTS = {
    "no-fence-check": ("P1", "P2", "G1"),
    "no-condemned-check": ("R1", "G1"),
    "no-parent-check": ("S1", "P1", "G1"),
    "pin-files": ("N1", "P1", "G1"),
    "pin-expired-by-name": ("N1", "W1", "G1"),
    "pin-any-root": ("N1", "P1", "G1"),
    "pin-keeps-newest": ("N1a", "P1", "G1"),
    "log-deleted": ("P1", "P2", "G1"),
    "clear-pinned": ("N1", "P1", "G1"),
    "failed-is-final": ("P1",),
    "shards-by-content": ("F1", "F2", "G1"),
    "orphans-by-session": ("P1", "G1-swept"),
    "sweep-before-commit": ("P1", "R1", "G1"),
}


def main() -> None:
    """Run everything, without a bound that matters, and print what was found."""
    for cast in PROTOCOL:
        print("protocol", *cast, search(cast, limit=3_000_000), flush=True)
    for mutant, cast in MUTANT_CASTS.items():
        print("without:", mutant, *cast, search(cast, mutant, limit=3_000_000), flush=True)


if __name__ == "__main__":
    main()
