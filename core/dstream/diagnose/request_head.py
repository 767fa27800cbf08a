"""The head of a plain request, read strictly; anything unusual is left to http.server.

http.server parses heads as e-mail, a tenth of a millisecond each. What is accepted here means the
same to both; a test holds the two against each other. The grammar is that of RFC 9112, sections 3
and 5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dstream.diagnose.sigv4 import Message
from dstream.store.http_head import PLAIN_FIELDS, is_plain_length, plain_fields

_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")

_PLAIN = re.compile(
    rb"(%s) (/(?!/)[!-~]*) HTTP/1\.1\r\n" % "|".join(_METHODS).encode() + PLAIN_FIELDS
)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request after which the connection is kept."""

    message: Message
    body_bytes: int
    size_bytes: int
    """Of the head itself, the blank line included."""


def plain_request(received: bytes) -> RequestHead | None:
    """The head at the beginning of what came; None where it is not whole, or not plain. Pure.

    >>> plain_request(b"GET /b/k?versionId=1 HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n").message.path
    '/b/k'
    >>> plain_request(b"PUT /b/k HTTP/1.1\\r\\nExpect: 100-continue\\r\\n\\r\\n")
    """
    end = received.find(b"\r\n\r\n")
    found = None if end < 0 else _PLAIN.fullmatch(received, 0, end + 4)
    if found is None:
        return None
    fields = plain_fields(received[:end])
    headers = {name.lower(): value for name, value in fields}
    length = headers.get("content-length", "0")
    if (
        len(headers) != len(fields)
        or "transfer-encoding" in headers
        or "expect" in headers
        or not is_plain_length(length)
        or headers.get("connection", "keep-alive").lower() != "keep-alive"
    ):
        return None
    path, _, query = found[2].decode("ascii").partition("?")
    message = Message(found[1].decode("ascii"), path, query, fields)
    return RequestHead(message, int(length), end + 4)
