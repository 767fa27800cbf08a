"""A plain head means the same to us and to http.client; what is not plain is left to it."""

from __future__ import annotations

import io
from http.client import HTTPResponse
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.store.http_head import MOST_BYTES, plain_head

PLAIN = (
    b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/9\r\n"
    b'ETag: "e"\r\nDate:\tThu, 01 Jan 1970 00:01:00 GMT\r\nx-empty:\r\n'
    b"Connection: Keep-Alive\r\n\r\n"
)


class _Socket:
    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._received)


def theirs(received: bytes) -> HTTPResponse:
    response = HTTPResponse(cast(Any, _Socket(received)), method="GET")
    response.begin()
    return response


LINES = st.lists(
    st.sampled_from(
        [
            b"Content-Length: 5", b"content-length:7", b"Content-Length: 5 ", b"Content-Length:",
            b"Content-Length: 0x5", b"Content-Length: -1", b"Content-Length: 5, 5",
            b"Transfer-Encoding: chunked", b"Transfer-encoding: identity", b"Connection: close",
            b"Connection: keep-alive, close", b"Connection: Keep-Alive", b'ETag: "e"',
            b'etag: W/"f"', b" folded", b"\tfolded", b"No-Colon", b": no name", b"Name : blank",
            b"A: b\rc", b"A: b\nc", b"A: \x00", b"A: \xff", b"A:   many   blanks", b"A: b: c",
            b"", b"Date: now\r\n",
        ]
    )
    | st.binary(max_size=12),
    max_size=5,
)  # fmt: skip
STATUS = st.sampled_from(
    [
        b"HTTP/1.1 206 Partial Content", b"HTTP/1.1 200 OK", b"HTTP/1.1 206", b"HTTP/1.1 206 ",
        b"HTTP/1.0 206 OK", b"HTTP/1.1 204 OK", b"HTTP/1.1 100 Continue", b"HTTP/1.1  206 OK",
        b"HTTP/1.1 2066", b"HTTP/2 206 OK", b"ICY 200 OK", b"",
    ]
)  # fmt: skip


@given(STATUS, LINES, st.sampled_from([b"\r\n", b"\n"]), st.binary(max_size=8))
def test_what_is_plain_means_the_same_to_http_client(
    status: bytes, lines: list[bytes], line_end: bytes, body: bytes
) -> None:
    received = line_end.join([status, *lines]) + 2 * line_end + body
    head = plain_head(received)
    if head is None:
        return
    response = theirs(received)
    assert response.status == head.status
    assert response.length == head.body_bytes
    assert not response.will_close
    assert not response.chunked
    assert {name.lower(): value for name, value in response.headers.items()} == dict(head.headers)
    rest = received[head.size_bytes :]
    if len(rest) >= head.body_bytes:
        assert response.read() == rest[: head.body_bytes]


def test_the_usual_answer_is_plain() -> None:
    head = plain_head(PLAIN + b"abcde" + b"x" * MOST_BYTES)
    assert head is not None
    assert (head.status, head.body_bytes, head.size_bytes) == (206, 5, len(PLAIN))
    assert dict(head.headers) == {name.lower(): v for name, v in theirs(PLAIN).headers.items()}


@pytest.mark.parametrize(
    "received",
    [
        PLAIN[:-1],
        PLAIN.replace(b"206 P", b"404 P"),
        PLAIN.replace(b"Content-Length: 5\r\n", b""),
        PLAIN.replace(b"ETag", b"Content-Length: 5\r\nETag"),
        PLAIN.replace(b"Content-Length: 5", b"Content-Length: \xb2"),
        PLAIN.replace(b"Content-Length: 5", b"Content-Length: " + b"9" * 19),
        PLAIN.replace(b'ETag: "e"', b'ETag: "e" \r\n ,"f"'),
        PLAIN.replace(b"ETag", b"Transfer-Encoding: chunked\r\nETag"),
        PLAIN.replace(b"Keep-Alive", b"close"),
        PLAIN.replace(b"x-empty:", b"x-empty: " + b"a " * MOST_BYTES),
        b"HTTP/1.1 206 " + b" " * (2 * MOST_BYTES),
        b"",
    ],
)
def test_anything_else_is_left_to_http_client(received: bytes) -> None:
    assert plain_head(received) is None
