"""Which failures of one clip may be skipped, and how many."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dstream.errors import (
    CorruptDataError,
    DstreamError,
    InvalidInputError,
    MediaError,
    MediaReason,
    NotFoundError,
    ShortReadError,
    SourceChangedError,
)
from dstream.forks import renew_after_fork
from dstream.format.quarantine import QuarantineLine, encode_line
from dstream.loader.plan import whole
from dstream.measure import Meter

OnError = Literal["raise", "skip"]

MAX_SUBSTITUTES = 100
"""Clips tried in place of one that failed, before its error is raised after all."""

_KEPT = 1000
_FILES_KEPT = 100_000
"""Failed files that one loader remembers; the one that was longest not met is forgotten first."""


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


def is_for_good(error: BaseException, *, placed: bool, file: str | None = None) -> bool:
    """Whether a failure tells that no clip of the whole file can be had, now or later.

    A damaged group of pictures spoils the clips that need it and no others. Were the file given
    up for it, which of its clips are delivered would depend on which thread came first.

    Args:
        error: what went wrong with a clip.
        placed: the file's index was read and the clip placed in it before.
        file: the name of the video, once it is placed: a side file may be at fault instead.

    >>> gone = NotFoundError("gone", file="a.json")
    >>> is_for_good(gone, placed=False), is_for_good(gone, placed=True, file="a.mp4")
    (True, False)
    """
    if isinstance(error, SourceChangedError | NotFoundError):
        return not placed or error.facts.get("file", file) == file
    if isinstance(error, MediaError):
        # A file that hangs a decoder would cost a thread each time.
        hopeless = MediaReason.UNSUPPORTED_CODEC, MediaReason.DECODE_DEADLINE
        return not placed or error.reason in hopeless
    return isinstance(error, CorruptDataError) and not placed


@dataclass(frozen=True, slots=True)
class Failure:
    """The first skipped clip of a file."""

    sample_key: str
    reason: str
    message: str


class FailureLog:
    """Counts what one loader skips and stops when there is too much of it. Thread-safe.

    Every replaced clip is counted on the meter. Towards ``max_failures`` a file counts once,
    however many of its clips fail; a failure that may pass (a short read) counts each time.

    Args:
        on_error: ``raise`` lets only ``too-short`` pass.
        max_failures: failing files (``too-short`` not among them) that are put up with.
        meter: gets an event ``skip`` with the reason of each.
        quarantine: a file that gets a line for each failing file; several ranks may share it.
    """

    def __init__(
        self,
        on_error: OnError,
        max_failures: int,
        meter: Meter,
        quarantine: Path | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise InvalidInputError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        self._on_error = on_error
        self._max_failures = whole("max_failures", max_failures)
        if self._max_failures < 0:
            raise InvalidInputError(f"max_failures must not be negative, got {max_failures}")
        if quarantine is not None:
            _check_quarantine(quarantine, on_error)
        self._meter = meter
        self._quarantine = quarantine
        self._lock = threading.Lock()
        self._failures: list[Failure] = []
        self._count = 0
        self._noted: set[tuple[Hashable, bool]] = set()
        self._files: OrderedDict[Hashable, str | None] = OrderedDict()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child, where a thread of the parent may hold it."""
        self._lock = threading.Lock()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The first skipped clip of each file so far, a thousand of them."""
        with self._lock:
            return tuple(self._failures)

    def is_given_up(self, file: Hashable, sample_key: str, attempt: int) -> bool:
        """Whether a file is known to give no clip at all; then one more skip is counted.

        Args:
            file: which file.
            sample_key: whose clip is wanted.
            attempt: how many clips of this position failed before.

        Raises:
            DstreamError: too many clips failed in a row.
        """
        with self._lock:
            reason = self._files.get(file)
            if reason is None:
                return False
            self._files.move_to_end(file)
        if attempt >= MAX_SUBSTITUTES:
            raise _too_many_in_a_row(attempt, sample_key, reason, f"{reason}, as met before")
        self._meter.event("skip", reason)
        return True

    def record(
        self,
        error: BaseException,
        sample_key: str,
        attempt: int,
        file: Hashable,
        *,
        for_good: bool,
        name: str | None = None,
    ) -> None:
        """Count a failed clip, or raise ``error`` when it may not be skipped.

        Args:
            error: what went wrong.
            sample_key: whose clip it was.
            attempt: how many clips of this position failed before.
            file: in which file it lies.
            for_good: see :func:`is_for_good`; the file's other clips are then skipped untried.
            name: of the file, where it is known.
        """
        reason = skip_reason(error)
        if reason is None or (self._on_error == "raise" and reason != "too-short"):
            raise error
        if attempt >= MAX_SUBSTITUTES:
            raise _too_many_in_a_row(attempt, sample_key, reason, str(error)) from error
        self._meter.event("skip", reason)
        with self._lock:
            if reason != "too-short":
                self._count += isinstance(error, ShortReadError) or file not in self._files
                self._remember(file, reason if for_good else None)
            note = file, reason == "too-short"
            if note not in self._noted and len(self._failures) < _KEPT:
                self._noted.add(note)
                self._failures.append(Failure(sample_key, reason, str(error)))
                if reason not in ("too-short", "short-read"):  # those may be good yet
                    self._write(name or str(_fact(error, "file", sample_key)), reason, str(error))
            too_many = self._count > self._max_failures
        if too_many:
            raise DstreamError(
                f"more than max_failures={self._max_failures} files failed, the last one at "
                f"sample {sample_key!r}: {error}; raise max_failures, or mend the data",
                sample_key=sample_key,
                reason=reason,
            ) from error

    def _write(self, name: str, reason: str, detail: str) -> None:
        if self._quarantine is None:
            return
        line = encode_line(QuarantineLine(name, reason, detail))
        # One write at the end of the file: lines of many processes do not mix.
        opened = os.open(self._quarantine, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(opened, line)
        finally:
            os.close(opened)

    def _remember(self, file: Hashable, reason: str | None) -> None:
        self._files[file] = reason or self._files.get(file)
        self._files.move_to_end(file)
        if len(self._files) > _FILES_KEPT:
            self._files.popitem(last=False)


def _check_quarantine(path: Path, on_error: OnError) -> None:
    """Refuse now what would be noticed only when a file has failed, hours into a run."""
    if on_error != "skip":
        raise InvalidInputError("quarantine= needs on_error='skip': else nothing is written to it")
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInputError(
            f"quarantine={str(path)!r} must be a file in a folder that is there: make the folder, "
            "or name another file"
        )


def _fact(error: BaseException, name: str, default: object) -> object:
    return error.facts.get(name, default) if isinstance(error, DstreamError) else default


def _too_many_in_a_row(attempt: int, sample_key: str, reason: str, happened: str) -> DstreamError:
    return DstreamError(
        f"{attempt} clips in a row failed, the last one of sample {sample_key!r}: {happened}",
        sample_key=sample_key,
        reason=reason,
    )
