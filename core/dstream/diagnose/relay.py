"""One client's connection to a measuring proxy: check, pass on, count."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler
from io import BufferedReader
from typing import TYPE_CHECKING, Protocol
from xml.sax.saxutils import escape

from dstream.clock import Clock
from dstream.diagnose.answers import Answer
from dstream.diagnose.bodies import PIECE_BYTES, SIGNED_CHUNKS, Body, SenderGoneError, resigned
from dstream.diagnose.request_head import plain_request
from dstream.diagnose.s3_request import Kind, S3Request, classify, content_range
from dstream.diagnose.shaping import Fault, FaultKind, Pacer, Shape, drawn_fault
from dstream.diagnose.sigv4 import Key, Message, Signature, SignatureRefusedError, check
from dstream.diagnose.traffic import Exchange, Traffic
from dstream.diagnose.upstream import Line, Upstream
from dstream.errors import InvalidInputError
from dstream.store.http_head import is_plain_length
from dstream.units import KIB

if TYPE_CHECKING:
    from dstream.diagnose.proxy import ProxyServer


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
    log_lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Of requests, in the order of their arrival."""

    def __post_init__(self) -> None:
        self.down = Pacer(self.shape.bytes_per_s, self.clock)
        self.up = Pacer(self.shape.bytes_per_s, self.clock)

    down: Pacer = field(init=False)
    up: Pacer = field(init=False)


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


_PART_BYTES = 16 * KIB

_LINGER_S, _LINGER_QUIET_S = 10.0, 2.0
"""So long a client that has its last answer is heard out, and so long after it fell silent."""


def _in_parts(pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    """So small that one of them is the middle of an answer."""
    for piece in pieces:
        for start in range(0, max(1, len(piece)), _PART_BYTES):
            yield piece[start : start + _PART_BYTES]


class _CutError(Exception):
    """A fault ended the answer."""


class Relay(BaseHTTPRequestHandler):
    """Serves one connection, one request after another."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ProxyServer
    rfile: BufferedReader

    def setup(self) -> None:
        """Make what the connection keeps between requests."""
        super().setup()
        self._settings = self.server.settings
        self._line = Line(self._settings.upstream)
        self._head = b""
        self._cpu_s = time.thread_time()
        self._delay()

    def finish(self) -> None:
        """Close the connection upstream along with the client's."""
        self._line.drop()
        if not self._is_cut:
            self._hear_out()
        super().finish()

    _is_cut = False

    def _hear_out(self) -> None:
        """Say that nothing more comes, and throw away what the client still sends.

        Closing with bytes unread resets a connection, and the client may lose its answer: RFC
        9112, section 9.6.
        """
        clock = self._settings.clock
        until_s = clock.monotonic_s() + _LINGER_S
        try:
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_QUIET_S)
            while self.connection.recv(PIECE_BYTES) and clock.monotonic_s() < until_s:
                pass
        except OSError:
            pass  # it is gone, or says nothing

    def log_message(self, *_: object) -> None:
        """Say nothing: the report tells."""

    def handle_one_request(self) -> None:
        """Serve one request: a plain one at once, any other as http.server reads it."""
        head = plain_request(self.rfile.peek())
        if head is None:
            super().handle_one_request()
            return
        self.rfile.read(head.size_bytes)
        self.close_connection = False
        self._serve(head.message, Body(self.rfile, head.body_bytes))

    def do_any(self) -> None:
        """Serve one request that http.server has read the head of."""
        path, _, query = self.path.partition("?")
        message = Message(self.command, path, query, self.headers.items())
        body = self._framed_body()
        if body is None:
            self._say_error(400, "InvalidRequest", "where the request's body ends is not clear")
            return
        self._serve(message, body)

    def _framed_body(self) -> Body | None:
        """By RFC 9112, section 6; None where its end would be a guess."""
        codings = self.headers.get_all("transfer-encoding", [])
        lengths = {*self.headers.get_all("content-length", [])}
        if codings:
            is_clear = not lengths and [coding.strip().lower() for coding in codings] == ["chunked"]
            return Body(self.rfile, None) if is_clear else None
        length = lengths.pop() if lengths else "0"
        return Body(self.rfile, int(length)) if is_plain_length(length) and not lengths else None

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = do_any

    def _serve(self, message: Message, body: Body) -> None:
        settings = self._settings
        self.command = message.method
        began_s = settings.clock.monotonic_s()
        settings.traffic.begin()
        try:
            signature = check(message, settings.key)
        except SignatureRefusedError as error:
            settings.traffic.refuse()
            self._say_error(403, str(error.code), str(error))
            return
        number = next(settings.numbers)
        request = classify(
            message.method,
            message.path,
            message.query,
            message.header("x-amz-copy-source") is not None,
        )
        fault = drawn_fault(settings.shape.faults, settings.shape.seed, number)
        ranged = message.header("range") is not None
        passing = _Passing(number, request, ranged, fault, began_s)
        try:
            self._pass_on(message, signature, body, passing)
        finally:
            self._count(passing, body)

    def _delay(self) -> None:
        if self._settings.shape.delay_s:
            self._settings.clock.sleep(self._settings.shape.delay_s)

    def _pass_on(
        self, message: Message, signature: Signature, body: Body, passing: _Passing
    ) -> None:
        settings = self._settings
        try:
            if passing.fault is not None and passing.fault.kind is FaultKind.SLOW_DOWN:
                for _ in body.pieces():
                    pass
                passing.outcome = "fault-503"
                self._error(passing, 503, "SlowDown", "injected by the measuring proxy")
                return
            self._delay()
            passed, made = settings.upstream.prepared(message, settings.clock, signature)
            pieces = body.pieces()
            if made is not None and message.header("x-amz-content-sha256") in SIGNED_CHUNKS:
                pieces = resigned(body, (signature, settings.key), made)
            response = self._line.exchange(passed, self._paced(pieces), body.length)
        except SenderGoneError:
            passing.outcome = "client-gone"
            self.close_connection = True
            self._line.drop()
        except (SignatureRefusedError, InvalidInputError) as error:
            passing.outcome = "bad-upload"
            self._error(passing, 400, "InvalidRequest", str(error))
        except (OSError, http.client.HTTPException) as error:
            passing.outcome = "upstream"
            self._error(passing, 502, "BadGateway", f"{type(error).__name__} from the real server")
        else:
            self._answer(response, body, passing)

    def _paced(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._settings.up.pass_through(len(piece))
            yield piece

    # The answer

    def _answer(self, answer: Answer, body: Body, passing: _Passing) -> None:
        passing.first_byte_s = self._settings.clock.monotonic_s()
        passing.status = answer.status
        if passing.request.kind is Kind.GET and answer.status in (200, 206):
            passing.range_start, passing.object_bytes = content_range(
                answer.content_range, answer.length
            )
        self._head = answer.head
        if not body.is_ended:  # the rest of it would be read as a request
            self._head = answer.head.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"
            self.close_connection = True
        try:
            self._pump(answer, passing)
        except _CutError:
            self.close_connection = self._is_cut = True
        except (OSError, http.client.HTTPException):
            passing.outcome = "client-gone" if self._fault_is_clients else "upstream"
            self.close_connection = True
        if passing.outcome != "ok" or not answer.is_kept or not body.is_ended:
            self._line.drop()

    def _pump(self, answer: Answer, passing: _Passing) -> None:
        chunked = answer.length is None
        halfway = (answer.length or 0) // 2
        pieces = answer.pieces()
        for piece in pieces if passing.fault is None else _in_parts(pieces):
            passing.received_bytes += len(piece)
            self._settings.traffic.passed(len(piece))
            if passing.fault is not None and passing.received_bytes > halfway:
                self._deliver(memoryview(b""), passing, chunked)  # the head of a short answer
                self._spoil(piece, passing, passing.fault)
            self._deliver(piece, passing, chunked)
        if chunked:
            self._send(b"0\r\n\r\n")
        else:
            self._deliver(memoryview(b""), passing, chunked)

    def _spoil(self, piece: memoryview, passing: _Passing, fault: Fault) -> None:
        """Do what a drawn fault does once half of the answer has passed."""
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

    def _deliver(self, piece: memoryview, passing: _Passing, chunked: bool) -> None:
        """Send a piece, together with the head if that is still to go."""
        head, self._head = self._head, b""
        self._settings.down.pass_through(len(piece))
        if chunked and piece:
            self._send(head, b"%x\r\n" % len(piece), piece, b"\r\n")
        elif head or piece:
            self._send(head, piece)
        passing.delivered_bytes += len(piece)

    def _send(self, *parts: bytes | memoryview) -> None:
        self._fault_is_clients = True
        sent = self.connection.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self.connection.sendall(memoryview(part)[max(0, sent) :])
            sent -= len(part)
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

    def _count(self, passing: _Passing, body: Body) -> None:
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
        # Since the last request: a thread that waits for the next one takes no CPU.
        began_cpu_s, self._cpu_s = self._cpu_s, time.thread_time()
        self._settings.traffic.end(exchange, self._cpu_s - began_cpu_s)
        log = self._settings.log
        if log is not None:
            line = json.dumps(asdict(exchange))
            with self._settings.log_lock:
                log.write(line + "\n")
