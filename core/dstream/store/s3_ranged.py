"""Ranged reads of S3 objects: urllib3 with botocore's signer, one kept connection a thread.

boto3 costs several times the CPU for the same bytes, and hides what a read plan must know: the
status, Retry-After, how many bytes really came. The request itself is still botocore's: it
builds one, with the endpoint, the addressing and the user's request arguments, and this module
only puts key, range and signature into it.
"""

from __future__ import annotations

import re
import threading
import weakref
from dataclasses import dataclass
from http.client import IncompleteRead
from typing import Any
from urllib.parse import quote

from botocore import exceptions as boto
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.httpsession import URLLib3Session
from urllib3.exceptions import HTTPError

from dstream.errors import DstreamError, ShortReadError, SourceChangedError, StorageError
from dstream.store.base import Blob, ObjectInfo
from dstream.store.options import StoreOptions
from dstream.store.ranges import past_end
from dstream.store.s3_client import Clients
from dstream.store.s3_errors import (
    Target,
    error_for,
    error_for_botocore,
    http_date_s,
    parse_answer,
)

_ERROR_BODY_BYTES = 64 * 1024
_UNRESERVED = "-._~/"


@dataclass(frozen=True, slots=True)
class RangedRead:
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
    def range_header(self) -> str | None:
        """The Range header; None for a whole object, which may be empty."""
        if self.stop_byte is not None:
            return f"bytes={self.start_byte}-{self.stop_byte - 1}"
        return f"bytes={self.start_byte}-" if self.start_byte else None


class RangedReader:
    """Reads byte ranges. Used by many threads of one process; not across a fork."""

    def __init__(self, bucket: str, clients: Clients, options: StoreOptions) -> None:
        self._clients = clients
        self._options = options
        self._template = clients.template(bucket)
        self._local = threading.local()
        self._sessions: weakref.WeakSet[URLLib3Session] = weakref.WeakSet()
        self._lock = threading.Lock()

    def read(self, wanted: RangedRead) -> Blob:
        """The bytes, checked against the answer's status, range, length and ETag.

        ``ShortReadError`` and other failures in the body carry ``received_bytes``.
        """
        try:
            request = self._signed(wanted)
            response = self._session().send(request)
        except boto.BotoCoreError as error:
            raise error_for_botocore(error, wanted.target) from error
        raw = response.raw
        done = False
        try:
            blob = _checked(wanted, response.status_code, response.headers, raw)
            done = True
            return blob
        finally:
            if not done:
                # What is left of the body must not be taken for the next answer.
                raw.close()

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.close()

    def _session(self) -> URLLib3Session:
        session: URLLib3Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._clients.http_session(self._options)
            self._local.session = session
            with self._lock:
                self._sessions.add(session)
        return session

    def _signed(self, wanted: RangedRead) -> AWSPreparedRequest:
        template = self._template
        url = f"{template.url_before}{quote(wanted.key, safe=_UNRESERVED)}{template.url_after}"
        if wanted.version is not None:
            joint = "&" if "?" in template.url_after else "?"
            url += f"{joint}versionId={quote(wanted.version, safe='-._~')}"
        headers = dict(template.headers)
        if wanted.range_header is not None:
            headers["Range"] = wanted.range_header
        if wanted.expect_etag is not None and wanted.send_if_match:
            headers["If-Match"] = f'"{wanted.expect_etag}"'
        if template.region is not None:
            request = AWSRequest(method="GET", url=url, headers=headers)
            credentials = self._clients.credentials()
            S3SigV4Auth(credentials, "s3", template.region).add_auth(request)
            headers = dict(request.headers.items())
        return AWSPreparedRequest("GET", url, headers, None, stream_output=True)


def _checked(wanted: RangedRead, status: int, headers: Any, raw: Any) -> Blob:
    """Body and facts of an answer, or the error that it amounts to."""
    if status not in (200, 206):
        raise _refusal(wanted, status, headers, raw)
    size_bytes, expected_bytes = _sizes(wanted, status, headers)
    etag = unquoted(headers.get("ETag", ""))
    require_etag(wanted, etag)
    data = _body(wanted, raw, expected_bytes)
    info = ObjectInfo(
        wanted.name,
        size_bytes,
        etag,
        headers.get("x-amz-version-id"),
        last_modified_s=http_date_s(headers.get("Last-Modified", "")),
        server_date_s=http_date_s(headers.get("Date", "")),
    )
    return Blob(data, info)


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


def _sizes(wanted: RangedRead, status: int, headers: Any) -> tuple[int, int]:
    """(size of the object, bytes of this body) as the headers say and as they must be."""
    length = headers.get("Content-Length", "")
    if status == 206:
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers.get("Content-Range", ""))
        if match is None:
            raise _nonsense(wanted, f"Content-Range {headers.get('Content-Range')!r}")
        first, last, size = (int(group) for group in match.groups())
        stop = size if wanted.stop_byte is None else wanted.stop_byte
        if stop > size:
            raise past_end(wanted.name, wanted.start_byte, wanted.stop_byte, size)
        if (first, last + 1) != (wanted.start_byte, stop):
            raise _nonsense(wanted, f"Content-Range {match[0]!r}")
        expected = stop - wanted.start_byte
    else:
        if not length.isdecimal():
            raise _nonsense(wanted, f"no Content-Length ({length!r})")
        size = expected = int(length)
        whole = wanted.start_byte == 0 and wanted.stop_byte in (None, size)
        if not whole:
            raise _nonsense(wanted, "the whole object: it ignores the Range header", retry=False)
    if length and length != str(expected):
        raise _nonsense(wanted, f"Content-Length {length!r}")
    return size, expected


def _body(wanted: RangedRead, raw: Any, expected_bytes: int) -> bytes:
    try:
        data: bytes = raw.read() if expected_bytes else b""
    except HTTPError as error:
        partial = _partial_bytes(error)
        if partial is not None:
            raise _short(wanted, partial, expected_bytes) from error
        raise StorageError(
            f"{wanted.target.url}: the connection failed in the middle of the body: {error}",
            key=wanted.name,
            code=type(error).__name__,
        ) from error
    if len(data) != expected_bytes:
        raise _short(wanted, len(data), expected_bytes)
    return data


def _partial_bytes(error: BaseException) -> int | None:
    """Bytes that had come when the connection ended, if that is what happened."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, IncompleteRead):
            partial: Any = seen.partial
            # urllib3 puts a number where http.client puts the bytes.
            return partial if isinstance(partial, int) else len(partial)
        seen = seen.__cause__ or seen.__context__
    return None


def _short(wanted: RangedRead, received_bytes: int, expected_bytes: int) -> ShortReadError:
    return ShortReadError(
        f"{wanted.target.url}: the answer ended after {received_bytes} of {expected_bytes} bytes "
        f"from {wanted.start_byte}",
        key=wanted.name,
        received_bytes=received_bytes,
        expected_bytes=expected_bytes,
    )


def _refusal(wanted: RangedRead, status: int, headers: Any, raw: Any) -> DstreamError:
    try:
        body = raw.read(_ERROR_BODY_BYTES)
    except HTTPError:
        body = b""  # the status alone tells enough
    if status == 416:
        return ShortReadError(
            f"{wanted.target.url}: the object ends before byte {wanted.start_byte}",
            key=wanted.name,
            status=status,
            received_bytes=0,
            retry=False,
        )
    plain = {str(name).lower(): str(value) for name, value in headers.items()}
    return error_for(parse_answer(status, plain, body), wanted.target)


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
