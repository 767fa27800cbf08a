"""One kept HTTP connection for ranged reads in pure Python.

No library's client, since a socket's timeout is no deadline: it starts anew with every byte, so
that a body that trickles takes for ever. Here every receive looks at the time. http.client makes
the connections, and reads all answers but plain ones.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from botocore import exceptions as boto

from dstream.clock import SystemClock
from dstream.store.http_head import HEAD_END, MOST_BYTES, Head, plain_head
from dstream.store.patience import current
from dstream.store.s3_connection import (
    FRESH_S,
    SLICE_S,
    Answer,
    DeadlineError,
    Endpoint,
    require_sendable,
)

T = TypeVar("T")

_CLOCK = SystemClock()

_SLICE_TIMEVAL = struct.pack("ll", 0, int(SLICE_S * 1e6))

# No delay, and probes on idle connections, so that a dead peer is noticed.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)


@dataclass(slots=True)
class _Limit:
    """Until when the present answer may take, and what came of it."""

    until_s: float = 0.0
    received_bytes: int = 0


class _Timed(io.RawIOBase):
    """What a socket receives of one answer, until the limit, or until this thread is to stop.

    Each receive costs a hand-over of the interpreter between threads, so there are few.
    """

    def __init__(self, sock: socket.socket, limit: _Limit) -> None:
        self._sock, self._limit = sock, limit
        self._here = b""
        """Received and not read as yet."""
        self._body_bytes = 0
        """So many are still to come for certain: they are waited for at once."""
        self._is_tls = isinstance(sock, ssl.SSLSocket)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._here:
            got = min(len(self._here), len(buffer))
            buffer[:got], self._here = self._here[:got], self._here[got:]
            return got
        flags = 0
        if self._body_bytes and not self._is_tls:
            buffer, flags = memoryview(buffer)[: self._body_bytes], socket.MSG_WAITALL
        got = self._waited(self._sock.recv_into, buffer, 0, flags)
        self._limit.received_bytes += got
        self._body_bytes = max(0, self._body_bytes - got)
        return got

    def head(self, usual_bytes: int) -> bytes:
        """What comes first, up to the end of a head if it is no longer than usual.

        It stays to be read again, but for what :meth:`skip` takes of it.
        """
        self._here = self._receive(usual_bytes)
        if len(self._here) == usual_bytes and HEAD_END not in self._here:
            self._here += self._receive(MOST_BYTES)
        return self._here

    def skip(self, size_bytes: int) -> None:
        """Take so many bytes of the head away."""
        self._here = self._here[size_bytes:]

    def exactly(self, size_bytes: int) -> bytes:
        """So many bytes; fewer only where the connection ends."""
        if not self._here and not self._is_tls:
            self._here = self._receive(size_bytes, socket.MSG_WAITALL)
            if len(self._here) == size_bytes:
                return self._here
        # The rest is gathered in place: a large body is not copied for a few bytes.
        self._body_bytes = max(0, size_bytes - len(self._here))
        return io.BufferedReader(cast(Any, self), MOST_BYTES).read(size_bytes)

    def _receive(self, size_bytes: int, flags: int = 0) -> bytes:
        data = self._waited(self._sock.recv, size_bytes, flags)
        self._limit.received_bytes += len(data)
        return data

    def _waited(self, receive: Callable[..., T], *given: object) -> T:
        while _CLOCK.monotonic_s() < self._limit.until_s:
            try:
                return receive(*given)
            except (TimeoutError, BlockingIOError):
                patience = current()
                if patience is not None and patience.stopped():
                    raise TimeoutError("this thread is to stop") from None
        raise TimeoutError("the answer is late")


class _TimedSocket:
    """As much of a socket as an HTTPResponse wants."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream

    def makefile(self, mode: str) -> io.BufferedReader:
        return self._stream


class _PlainAnswer:
    """One that is followed by a body of known length."""

    def __init__(self, head: Head, raw: _Timed) -> None:
        self.status, self.headers = head.status, head.headers
        self._size_bytes, self._raw = head.body_bytes, raw
        raw.skip(head.size_bytes)

    def read(self, limit_bytes: int | None = None) -> bytes:
        """See :class:`Answer`."""
        wanted = self._size_bytes if limit_bytes is None else min(limit_bytes, self._size_bytes)
        data = self._raw.exactly(wanted)
        if len(data) < wanted:
            raise IncompleteRead(data, wanted - len(data))
        return data


class _AnyAnswer:
    """One as http.client reads it."""

    def __init__(self, stream: io.BufferedReader, at_end: Callable[[], None]) -> None:
        self._response = HTTPResponse(cast(Any, _TimedSocket(stream)), method="GET")
        self._response.begin()
        self._at_end = at_end
        self.status = self._response.status
        names = self._response.headers.keys()
        self.headers = {name.lower(): self._response.headers[name] for name in names}

    def read(self, limit_bytes: int | None = None) -> bytes:
        """See :class:`Answer`."""
        data = self._response.read(limit_bytes)
        if self._response.will_close:
            self._at_end()
        return data


class KeptConnection:
    """A :class:`Connection` by Python's sockets.

    Args:
        endpoint: where to connect.
        tls: of that endpoint; one serves all its connections.
    """

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        self._endpoint, self._host, self._tls = endpoint, endpoint.host, tls
        self._limit = _Limit()
        self._head_bytes = MOST_BYTES
        """Of the last plain answer: the next is likely as long, and then its body comes alone, in
        one piece that is not copied."""
        self._connection: HTTPConnection | None = None
        self._used_s = 0.0
        self._idle = select.poll()

    def get(
        self,
        path: str,
        headers: Mapping[str, str],
        allowed_s: Callable[[int], float],
        body_bytes: int | None,
    ) -> Answer:
        """See :class:`Connection`."""
        request = self._request(path, headers)
        sock = self._ready()
        self._limit.received_bytes = 0
        self.extend(allowed_s(0))
        try:
            sock.sendall(request)
            return self._answer(sock)
        except TimeoutError as error:
            raise self.late() from error
        except (OSError, HTTPException) as error:
            raise boto.ConnectionClosedError(
                endpoint_url=self._endpoint.url, request=None, response=None
            ) from error

    def _request(self, path: str, headers: Mapping[str, str]) -> bytes:
        target = self._endpoint.target(path)
        headers = {**headers, **self._endpoint.extra_headers}
        require_sendable(target, headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"GET {target} HTTP/1.1\r\nHost: {self._host}\r\n{lines}\r\n".encode("latin-1")

    def _answer(self, sock: socket.socket) -> Answer:
        raw = _Timed(sock, self._limit)
        head = plain_head(raw.head(self._head_bytes))
        if head is None:
            return _AnyAnswer(io.BufferedReader(cast(Any, raw)), self.close)
        self._head_bytes = head.size_bytes
        return _PlainAnswer(head, raw)

    def extend(self, timeout_s: float) -> None:
        """See :class:`Connection`."""
        self._limit.until_s = _CLOCK.monotonic_s() + timeout_s

    def late(self) -> DeadlineError:
        """See :class:`Connection`."""
        return DeadlineError(self._limit.received_bytes)

    def close(self) -> None:
        """See :class:`Connection`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ready(self) -> socket.socket:
        connection, now_s = self._connection, _CLOCK.monotonic_s()
        is_fresh = now_s - self._used_s < FRESH_S
        self._used_s = now_s
        # An idle connection that has something to read was closed by the server.
        if connection is None or (not is_fresh and self._idle.poll(0)):
            self.close()
            connection = self._connection = self._connected()
            self._idle = select.poll()
            self._idle.register(connection.sock, select.POLLIN)
        sock: socket.socket = connection.sock
        return sock

    def _connected(self) -> HTTPConnection:
        connection = self._made()
        try:
            connection.connect()
        except ssl.SSLError as error:
            raise boto.SSLError(endpoint_url=self._endpoint.url, error=error) from error
        except TimeoutError as error:
            raise boto.ConnectTimeoutError(endpoint_url=self._endpoint.url, error=error) from error
        except (OSError, HTTPException) as error:
            raise boto.EndpointConnectionError(
                endpoint_url=self._endpoint.url, error=error
            ) from error
        for option in _SOCKET_OPTIONS:
            connection.sock.setsockopt(*option)
        if isinstance(connection.sock, ssl.SSLSocket):
            connection.sock.settimeout(SLICE_S)
        else:
            # Python's own timeout takes one more system call for each receive.
            connection.sock.settimeout(None)
            for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.sock.setsockopt(socket.SOL_SOCKET, side, _SLICE_TIMEVAL)
        return connection

    def _made(self) -> HTTPConnection:
        endpoint = self._endpoint
        target = urlsplit(endpoint.url)
        timeout_s = endpoint.connect_timeout_s
        first = target if endpoint.proxy_url is None else urlsplit(endpoint.proxy_url)
        if self._tls is None:
            return HTTPConnection(first.hostname or "", first.port, timeout=timeout_s)
        connection = HTTPSConnection(
            first.hostname or "", first.port, timeout=timeout_s, context=self._tls
        )
        if endpoint.proxy_url is not None:
            connection.set_tunnel(target.hostname or "", target.port, endpoint.proxy_headers)
        return connection
