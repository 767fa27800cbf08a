"""Counting requests: one count for every attempt that left the process, with how it ended.

Verbs are the requests themselves: ``get``, ``put``, ``put-if-absent``, ``head``, ``list`` (one a
page), ``delete``, ``create-upload``, ``upload-part``, ``complete-upload``, ``abort-upload``,
``list-uploads``, ``versioning``. Outcomes are ``ok`` or a code of :func:`outcome_of`.

:class:`Metered` wraps stores where one call is one request (memory, local). The S3 store counts
its HTTP requests itself, by the same :class:`Attempt`: a listing there is many pages and an upload
many parts, which no wrapper could see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from dstream.clock import Clock, SystemClock
from dstream.errors import (
    AlreadyExistsError,
    DstreamError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    ShortReadError,
    SourceChangedError,
    ThrottledError,
)
from dstream.measure import Meter, Purpose
from dstream.measure.counters import RequestTotals
from dstream.store.base import Blob, Capabilities, ObjectInfo, Store, Upload

_OUTCOMES: tuple[tuple[type[DstreamError], str], ...] = (
    (NotFoundError, "not-found"),
    (AlreadyExistsError, "already-exists"),
    (SourceChangedError, "source-changed"),
    (OutcomeUnknownError, "unknown"),
    (ThrottledError, "throttled"),
    (ShortReadError, "short-read"),
    (PermissionDeniedError, "denied"),
    (InvalidInputError, "invalid"),
)
CONFLICT_CODE = "ConditionalRequestConflict"
"""The fact ``code`` of a put-if-absent that met a rival's in flight and decided nothing.

It is a ``StorageError``: the same bytes may be sent to the same key again.
"""


_LOST = ("ConnectionClosedError", "ConnectionResetError", "BrokenPipeError")
"""Facts ``code`` of connections that were lost before the whole answer had come."""

DEADLINE_CODE = "read-deadline"
"""The fact ``code`` of an answer that did not come in time."""


def outcome_of(error: DstreamError) -> str:
    """The code under which a failed request is counted.

    >>> outcome_of(ThrottledError("slow down")), outcome_of(DstreamError("?"))
    ('throttled', 'error')
    """
    if error.facts.get("code") == CONFLICT_CODE:
        return "conflict"
    for kind, code in _OUTCOMES:
        if isinstance(error, kind):
            return code
    if error.facts.get("code") in _LOST:
        return "reset"
    return DEADLINE_CODE if error.facts.get("code") == DEADLINE_CODE else "error"


class Attempt:
    """Counts its ``with`` block as one request, however it ends.

    Errors of this library that leave the block give the outcome; their fact
    ``received_bytes``, if any, is what arrived before they struck.
    """

    __slots__ = ("_began_s", "_clock", "_meter", "_purpose", "_verb", "received", "requested")

    def __init__(
        self, meter: Meter, clock: Clock, verb: str, purpose: Purpose, requested_bytes: int = 0
    ) -> None:
        self._meter, self._clock, self._verb, self._purpose = meter, clock, verb, purpose
        self.requested, self.received = requested_bytes, 0
        """Bytes; to be filled in by the block."""

    def __enter__(self) -> Self:
        self._began_s = self._clock.monotonic_s()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        seconds = self._clock.monotonic_s() - self._began_s
        outcome = "ok" if error is None else "error"
        if isinstance(error, DstreamError):
            outcome = outcome_of(error)
            received = error.facts.get("received_bytes", 0)
            self.received = received if isinstance(received, int) else 0
        totals = RequestTotals(1, self.requested, self.received, seconds)
        self._meter.request(self._verb, self._purpose, outcome, totals)


class Metered:
    """A store whose every call is counted as one request. See the module."""

    def __init__(self, inner: Store, meter: Meter, clock: Clock | None = None) -> None:
        self._inner = inner
        self._meter = meter
        self._clock: Clock = clock or SystemClock()

    @property
    def url(self) -> str:
        """That of the wrapped store."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """Those of the wrapped store."""
        return self._inner.capabilities

    def head(
        self, key: str, *, version: str | None = None, purpose: Purpose = Purpose.OTHER
    ) -> ObjectInfo:
        """Counted as ``head``."""
        with Attempt(self._meter, self._clock, "head", purpose):
            return self._inner.head(key, version=version, purpose=purpose)

    def get(
        self,
        key: str,
        start_byte: int = 0,
        stop_byte: int | None = None,
        *,
        expect_etag: str | None = None,
        version: str | None = None,
        purpose: Purpose = Purpose.OTHER,
    ) -> Blob:
        """Counted as ``get``, with the bytes asked for and those that arrived."""
        asked_bytes = 0 if stop_byte is None else max(0, stop_byte - start_byte)
        with Attempt(self._meter, self._clock, "get", purpose, asked_bytes) as traffic:
            blob = self._inner.get(
                key,
                start_byte,
                stop_byte,
                expect_etag=expect_etag,
                version=version,
                purpose=purpose,
            )
            traffic.received = len(blob.data)
            if stop_byte is None:
                traffic.requested = len(blob.data)
            return blob

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        """Counted as ``put``."""
        with Attempt(self._meter, self._clock, "put", purpose, len(data)):
            return self._inner.put(key, data, purpose=purpose)

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        """Counted as ``put-if-absent``."""
        with Attempt(self._meter, self._clock, "put-if-absent", purpose, len(data)):
            return self._inner.put_if_absent(key, data, purpose=purpose)

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        """Counted as one ``put``: the stores wrapped here write an object in one go."""
        with Attempt(self._meter, self._clock, "put", purpose) as traffic:
            info = self._inner.upload(key, path, purpose=purpose)
            traffic.requested = info.size_bytes
            return info

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        """Counted as one ``list``, without the time that the caller takes between objects."""
        spent_s = 0.0
        outcome = "ok"
        found = self._inner.list(prefix, start_after=start_after, limit=limit, purpose=purpose)
        try:
            while True:
                began_s = self._clock.monotonic_s()
                info = next(found, None)
                spent_s += self._clock.monotonic_s() - began_s
                if info is None:
                    return
                yield info
        except DstreamError as error:
            outcome = outcome_of(error)
            raise
        finally:
            self._meter.request("list", purpose, outcome, RequestTotals(1, 0, 0, spent_s))

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        """Counted as one ``delete`` a key."""
        wanted = tuple(keys)
        began_s = self._clock.monotonic_s()
        failed = self._inner.delete_many(wanted, purpose=purpose)
        seconds = self._clock.monotonic_s() - began_s
        done = len(wanted) - len(failed)
        self._meter.request("delete", purpose, "ok", RequestTotals(done, 0, 0, seconds))
        if failed:
            self._meter.request("delete", purpose, "error", RequestTotals(len(failed)))
        return failed

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        """Counted as one ``list-uploads``."""
        with Attempt(self._meter, self._clock, "list-uploads", Purpose.OTHER):
            return iter(tuple(self._inner.list_uploads(prefix)))

    def abort_upload(self, upload: Upload) -> None:
        """Counted as ``abort-upload``."""
        with Attempt(self._meter, self._clock, "abort-upload", Purpose.OTHER):
            self._inner.abort_upload(upload)

    def close(self) -> None:
        """Close the wrapped store."""
        self._inner.close()
