"""Ranged reads of S3 objects: one kept connection a thread, a deadline for every answer.

boto3 costs several times the CPU for the same bytes, and hides what a read plan must know: the
status, Retry-After, how many bytes really came.

With small ranges Python itself is what takes the time, so what every read does is kept short:
requests are made once for many, values are tuples.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from typing import NamedTuple

from botocore import exceptions as boto

from dstream.errors import DstreamError, ShortReadError, SourceChangedError, StorageError
from dstream.measure import Meter
from dstream.store.base import Blob, ObjectInfo
from dstream.store.http_head import is_plain_length
from dstream.store.metered import DEADLINE_CODE
from dstream.store.options import StoreOptions
from dstream.store.ranges import past_end
from dstream.store.s3_client import Clients
from dstream.store.s3_connection import Answer, Connection, DeadlineError
from dstream.store.s3_engine import connector
from dstream.store.s3_errors import (
    Target,
    error_for,
    error_for_botocore,
    http_date_s,
    parse_answer,
)
from dstream.store.s3_requests import Requests
from dstream.units import KIB, MIB

_BYTES_PER_S, _SLOWEST_BYTES_PER_S = MIB, 64 * KIB
_ERROR_BODY_BYTES = 64 * 1024
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class RangedRead(NamedTuple):
    """One read: which bytes of which object, as it must be."""

    bucket: str
    key: str
    """The whole key, the store's prefix included."""
    name: str
    """The key as the store's users know it."""
    start_byte: int
    stop_byte: int | None
    expect_etag: str | None = None
    version: str | None = None
    send_if_match: bool = True

    @property
    def target(self) -> Target:
        """For messages."""
        return Target("GetObject", self.bucket, self.key, self.name)

    @property
    def span(self) -> str:
        """The bytes as a Range header says them; empty for a whole object, which may be empty."""
        if self.stop_byte is not None:
            return f"{self.start_byte}-{self.stop_byte - 1}"
        return f"{self.start_byte}-" if self.start_byte else ""


def allowed_s(size_bytes: int, late: int, options: StoreOptions) -> float:
    """How long an answer of so many bytes may take. Pure.

    A second a MiB beyond ``stall_timeout_s``, and twice that for each answer in a row that was
    late: what looks like a stall may be a slow store, and that must get its answers in the end.
    At most ``read_timeout_s`` and 64 KiB a second.

    >>> options = StoreOptions(stall_timeout_s=5, read_timeout_s=60)
    >>> [allowed_s(2 * MIB, late, options) for late in (0, 1, 9)]
    [7.0, 14.0, 92.0]
    """
    wanted_s = (options.stall_timeout_s + size_bytes / _BYTES_PER_S) * 2.0 ** min(late, 32)
    return min(wanted_s, options.read_timeout_s + size_bytes / _SLOWEST_BYTES_PER_S)


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Line:
    """One thread's connection."""

    connection: Connection
    options: StoreOptions
    late: int = 0
    """Answers in a row that were late."""

    def allowed_s(self, size_bytes: int) -> float:
        """How long its next answer may take, see :func:`allowed_s`."""
        return allowed_s(size_bytes, self.late, self.options)


class RangedReader:
    """Reads byte ranges. Used by many threads of one process; not across a fork."""

    def __init__(self, bucket: str, clients: Clients, options: StoreOptions, meter: Meter) -> None:
        self._options = options
        template = clients.template(bucket)
        endpoint = clients.endpoint(template.url_before)
        self._requests = Requests(clients, template, endpoint)
        self._connect = connector(options.engine, endpoint, meter)
        self._local = threading.local()
        self._lines: weakref.WeakSet[_Line] = weakref.WeakSet()
        self._lock = threading.Lock()

    def read(self, wanted: RangedRead) -> Blob:
        """The bytes, checked against the answer's status, range, length and ETag.

        ``ShortReadError`` and other failures in the body carry ``received_bytes``. An answer
        that is late is a ``StorageError`` with the fact ``code`` ``read-deadline``.
        """
        line = self._line()
        done = False
        try:
            blob = self._read(wanted, line)
            done = True
        except boto.BotoCoreError as error:
            raise error_for_botocore(error, wanted.target) from error
        except DeadlineError as error:
            line.late += 1
            raise self._late(wanted, line, error.received_bytes) from error
        finally:
            if not done:
                # What is left of the body must not be taken for the next answer.
                line.connection.close()
        line.late = 0
        return blob

    def _read(self, wanted: RangedRead, line: _Line) -> Blob:
        if_match = wanted.expect_etag if wanted.send_if_match else None
        request = self._requests.request(wanted.key, wanted.version, if_match)
        size_bytes = None if wanted.stop_byte is None else wanted.stop_byte - wanted.start_byte
        response = line.connection.get(request, wanted.span, line.allowed_s, size_bytes)
        try:
            if response.status not in (200, 206):
                raise _refusal(wanted, response)
            headers = response.headers
            size_bytes, expected_bytes = _sizes(wanted, response.status, headers)
            etag = unquoted(headers.get("etag", ""))
            require_etag(wanted, etag)
            data = _body(wanted, response, expected_bytes)
        except TimeoutError as error:
            raise line.connection.late() from error
        return Blob(data, _info(wanted, headers, etag, size_bytes))

    def _late(self, wanted: RangedRead, line: _Line, received_bytes: int) -> StorageError:
        wait_s = allowed_s(0, line.late - 1, self._options)
        return StorageError(
            f"{wanted.target.url}: no answer within {wait_s:g} s (or {received_bytes} bytes of one "
            f"and no more) for bytes [{wanted.start_byte}, {wanted.stop_byte})",
            key=wanted.name,
            code=DEADLINE_CODE,
            received_bytes=received_bytes,
        )

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.connection.close()

    def _line(self) -> _Line:
        line: _Line | None = getattr(self._local, "line", None)
        if line is None:
            line = self._local.line = _Line(self._connect(), self._options)
            weakref.finalize(line, line.connection.close)  # at the thread's end
            with self._lock:
                self._lines.add(line)
        return line


def _info(wanted: RangedRead, headers: Mapping[str, str], etag: str, size_bytes: int) -> ObjectInfo:
    return ObjectInfo(
        wanted.name,
        size_bytes,
        etag,
        headers.get("x-amz-version-id"),
        last_modified_s=http_date_s(headers.get("last-modified", "")),
        server_date_s=http_date_s(headers.get("date", "")),
    )


def require_etag(wanted: RangedRead, etag: str) -> None:
    """Raise ``SourceChangedError`` when another ETag was expected."""
    if wanted.expect_etag is not None and etag != wanted.expect_etag:
        raise SourceChangedError(
            f"{wanted.target.url}: ETag is {etag}, expected {wanted.expect_etag}: the object was "
            "replaced since it was indexed",
            key=wanted.name,
            etag=etag,
            expected_etag=wanted.expect_etag,
        )


def _sizes(wanted: RangedRead, status: int, headers: Mapping[str, str]) -> tuple[int, int]:
    """(size of the object, bytes of this body) as the headers say and as they must be."""
    length = headers.get("content-length", "")
    if status == 206:
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        if match is None:
            raise _nonsense(wanted, f"Content-Range {headers.get('content-range')!r}")
        first, last, size = int(match[1]), int(match[2]), int(match[3])
        stop = size if wanted.stop_byte is None else wanted.stop_byte
        if stop > size:
            raise past_end(wanted.name, wanted.start_byte, wanted.stop_byte, size)
        if (first, last + 1) != (wanted.start_byte, stop):
            raise _nonsense(wanted, f"Content-Range {match[0]!r}")
        expected = stop - wanted.start_byte
    else:
        if not is_plain_length(length):
            raise _nonsense(wanted, f"no Content-Length ({length!r})")
        size = expected = int(length)
        whole = wanted.start_byte == 0 and wanted.stop_byte in (None, size)
        if not whole:
            raise _nonsense(wanted, "the whole object: it ignores the Range header", retry=False)
    if length and length != str(expected):
        raise _nonsense(wanted, f"Content-Length {length!r}")
    return size, expected


def _body(wanted: RangedRead, response: Answer, expected_bytes: int) -> bytes:
    try:
        data = response.read()
    except IncompleteRead as error:
        raise _short(wanted, len(error.partial), expected_bytes) from error
    except TimeoutError:
        raise
    except (OSError, HTTPException) as error:
        raise StorageError(
            f"{wanted.target.url}: the connection failed in the middle of the body: {error}",
            key=wanted.name,
            code=type(error).__name__,
        ) from error
    if len(data) != expected_bytes:
        raise _short(wanted, len(data), expected_bytes)
    return data


def _short(wanted: RangedRead, received_bytes: int, expected_bytes: int) -> ShortReadError:
    return ShortReadError(
        f"{wanted.target.url}: the answer ended after {received_bytes} of {expected_bytes} bytes "
        f"from {wanted.start_byte}",
        key=wanted.name,
        received_bytes=received_bytes,
        expected_bytes=expected_bytes,
    )


def _refusal(wanted: RangedRead, response: Answer) -> DstreamError:
    status = response.status
    try:
        body = response.read(_ERROR_BODY_BYTES)
    except (OSError, HTTPException):
        body = b""  # the status alone tells enough
    if status == 416:
        return ShortReadError(
            f"{wanted.target.url}: the object ends before byte {wanted.start_byte}",
            key=wanted.name,
            status=status,
            received_bytes=0,
            retry=False,
        )
    return error_for(parse_answer(status, response.headers, body), wanted.target)


def _nonsense(wanted: RangedRead, got: str, *, retry: bool = True) -> StorageError:
    return StorageError(
        f"{wanted.target.url}: the server answered with {got}; bytes "
        f"[{wanted.start_byte}, {wanted.stop_byte}) were asked for",
        key=wanted.name,
        code="unexpected-answer",
        retry=retry,
    )


def unquoted(etag: str) -> str:
    """An ETag without quotes and weakness mark: servers differ in both.

    >>> unquoted('W/"abc-2"'), unquoted("abc")
    ('abc-2', 'abc')
    """
    return etag.removeprefix("W/").strip('"')
