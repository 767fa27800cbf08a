"""One kept HTTP connection for ranged reads by libcurl: the engine ``native``.

A thread makes its own transfer in one call, for which Python's lock is free, so there is no loop
of anybody else to outlive a fork or an exit. Meanwhile ``s3_watch.py`` looks at the time, and
cuts a transfer short by ending its socket.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead, parse_headers

from botocore import exceptions as boto

from dstream.clock import SystemClock
from dstream.store import libcurl
from dstream.store.curl_handles import Handles
from dstream.store.http_head import HEAD_END, is_plain_length, plain_head
from dstream.store.libcurl import Exact, Growing, Libcurl
from dstream.store.patience import Patience, current
from dstream.store.s3_connection import (
    FRESH_S,
    Answer,
    DeadlineError,
    Endpoint,
    Request,
)
from dstream.store.s3_watch import WATCH
from dstream.units import KIB

_CLOCK = SystemClock()

_SPARE_S = 5.0
_EXACT_BYTES = 64 * KIB
"""Shorter bodies are copied: in their place there may be an error's text, which is longer."""


def final_head(received: bytes) -> bytes | None:
    """The head of the answer itself, behind those of 1xx; None where it is not whole. Pure.

    >>> final_head(b"HTTP/1.1 100 Continue\\r\\n\\r\\nHTTP/1.1 200 OK\\r\\nA: b\\r\\n\\r\\nC: d")
    b'HTTP/1.1 200 OK\\r\\nA: b\\r\\n\\r\\n'
    """
    while True:
        end = received.find(HEAD_END)
        if end < 0:
            return None
        head, received = received[: end + 4], received[end + 4 :]
        if head[8:10] != b" 1":
            return head


def parsed(head: bytes) -> tuple[int, Mapping[str, str]]:
    """Status and headers, by their names in lower case. Pure.

    Raises:
        HTTPException, ValueError: it is no head.
    """
    plain = plain_head(head)
    if plain is not None:
        return plain.status, plain.headers
    first, _, rest = head.partition(b"\r\n")
    fields = parse_headers(io.BytesIO(rest))
    return int(first.split()[1]), {name.lower(): fields[name] for name in fields.keys()}


@dataclass(frozen=True, slots=True)
class _CurlAnswer:
    """An answer that is here to its end, or as far as it came; see :class:`Answer`."""

    status: int
    headers: Mapping[str, str]
    data: bytes
    fault: Exception | None

    def read(self, limit_bytes: int | None = None) -> bytes:
        """See :class:`Answer`."""
        if self.fault is not None:
            raise self.fault
        return self.data if limit_bytes is None else self.data[:limit_bytes]


class CurlConnection:
    """A :class:`Connection` by libcurl. Bytes of a body are written where they stay."""

    def __init__(self, endpoint: Endpoint, curl: Libcurl) -> None:
        self._endpoint, self._curl = endpoint, curl
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        """Held to begin, to end and to cut a transfer, not during one."""
        self._handles: Handles | None = None
        self._is_in_use = False
        """They may not be closed: from before a transfer until its answer has been read."""
        self._is_under_way = False
        self._is_doomed = False
        self._late_for: str | None = None
        self._allowed_s: Callable[[int], float] = float
        self._is_body = False
        self._patience: Patience | None = None
        self._until_s = self._used_s = 0.0
        self._received_bytes = 0

    def get(
        self,
        request: Request,
        span: str,
        allowed_s: Callable[[int], float],
        body_bytes: int | None,
    ) -> Answer:
        """See :class:`Connection`."""
        try:
            handles = self._ready()
            is_long = body_bytes is not None and body_bytes >= _EXACT_BYTES
            sink = Exact(body_bytes or 0) if is_long else Growing()
            try:
                handles.prepare(request, span, sink.stream)
                # A server may send the whole object instead; 0 stands for any length.
                handles.limit(max(body_bytes, _EXACT_BYTES) if body_bytes else 0)
                result = self._transferred(handles, allowed_s, body_bytes)
            finally:
                data = sink.take()
            self._received_bytes = len(data) + handles.head.received_bytes
            return self._answer(handles, result, data)
        finally:
            with self._lock:
                self._is_in_use = False
                if self._is_doomed:
                    self._end()

    def late(self) -> DeadlineError:
        """See :class:`Connection`."""
        return DeadlineError(self._received_bytes)

    def close(self) -> None:
        """See :class:`Connection`."""
        if self._process_id != os.getpid():
            # In a forked child the lock may be held for ever, and the connection is the parent's.
            handles, self._handles = self._handles, None
            if handles is not None:
                handles.abandon()
            return
        with self._lock:
            if self._is_in_use:
                self._is_doomed = True
                if self._handles is not None:
                    self._handles.cut()
            else:
                self._end()

    def look(self, now_s: float) -> None:
        """End the transfer when it is late, or its thread is to stop."""
        with self._lock:
            handles = self._handles
            if not self._is_under_way or handles is None:
                return  # it has ended meanwhile
            if self._patience is not None and self._patience.stopped():
                self._late_for = "this thread is to stop"
            elif now_s >= self._until_s:
                head = None if self._is_body else final_head(handles.received())
                if head is None:
                    self._late_for = "the answer is late"
                else:
                    self._is_body = True
                    self._until_s = now_s + self._allowed_s(_length(head))
            if self._late_for is not None:
                handles.cut()

    def _ready(self) -> Handles:
        now_s = _CLOCK.monotonic_s()
        is_fresh = now_s - self._used_s < FRESH_S
        self._used_s = now_s
        with self._lock:
            self._is_in_use = True
            handles = self._handles
            if handles is not None and not is_fresh and handles.is_ended:
                self._end()
                handles = None
            if handles is None:
                handles = self._handles = Handles(self._curl, self._endpoint, self._connected)
            handles.head.clear()
        return handles

    def _connected(self) -> None:
        """There is a connection: from here on the answer is waited for."""
        self._until_s = _CLOCK.monotonic_s() + self._allowed_s(0)

    def _transferred(
        self, handles: Handles, allowed_s: Callable[[int], float], body_bytes: int | None
    ) -> int:
        connect_s = 0.0 if handles.is_kept else self._endpoint.connect_timeout_s
        # libcurl's own limit stands behind the watch, where it knows how much may come.
        most_s = connect_s + allowed_s(0) + allowed_s(body_bytes or 0) + _SPARE_S
        handles.end_after(0.0 if body_bytes is None else most_s)
        with self._lock:
            self._allowed_s, self._patience = allowed_s, current()
            self._is_body, self._late_for, self._is_under_way = False, None, True
            self._until_s = _CLOCK.monotonic_s() + connect_s + allowed_s(0)
        try:
            WATCH.add(self)
            return handles.transfer()
        finally:
            WATCH.remove(self)
            with self._lock:
                self._is_under_way = False

    def _answer(self, handles: Handles, result: int, data: bytes) -> Answer:
        head = final_head(handles.received())
        if head is None:
            raise self._failed(handles, result)
        try:
            status, headers = parsed(head)
        except (HTTPException, ValueError) as error:
            raise self._closed() from error
        return _CurlAnswer(status, headers, data, self._fault(handles, result, status, data))

    def _failed(self, handles: Handles, result: int) -> DeadlineError | boto.BotoCoreError:
        """The error for a transfer that ended before its head was here."""
        url, error = self._endpoint.url, OSError(self._curl.text(result))
        if self._late_for is not None:
            return self.late()
        if handles.has_sent:
            return self._closed()
        if result in libcurl.TLS_FAILURES:
            return boto.SSLError(endpoint_url=url, error=error)
        if result == libcurl.TIMED_OUT:
            return boto.ConnectTimeoutError(endpoint_url=url, error=error)
        return boto.EndpointConnectionError(endpoint_url=url, error=error)

    def _fault(self, handles: Handles, result: int, status: int, data: bytes) -> Exception | None:
        """What is wrong with a body whose head is here."""
        if self._late_for is not None:
            return TimeoutError(self._late_for)
        is_refusal, is_long = status not in (200, 206), result in libcurl.TOO_LONG
        if result == libcurl.OK or (is_refusal and is_long):
            return None
        if is_long:
            return HTTPException("the body is longer than what was asked for")
        if self._curl.system_error(handles.easy) == errno.ECONNRESET:
            return ConnectionResetError(errno.ECONNRESET, self._curl.text(result))
        return IncompleteRead(data)

    def _closed(self) -> boto.BotoCoreError:
        return boto.ConnectionClosedError(
            endpoint_url=self._endpoint.url, request=None, response=None
        )

    def _end(self) -> None:
        handles, self._handles = self._handles, None
        self._is_doomed = False
        if handles is not None:
            handles.close()


def _length(head: bytes) -> int:
    """Of the body, as a head says it; 0 where it says nothing that can be read."""
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        text = value.strip().decode("latin-1")
        if name == b"content-length" and is_plain_length(text):
            return int(text)
    return 0
