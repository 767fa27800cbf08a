"""The head of a plain request, read strictly; anything unusual is left to http.server.

What is accepted here means the same to both; a test holds the two against each other. The grammar
is that of RFC 9112, sections 3 and 5; ``store/http_head.py`` says why not all is left to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dstream.diagnose.sigv4 import Message
from dstream.store.http_head import plain_message

_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")

_FIRST = re.compile(rb"(%s) (/(?!/)[!-~]*) HTTP/1\.1" % "|".join(_METHODS).encode())


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request after which the connection is kept."""

    message: Message
    body_bytes: int
    size_bytes: int
    """Of the head itself, the blank line included."""


def plain_request(received: bytes) -> RequestHead | None:
    """The head of a request, as :func:`plain_message` finds it. Pure.

    >>> plain_request(b"GET /b/k?versionId=1 HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n").message.path
    '/b/k'
    >>> plain_request(b"PUT /b/k HTTP/1.1\\r\\nExpect: 100-continue\\r\\n\\r\\n")
    """
    found = plain_message(received, _FIRST, "0", len(received))
    if found is None or "expect" in found.headers:
        return None
    method, target = found.first.groups()
    path, _, query = target.decode("ascii").partition("?")
    message = Message(method.decode("ascii"), path, query, found.fields)
    return RequestHead(message, found.body_bytes, found.size_bytes)
