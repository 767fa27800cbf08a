"""The head of a plain HTTP answer, read strictly. Anything unusual is left to http.client.

http.client parses heads as e-mail, a tenth of a millisecond each: at a thousand reads a second a
tenth of a core. What is accepted here means the same to both; a test holds the two against each
other. The grammar is that of RFC 9112, sections 4 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MOST_BYTES = 2048
"""Of a head, and of what is received with it: so much of a body is copied once more. A longer head
is left to http.client, which has bounds of its own."""

_MOST_DIGITS = 18
_PLAIN = re.compile(
    rb"HTTP/1\.1 (200|206)(?: [\t -~]*)?\r\n"
    # No blanks before the colon, none at the end of a value, no continued line.
    rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[ \t]*(?:[!-~](?:[\t -~]*[!-~])?)?\r\n)*\r\n"
)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an answer whose body is so many bytes, after which the connection is kept."""

    status: int
    """200 or 206."""
    headers: Mapping[str, str]
    """By their names in lower case; none comes twice."""
    body_bytes: int
    size_bytes: int
    """Of the head itself, the blank line included."""


def plain_head(received: bytes) -> Head | None:
    """The head at the beginning of what came; None where it is not whole, or not plain. Pure.

    >>> plain_head(b"HTTP/1.1 206 Partial\\r\\nContent-Length: 5\\r\\n\\r\\nabcde").body_bytes
    5
    >>> plain_head(b"HTTP/1.1 206 Partial\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
    """
    end = received.find(b"\r\n\r\n", 0, MOST_BYTES)
    found = None if end < 0 else _PLAIN.fullmatch(received, 0, end + 4)
    if found is None:
        return None
    lines = received[:end].decode("ascii").split("\r\n")[1:]
    parts = [line.partition(":") for line in lines]
    headers = {name.lower(): value.strip(" \t") for name, _, value in parts}
    length = headers.get("content-length", "")
    if (
        len(headers) != len(lines)
        or "transfer-encoding" in headers
        or not (length.isdecimal() and len(length) <= _MOST_DIGITS)
        or headers.get("connection", "keep-alive").lower() != "keep-alive"
    ):
        return None
    return Head(int(found[1]), headers, int(length), end + 4)
