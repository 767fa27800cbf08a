"""One kept HTTP connection for ranged reads in pure Python.

No library's client, since a socket's timeout is no deadline: it starts anew with every byte, so
that a body that trickles takes for ever. Here every receive looks at the time. http.client makes
the connections, and reads all answers but plain ones.
"""

from __future__ import annotations

import ctypes
import io
import select
import socket
import ssl
import struct
from collections.abc import Callable
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
    Request,
)

T = TypeVar("T")

_CLOCK = SystemClock()

_SLICE_TIMEVAL = struct.pack("ll", 0, int(SLICE_S * 1e6))

# No delay, and probes on idle connections, so that a dead peer is noticed.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)


_HELD_SEND = ctypes.PyDLL(None).send
_HELD_SEND.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
_HELD_SEND.restype = ctypes.c_ssize_t
_AT_ONCE = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


def send_all(sock: socket.socket, data: bytes) -> None:
    """Send a request: as much as goes at once without letting go of Python's lock.

    A request takes some microseconds. To have the lock back after them takes as long as the rest
    of a small read, where many threads read.

    Raises:
        OSError: the connection was lost.
    """
    sent = 0
    if not isinstance(sock, ssl.SSLSocket):
        # What went wrong is found again, and told, by Python's own call.
        sent = max(0, _HELD_SEND(sock.fileno(), data, len(data), _AT_ONCE))
    if sent < len(data):
        sock.sendall(data[sent:])


class _Incoming:
    """What a connection receives of one answer after the other, each within its time.

    A receive costs a hand-over of the interpreter between threads, so there are few. The time is
    looked at where one was not enough.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._is_tls = sock, isinstance(sock, ssl.SSLSocket)
        self._here = b""
        """Received and not read as yet."""
        self._body_bytes = 0
        """So many are still to come for certain: they are waited for at once."""
        self._allowed_s: Callable[[int], float] = float
        self.received_bytes = 0

    def begin(self, allowed_s: Callable[[int], float]) -> None:
        """The next answer: its head is waited for from now on."""
        self._here, self._body_bytes, self.received_bytes = b"", 0, 0
        self._allowed_s = allowed_s
        self.await_bytes(0)

    def await_bytes(self, size_bytes: int) -> None:
        """A body of so many is waited for from now on."""
        self._since_s, self._awaited_bytes = _CLOCK.monotonic_s(), size_bytes
        self._until_s: float | None = None

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
        return self.stream().read(size_bytes)

    def stream(self) -> io.BufferedReader:
        """The same as a file."""
        return io.BufferedReader(cast(Any, _Raw(self)), MOST_BYTES)

    def fill(self, buffer: Any) -> int:
        """Put there what comes next; how much it is, 0 at the connection's end."""
        if self._here:
            got = min(len(self._here), len(buffer))
            buffer[:got], self._here = self._here[:got], self._here[got:]
            return got
        self._require_time()
        flags = 0
        if self._body_bytes and not self._is_tls:
            buffer, flags = memoryview(buffer)[: self._body_bytes], socket.MSG_WAITALL
        got = self._waited(self._sock.recv_into, buffer, 0, flags)
        self.received_bytes += got
        self._body_bytes = max(0, self._body_bytes - got)
        return got

    def _receive(self, size_bytes: int, flags: int = 0) -> bytes:
        data = self._waited(self._sock.recv, size_bytes, flags)
        self.received_bytes += len(data)
        return data

    def _waited(self, receive: Callable[..., T], *given: object) -> T:
        while True:
            try:
                return receive(*given)
            except (TimeoutError, BlockingIOError):
                self._require_time()
                patience = current()
                if patience is not None and patience.stopped():
                    raise TimeoutError("this thread is to stop") from None

    def _require_time(self) -> None:
        if self._until_s is None:
            self._until_s = self._since_s + self._allowed_s(self._awaited_bytes)
        if _CLOCK.monotonic_s() >= self._until_s:
            raise TimeoutError("the answer is late")


class _Raw(io.RawIOBase):
    def __init__(self, incoming: _Incoming) -> None:
        self._incoming = incoming

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._incoming.fill(buffer)


class _TimedSocket:
    """As much of a socket as an HTTPResponse wants."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream

    def makefile(self, mode: str) -> io.BufferedReader:
        return self._stream


class _PlainAnswer:
    """One that is followed by a body of known length."""

    __slots__ = ("_incoming", "_size_bytes", "headers", "status")

    def __init__(self, head: Head, incoming: _Incoming) -> None:
        self.status, self.headers, self._size_bytes, head_bytes = head
        self._incoming = incoming
        incoming.skip(head_bytes)
        incoming.await_bytes(self._size_bytes)

    def read(self, limit_bytes: int | None = None) -> bytes:
        """See :class:`Answer`."""
        wanted = self._size_bytes if limit_bytes is None else min(limit_bytes, self._size_bytes)
        data = self._incoming.exactly(wanted)
        if len(data) < wanted:
            raise IncompleteRead(data, wanted - len(data))
        return data


class _AnyAnswer:
    """One as http.client reads it."""

    def __init__(self, incoming: _Incoming, body_bytes: int, at_end: Callable[[], None]) -> None:
        stream = cast(Any, _TimedSocket(incoming.stream()))
        self._response = HTTPResponse(stream, method="GET")
        self._response.begin()
        self._at_end = at_end
        self.status = self._response.status
        names = self._response.headers.keys()
        self.headers = {name.lower(): self._response.headers[name] for name in names}
        if self.status in (200, 206):
            incoming.await_bytes(self._response.length or body_bytes)

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
        self._endpoint, self._tls = endpoint, tls
        self._head_bytes = MOST_BYTES
        """Of the last plain answer, but for what its range adds: the next is likely as long, and
        then its body comes alone, in one piece that is not copied."""
        self._connection: HTTPConnection | None = None
        self._incoming: _Incoming | None = None
        self._used_s = 0.0
        self._idle = select.poll()

    def get(
        self,
        request: Request,
        span: str,
        allowed_s: Callable[[int], float],
        body_bytes: int | None,
    ) -> Answer:
        """See :class:`Connection`."""
        text = b"%bRange: bytes=%b\r\n\r\n" % (request.text, span.encode("latin-1"))
        sock, incoming = self._ready()
        incoming.begin(allowed_s)
        try:
            send_all(sock, text if span else request.text + b"\r\n")
            # Content-Range and Content-Length repeat what was asked for.
            range_bytes = len(span) + len(str(body_bytes))
            head = plain_head(incoming.head(min(self._head_bytes + range_bytes, MOST_BYTES)))
            if head is None:
                return _AnyAnswer(incoming, body_bytes or 0, self.close)
            self._head_bytes = head.size_bytes - range_bytes
            return _PlainAnswer(head, incoming)
        except TimeoutError as error:
            raise self.late() from error
        except (OSError, HTTPException) as error:
            raise boto.ConnectionClosedError(
                endpoint_url=self._endpoint.url, request=None, response=None
            ) from error

    def late(self) -> DeadlineError:
        """See :class:`Connection`."""
        return DeadlineError(self._incoming.received_bytes if self._incoming else 0)

    def close(self) -> None:
        """See :class:`Connection`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ready(self) -> tuple[socket.socket, _Incoming]:
        connection, incoming, now_s = self._connection, self._incoming, _CLOCK.monotonic_s()
        is_fresh = now_s - self._used_s < FRESH_S
        self._used_s = now_s
        # An idle connection that has something to read was closed by the server.
        if connection is None or incoming is None or (not is_fresh and self._idle.poll(0)):
            self.close()
            connection = self._connection = self._connected()
            incoming = self._incoming = _Incoming(connection.sock)
            self._idle = select.poll()
            self._idle.register(connection.sock, select.POLLIN)
        return connection.sock, incoming

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
