"""The real server behind a measuring proxy: one kept connection a thread, requests signed anew."""

from __future__ import annotations

import http.client
import select
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

from dstream.clock import Clock
from dstream.diagnose.sigv4 import (
    UNSIGNED_PAYLOAD,
    Key,
    Message,
    Signature,
    sign,
    without_signature,
)
from dstream.errors import InvalidInputError

_TIMEOUT_S = 120.0
# Of one connection, or of the client's own signature.
_NOT_PASSED_ON = {
    "authorization", "connection", "content-length", "expect", "host", "keep-alive",
    "proxy-connection", "te", "transfer-encoding", "upgrade", "x-amz-date", "x-amz-security-token",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where requests go on to, and as whom.

    Args:
        url: the server's endpoint.
        region: of the signatures; None for what the client signed with.
        key: gives the user's credentials as they are now; None sends requests unsigned.
    """

    url: str
    region: str | None
    key: Callable[[], Key] | None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InvalidInputError(
                "the upstream must be http://HOST[:PORT] or https://HOST[:PORT], without "
                "credentials in it"
            )

    def connect(self) -> http.client.HTTPConnection:
        """A new connection, opened at its first request."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_S)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_S, context=context)

    def prepared(
        self, message: Message, clock: Clock, client: Signature
    ) -> tuple[Message, tuple[Signature, Key] | None]:
        """The request as the server is to get it, and what its body's chunks are signed after."""
        parts = urlsplit(self.url)
        headers = [(k, v) for k, v in message.headers if k.lower() not in _NOT_PASSED_ON]
        headers.append(("Host", parts.netloc))
        if message.header("x-amz-content-sha256") is None:
            headers.append(("x-amz-content-sha256", UNSIGNED_PAYLOAD))
        passed = replace(
            message,
            path=parts.path.rstrip("/") + message.path,
            query=without_signature(message.query),
            headers=headers,
        )
        if self.key is None:
            return passed, None
        key = self.key()
        time = datetime.fromtimestamp(clock.now_s(), UTC).strftime("%Y%m%dT%H%M%SZ")
        signature, added = sign(passed, key, time, self.region or client.region)
        return replace(passed, headers=[*headers, *added.items()]), (signature, key)


class Line:
    """One thread's kept connection to the server."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._connection: http.client.HTTPConnection | None = None

    def exchange(
        self, message: Message, body: Iterable[bytes], length: int | None
    ) -> http.client.HTTPResponse:
        """Send a request; its answer, of which nothing but the head is read.

        Args:
            message: the request, with its signature.
            body: in pieces.
            length: of the body; None sends HTTP chunks.

        Raises:
            OSError, http.client.HTTPException: the server cannot be reached, or hung up.
        """
        connection = self._ready()
        target = message.path + (f"?{message.query}" if message.query else "")
        connection.putrequest(message.method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in message.headers:
            connection.putheader(name, value)
        if length is None:
            connection.putheader("Transfer-Encoding", "chunked")
        elif length or message.method in ("PUT", "POST"):
            connection.putheader("Content-Length", str(length))
        connection.endheaders()
        try:
            for piece in body:
                connection.send(piece if length is not None else _http_chunk(piece))
            if length is None:
                connection.send(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server answered before it had everything, perhaps: its answer tells why
        return connection.getresponse()

    def _ready(self) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is not None and (connection.sock is None or _is_readable(connection)):
            self.drop()  # closed by the server while it was idle
            connection = None
        if connection is None:
            connection = self._connection = self._upstream.connect()
        return connection

    def drop(self) -> None:
        """Close the connection: something of it was left unread."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _http_chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
