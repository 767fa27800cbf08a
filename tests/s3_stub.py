"""A small HTTP server on loopback that answers as a test says, or forwards and records."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dstream.store.opening import StoreOptions
from dstream.store.s3 import S3Store


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None
    """Send only this many bytes of the body, then close."""
    reset: bool = False
    """Reset the connection instead of answering."""
    stall_s: float = 0.0
    """Wait so long before the body's byte ``stall_at``, or before the answer."""
    stall_at: int | None = None
    trickle_s: float = 0.0
    """Send the body byte by byte, with so long a pause between them."""


def s3_error(status: int, code: str, **headers: str) -> Reply:
    body = f"<Error><Code>{code}</Code><Message>as scripted</Message></Error>".encode()
    return Reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


DATA = bytes(range(256)) * 1024
"""An object of 256 KiB."""


def ranged(request: Request, **changed: Any) -> Reply:
    """The range of :data:`DATA` that is asked for."""
    first, last = (int(place) for place in request.headers["range"][6:].split("-"))
    named = {"ETag": '"e"', "Content-Range": f"bytes {first}-{last}/{len(DATA)}"}
    return dataclasses.replace(Reply(206, DATA[first : last + 1], named), **changed)


Answerer = Callable[[Request], Reply]


class Stub:
    """The server; ``requests`` holds what came in."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.requests: list[Request] = []
        self.stopped = threading.Event()
        self.answer: Answerer = lambda request: s3_error(404, "NoSuchKey")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def endpoint_url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def script(self, *replies: Reply) -> None:
        """Answer with these in turn; the last one stays."""
        left = list(replies)
        self.answer = lambda request: left.pop(0) if len(left) > 1 else left[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, self.rfile.read(length))
                stub.requests.append(request)
                try:
                    self._send(stub.answer(request))
                except ConnectionError:
                    self.close_connection = True  # the client gave up

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

            def _send(self, reply: Reply) -> None:
                if reply.reset:
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.close_connection = True
                    return
                if reply.stall_at is None:
                    stub.stopped.wait(reply.stall_s)
                self.send_response(reply.status)
                named = {"Content-Length": str(len(reply.body)), **reply.headers}
                for name, value in named.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self._send_body(reply)
                if reply.cut_at is not None:
                    self.close_connection = True

            def _send_body(self, reply: Reply) -> None:
                body = reply.body[: reply.cut_at]
                if reply.trickle_s:
                    for place in range(len(body)):
                        self.wfile.write(body[place : place + 1])
                        stub.stopped.wait(reply.trickle_s)
                    return
                self.wfile.write(body[: reply.stall_at])
                if reply.stall_at is not None:
                    stub.stopped.wait(reply.stall_s)
                    self.wfile.write(body[reply.stall_at :])

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError, ssl.SSLError):  # the client went away
                    super().handle()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def forward_to(endpoint_url: str, *, without: str = "") -> Answerer:
    """Pass requests on to a real server, without one header if so wished."""
    host = urlsplit(endpoint_url).netloc

    def answer(request: Request) -> Reply:
        connection = http.client.HTTPConnection(host)
        try:
            kept = {name: value for name, value in request.headers.items() if name != without}
            connection.request(request.method, request.path, request.body, kept)
            reply = connection.getresponse()
            body = reply.read()
            named = {
                name: value
                for name, value in reply.getheaders()
                if name.lower() not in ("connection", "transfer-encoding", "date", "server")
            }
            if request.method != "HEAD":
                named["Content-Length"] = str(len(body))
            return Reply(reply.status, body, named)
        finally:
            connection.close()

    return answer


def remembered(inner: Answerer) -> Answerer:
    """Ask for each thing once: the second time the answer comes at once."""
    known: dict[tuple[str, str, str | None], Reply] = {}

    def answer(request: Request) -> Reply:
        wanted = request.method, request.path, request.headers.get("range")
        if request.method not in ("GET", "HEAD"):
            return inner(request)
        if wanted not in known:
            known[wanted] = inner(request)
        return known[wanted]

    return answer


@contextmanager
def stub_server(certificate: Path | None = None) -> Iterator[Stub]:
    """Args:
    certificate: file of a key and its certificate; the server speaks TLS.
    """
    stub = Stub(certificate)
    try:
        yield stub
    finally:
        stub.close()


def bare_store(stub: Stub, **options: Any) -> S3Store:
    """A store on the server, without retries."""
    return S3Store("bucket", "", StoreOptions(endpoint_url=stub.endpoint_url, **options))


def in_another_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` gives there."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
