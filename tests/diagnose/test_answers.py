"""Answers on their way through the proxy: whole, as they come, and on a connection that is kept."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path

import pytest

from dstream.diagnose.answers import Answer, Wire, answer_of
from dstream.diagnose.bodies import PIECE_BYTES
from dstream.diagnose.sigv4 import Message
from dstream.diagnose.upstream import Line, Upstream

PLAIN = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nConnection: Keep-Alive\r\nX-Odd:  v\r\nContent-Length: '


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    ours, servers = socket.socketpair()
    wire = Wire(ours)
    yield wire, servers
    wire.close()
    servers.close()


def body_of(answer: Answer) -> bytes:
    return b"".join(bytes(piece) for piece in answer.pieces())


@pytest.mark.parametrize("size", [0, 1, 100_000, PIECE_BYTES, 3 * PIECE_BYTES + 7])
def test_a_plain_answer_passes_with_its_head_as_it_was(
    ends: tuple[Wire, socket.socket], size: int
) -> None:
    wire, server = ends
    body = os.urandom(size)
    sent = PLAIN + b"%d\r\n\r\n%s" % (size, body)
    for _ in range(2):
        sender = threading.Thread(target=server.sendall, args=(sent,))
        sender.start()
        answer = answer_of(wire, "GET")
        assert (answer.status, answer.length) == (200, size)
        assert answer.head == PLAIN.replace(b"Connection: Keep-Alive\r\n", b"") + (
            b"%d\r\n\r\n" % size
        )
        assert answer.is_kept
        assert body_of(answer) == body
        sender.join()


@pytest.mark.parametrize("room", range(6))
def test_a_buffer_that_the_head_came_in_full_is_passed_on(
    ends: tuple[Wire, socket.socket], room: int
) -> None:
    wire, server = ends
    sent = PLAIN + b"12\r\n\r\n"
    wire.buffer = memoryview(bytearray(len(sent) + room))
    server.sendall(sent + b"123456789012")
    assert body_of(answer_of(wire, "GET")) == b"123456789012"


def test_what_came_goes_on_while_the_rest_is_waited_for(
    ends: tuple[Wire, socket.socket],
) -> None:
    wire, server = ends
    server.sendall(PLAIN + b"10\r\n\r\n")
    pieces = answer_of(wire, "GET").pieces()
    assert bytes(next(pieces)) == b""
    server.sendall(b"12345")
    assert bytes(next(pieces)) == b"12345"
    server.sendall(b"67890")
    assert b"".join(map(bytes, pieces)) == b"67890"


def test_an_answer_that_ends_early_is_told(ends: tuple[Wire, socket.socket]) -> None:
    wire, server = ends
    server.sendall(PLAIN + b"10\r\n\r\n12345")
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(IncompleteRead):
        body_of(answer_of(wire, "GET"))


def test_more_than_was_promised_ends_the_connection(ends: tuple[Wire, socket.socket]) -> None:
    wire, server = ends
    server.sendall(PLAIN + b"3\r\n\r\n12345")
    answer = answer_of(wire, "GET")
    assert not answer.is_kept
    assert body_of(answer) == b"123"


def test_a_head_alone_has_no_body(ends: tuple[Wire, socket.socket]) -> None:
    wire, server = ends
    server.sendall(PLAIN + b"12345\r\n\r\n")
    answer = answer_of(wire, "HEAD")
    assert (answer.length, answer.is_kept, body_of(answer)) == (0, True, b"")
    assert b"Content-Length: 12345\r\n" in answer.head


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
UNUSUAL = {
    "chunked": (CHUNKED, 200, None, True),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nabcde", 200, None, False),
    "an error": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nabcde", 404, 5, True),
    "a long head": (PLAIN + b"5\r\nA: " + b"b" * 5000 + b"\r\n\r\nabcde", 200, 5, True),
    "closing": (PLAIN.replace(b"Keep-Alive", b"close") + b"5\r\n\r\nabcde", 200, 5, False),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_answer_passes_as_well(ends: tuple[Wire, socket.socket], name: str) -> None:
    sent, status, length, is_kept = UNUSUAL[name]
    wire, server = ends
    server.sendall(sent)
    server.shutdown(socket.SHUT_WR)
    answer = answer_of(wire, "GET")
    assert (answer.status, answer.length, answer.is_kept) == (status, length, is_kept)
    framing = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: 5"
    assert framing in answer.head
    assert b"onnection:" not in answer.head
    assert body_of(answer) == b"abcde"


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path / "localhost.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", path, "-out",
         tmp_path / "certificate.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    with path.open("a") as file:
        file.write((tmp_path / "certificate.pem").read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    return path


def test_a_server_behind_tls_serves_all_requests_on_one_connection(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    body = os.urandom(2 * PIECE_BYTES)
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True) as server:
                while received := server.recv(65536):
                    asked.append(received)
                    server.sendall(PLAIN + b"%d\r\n\r\n%s" % (len(body), body))

        thread = threading.Thread(target=serve)
        thread.start()
        line = Line(Upstream(f"https://localhost:{listener.getsockname()[1]}", None, None))
        for _ in range(3):
            answer = line.exchange(Message("GET", "/b/k", "", [("Host", "h")]), [], 0)
            assert body_of(answer) == body
        line.drop()
        thread.join()
    assert asked == 3 * [b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n"]
