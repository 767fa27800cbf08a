"""Every error dstream raises, grouped by what the caller does next.

::

    DstreamError
    ├── InvalidInputError (ValueError)      fix the call
    ├── NotFoundError (LookupError)         name something that exists
    ├── ConflictError                       look at what the rival did, then decide
    │   └── AlreadyExistsError              a put-if-absent lost: the key is taken
    ├── RefusedError                        going on would be unsafe; nothing was done
    │   ├── UnsafeStoreError                the store ignores conditional writes
    │   ├── SourceChangedError              bytes are no longer those that were indexed
    │   └── FormatVersionError              written by a newer dstream
    ├── OutcomeUnknownError                 a write may or may not have landed: resolve, then retry
    ├── StorageError                        the environment failed: retry later or repair it
    │   ├── ThrottledError                  the store asked us to slow down
    │   ├── ShortReadError                  fewer bytes than the store promised
    │   └── PermissionDeniedError           a permission is missing; it is named
    ├── CorruptDataError                    stored bytes contradict their checksum or format
    ├── MediaError                          this file cannot give frames; the reason is a code
    └── PartialError                        done, but something was quarantined or skipped

Facts travel as attributes (``err.facts``), so callers never parse text. All of them pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class DstreamError(Exception):
    """Root of all errors of this library.

    ``message`` is one sentence or two: what, where, got, expected, what to do. ``facts`` holds
    the same as values; each fact is readable as an attribute too.
    """

    exit_code = 1

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts: Mapping[str, object] = facts

    def __getattr__(self, name: str) -> object:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no fact {name!r}")

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, dict(self.facts)))


def _rebuild(cls: type[DstreamError], message: str, facts: dict[str, object]) -> DstreamError:
    return cls(message, **facts)


class DstreamWarning(UserWarning):
    """Something needs attention and does not stop the run; it is counted too."""


class InvalidInputError(DstreamError, ValueError):
    """An argument, option, name or file given by the user cannot be used. Fix the call."""

    exit_code = 2


class NotFoundError(DstreamError, LookupError):
    """The named object, artifact, generation or file does not exist."""

    exit_code = 10


class ConflictError(DstreamError):
    """A rival's committed work contradicts this one. Nothing of ours became visible."""

    exit_code = 11


class AlreadyExistsError(ConflictError):
    """A put-if-absent found its key taken (by a rival, or by our own earlier attempt)."""


class RefusedError(DstreamError):
    """Going on would be unsafe, so nothing was done."""

    exit_code = 12


class UnsafeStoreError(RefusedError):
    """The store ignores conditional writes; commits on it could be lost."""


class SourceChangedError(RefusedError):
    """An object's bytes are no longer those that were indexed (ETag, size or checksum differ)."""


class FormatVersionError(RefusedError):
    """The repository or object was written by a newer format version than this one reads."""


class OutcomeUnknownError(DstreamError):
    """A write's answer was lost and read-back could not settle it. Staged bytes are kept."""

    exit_code = 13


class StorageError(DstreamError):
    """The store or the disk failed: a reset, a timeout, a 5xx, a full disk."""


class ThrottledError(StorageError):
    """The store asked us to slow down. Fact ``retry_after_s`` is its own wish, if it gave one."""


class ShortReadError(StorageError):
    """A read ended before the promised number of bytes."""


class PermissionDeniedError(StorageError):
    """The store refused for lack of a permission; the operation is named in ``operation``."""


class CorruptDataError(DstreamError):
    """Stored bytes contradict their checksum, length or format. Retrying will not help."""


class MediaReason(StrEnum):
    """Why a file gives no frames. Append only: these strings are stored in quarantine tables."""

    EMPTY = "empty"
    NOT_MEDIA = "not-media"
    NO_VIDEO_TRACK = "no-video-track"
    NO_FRAMES = "no-frames"
    ENCRYPTED = "encrypted"
    UNSUPPORTED_CODEC = "unsupported-codec"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    UNDECODABLE = "undecodable"
    INDEX_TOO_LARGE = "index-too-large"
    TIMESTAMPS = "timestamps"
    UNREADABLE = "unreadable"
    BAD_NAME = "bad-name"
    BAD_SIDE_FILE = "bad-side-file"
    CHANGED = "changed-while-reading"
    DECODE_DEADLINE = "decode-deadline"
    BAD_ARRAY = "bad-array"


class MediaError(DstreamError):
    """A file cannot give frames. Fact ``reason`` is a :class:`MediaReason`."""

    def __init__(self, message: str, *, reason: MediaReason, **facts: object) -> None:
        super().__init__(message, reason=reason, **facts)

    @property
    def reason(self) -> MediaReason:
        """The code that quarantine tables and skip counters use."""
        return MediaReason(str(self.facts["reason"]))


class PartialError(DstreamError):
    """The work is done and committed, but some inputs were quarantined or skipped."""

    exit_code = 3
