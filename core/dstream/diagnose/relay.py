"""One client's connection to a measuring proxy: check, pass on, count."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Protocol
from xml.sax.saxutils import escape

from dstream.clock import Clock
from dstream.diagnose.bodies import PIECE_BYTES, SIGNED_CHUNKS, Body, resigned
from dstream.diagnose.s3_request import Kind, S3Request, classify, content_range
from dstream.diagnose.shaping import Fault, FaultKind, Pacer, Shape, drawn_fault
from dstream.diagnose.sigv4 import Key, Message, Signature, SignatureRefusedError, check
from dstream.diagnose.traffic import Exchange, Traffic
from dstream.diagnose.upstream import Line, Upstream
from dstream.errors import InvalidInputError

if TYPE_CHECKING:
    from dstream.diagnose.proxy import ProxyServer

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade"}


class Log(Protocol):
    """What lines are written to."""

    def write(self, text: str, /) -> object:
        """Write a whole line. What it raises ends a connection."""


@dataclass(slots=True)
class Settings:
    """What all connections of one proxy share."""

    upstream: Upstream
    key: Key
    """The key handed out; requests signed with another are refused."""
    shape: Shape
    clock: Clock
    traffic: Traffic
    log: Log | None = None
    """Gets one JSON line for every request."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: int = 0

    def __post_init__(self) -> None:
        self.down = Pacer(self.shape.bytes_per_s, self.clock)
        self.up = Pacer(self.shape.bytes_per_s, self.clock)

    down: Pacer = field(init=False)
    up: Pacer = field(init=False)

    def next_number(self) -> int:
        """A number for a request, in the order of their arrival."""
        with self.lock:
            self.numbers += 1
            return self.numbers - 1


@dataclass(slots=True)
class _Passing:
    """A request on its way, as far as it has come."""

    number: int
    request: S3Request
    ranged: bool
    fault: Fault | None
    began_s: float
    first_byte_s: float = 0.0
    status: int = 0
    outcome: str = "ok"
    received_bytes: int = 0
    delivered_bytes: int = 0
    range_start: int | None = None
    object_bytes: int | None = None


class _CutError(Exception):
    """A fault ended the answer."""


class Relay(BaseHTTPRequestHandler):
    """Serves one connection, one request after another."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ProxyServer

    def setup(self) -> None:
        """Make what the connection keeps between requests."""
        super().setup()
        self._settings = self.server.settings
        self._line = Line(self._settings.upstream)
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._settings.clock.sleep(self._settings.shape.delay_s)

    def finish(self) -> None:
        """Close the connection upstream along with the client's."""
        self._line.drop()
        super().finish()

    def log_message(self, *_: object) -> None:
        """Say nothing: the report tells."""

    def do_any(self) -> None:
        """Serve one request."""
        settings = self._settings
        path, _, query = self.path.partition("?")
        message = Message(self.command, path, query, self.headers.items())
        began_s, began_cpu_s = settings.clock.monotonic_s(), time.thread_time()
        settings.traffic.begin()
        try:
            signature = check(message, settings.key)
        except SignatureRefusedError as error:
            settings.traffic.refuse()
            self._say_error(403, str(error.code), str(error))
            return
        number = settings.next_number()
        request = classify(
            self.command, path, query, message.header("x-amz-copy-source") is not None
        )
        fault = drawn_fault(settings.shape.faults, settings.shape.seed, number)
        ranged = message.header("range") is not None
        passing = _Passing(number, request, ranged, fault, began_s)
        body = self._body()
        try:
            self._pass_on(message, signature, body, passing)
        finally:
            self._count(passing, body, began_cpu_s)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = do_any

    def _body(self) -> Body:
        if "chunked" in (self.headers.get("transfer-encoding") or "").lower():
            return Body(self.rfile, None)
        length = self.headers.get("content-length") or "0"
        return Body(self.rfile, int(length) if length.isdecimal() else 0)

    def _pass_on(
        self, message: Message, signature: Signature, body: Body, passing: _Passing
    ) -> None:
        settings = self._settings
        if passing.fault is not None and passing.fault.kind is FaultKind.SLOW_DOWN:
            for _ in body.pieces():
                pass
            passing.outcome = "fault-503"
            self._error(passing, 503, "SlowDown", "injected by the measuring proxy")
            return
        settings.clock.sleep(settings.shape.delay_s)
        try:
            passed, made = settings.upstream.prepared(message, settings.clock, signature)
            pieces = body.pieces()
            if made is not None and message.header("x-amz-content-sha256") in SIGNED_CHUNKS:
                pieces = resigned(body, (signature, settings.key), made)
            response = self._line.exchange(passed, self._paced(pieces), body.length)
        except (SignatureRefusedError, InvalidInputError) as error:
            passing.outcome = "bad-upload"
            self._error(passing, 400, "InvalidRequest", str(error))
        except (OSError, http.client.HTTPException) as error:
            passing.outcome = "upstream"
            self._error(passing, 502, "BadGateway", f"{type(error).__name__} from the real server")
        else:
            self._answer(response, passing)

    def _paced(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._settings.up.pass_through(len(piece))
            yield piece

    # The answer

    def _answer(self, response: http.client.HTTPResponse, passing: _Passing) -> None:
        passing.first_byte_s = self._settings.clock.monotonic_s()
        passing.status = response.status
        if passing.request.kind is Kind.GET and response.status in (200, 206):
            passing.range_start, passing.object_bytes = content_range(
                response.getheader("content-range"), response.length
            )
        chunked = response.length is None
        try:
            self._send_head(response, chunked)
            self._pump(response, passing, chunked)
        except _CutError:
            self.close_connection = True
        except (OSError, http.client.HTTPException):
            passing.outcome = "client-gone" if self._fault_is_clients else "upstream"
            self.close_connection = True
        if passing.outcome == "ok":
            response.close()
        else:
            self._line.drop()

    def _send_head(self, response: http.client.HTTPResponse, chunked: bool) -> None:
        lines = [f"HTTP/1.1 {response.status} {response.reason}"]
        lines += [f"{k}: {v}" for k, v in response.getheaders() if k.lower() not in _HOP_BY_HOP]
        length = response.getheader("content-length")
        if length is not None:
            lines.append(f"Content-Length: {length}")
        elif chunked:
            lines.append("Transfer-Encoding: chunked")
        elif response.status not in (204, 304):
            lines.append("Content-Length: 0")
        self._send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def _pump(self, response: http.client.HTTPResponse, passing: _Passing, chunked: bool) -> None:
        length = response.length
        left = length
        while left is None or left > 0:
            piece = self._piece(response, left)
            if not piece:
                if left is not None:
                    raise http.client.IncompleteRead(b"", left)
                break
            passing.received_bytes += len(piece)
            self._settings.traffic.passed(len(piece))
            left = None if left is None else left - len(piece)
            self._spoil(piece, passing, (length or 0) // 2)
            self._settings.down.pass_through(len(piece))
            self._send(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            passing.delivered_bytes += len(piece)
        if chunked:
            self._send(b"0\r\n\r\n")

    def _piece(self, response: http.client.HTTPResponse, left: int | None) -> memoryview:
        """What is there of the answer, at most a buffer full; it is not waited for more."""
        if left is None:
            data = response.read1(len(self._buffer))
            self._buffer[: len(data)] = data
            return self._buffer[: len(data)]
        # Straight from the socket into the buffer: read1() would make a new object each time.
        size = response.fp.readinto1(self._buffer[: min(left, len(self._buffer))])
        return self._buffer[:size]

    def _spoil(self, piece: memoryview, passing: _Passing, halfway: int) -> None:
        """Do what a drawn fault does once half of the answer has passed."""
        fault = passing.fault
        if fault is None or passing.received_bytes <= halfway:
            return
        passing.fault = None
        if fault.kind is FaultKind.STALL:
            self._settings.clock.sleep(fault.stall_s)
        elif fault.kind is FaultKind.CORRUPT:
            if passing.range_start is None:
                return  # a listing that cannot be parsed is another kind of trouble
            piece[0] ^= 1
        passing.outcome = f"fault-{fault.kind}"
        if fault.kind in (FaultKind.STALL, FaultKind.CORRUPT):
            return
        if fault.kind is FaultKind.RESET:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        raise _CutError

    def _send(self, data: bytes | memoryview) -> None:
        self._fault_is_clients = True
        self.connection.sendall(data)
        self._fault_is_clients = False

    _fault_is_clients = False

    def _error(self, passing: _Passing, status: int, code: str, message: str) -> None:
        passing.status = status
        passing.first_byte_s = self._settings.clock.monotonic_s()
        self._line.drop()
        self._say_error(status, code, message)

    def _say_error(self, status: int, code: str, message: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode()
        head = (
            f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.close_connection = True
        try:
            self.connection.sendall(head.encode() + (b"" if self.command == "HEAD" else body))
        except OSError:
            pass  # nobody waits for it any more

    # Counting

    def _count(self, passing: _Passing, body: Body, began_cpu_s: float) -> None:
        ended_s = self._settings.clock.monotonic_s()
        exchange = Exchange(
            number=passing.number,
            kind=passing.request.kind,
            bucket=passing.request.bucket,
            key=passing.request.key,
            status=passing.status,
            outcome=passing.outcome,
            began_s=passing.began_s,
            first_byte_s=passing.first_byte_s or ended_s,
            ended_s=ended_s,
            sent_bytes=body.received_bytes,
            received_bytes=passing.received_bytes,
            delivered_bytes=passing.delivered_bytes,
            range_start=passing.range_start,
            object_bytes=passing.object_bytes,
            ranged=passing.ranged,
        )
        self._settings.traffic.end(exchange, time.thread_time() - began_cpu_s)
        log = self._settings.log
        if log is not None:
            line = json.dumps(asdict(exchange))
            with self._settings.lock:
                log.write(line + "\n")
