"""One kept connection: answers come whole, however the network cut them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from dstream.clock import FakeClock
from dstream.measure import Meter
from dstream.store import s3_requests
from dstream.store.opening import StoreOptions
from dstream.store.s3 import S3Store
from dstream.store.s3_connection import Endpoint
from dstream.store.s3_engine import connector
from dstream.store.s3_http import send_all
from s3_stub import Reply, stub_server

BODY = bytes(range(256)) * 40


def head(padding: int) -> bytes:
    length = f"Content-Length: {len(BODY)}\r\nx-padding: {'p' * padding}\r\n\r\n"
    return b"HTTP/1.1 206 Partial Content\r\n" + length.encode()


@contextmanager
def answering(answers: Sequence[Sequence[bytes]]) -> Iterator[Endpoint]:
    """A server that sends these, in these pieces, on one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for pieces in answers:
                    while lines.readline().strip():
                        pass
                    for piece in pieces:
                        connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", None, None, 5.0)
        thread.join()


def test_heads_of_any_length_with_and_without_their_bodies(each_engine: str) -> None:
    answers = []
    for padding in (1, 1, 3, 2, 900, 899, 901, 1, 3000, 1):
        whole = head(padding) + BODY
        end = len(whole) - len(BODY)
        for cut in (end, 10, end - 3, end + 1, end + 2048, len(whole)):
            answers.append((whole[:cut], whole[cut:]))
    with answering(answers) as endpoint:
        connection = connector(each_engine, endpoint, Meter())()
        for _ in answers:
            answer = connection.get(endpoint.request("/", {}), "", lambda _: 20.0, len(BODY))
            assert (answer.status, answer.headers["content-length"]) == (206, str(len(BODY)))
            assert answer.read() == BODY
        connection.close()


def test_a_request_that_does_not_go_at_once_is_sent_to_its_end() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        data = bytes(range(256)) * 4000
        thread = threading.Thread(target=send_all, args=(near, data))
        thread.start()
        received = b""
        while len(received) < len(data):
            received += far.recv(5000)
        thread.join()
        assert received == data


def test_a_request_on_a_lost_connection_is_an_error() -> None:
    near, far = socket.socketpair()
    far.close()
    with near, pytest.raises(BrokenPipeError):
        send_all(near, b"GET")
    with pytest.raises(OSError, match="descriptor"):
        send_all(near, b"GET")


def test_a_signature_serves_all_ranges_of_its_object_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(s3_requests, "_CLOCK", clock)
    with stub_server() as stub:
        store = S3Store("bucket", "", StoreOptions(endpoint_url=stub.endpoint_url))
        stub.answer = lambda request: Reply(
            206,
            b"12",
            {"ETag": '"e"', "Content-Range": f"bytes {request.headers['range'][6:]}/9"},
        )
        for key, start, wait_s in (("a", 0, 0), ("a", 2, 19), ("b", 0, 0), ("a", 0, 1)):
            clock.time_s += wait_s
            assert store.get(key, start, start + 2, expect_etag="e").data == b"12"
        store.close()
    first, same, other, later = [request.headers for request in stub.requests]
    assert first["authorization"] == same["authorization"]
    assert (first["range"], same["range"], same["if-match"]) == ("bytes=0-1", "bytes=2-3", '"e"')
    assert len({first["authorization"], other["authorization"], later["authorization"]}) == 3
