"""One kept HTTP connection for ranged reads, with a deadline for each whole answer.

http.client alone, since a socket's timeout is no deadline: it starts anew with every byte, so that
a body that trickles takes for ever. Here every receive looks at the time. Failures are raised as
botocore's exceptions, which are translated in one place.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

from botocore import exceptions as boto

from dstream.clock import SystemClock
from dstream.errors import InvalidInputError
from dstream.store.patience import current

_CLOCK = SystemClock()

_SLICE_S = 0.25
"""How often a wait for bytes looks at the time, and whether to stop."""

# No delay, and probes on idle connections, so that a dead peer is noticed.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)


class DeadlineError(Exception):
    """An answer took too long; ``received_bytes`` had come by then, headers included."""

    def __init__(self, received_bytes: int) -> None:
        super().__init__(received_bytes)
        self.received_bytes = received_bytes


@dataclass(slots=True)
class _Limit:
    """Until when the present answer may take, and what came of it."""

    until_s: float = 0.0
    received_bytes: int = 0


class _Timed(io.RawIOBase):
    """What a socket receives, until the limit, or until this thread is to stop."""

    def __init__(self, sock: socket.socket, limit: _Limit) -> None:
        self._sock, self._limit = sock, limit
        # Keeps the socket open until the body is read, when the connection is not kept.
        self._holder = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while _CLOCK.monotonic_s() < self._limit.until_s:
            try:
                got = self._sock.recv_into(buffer)
            except TimeoutError:
                patience = current()
                if patience is not None and patience.stopped():
                    raise
            else:
                self._limit.received_bytes += got
                return got
        raise TimeoutError("the answer is late")

    def close(self) -> None:
        self._holder.close()
        super().close()


class _TimedSocket:
    """As much of a socket as an HTTPResponse wants."""

    def __init__(self, sock: socket.socket, limit: _Limit) -> None:
        self._sock, self._limit = sock, limit

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Timed(self._sock, self._limit))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect, and how."""

    url: str
    """Scheme and host of the requests."""
    proxy_url: str | None
    tls: ssl.SSLContext | None
    """None for plain HTTP."""
    connect_timeout_s: float


class KeptConnection:
    """One connection, made when needed and made again when it was lost. For one thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._limit = _Limit()
        self._connection: HTTPConnection | None = None

    def get(self, path: str, headers: Mapping[str, str], timeout_s: float) -> HTTPResponse:
        """The answer's status and headers; its body is read from it.

        Args:
            path: with the query; the whole URL through a plain proxy.
            headers: sent as they are.
            timeout_s: from now until the headers are here; see :meth:`extend`.

        Raises:
            DeadlineError: they were not.
            BotoCoreError: there was no connection, or it was lost.
        """
        connection = self._ready()
        self._limit.received_bytes = 0
        self.extend(timeout_s)
        try:
            connection.request("GET", self._request_path(path), headers=dict(headers))
            return connection.getresponse()
        except TimeoutError as error:
            raise self.late() from error
        except (OSError, HTTPException) as error:
            raise boto.ConnectionClosedError(
                endpoint_url=self._endpoint.url, request=None, response=None
            ) from error

    def extend(self, timeout_s: float) -> None:
        """The rest of the answer has so long from now on."""
        self._limit.until_s = _CLOCK.monotonic_s() + timeout_s

    def late(self) -> DeadlineError:
        """The error for an answer that timed out."""
        return DeadlineError(self._limit.received_bytes)

    def close(self) -> None:
        """Let go of the connection; the next request makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ready(self) -> HTTPConnection:
        connection = self._connection
        if connection is None or connection.sock is None or _is_dropped(connection.sock):
            self.close()
            connection = self._connection = self._connected()
        return connection

    def _connected(self) -> HTTPConnection:
        connection = self._made()
        limit = self._limit

        def respond(sock: socket.socket, *args: Any, **named: Any) -> HTTPResponse:
            return HTTPResponse(cast(Any, _TimedSocket(sock, limit)), *args, **named)

        connection.response_class = cast(Any, respond)
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
        connection.sock.settimeout(_SLICE_S)
        return connection

    def _made(self) -> HTTPConnection:
        endpoint = self._endpoint
        target = urlsplit(endpoint.url)
        timeout_s = endpoint.connect_timeout_s
        first = target if endpoint.proxy_url is None else urlsplit(endpoint.proxy_url)
        if endpoint.tls is None:
            return HTTPConnection(first.hostname or "", first.port, timeout=timeout_s)
        connection = HTTPSConnection(
            first.hostname or "", first.port, timeout=timeout_s, context=endpoint.tls
        )
        if endpoint.proxy_url is not None:
            connection.set_tunnel(target.hostname or "", target.port, _proxy_headers(first))
        return connection

    def _request_path(self, path: str) -> str:
        plain_proxy = self._endpoint.proxy_url is not None and self._endpoint.tls is None
        return f"{self._endpoint.url}{path}" if plain_proxy else path

    @property
    def extra_headers(self) -> Mapping[str, str]:
        """Headers that a plain proxy wants; not to be signed."""
        if self._endpoint.proxy_url is None or self._endpoint.tls is not None:
            return {}
        return _proxy_headers(urlsplit(self._endpoint.proxy_url))


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    given = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(given.encode()).decode()}"}


def _is_dropped(sock: socket.socket) -> bool:
    """Whether an idle connection was closed by the server: then there is something to read."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def endpoint_of(
    url: str, proxies: Mapping[str, str], ca_bundle: str, connect_timeout_s: float
) -> Endpoint:
    """How to reach a server.

    Args:
        url: the server's, any path is left out.
        proxies: proxy URLs by scheme.
        ca_bundle: file of the certificates that are trusted.
        connect_timeout_s: longest time until there is a connection.

    Raises:
        InvalidInputError: the proxy itself wants TLS.
    """
    parts = urlsplit(url)
    proxy_url = proxies.get(parts.scheme) or None
    if proxy_url is not None and proxy_url.startswith("https://"):
        raise InvalidInputError(
            "ranged reads cannot go through a proxy that is itself reached by TLS; give the "
            "proxy as http://, or name the server in NO_PROXY"
        )
    if proxy_url is not None and "://" not in proxy_url:
        proxy_url = f"http://{proxy_url}"
    tls = ssl.create_default_context(cafile=ca_bundle) if parts.scheme == "https" else None
    return Endpoint(f"{parts.scheme}://{parts.netloc}", proxy_url, tls, connect_timeout_s)
