"""Which failures of one clip may be skipped, and how many."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from dstream.errors import (
    CorruptDataError,
    DstreamError,
    InvalidInputError,
    MediaError,
    NotFoundError,
    ShortReadError,
    SourceChangedError,
)
from dstream.forks import renew_after_fork
from dstream.measure import Meter

OnError = Literal["raise", "skip"]

MAX_SUBSTITUTES = 100
"""Clips tried in place of one that failed, before its error is raised after all."""

_KEPT = 1000


class ClipTooShortError(InvalidInputError):
    """A sample, or this part of it, has too few frames for the clip.

    Slots are counted in time, before anything is known of single frames. So this is no fault of
    the caller's or the data's: the clip is always replaced, and counted as ``too-short``.
    """


_REASONS: tuple[tuple[type[DstreamError], str], ...] = (
    (ClipTooShortError, "too-short"),
    (SourceChangedError, "source-changed"),
    (NotFoundError, "not-found"),
    (ShortReadError, "short-read"),
    (CorruptDataError, "corrupt-data"),
)


def skip_reason(error: BaseException) -> str | None:
    """The counter's name for a failure that concerns one sample only; None for all others.

    Failures of the environment (a store that is down, a missing permission) and of the call are
    never skipped: they would take every clip in turn.
    """
    if isinstance(error, MediaError):
        return str(error.reason)
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    return None


@dataclass(frozen=True, slots=True)
class Failure:
    """One skipped clip."""

    sample_key: str
    reason: str
    message: str


class FailureLog:
    """Counts skipped clips of one loader and stops when there are too many. Thread-safe.

    Args:
        on_error: ``raise`` lets only ``too-short`` pass.
        max_failures: skipped clips (``too-short`` not among them) before the loader gives up.
        meter: gets an event ``skip`` with the reason of each.
    """

    def __init__(self, on_error: OnError, max_failures: int, meter: Meter) -> None:
        if on_error not in ("raise", "skip"):
            raise InvalidInputError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        if max_failures < 0:
            raise InvalidInputError(f"max_failures must not be negative, got {max_failures}")
        self._on_error = on_error
        self._max_failures = max_failures
        self._meter = meter
        self._lock = threading.Lock()
        self._failures: list[Failure] = []
        self._count = 0
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child, where a thread of the parent may hold it."""
        self._lock = threading.Lock()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The skipped clips so far, the first thousand of them."""
        with self._lock:
            return tuple(self._failures)

    def record(self, error: BaseException, sample_key: str, attempt: int) -> None:
        """Count a failed clip, or raise ``error`` when it may not be skipped.

        Args:
            error: what went wrong.
            sample_key: whose clip it was.
            attempt: how many clips of this position failed before.
        """
        reason = skip_reason(error)
        if reason is None or (self._on_error == "raise" and reason != "too-short"):
            raise error
        if attempt >= MAX_SUBSTITUTES:
            raise DstreamError(
                f"{attempt} clips in a row failed, the last one of sample {sample_key!r}: {error}",
                sample_key=sample_key,
                reason=reason,
            ) from error
        self._meter.event("skip", reason)
        with self._lock:
            if len(self._failures) < _KEPT:
                self._failures.append(Failure(sample_key, reason, str(error)))
            self._count += reason != "too-short"
            too_many = self._count > self._max_failures
        if too_many:
            raise DstreamError(
                f"more than max_failures={self._max_failures} clips failed, the last one of "
                f"sample {sample_key!r}: {error}; raise max_failures, or mend the data",
                sample_key=sample_key,
                reason=reason,
            ) from error
