"""What libcurl keeps of one connection, and how it is set up for our requests."""

from __future__ import annotations

import ctypes as c
import select
import socket
import threading
from collections.abc import Callable, Mapping

from dstream.store import libcurl
from dstream.store.libcurl import Libcurl, Room
from dstream.store.s3_connection import SLICE_S, Endpoint, Request


class Handles:
    """What libcurl keeps of one connection, and its socket, which is Python's."""

    def __init__(self, curl: Libcurl, endpoint: Endpoint, on_ready: Callable[[], None]) -> None:
        self._curl, self._on_ready = curl, on_ready
        self.easy: int = curl.easy_init()
        # Only the main thread hears of signals, and only between two calls.
        is_main = threading.current_thread() is threading.main_thread()
        self._multi: int | None = curl.multi_init() if is_main else None
        self._head = c.create_string_buffer(libcurl.HEAD_BYTES + 1)
        self.head = Room(c.addressof(self._head), libcurl.HEAD_BYTES)
        self._request: Request | None = None
        self._lines: int | None = None
        self._limit_bytes = 0
        self._sockets: dict[int, socket.socket] = {}
        self._socket_lock = threading.Lock()
        """A descriptor that was closed may be another's already."""
        self._may_open = False
        self._raised: BaseException | None = None
        self.has_sent = False
        self._callbacks = (
            libcurl.OpenSocket(self._open),
            libcurl.CloseSocket(self._close),
            libcurl.BeforeRequest(self._ready),
        )
        _configure(curl, self.easy, endpoint)
        curl.point(self.easy, "HEADERDATA", self.head.stream)
        curl.point(self.easy, "OPENSOCKETFUNCTION", self._callbacks[0])
        curl.point(self.easy, "CLOSESOCKETFUNCTION", self._callbacks[1])

    @property
    def is_kept(self) -> bool:
        """There is a connection."""
        return bool(self._sockets)

    @property
    def is_ended(self) -> bool:
        """An idle connection that has something to read was closed by the server."""
        idle = select.poll()
        for descriptor in self._sockets:
            idle.register(descriptor, select.POLLIN)
        return bool(self._sockets and idle.poll(0))

    def _open(self, _: object, __: int, address: c._Pointer[libcurl.SocketAddress]) -> int:
        # libcurl sends a request again on a new connection where the kept one turns out lost.
        # Only our own retries do that, and count it.
        try:
            if not self._may_open:
                return libcurl.NO_SOCKET
            opened = socket.socket(address[0].family, address[0].kind, address[0].protocol)
            self._sockets[opened.fileno()] = opened
            return opened.fileno()
        except OSError:
            return libcurl.NO_SOCKET
        except BaseException as error:
            self._raised = error
            return libcurl.NO_SOCKET

    def _close(self, _: object, descriptor: int) -> int:
        try:
            with self._socket_lock:
                self._sockets.pop(descriptor).close()
        except BaseException as error:
            self._raised = error
        return 0

    def _ready(self, *_: object) -> int:
        try:
            self.has_sent = True
            self._on_ready()
        except BaseException as error:
            self._raised = error
            return libcurl.ABORT
        return 0

    def _raise(self) -> None:
        """What a callback met, Ctrl-C for one: C lets no exception through."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def received(self) -> bytes:
        """What came of heads."""
        return c.string_at(self._head, self.head.received_bytes)

    def prepare(self, request: Request, span: str, stream: int) -> None:
        """The next request.

        Args:
            request: but for its range.
            span: of bytes, as a Range header says it, or empty.
            stream: C's, which gets the body.
        """
        if request is not self._request:
            # It is the same for many: a signature serves for a while.
            before, self._lines = self._lines, self._listed(request.headers)
            self._curl.point(self.easy, "HTTPHEADER", self._lines)
            self._curl.slist_free(before)
            self._curl.set(self.easy, "REQUEST_TARGET", request.target.encode("latin-1"))
            self._request = request
        self._curl.set(self.easy, "RANGE", span.encode("latin-1") if span else None)
        self._curl.point(self.easy, "WRITEDATA", stream)

    def limit(self, size_bytes: int) -> None:
        """Refuse longer bodies by their Content-Length; 0 refuses none."""
        if size_bytes != self._limit_bytes:
            self._curl.limit(self.easy, size_bytes)
            self._limit_bytes = size_bytes

    def end_after(self, seconds: float) -> None:
        """How long a whole transfer may take; 0: for ever."""
        self._curl.set(self.easy, "TIMEOUT_MS", int(seconds * 1000))

    def _listed(self, headers: Mapping[str, str]) -> int:
        # A name with nothing behind its colon takes away what libcurl would send of itself.
        lines = self._curl.slist_append(None, b"Accept:")
        for name, value in headers.items():
            line = f"{name}: {value}" if value else f"{name};"
            lines = self._curl.slist_append(lines, line.encode("latin-1"))
        return int(lines)

    def transfer(self) -> int:
        """Send the request and take the whole answer; the result."""
        self._may_open = not self._sockets
        self.has_sent = not self._may_open
        self._curl.point(self.easy, "PREREQFUNCTION", None if self.has_sent else self._callbacks[2])
        result = self._performed()
        self._raise()
        return result

    def _performed(self) -> int:
        if self._multi is None:
            return int(self._curl.easy_perform(self.easy))
        running = c.c_int(0)
        self._curl.multi_add(self._multi, self.easy)
        try:
            while True:
                self._curl.multi_perform(self._multi, c.byref(running))
                if not running.value:
                    return self._curl.result(self._multi)
                self._curl.poll(self._multi, None, 0, int(SLICE_S * 1000), None)
        finally:
            # Also at Ctrl-C: from here on libcurl writes nothing any more.
            self._curl.multi_remove(self._multi, self.easy)

    def cut(self) -> None:
        """End a transfer, by any thread."""
        with self._socket_lock:
            for opened in self._sockets.values():
                try:
                    opened.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # it is not connected as yet

    def close(self) -> None:
        """Let go of the connection."""
        if self._multi is not None:
            self._curl.multi_remove(self._multi, self.easy)
        self._curl.easy_cleanup(self.easy)
        if self._multi is not None:
            self._curl.multi_cleanup(self._multi)
        self._curl.slist_free(self._lines)
        self.head.close()

    def abandon(self) -> None:
        """Let go of a parent's connection in a forked child, without a word to the server."""
        for opened in self._sockets.values():
            opened.close()


def _configure(curl: Libcurl, easy: int, endpoint: Endpoint) -> None:
    """What is the same for all requests to an endpoint."""
    options: dict[str, int | bytes] = {
        "URL": endpoint.url.encode(),
        "BUFFERSIZE": libcurl.RECEIVE_BYTES,
        "CONNECTTIMEOUT_MS": max(1, int(endpoint.connect_timeout_s * 1000)),
        "HTTP09_ALLOWED": 0,
        "HTTP_VERSION": libcurl.HTTP_1_1,
        "MAXAGE_CONN": 0,
        "NOSIGNAL": 1,
        "SUPPRESS_CONNECT_HEADERS": 1,
        "TCP_KEEPALIVE": 1,
        # Else libcurl looks for proxies itself.
        "PROXY": endpoint.proxy_address.encode(),
        "NOPROXY": b"",
    }
    if endpoint.ca_bundle is not None:
        options["CAINFO"] = endpoint.ca_bundle.encode()
        user, password = endpoint.proxy_credentials or ("", "")
        if user:
            options["PROXYUSERNAME"], options["PROXYPASSWORD"] = user.encode(), password.encode()
    for name, value in options.items():
        curl.set(easy, name, value)
