"""What became of one attempt to write a root: deciding it from the evidence. Pure.

A conditional write whose answer was lost may have landed. Its slot in the log tells: the root
there carries the transaction's id. Nothing is ever taken for a failure before the slot says so.
"""

from __future__ import annotations

from enum import Enum

from dstream.errors import (
    AlreadyExistsError,
    DstreamError,
    OutcomeUnknownError,
    PermissionDeniedError,
    StorageError,
)

_BUSY_CODES = frozenset(
    {"ConditionalRequestConflict", "ConcurrentModification", "OperationAborted", "409"}
)


class Answer(Enum):
    """What a put-if-absent answered."""

    STORED = "stored"
    EXISTS = "exists"
    """The slot is taken: by a rival, or by our own earlier attempt."""
    BUSY = "busy"
    """The store was deciding another write to the slot: nobody may hold it (HTTP 409)."""
    UNKNOWN = "unknown"
    """The answer was lost, or was a server's failure: it may have landed."""
    REFUSED = "refused"
    """This attempt certainly did not land, and sending it again is of no use."""


class Slot(Enum):
    """What the slot holds when it is read back."""

    ABSENT = "absent"
    MINE = "mine"
    OTHER = "other"
    UNREADABLE = "unreadable"
    """The read itself failed: nothing was learned."""
    NOT_READ = "not-read"


class Verdict(Enum):
    """What to do next."""

    COMMITTED = "committed"
    LOST = "lost"
    """A rival has the slot: rebase on its root."""
    RESEND = "resend"
    """Still undecided: send the same bytes to the same key again."""
    FAILED = "failed"
    """Certainly not committed."""
    UNDECIDED = "undecided"
    """Cannot be settled now: an earlier attempt may still land."""


def classify(error: DstreamError | None) -> Answer:
    """The answer that an exception of ``put_if_absent`` (or none) stands for."""
    if error is None:
        return Answer.STORED
    if isinstance(error, AlreadyExistsError):
        return Answer.EXISTS
    if isinstance(error, OutcomeUnknownError):
        return Answer.UNKNOWN
    if isinstance(error, PermissionDeniedError):
        return Answer.REFUSED
    if isinstance(error, StorageError):
        if error.facts.get("retry") is False:
            return Answer.REFUSED
        busy = str(error.facts.get("code")) in _BUSY_CODES
        return Answer.BUSY if busy else Answer.UNKNOWN
    return Answer.REFUSED


def needs_read_back(answer: Answer, *, pending: bool) -> bool:
    """Whether the slot must be read before anything can be said.

    Args:
        answer: of the latest attempt.
        pending: an earlier attempt of the same transaction may still land.
    """
    if answer in (Answer.EXISTS, Answer.UNKNOWN):
        return True
    return answer is Answer.REFUSED and pending


def decide(answer: Answer, slot: Slot, *, pending: bool) -> Verdict:
    """The verdict on a transaction after one attempt and, where needed, one read-back."""
    if answer is Answer.STORED or slot is Slot.MINE:
        return Verdict.COMMITTED
    if slot is Slot.OTHER:
        return Verdict.LOST
    if answer is Answer.REFUSED:
        return Verdict.UNDECIDED if pending else Verdict.FAILED
    return Verdict.RESEND


def may_have_landed(answer: Answer) -> bool:
    """Whether an attempt with this answer may have landed, or may still.

    That the slot is taken is no exception: it may have been taken by this very attempt, whose
    first answer was lost below us.
    """
    return answer is not Answer.REFUSED
