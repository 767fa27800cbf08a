"""Heads of plain HTTP messages, read strictly. Anything unusual is left to the standard library.

http.client and http.server parse heads as e-mail, a tenth of a millisecond each: at a thousand
reads a second a tenth of a core. What is accepted here means the same to both; a test holds the two
against each other. The grammar is that of RFC 9112, sections 4 and 5.
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
class PlainMessage:
    """The head of a request or an answer after whose body the connection is kept."""

    first: re.Match[bytes]
    """Its pattern, found; the groups are those of the first line."""
    fields: list[tuple[str, str]]
    """Names and values in order, as they were written."""
    headers: Mapping[str, str]
    """The same by their names in lower case; none comes twice."""
    body_bytes: int
    size_bytes: int
    """Of the head itself, the blank line included."""


def plain_message(
    received: bytes, pattern: re.Pattern[bytes], default_length: str, most_bytes: int
) -> PlainMessage | None:
    """The head at the beginning of what came; None where it is not whole, or not plain. Pure.

    Args:
        received: from the first byte on.
        pattern: of a first line, and :data:`PLAIN_FIELDS`.
        default_length: for a head without ``Content-Length``; empty: it is not plain.
        most_bytes: that a head may have.
    """
    end = received.find(HEAD_END, 0, most_bytes)
    found = None if end < 0 else pattern.fullmatch(received, 0, end + len(HEAD_END))
    if found is None:
        return None
    parts = [line.partition(":") for line in received[:end].decode("ascii").split("\r\n")[1:]]
    fields = [(name, value.strip(" \t")) for name, _, value in parts]
    headers = {name.lower(): value for name, value in fields}
    length = headers.get("content-length", default_length)
    if (
        len(headers) != len(fields)
        or "transfer-encoding" in headers
        or not is_plain_length(length)
        or headers.get("connection", "keep-alive").lower() != "keep-alive"
    ):
        return None
    return PlainMessage(found, fields, headers, int(length), end + len(HEAD_END))


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
    """The head of an answer, as :func:`plain_message` finds it.

    >>> plain_head(b"HTTP/1.1 206 Partial\\r\\nContent-Length: 5\\r\\n\\r\\nabcde").body_bytes
    5
    >>> plain_head(b"HTTP/1.1 206 Partial\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
    """
    found = plain_message(received, _PLAIN, "", MOST_BYTES)
    if found is None:
        return None
    return Head(int(found.first[1]), found.headers, found.body_bytes, found.size_bytes)


def is_plain_length(value: str) -> bool:
    """Whether a ``Content-Length`` is one, and of a size that a body can have."""
    return value.isdecimal() and len(value) <= _MOST_DIGITS
