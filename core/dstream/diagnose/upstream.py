"""The real server behind a measuring proxy: one kept connection a thread, requests signed anew."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from dstream.clock import Clock
from dstream.diagnose.answers import Answer, Wire, answer_of
from dstream.diagnose.sigv4 import (
    UNSIGNED_PAYLOAD,
    Key,
    Message,
    Signature,
    sign,
    without_signature,
)
from dstream.errors import InvalidInputError
from dstream.store.s3_sign import time_stamp

_CONNECT_TIMEOUT_S = 120.0
_UNSENDABLE = re.compile(r"[\x00\r\n]")
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

    def connected(self) -> socket.socket:
        """A new connection.

        Raises:
            OSError: the server cannot be reached, or is not the one that its certificate names.
        """
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        connection = http.client.HTTPConnection(host, parts.port, timeout=_CONNECT_TIMEOUT_S)
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, parts.port, timeout=_CONNECT_TIMEOUT_S, context=ssl.create_default_context()
            )
        connection.connect()
        sock: socket.socket = connection.sock
        return sock

    def prepared(
        self, message: Message, clock: Clock, client: Signature
    ) -> tuple[Message, tuple[Signature, Key] | None]:
        """The request as the server is to get it, and what its body's chunks are signed after."""
        parts = urlsplit(self.url)
        headers = [(k, v) for k, v in message.headers if k.lower() not in _NOT_PASSED_ON]
        headers.append(("Host", parts.netloc))
        if message.header("x-amz-content-sha256") is None:
            headers.append(("x-amz-content-sha256", UNSIGNED_PAYLOAD))
        path, query = parts.path.rstrip("/") + message.path, without_signature(message.query)
        passed = Message(message.method, path, query, headers)
        if self.key is None:
            return passed, None
        key = self.key()
        time = time_stamp(int(clock.now_s()))
        signature, added = sign(passed, key, time, self.region or client.region)
        headers.extend(added.items())
        return passed, (signature, key)


class Line:
    """One thread's kept connection to the server."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._wire: Wire | None = None

    def exchange(self, message: Message, body: Iterable[bytes], length: int | None) -> Answer:
        """Send a request; its answer, of which nothing but the head is read.

        Args:
            message: the request, with its signature.
            body: in pieces.
            length: of the body; None sends HTTP chunks.

        Raises:
            OSError, http.client.HTTPException: the server cannot be reached, or hung up.
            InvalidInputError: a header cannot be sent.
        """
        head = request_head(message, length)
        wire = self._ready()
        wire.send(head)
        try:
            for piece in body:
                wire.send(piece if length is not None else _http_chunk(piece))
            if length is None:
                wire.send(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server answered before it had everything, perhaps: its answer tells why
        return answer_of(wire, message.method)

    def _ready(self) -> Wire:
        if self._wire is not None and not self._wire.is_idle():
            self.drop()  # closed by the server while it was idle
        if self._wire is None:
            self._wire = Wire(self._upstream.connected())
        return self._wire

    def drop(self) -> None:
        """Close the connection: something of it was left unread."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def request_head(message: Message, length: int | None) -> bytes:
    """A request up to its body. Pure.

    Args:
        message: the request, without the headers that frame its body.
        length: of the body; None for HTTP chunks.

    Raises:
        InvalidInputError: it holds a line break or a NUL, and would be another request.
    """
    target = message.path + (f"?{message.query}" if message.query else "")
    fields = [f"{name}: {value}" for name, value in message.headers]
    if length is None:
        fields.append("Transfer-Encoding: chunked")
    elif length or message.method in ("PUT", "POST"):
        fields.append(f"Content-Length: {length}")
    if _UNSENDABLE.search("".join((target, *fields))):
        raise InvalidInputError("a request's head holds line breaks or NUL characters")
    lines = "\r\n".join((f"{message.method} {target} HTTP/1.1", *fields))
    return f"{lines}\r\n\r\n".encode("latin-1")


def _http_chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)
