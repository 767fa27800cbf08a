"""The benchmark's count of requests and bytes: the same however TCP cuts the stream."""

from __future__ import annotations

import pytest

from peers.traffic import ConnectionCount, Traffic

EXCHANGES = [
    (b"GET /b?list-type=2&prefix=a%2F HTTP/1.1\r\nHost: x\r\n\r\n", b"", b"l" * 7, "list"),
    (b"GET /b/a/0.mp4 HTTP/1.1\r\nRange: bytes=0-9\r\n\r\n", b"", b"d" * 10, "data"),
    (
        b"PUT /b/k HTTP/1.1\r\nContent-Length: 23\r\n\r\n",
        b"GET /b/fake HTTP/1.1\r\n\r\n"[:23],
        b"",
        "other",
    ),
    (
        b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"4\r\nGET \r\n0\r\n\r\n",
        b"ok",
        "other",
    ),
    (b"HEAD /b/a/0.mp4 HTTP/1.1\r\n\r\n", b"", b"h" * 3, "head"),
    (b"GET /b/a/1.mp4 HTTP/1.1\r\n\r\n", b"", b"d" * 5, "data"),
]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 11, 1000])
def test_requests_and_bytes_do_not_depend_on_how_the_stream_is_cut(step: int) -> None:
    traffic = Traffic()
    connection = ConnectionCount(traffic)
    for head, body, response, _ in EXCHANGES:
        sent = head + body
        for start in range(0, len(sent), step):
            connection.sent(sent[start : start + step])
        connection.received(response)
    kinds = {kind for *_, kind in EXCHANGES}
    assert traffic.requests == {
        kind: sum(kind == other for *_, other in EXCHANGES) for kind in kinds
    }
    assert dict(traffic.received_bytes) == {
        kind: sum(len(response) for _, _, response, other in EXCHANGES if other == kind)
        for kind in kinds
    }
