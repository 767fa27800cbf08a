"""A plain request means the same to us and to http.server, and is passed on as one request."""

from __future__ import annotations

import io
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.diagnose.request_head import plain_request
from dstream.diagnose.sigv4 import Message
from dstream.diagnose.upstream import request_head
from dstream.errors import InvalidInputError

PLAIN = (
    b"GET /b/a%20k?versionId=1 HTTP/1.1\r\nHost: h:1\r\nRange: bytes=0-9\r\n"
    b"x-amz-meta-a: b   c\r\nx-empty:\r\nConnection: Keep-Alive\r\n\r\n"
)


class _Theirs(BaseHTTPRequestHandler):
    """The head as http.server reads it, without a connection."""

    def __init__(self, received: bytes) -> None:
        self.rfile, self.wfile = io.BytesIO(received), io.BytesIO()
        self.protocol_version = "HTTP/1.1"
        self.requestline, self.client_address = "", ("", 0)
        self.raw_requestline = self.rfile.readline()
        self.understood = self.parse_request()

    def log_message(self, *_: object) -> None: ...


LINES = st.lists(
    st.sampled_from(
        [
            b"Host: h", b"host:h", b"Content-Length: 5", b"content-length:7", b"Content-Length:",
            b"Content-Length: -1", b"Content-Length: 5, 5", b"Content-Length: 0x5",
            b"Transfer-Encoding: chunked", b"Connection: close", b"Connection: Keep-Alive",
            b"Connection: keep-alive, close", b"Expect: 100-continue", b" folded", b"\tfolded",
            b"No-Colon", b": no name", b"Name : blank", b"A: b\rc", b"A: b\nc", b"A: \x00",
            b"A: \xff", b"A:   many   blanks", b"A: b: c", b"a: twice", b"",
        ]
    )
    | st.binary(max_size=12),
    max_size=5,
)  # fmt: skip
FIRST = st.sampled_from(
    [
        b"GET /b/k HTTP/1.1", b"PUT /b/k?uploads HTTP/1.1", b"DELETE / HTTP/1.1",
        b"GET //b/k HTTP/1.1", b"GET  /b HTTP/1.1", b"GET /b HTTP/1.0", b"GET /b HTTP/2.0",
        b"GET b HTTP/1.1", b"GET http://h/b HTTP/1.1", b"PATCH /b HTTP/1.1", b"get /b HTTP/1.1",
        b"GET /a b HTTP/1.1", b"GET /\xff HTTP/1.1", b"GET /b", b"",
    ]
)  # fmt: skip


@given(FIRST, LINES, st.sampled_from([b"\r\n", b"\n"]), st.binary(max_size=8))
def test_what_is_plain_means_the_same_to_http_server(
    first: bytes, lines: list[bytes], line_end: bytes, body: bytes
) -> None:
    received = line_end.join([first, *lines]) + 2 * line_end + body
    head = plain_request(received)
    if head is None:
        return
    theirs = _Theirs(received)
    assert theirs.understood
    assert not theirs.close_connection
    message = head.message
    assert theirs.command == message.method
    assert theirs.path == message.path + (f"?{message.query}" if "?" in theirs.path else "")
    assert theirs.headers.items() == list(message.headers)
    assert int(theirs.headers.get("content-length", "0")) == head.body_bytes
    assert theirs.rfile.read() == received[head.size_bytes :]


def test_the_usual_request_is_plain() -> None:
    head = plain_request(PLAIN + b"GET /next")
    assert head is not None
    assert (head.size_bytes, head.body_bytes) == (len(PLAIN), 0)
    assert (head.message.path, head.message.query) == ("/b/a%20k", "versionId=1")
    assert head.message.header("x-amz-meta-a") == "b   c"


@pytest.mark.parametrize(
    "received",
    [
        PLAIN[:-1],
        PLAIN.replace(b"Range", b"Host: other\r\nRange"),
        PLAIN.replace(b"Range", b"Transfer-Encoding: chunked\r\nRange"),
        PLAIN.replace(b"Range", b"Expect: 100-continue\r\nRange"),
        PLAIN.replace(b"Range", b"Content-Length: \xb2\r\nRange"),
        PLAIN.replace(b"Keep-Alive", b"close"),
        PLAIN.replace(b"1.1", b"1.0"),
        PLAIN.replace(b"/b/", b"//b/"),
        b"",
    ],
)
def test_anything_else_is_left_to_http_server(received: bytes) -> None:
    assert plain_request(received) is None


@pytest.mark.parametrize("length", [0, 5, None])
def test_what_is_passed_on_is_read_as_it_was_meant(length: int | None) -> None:
    message = Message("PUT", "/b/k", "uploads", [("Host", "h"), ("x-amz-date", "now")])
    theirs = _Theirs(request_head(message, length))
    assert theirs.understood
    assert (theirs.command, theirs.path) == ("PUT", "/b/k?uploads")
    framing = ("Transfer-Encoding", "chunked")
    if length is not None:
        framing = ("Content-Length", str(length))
    assert theirs.headers.items() == [*message.headers, framing]


@pytest.mark.parametrize(
    "message",
    [
        Message("GET", "/b", "", [("A", "b\r\nAuthorization: c")]),
        Message("GET", "/b", "", [("A\n", "b")]),
        Message("GET", "/b\r\n", "", []),
        Message("GET", "/b", "a\x00", []),
    ],
)
def test_a_head_that_would_be_another_request_is_not_sent(message: Message) -> None:
    with pytest.raises(InvalidInputError, match="line breaks"):
        request_head(message, 0)
