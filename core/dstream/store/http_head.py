"""Heads of plain HTTP messages, read strictly. Anything unusual is left to the standard library.

http.client and http.server parse heads as e-mail, a tenth of a millisecond each: at a thousand
reads a second a tenth of a core. What is accepted here means the same to both; a test holds the two
against each other. The grammar is that of RFC 9112, sections 4 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

MOST_BYTES = 2048
"""Of a head, and of what is received with it: so much of a body is copied once more. A longer head
is left to http.client, which has bounds of its own."""

_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*((?:[!-~](?:[\t -~]*[!-~])?)?)")
"""A line after the first, of requests and answers alike: no blanks before a colon, none at the end
of a value, no continued line, no byte beyond ASCII."""

HEAD_END = b"\r\n\r\n"
"""What follows a head's last line."""

_MOST_DIGITS = 18
_FIRST = re.compile(rb"HTTP/1\.1 (200|206)(?: [\t -~]*)?")


class PlainMessage(NamedTuple):
    """The head of a request or an answer after whose body the connection is kept."""

    first: re.Match[bytes]
    """The first line's pattern, found."""
    lines: list[bytes]
    """The others."""
    headers: Mapping[str, str]
    """What they say by their names in lower case; none comes twice."""
    body_bytes: int
    size_bytes: int
    """Of the head itself, the blank line included."""

    @property
    def fields(self) -> list[tuple[str, str]]:
        """Names and values in order, as they were written."""
        names = (line.partition(b":")[0].decode("ascii") for line in self.lines)
        return [(name, self.headers[name.lower()]) for name in names]


def plain_message(
    received: bytes, pattern: re.Pattern[bytes], default_length: str, most_bytes: int
) -> PlainMessage | None:
    """The head at the beginning of what came; None where it is not whole, or not plain. Pure.

    Args:
        received: from the first byte on.
        pattern: of a first line.
        default_length: for a head without ``Content-Length``; empty: it is not plain.
        most_bytes: that a head may have.
    """
    end = received.find(HEAD_END, 0, most_bytes)
    if end < 0:
        return None
    first, *lines = received[:end].split(b"\r\n")
    found = pattern.fullmatch(first)
    if found is None:
        return None
    try:
        headers = dict(map(_field, lines))
    except _NotPlainError:
        return None
    length = headers.get("content-length", default_length)
    if (
        len(headers) != len(lines)
        or "transfer-encoding" in headers
        or not is_plain_length(length)
        or headers.get("connection", "keep-alive").lower() != "keep-alive"
    ):
        return None
    return PlainMessage(found, lines, headers, int(length), end + len(HEAD_END))


class _NotPlainError(Exception):
    """A line is left to the standard library."""


@lru_cache(maxsize=512)
def _field(line: bytes) -> tuple[str, str]:
    """Name in lower case, and value. Remembered: most lines are those of the answer before.

    Raises:
        _NotPlainError: it is not plain.
    """
    found = _FIELD.fullmatch(line)
    if found is None:
        raise _NotPlainError
    return found[1].decode("ascii").lower(), found[2].decode("ascii")


class Head(NamedTuple):
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
    found = plain_message(received, _FIRST, "", MOST_BYTES)
    if found is None:
        return None
    return Head(int(found.first[1]), found.headers, found.body_bytes, found.size_bytes)


def is_plain_length(value: str) -> bool:
    """Whether a ``Content-Length`` is one, and of a size that a body can have."""
    return value.isdecimal() and len(value) <= _MOST_DIGITS
