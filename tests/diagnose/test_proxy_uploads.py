"""Uploads through the measuring proxy that do not go to their end."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from io import BufferedReader

import pytest

from dstream.diagnose.proxy import MeasuringProxy
from dstream.diagnose.sigv4 import Message, sign
from dstream.diagnose.traffic import TrafficReport
from dstream.diagnose.upstream import Upstream
from dstream.units import MIB
from s3_services import REGION

DENIED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied"
INSIDE = b"GET /b/never-asked-for HTTP/1.1\r\nHost: h\r\n\r\n"
"""What a body may hold, and no request is."""

Serve = Callable[[BufferedReader, socket.socket], None]


@contextmanager
def proxied(serve: Serve) -> Iterator[MeasuringProxy]:
    """A proxy before a server that does so with each connection once it has a head."""

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                while stream.readline() not in (b"\r\n", b""):
                    pass
                serve(stream, connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with MeasuringProxy(Upstream(url, REGION, None)).serving() as proxy:
            yield proxy
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def signed_head(proxy: MeasuringProxy, *framing: str) -> bytes:
    """Of an upload."""
    host = proxy.endpoint_url.removeprefix("http://")
    message = Message("PUT", "/b/k", "", [("Host", host)])
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    _, added = sign(message, proxy.key, now, REGION)
    fields = [f"{name}: {value}" for name, value in {"Host": host, **added}.items()]
    return "\r\n".join(("PUT /b/k HTTP/1.1", *fields, *framing, "", "")).encode()


def connected(proxy: MeasuringProxy) -> socket.socket:
    host, _, port = proxy.endpoint_url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def answered(client: socket.socket) -> tuple[HTTPResponse, bytes]:
    """An answer and its body, after which the connection is at its end."""
    response = HTTPResponse(client)
    response.begin()
    body = response.read()
    assert client.recv(1) == b""
    return response, body


def only_request(report: TrafficReport) -> dict[str, int]:
    """How the only request ended; nothing else was taken for one."""
    assert (report.requests, report.refused) == (1, 0)
    return dict(report.outcomes)


def deny(stream: BufferedReader, connection: socket.socket) -> None:
    connection.sendall(DENIED)


def deny_large(stream: BufferedReader, connection: socket.socket) -> None:
    stream.read(MIB)
    deny(stream, connection)


@pytest.mark.parametrize("serve", [deny, deny_large])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_early_answer_ends_the_connection_and_arrives(serve: Serve, chunked: bool) -> None:
    """As a client does that sends all it has before it looks for an answer."""
    piece = INSIDE * (MIB // len(INSIDE))
    with proxied(serve) as proxy, connected(proxy) as client:
        if chunked:
            client.sendall(signed_head(proxy, "Transfer-Encoding: chunked"))
            for _ in range(24):
                client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            client.sendall(b"0\r\n\r\n")
        else:
            client.sendall(signed_head(proxy, f"Content-Length: {24 * len(piece)}"))
            for _ in range(24):
                client.sendall(piece)
        response, body = answered(client)
        assert (response.status, body) == (403, b"denied")
        assert response.getheader("connection") == "close"
        assert only_request(proxy.report()) == {"ok": 1}


def test_a_refused_upload_gets_its_answer() -> None:
    with proxied(deny) as proxy, connected(proxy) as client:
        client.sendall(b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (24 * MIB))
        for _ in range(24):
            client.sendall(bytes(MIB))
        response, body = answered(client)
        assert response.status == 403
        assert b"AccessDenied" in body
        assert (proxy.report().requests, proxy.report().refused) == (0, 1)


@pytest.mark.parametrize(
    "framing",
    [
        ("Content-Length: 5, 5",),
        ("Content-Length: -1",),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: gzip",),
    ],
)
def test_a_body_without_a_clear_end_is_refused(framing: tuple[str, ...]) -> None:
    with proxied(deny) as proxy, connected(proxy) as client:
        client.sendall(signed_head(proxy, *framing) + INSIDE)
        response, body = answered(client)
        assert (response.status, b"not clear" in body) == (400, True)
        assert (proxy.report().requests, proxy.report().refused) == (0, 0)


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_goes_in_the_middle_of_its_upload_is_told_apart(reset: bool) -> None:
    ended = threading.Event()

    def hear(stream: BufferedReader, connection: socket.socket) -> None:
        stream.read(1000)
        began.set()
        stream.read()
        ended.set()

    began = threading.Event()
    with proxied(hear) as proxy:
        with connected(proxy) as client:
            client.sendall(signed_head(proxy, f"Content-Length: {MIB}") + bytes(300_000))
            assert began.wait(30)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert ended.wait(30), "the server was left waiting for the rest"
        assert only_request(proxy.report(settle_s=30)) == {"client-gone": 1}


def test_the_connection_is_kept_after_an_upload_that_was_read() -> None:
    def store(stream: BufferedReader, connection: socket.socket) -> None:
        for _ in range(2):
            stream.read(MIB)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            while stream.readline() not in (b"\r\n", b""):
                pass

    with proxied(store) as proxy, connected(proxy) as client:
        for _ in range(2):
            client.sendall(signed_head(proxy, f"Content-Length: {MIB}") + bytes(MIB))
            response = HTTPResponse(client)
            response.begin()
            assert (response.status, response.read()) == (200, b"")
        assert proxy.report().outcomes == {"ok": 2}
