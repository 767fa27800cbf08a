"""What ranged reads want of a connection, whoever makes it: ``s3_http.py`` or ``s3_curl.py``.

Both keep one connection, send one request at a time, hold every whole answer to a deadline, and
never try again, follow a redirect or decompress. Failures are raised as botocore's exceptions,
which are translated in one place.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from dstream.errors import InvalidInputError

SLICE_S = 0.25
"""How often a wait for bytes looks at the time, and whether to stop."""

FRESH_S = 0.5
"""A connection that was asked so lately is not looked at first: servers let them idle for seconds,
and a look hands the interpreter over to another thread."""


class DeadlineError(Exception):
    """An answer took too long; ``received_bytes`` had come by then, headers included."""

    def __init__(self, received_bytes: int) -> None:
        super().__init__(received_bytes)
        self.received_bytes = received_bytes


class Request(NamedTuple):
    """A GET but for its range, which is a last line of its own: many differ in nothing else."""

    target: str
    """What the first line names."""
    headers: Mapping[str, str]
    """Those of the other lines."""
    text: bytes
    """The same as it is sent."""


class Answer(Protocol):
    """An answer whose head is here."""

    @property
    def status(self) -> int:
        """Of HTTP."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names in lower case."""
        ...

    def read(self, limit_bytes: int | None = None) -> bytes:
        """The body, or so much of it.

        Raises:
            IncompleteRead: it ended early.
            TimeoutError: it is late.
            OSError, HTTPException: the connection was lost.
        """
        ...


class Connection(Protocol):
    """One connection, made when needed and made again when it was lost. For one thread."""

    def get(
        self,
        request: Request,
        span: str,
        allowed_s: Callable[[int], float],
        body_bytes: int | None,
    ) -> Answer:
        """The answer's status and headers; its body is read from it.

        Args:
            request: sent as it is.
            span: of bytes, as a Range header says it: ``0-99``; empty for all of them.
            allowed_s: how long a body of so many bytes may take; of 0, how long it may take until
                the headers are here.
            body_bytes: length of the body that is asked for; None where nobody knows.

        Raises:
            DeadlineError: they were not.
            BotoCoreError: there was no connection, or it was lost.
        """
        ...

    def late(self) -> DeadlineError:
        """The error for an answer that timed out."""
        ...

    def close(self) -> None:
        """Let go of the connection; the next request makes another. By any thread."""
        ...


@dataclass(frozen=True)
class Endpoint:
    """Where to connect, and how. What follows from it is found once: requests are many."""

    url: str
    """Scheme and host of the requests."""
    proxy_url: str | None
    ca_bundle: str | None
    """File of the certificates that are trusted; None for plain HTTP."""
    connect_timeout_s: float

    @cached_property
    def host(self) -> str:
        """As the Host header says it: without the scheme's own port."""
        port = ":443" if self.url.startswith("https:") else ":80"
        return urlsplit(self.url).netloc.removesuffix(port)

    def request(self, path: str, headers: Mapping[str, str]) -> Request:
        """A request to this server.

        Args:
            path: percent-encoded, with the query.
            headers: sent as they are, beside Host.

        Raises:
            InvalidInputError: a header's value cannot be sent.
        """
        target = path if self.proxy_url is None or self.ca_bundle is not None else self.url + path
        # Only a plain proxy sees the request itself. What is for the proxy is not signed.
        extra = self.proxy_headers if self.ca_bundle is None else {}
        headers = {"Host": self.host, **headers, **extra}
        require_sendable(target, headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return Request(target, headers, f"GET {target} HTTP/1.1\r\n{lines}".encode("latin-1"))

    @property
    def proxy_address(self) -> str:
        """The proxy's URL without its credentials; nothing where there is none."""
        if self.proxy_url is None:
            return ""
        parts = urlsplit(self.proxy_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @property
    def proxy_credentials(self) -> tuple[str, str] | None:
        """User and password for the proxy."""
        parts = urlsplit(self.proxy_url or "")
        if parts.username is None:
            return None
        return unquote(parts.username), unquote(parts.password or "")

    @property
    def proxy_headers(self) -> Mapping[str, str]:
        """The same as a header: for a request to a plain proxy, or for the tunnel's; not signed."""
        if self.proxy_credentials is None:
            return {}
        given = ":".join(self.proxy_credentials)
        return {"Proxy-Authorization": f"Basic {b64encode(given.encode()).decode()}"}

    def tls_context(self) -> ssl.SSLContext | None:
        """What Python's ssl needs; None for plain HTTP."""
        if self.ca_bundle is None:
            return None
        return ssl.create_default_context(cafile=self.ca_bundle)


def require_sendable(target: str, headers: Mapping[str, str]) -> None:
    """Refuse what would end a line of a request early.

    Raises:
        InvalidInputError: it would. The value is not repeated.
    """
    text = "".join((target, *headers.values()))
    if "\r" in text or "\n" in text or "\0" in text:
        raise InvalidInputError("a request's headers hold line breaks or NUL characters")


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
    trusted = ca_bundle if parts.scheme == "https" else None
    return Endpoint(f"{parts.scheme}://{parts.netloc}", proxy_url, trusted, connect_timeout_s)
