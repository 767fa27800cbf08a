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

PLAIN_FIELDS = rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[ \t]*(?:[!-~](?:[\t -~]*[!-~])?)?\r\n)*\r\n"
"""Pattern of the lines after the first, which requests and answers share: no blanks before a colon,
none at the end of a value, no continued line, no byte beyond ASCII."""

HEAD_END = b"\r\n\r\n"
"""What follows a head's last line."""

_MOST_DIGITS = 18
_PLAIN = re.compile(rb"HTTP/1\.1 (200|206)(?: [\t -~]*)?\r\n" + PLAIN_FIELDS)


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
    end = received.find(HEAD_END, 0, MOST_BYTES)
    found = None if end < 0 else _PLAIN.fullmatch(received, 0, end + 4)
    if found is None:
        return None
    fields = plain_fields(received[:end])
    headers = {name.lower(): value for name, value in fields}
    length = headers.get("content-length", "")
    if (
        len(headers) != len(fields)
        or "transfer-encoding" in headers
        or not is_plain_length(length)
        or headers.get("connection", "keep-alive").lower() != "keep-alive"
    ):
        return None
    return Head(int(found[1]), headers, int(length), end + 4)


def plain_fields(head: bytes) -> list[tuple[str, str]]:
    """Names and values of a plain head without its blank line, in order, as they were written."""
    parts = [line.partition(":") for line in head.decode("ascii").split("\r\n")[1:]]
    return [(name, value.strip(" \t")) for name, _, value in parts]


def is_plain_length(value: str) -> bool:
    """Whether a ``Content-Length`` is one, and of a size that a body can have."""
    return value.isdecimal() and len(value) <= _MOST_DIGITS
