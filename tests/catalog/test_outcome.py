from __future__ import annotations

import itertools

import pytest

from dstream.catalog.outcome import (
    Answer,
    Slot,
    Verdict,
    classify,
    decide,
    may_have_landed,
    needs_read_back,
)
from dstream.errors import (
    AlreadyExistsError,
    DstreamError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    StorageError,
    ThrottledError,
)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (None, Answer.STORED),
        (AlreadyExistsError("412"), Answer.EXISTS),
        (OutcomeUnknownError("reset"), Answer.UNKNOWN),
        (StorageError("500"), Answer.UNKNOWN),
        (StorageError("500", code="InternalError"), Answer.UNKNOWN),
        (ThrottledError("503"), Answer.UNKNOWN),
        (StorageError("409", code="ConditionalRequestConflict"), Answer.BUSY),
        (StorageError("409", code="ConcurrentModification"), Answer.BUSY),
        (StorageError("409", code="OperationAborted"), Answer.BUSY),
        (StorageError("full", retry=False), Answer.REFUSED),
        (PermissionDeniedError("403"), Answer.REFUSED),
        (NotFoundError("no such bucket"), Answer.REFUSED),
        (InvalidInputError("key"), Answer.REFUSED),
    ],
)
def test_answers(error: DstreamError | None, answer: Answer) -> None:
    assert classify(error) is answer


@pytest.mark.parametrize(
    ("answer", "slot", "pending", "verdict"),
    [
        (Answer.STORED, Slot.NOT_READ, False, Verdict.COMMITTED),
        (Answer.STORED, Slot.NOT_READ, True, Verdict.COMMITTED),
        (Answer.EXISTS, Slot.MINE, False, Verdict.COMMITTED),
        (Answer.EXISTS, Slot.OTHER, False, Verdict.LOST),
        (Answer.EXISTS, Slot.ABSENT, False, Verdict.RESEND),
        (Answer.EXISTS, Slot.UNREADABLE, False, Verdict.RESEND),
        (Answer.UNKNOWN, Slot.MINE, False, Verdict.COMMITTED),
        (Answer.UNKNOWN, Slot.OTHER, False, Verdict.LOST),
        (Answer.UNKNOWN, Slot.ABSENT, False, Verdict.RESEND),
        (Answer.UNKNOWN, Slot.UNREADABLE, False, Verdict.RESEND),
        (Answer.BUSY, Slot.NOT_READ, False, Verdict.RESEND),
        (Answer.REFUSED, Slot.NOT_READ, False, Verdict.FAILED),
        (Answer.REFUSED, Slot.ABSENT, True, Verdict.UNDECIDED),
        (Answer.REFUSED, Slot.UNREADABLE, True, Verdict.UNDECIDED),
        (Answer.REFUSED, Slot.MINE, True, Verdict.COMMITTED),
        (Answer.REFUSED, Slot.OTHER, True, Verdict.LOST),
    ],
)
def test_verdicts(answer: Answer, slot: Slot, pending: bool, verdict: Verdict) -> None:
    assert decide(answer, slot, pending=pending) is verdict


def test_nothing_is_called_a_failure_while_a_write_may_still_land() -> None:
    for answer, slot in itertools.product(Answer, Slot):
        assert decide(answer, slot, pending=True) is not Verdict.FAILED
        if may_have_landed(answer):
            assert decide(answer, slot, pending=False) is not Verdict.FAILED


def test_a_rival_is_only_blamed_when_its_root_was_seen() -> None:
    for answer, slot, pending in itertools.product(Answer, Slot, (False, True)):
        if decide(answer, slot, pending=pending) is Verdict.LOST:
            assert slot is Slot.OTHER


def test_read_back_is_asked_for_where_it_decides() -> None:
    assert needs_read_back(Answer.EXISTS, pending=False)
    assert needs_read_back(Answer.UNKNOWN, pending=False)
    assert needs_read_back(Answer.REFUSED, pending=True)
    assert not needs_read_back(Answer.REFUSED, pending=False)
    assert not needs_read_back(Answer.STORED, pending=True)
    assert not needs_read_back(Answer.BUSY, pending=True)
