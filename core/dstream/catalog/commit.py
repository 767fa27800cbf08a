"""The commit loop: one transaction at a time onto the end of the log, with an exact outcome.

A commit writes root ``h + 1`` with put-if-absent. Whoever gets the slot wins; the loser checks
its intent again on the winner's root. Slot ``h + 2`` is never tried while ``h + 1`` is
undecided, so a transaction can only ever land in the one slot that its errors name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dstream.catalog.backoff import MAX_TURN_S, Backoff, CommitSettings, Race, turn_asked_s
from dstream.catalog.compaction import MAX_TAIL, compact, is_large, tail_size
from dstream.catalog.log import Head, LogReader, check_chain
from dstream.catalog.outcome import (
    Answer,
    Slot,
    Verdict,
    classify,
    decide,
    may_have_landed,
    needs_read_back,
)
from dstream.catalog.transitions import ApplyContext, AskTurn, Noop, Op, Transition, apply
from dstream.clock import Clock
from dstream.errors import (
    ConflictError,
    CorruptDataError,
    DstreamError,
    InvalidInputError,
    OutcomeUnknownError,
    RefusedError,
)
from dstream.format.catalog_shard import Shards
from dstream.format.root import (
    FORMAT_VERSION,
    Generation,
    Root,
    Tombstone,
    check_writable,
    encode_root,
    log_key,
    peek_txn_id,
    sha256_hex,
)
from dstream.measure import Meter, Purpose
from dstream.store.base import Store

Intent = Callable[[Root], Op]
"""Builds the op for one head. Called again for every head that a rival makes."""


@dataclass(frozen=True, slots=True)
class Committed:
    """How a commit ended well."""

    head: Head
    """The root that holds the result."""
    generation: Generation | None
    wrote: bool
    """False when the log already said so and nothing had to be written."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A root that is ready to be sent."""

    root: Root
    data: bytes
    base: Head | None
    """The root below; None for the first root of all."""


class Committer:
    """Commits ops to one repository's log. For many threads."""

    def __init__(
        self,
        store: Store,
        log: LogReader,
        *,
        clock: Clock,
        rng: np.random.Generator,
        new_id: Callable[[], str],
        author: str,
        meter: Meter,
        settings: CommitSettings,
    ) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._rng = rng
        self._new_id = new_id
        self._author = author
        self._meter = meter
        self._settings = settings

    def commit(self, intent: Intent) -> Committed:
        """Make ``intent`` part of the log, exactly once.

        The first attempt builds on the head that is remembered, without asking the store: if
        it is old, its next slot is taken and the attempt is lost, which costs time and no
        safety. Nothing but a write is ever concluded from a head whose next slot was not asked for
        since: it may be old, and so may one that a listing named, where listings lag.

        Raises:
            ConflictError: the intent contradicts what rivals committed, or every race was lost.
            OutcomeUnknownError: the write may have landed. Facts ``txn_id`` and ``slot`` go to
                :meth:`resolve`; nothing that was uploaded may be deleted before that.
            DstreamError: anything else; the commit certainly did not happen.
        """
        head = self._give_way(self._log.cached() or self._log.refresh())
        race = Race(self._settings, self._clock, self._rng)
        while True:
            race.begin()
            asks = race.asks
            try:
                transition = self._transition(head, _ask(race.turn_s) if asks else intent)
                draft = None if transition.root is head.root else self._seal(transition, head)
            except DstreamError:
                newer = self._log.refresh()
                if newer.seq == head.seq:
                    raise
                head = newer
                continue
            if draft is None:
                newer = self._log.refresh()
                if newer.seq == head.seq:
                    return Committed(newer, transition.generation, wrote=False)
                head = newer
                continue
            rival = self._settle(draft)
            if rival is None and not asks:
                return Committed(self._finish(draft), transition.generation, wrote=True)
            if rival is None:
                self._meter.event("commit", "asked-for-turn")
                race.asked()
                head = self._finish(draft)
                continue
            self._meter.event("commit", "lost-race")
            waited_s = race.lose(head.read_at_s)
            if waited_s is None:
                raise ConflictError(
                    f"lost {race.losses} races for the log against other writers within "
                    f"{self._settings.race_budget_s:.0f} s; nothing was committed, try again",
                    reason="races",
                    races=race.losses,
                )
            # Every second time the log is asked: one slot at a time, the slower never catches up.
            is_near = race.losses % 2 == 1 and not waited_s
            head = self._give_way(rival if is_near else self._log.refresh())

    def _give_way(self, head: Head) -> Head:
        """Wait where the newest root asks for a turn. Fairness only: nothing depends on it."""
        due_s = head.read_at_s + turn_asked_s(head.root.ops) - self._clock.monotonic_s()
        if due_s <= 0:
            return head
        self._meter.event("commit", "gave-way")
        self._clock.sleep(min(due_s, MAX_TURN_S))
        return self._log.refresh()

    def create(self) -> bool:
        """Write root 0, the birth of a repository; False when somebody else did.

        Raises:
            OutcomeUnknownError: it may have landed; creating again settles it.
        """
        root = Root(
            seq=0,
            prev_sha256="",
            txn_id=self._new_id(),
            time_hint_s=self._clock.now_s(),
            by=self._author,
            ops=({"op": "create"},),
            shards=Shards((), self._log.shards.load),
        )
        draft = Draft(root, encode_root(root), None)
        if self._settle(draft) is not None:
            return False
        self._finish(draft)
        return True

    def resolve(self, txn_id: str, slot: int) -> bool:
        """Settle a commit whose outcome was unknown; True when it is in the log.

        Where the slot is still free it is taken by an entry that changes nothing, after which
        the lost write can no longer land.

        Raises:
            InvalidInputError: the log has not come near that slot.
            OutcomeUnknownError: the store is still failing; call again later.
        """
        while True:
            data = self._log.try_read_bytes(slot)
            if data is not None:
                return peek_txn_id(data, slot) == txn_id
            head = self._log.confirmed()
            if head.seq >= slot:
                raise CorruptDataError(
                    f"the log is broken: number {slot} is missing below {head.seq}", seq=slot
                )
            if head.seq + 1 < slot:
                raise InvalidInputError(
                    f"slot {slot} is not the next of this log, which ends at {head.seq}: not an "
                    "outcome of this repository",
                    slot=slot,
                    head=head.seq,
                )
            transition = self._transition(head, lambda _: Noop(f"settles {txn_id}"))
            draft = self._seal(transition, head)
            if self._settle(draft) is None:
                self._finish(draft)

    def _transition(self, head: Head, intent: Intent) -> Transition:
        check_writable(head.root)
        context = ApplyContext(head.seq + 1, self._clock.now_s())
        return apply(head.root, intent(head.root), context)

    def _seal(self, transition: Transition, base: Head) -> Draft:
        done = transition.root.ops[len(base.root.ops) :]
        after = transition.root
        root = replace(
            after,
            v=max(after.v, FORMAT_VERSION),
            min_reader=max(after.min_reader, FORMAT_VERSION),
            min_writer=max(after.min_writer, FORMAT_VERSION),
            seq=base.seq + 1,
            prev_sha256=base.sha256,
            txn_id=self._new_id(),
            time_hint_s=self._clock.now_s(),
            by=self._author,
            ops=done,
        )
        if tail_size(root) > MAX_TAIL:
            root = compact(root, root.seq, self._log.shards.write)
        try:
            data = encode_root(root)
            if not is_large(root, len(data)):
                return Draft(root, data, base)
        except RefusedError:
            if not tail_size(root):
                raise
        root = compact(root, root.seq, self._log.shards.write, whole=True)
        return Draft(root, encode_root(root), base)

    def _settle(self, draft: Draft) -> Head | None:
        """Send a root until its slot is decided: None when it is ours, else the rival's head."""
        slot, txn_id = draft.root.seq, draft.root.txn_id
        waits = Backoff(self._settings, self._settings.slot_budget_s, self._clock, self._rng)
        pending = False
        while True:
            error = self._send(draft)
            answer = classify(error)
            state, data = Slot.NOT_READ, None
            if needs_read_back(answer, pending=pending):
                state, data = self._look(draft)
            verdict = decide(answer, state, pending=pending)
            pending = pending or may_have_landed(answer)
            if verdict is Verdict.RESEND:
                self._meter.event("commit.resend", answer.value)
                if waits.wait():
                    continue
                state, data = self._look(draft)
                verdict = decide(Answer.UNKNOWN, state, pending=True)
            if verdict is Verdict.COMMITTED:
                if answer is not Answer.STORED:
                    self._meter.event("commit", f"found-own-after-{answer.value}")
                return None
            if verdict is Verdict.LOST and data is not None:
                return self._rival(draft, data)
            if verdict is Verdict.FAILED and error is not None:
                raise error
            raise OutcomeUnknownError(
                f"the commit's outcome is unknown: log number {slot} could be neither written nor "
                f"read back after {waits.tries} tries; it may still appear. Uploaded data is "
                f"kept; settle it with resolve_txn({txn_id!r}, {slot})",
                txn_id=txn_id,
                slot=slot,
            ) from error

    def _send(self, draft: Draft) -> DstreamError | None:
        try:
            self._store.put_if_absent(log_key(draft.root.seq), draft.data, purpose=Purpose.LOG)
        except DstreamError as error:
            return error
        return None

    def _look(self, draft: Draft) -> tuple[Slot, bytes | None]:
        slot = draft.root.seq
        try:
            data = self._log.try_read_bytes(slot)
        except DstreamError as error:
            self._meter.event("commit.read-back-failed", type(error).__name__)
            return Slot.UNREADABLE, None
        if data is None:
            return Slot.ABSENT, None
        if data == draft.data:
            return Slot.MINE, data
        if peek_txn_id(data, slot) != draft.root.txn_id:
            return Slot.OTHER, data
        # Either collection has cleared our root since, or somebody else writes in our name.
        if isinstance(self._log.decode(data, slot), Tombstone):
            return Slot.MINE, data
        raise CorruptDataError(
            f"log number {slot} carries the same transaction id {draft.root.txn_id} but other "
            "content: two writers share one source of identifiers",
            txn_id=draft.root.txn_id,
            slot=slot,
        )

    def _rival(self, draft: Draft, data: bytes) -> Head:
        slot = draft.root.seq
        found = self._log.decode(data, slot)
        if isinstance(found, Tombstone):
            # So old that collection has cleared it: the remembered head was far behind.
            return self._log.refresh()
        if draft.base is not None:
            check_chain(draft.base, found)
        self._log.adopt(found)
        return found

    def _finish(self, draft: Draft) -> Head:
        now_s = self._clock.monotonic_s()
        head = Head(draft.root, sha256_hex(draft.data), now_s)
        self._log.adopt(head)
        try:
            self._log.write_hint(head.seq)
        except DstreamError as error:
            self._meter.event("commit.hint-failed", type(error).__name__)
        if draft.base is not None and now_s - draft.base.read_at_s > self._settings.recheck_after_s:
            self._recheck(head)
        return head

    def _recheck(self, head: Head) -> None:
        """After building on a long-known head: is the slot really the end of the log?

        Raises:
            CorruptDataError: log keys were deleted, so this commit landed in the past.
        """
        newest = self._log.newest_seq()
        if newest is None or newest <= head.seq:
            return
        following = self._log.try_read(head.seq + 1)
        if isinstance(following, Head) and following.root.prev_sha256 == head.sha256:
            return
        raise CorruptDataError(
            f"this commit took log number {head.seq}, but the log already reaches {newest}: keys "
            "of the log were deleted (a lifecycle rule?). The commit is not visible; restore the "
            "log before publishing again",
            seq=head.seq,
            newest=newest,
        )


def _ask(turn_s: float) -> Intent:
    return lambda _: AskTurn(turn_s)
