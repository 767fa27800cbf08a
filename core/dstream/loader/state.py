"""Where a loader stands: a few integers and hashes, as a plain document. No I/O but one file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dstream.errors import FormatVersionError, InvalidInputError
from dstream.loader.cursor import ALL_STEPS, Cursor, Share
from dstream.loader.plan import Order, Shuffle
from dstream.loader.settings import ClipSettings
from dstream.loader.source import SampleSource
from dstream.loader.steps import Ranks

_VERSION = 1
_MAX_POSITION = 1 << 62


@dataclass(frozen=True, slots=True)
class Identity:
    """What must be equal for a position to mean the same clip.

    Not in it, and so free to change: world size, batch size, ``last``, ``epochs``, threads,
    prefetch, and how pictures are resized.
    """

    data: str
    """Fingerprint of the source."""
    name: str
    """What messages call it; may change while the data do not."""
    order: str
    """Fingerprint of the order."""
    slots: int
    epoch_size: int
    """Clips of an epoch, by which loops are counted."""
    seed: int
    sampling: str
    shuffle: Shuffle
    frames: int
    stride: int | None
    fps: float | None

    @classmethod
    def of(
        cls, source: SampleSource, settings: ClipSettings, order: Order, epoch_size: int
    ) -> Identity:
        """That of a loader."""
        window = settings.window
        return cls(
            data=source.fingerprint,
            name=source.name,
            order=order.fingerprint,
            slots=order.total,
            epoch_size=epoch_size,
            seed=order.seed,
            sampling=order.sampling,
            shuffle=order.shuffle,
            frames=window.frames,
            stride=window.stride,
            fps=window.fps,
        )

    def differences(self, other: Identity) -> dict[str, tuple[object, object]]:
        """What differs, as (here, in the other), by name; causes without their consequences.

        Other data have other numbers of slots and so another order, and another window has too.
        """
        found: dict[str, tuple[object, object]] = {}
        if self.data != other.data:
            found["data"] = f"{self.name} ({self.data[:12]})", f"{other.name} ({other.data[:12]})"
        for name in ("frames", "stride", "fps", "seed", "sampling", "shuffle"):
            if getattr(self, name) != getattr(other, name):
                found[name] = getattr(self, name), getattr(other, name)
        if not found and self.slots != other.slots:
            found["slots"] = self.slots, other.slots
        if not found and self.epoch_size != other.epoch_size:
            found["clips_per_epoch"] = self.epoch_size, other.epoch_size
        if not found and self.order != other.order:
            found["order"] = self.order[:12], other.order[:12]
        return found


@dataclass(frozen=True, slots=True)
class LoaderState:
    """A place, and what it is a place in."""

    cursor: Cursor
    identity: Identity
    pin: str | None = None
    """Token of the frozen view that was read, where it was one."""
    share: Share = ALL_STEPS

    def as_doc(self) -> dict[str, object]:
        """The plain document, for JSON."""
        doc: dict[str, object] = {
            "version": _VERSION,
            "position": self.cursor.position,
            "loop_epoch": self.cursor.loop_epoch,
            "finished": self.cursor.finished,
            "clips": asdict(self.identity),
            "pin": self.pin,
        }
        if self.share.count > 1:
            doc["worker"] = {**asdict(self.share), "skip": self.cursor.skip}
        return doc

    @classmethod
    def from_doc(cls, doc: object) -> LoaderState:
        """Read the document.

        Raises:
            InvalidInputError: it is none.
            FormatVersionError: a newer dstream wrote it.
        """
        if not isinstance(doc, Mapping) or not _is_count(doc.get("version")):
            raise _no_state("it has no version", doc)
        version = doc["version"]
        if version != _VERSION:
            raise FormatVersionError(
                f"the loader's state has version {version}, this dstream reads {_VERSION}: a newer "
                "dstream wrote it; use that one, or begin anew without the state",
                version=version,
            )
        worker = doc.get("worker", {"number": 0, "count": 1, "skip": 0})
        if not isinstance(worker, Mapping):
            raise _no_state("worker is no object", doc)
        cursor = Cursor(
            position=_count(doc, "position"),
            loop_epoch=_count(doc, "loop_epoch"),
            finished=doc.get("finished") is True,
            skip=_count(worker, "skip"),
        )
        share = Share(_count(worker, "number"), _count(worker, "count"))
        identity = _identity(doc)
        if cursor.loop_epoch * identity.epoch_size > cursor.position:
            raise _no_state("its loop began after its position", doc)
        return cls(cursor, identity, _pin(doc), share)

    def check(self, here: Identity, share: Share) -> None:
        """Refuse a state that was taken elsewhere.

        Raises:
            InvalidInputError: naming everything that differs. Fact ``differences`` has it as
                (here, in the state).
        """
        differences = here.differences(self.identity)
        if differences:
            told = "; ".join(
                f"{_told(name)} was {then!s}, here it is {now!s}"
                for name, (now, then) in differences.items()
            )
            raise InvalidInputError(
                f"the state belongs to another sequence of clips: {told}. {self._advice(here)}, "
                "or begin anew without the state",
                differences=differences,
                pin=self.pin,
            )
        if self.share != share:
            raise InvalidInputError(
                f"the state is that of {_worker(self.share)}, here is {_worker(share)}: torchdata "
                "restores a loader with the same num_workers only; dstream's own loader has no "
                "such limit",
                then=self.share,
                here=share,
            )

    def _advice(self, here: Identity) -> str:
        if here.data == self.identity.data:
            return "Make the clips and the loader as they were"
        if self.pin is not None:
            return f"Open the data as they were, with clips(..., pin={self.pin!r})"
        return f"Open the data as they were ({self.identity.name}), best through a pin"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one rank's loader does, for comparison with the others'."""

    identity: Identity
    cursor: Cursor
    ranks: Ranks


def check_agreement(facts: Sequence[RankFacts]) -> None:
    """Refuse ranks that do not deal out one sequence between them.

    Args:
        facts: of each process of a group. Several may have the same rank, if all ranks have as
            many: groups that share a model read the same clips.

    Raises:
        InvalidInputError: naming the first process that differs, and in what.
    """
    first = facts[0]
    for process, other in enumerate(facts):
        differs = first.identity.differences(other.identity)
        for name in ("batch_size", "world_size", "replicas", "last"):
            one, two = getattr(first.ranks, name), getattr(other.ranks, name)
            if one != two:
                differs[name] = one, two
        if first.cursor != other.cursor:
            differs["position"] = first.cursor.position, other.cursor.position
        if differs:
            told = "; ".join(
                f"{_told(name)} {a!s} on 0, {b!s} there" for name, (a, b) in differs.items()
            )
            raise InvalidInputError(
                f"process {process} of {len(facts)} does not read what process 0 reads: {told}. "
                "Open the same data with the same arguments on every rank, best through a pin",
                process=process,
                differences=differs,
            )
    ranks = [other.ranks.rank for other in facts]
    each, rest = divmod(len(facts), first.ranks.world_size)
    if rest or sorted(ranks) != sorted(list(range(first.ranks.world_size)) * each):
        raise InvalidInputError(
            f"{len(facts)} processes have the ranks {ranks} of {first.ranks.world_size}: some "
            "clips would be read by none or by several; give rank= and world_size= so that all "
            "ranks are there, equally often",
            ranks=ranks,
        )


def write_state(path: str | os.PathLike[str], state: Mapping[str, object]) -> None:
    """Write a state to a file, which has the old content or the new one, never half of it."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _told(name: str) -> str:
    """What people call a difference: the order is a hash, which tells them nothing."""
    if name != "order":
        return name
    return "order (of partitions, window_clips, clips_per_gop, or a mixture's parts and weights)"


def _worker(share: Share) -> str:
    if share.count == 1:
        return "a process that makes all batches"
    return f"worker {share.number} of {share.count}"


def _identity(doc: Mapping[str, object]) -> Identity:
    clips = doc.get("clips")
    if not isinstance(clips, Mapping) or set(clips) != set(Identity.__slots__):
        raise _no_state("it does not say which clips it counts", doc)
    if not isinstance(clips["data"], str) or not isinstance(clips["order"], str):
        raise _no_state("its fingerprints are no text", doc)
    for name in ("slots", "epoch_size"):
        if not _is_count(clips[name]) or not clips[name]:
            raise _no_state(f"{name} is {clips[name]!r:.80}", doc)
    return Identity(**clips)


def _pin(doc: Mapping[str, object]) -> str | None:
    pin = doc.get("pin")
    if pin is not None and not isinstance(pin, str):
        raise _no_state("pin is no token", doc)
    return pin


def _count(doc: Mapping[str, object], name: str) -> int:
    value = doc.get(name)
    if not _is_count(value):
        raise _no_state(f"{name} is {value!r:.80}, not a count", doc)
    return int(value)  # type: ignore[call-overload, no-any-return]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_POSITION


def _no_state(what: str, doc: object) -> InvalidInputError:
    return InvalidInputError(
        f"this is no loader's state: {what}; give what loader.state_dict() returned, got "
        f"{doc!r:.200}"
    )
