"""The real server's answers on their way: a head to pass on, and a body in pieces as they come.

An answer of known length with a plain head is received straight into one kept buffer; any other is
read by http.client.
"""

from __future__ import annotations

import io
import re
import select
import socket
import ssl
import struct
from collections.abc import Iterator
from http.client import HTTPResponse, IncompleteRead
from typing import Any, Protocol, cast

from dstream.diagnose.bodies import PIECE_BYTES
from dstream.store.http_head import MOST_BYTES, Head, plain_head

_TIMEOUT_S = 120
_QUIET_S = 0.05
"""So long a piece is waited for to fill up; what came by then is passed on."""

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade"}
_HOP_LINES = re.compile(rb"(?<=\r\n)(?:connection|keep-alive|upgrade):[^\r]*\r\n", re.IGNORECASE)


class Wire:
    """A connection to the server and the buffer that its answers are received in.

    Args:
        sock: connected; it is closed with this.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.buffer = memoryview(bytearray(MOST_BYTES + PIECE_BYTES))
        self._sock = sock
        self._idle = select.poll()
        self._idle.register(sock, select.POLLIN)
        # A TLS socket gives one record at a time, and cannot be told to wait for more.
        self._whole = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL
        self._quiet_times = 0
        if isinstance(sock, ssl.SSLSocket):
            sock.settimeout(_TIMEOUT_S)
            return
        # Python's own timeout takes one more system call for each receive.
        sock.settimeout(None)
        quiet = struct.pack("ll", 0, int(_QUIET_S * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, quiet)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _TIMEOUT_S, 0))

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._sock.sendall(data)

    def fill(self, place: memoryview) -> int | None:
        """Receive until it is full, or some came and then nothing for a while.

        Returns:
            How many bytes came: 0 at the end, None where nothing did for a while.

        Raises:
            OSError: the connection is lost, or nothing came for two minutes.
        """
        return self._receive(place, self._whole)

    def some(self, place: memoryview) -> int:
        """Wait for any bytes; how many came, 0 at the end. Raises as :meth:`fill`."""
        while (size := self._receive(place, 0)) is None:
            pass
        return size

    def _receive(self, place: memoryview, flags: int) -> int | None:
        try:
            size = self._sock.recv_into(place, 0, flags)
        except BlockingIOError:
            self._quiet_times += 1
            if self._quiet_times * _QUIET_S > _TIMEOUT_S:
                raise TimeoutError("the server said nothing for two minutes") from None
            return None
        self._quiet_times = 0
        return size

    def is_idle(self) -> bool:
        """Nothing came unasked: the server has not closed the connection."""
        return not self._idle.poll(0)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


class Answer(Protocol):
    """An answer whose head is here."""

    @property
    def status(self) -> int:
        """Of HTTP."""
        ...

    @property
    def head(self) -> bytes:
        """As it goes on, with the blank line."""
        ...

    @property
    def length(self) -> int | None:
        """Bytes of the body; None where only its end tells, and it goes on in HTTP chunks."""
        ...

    @property
    def content_range(self) -> str | None:
        """That header."""
        ...

    @property
    def is_kept(self) -> bool:
        """Whether the connection serves another request once the body is read."""
        ...

    def pieces(self) -> Iterator[memoryview]:
        """The body, writable; each is gone with the next. Empty where nothing came for a while.

        Raises:
            IncompleteRead: it ended early.
            OSError, HTTPException: the connection was lost.
        """
        ...


def answer_of(wire: Wire, method: str) -> Answer:
    """Wait for the answer to a request.

    Raises:
        OSError, HTTPException: there came none, or none that can be understood.
    """
    here = wire.some(wire.buffer)
    head = plain_head(bytes(wire.buffer[: min(here, MOST_BYTES)]))
    if head is None:
        return _AnyAnswer(wire, here, method)
    return _PlainAnswer(wire, here, head, 0 if method == "HEAD" else head.body_bytes)


class _PlainAnswer:
    """One whose body of known length goes through the wire's buffer."""

    def __init__(self, wire: Wire, here: int, head: Head, length: int) -> None:
        self.status, self.length = head.status, length
        self.head = _HOP_LINES.sub(b"", bytes(wire.buffer[: head.size_bytes]))
        self.content_range = head.headers.get("content-range")
        self.is_kept = here <= head.size_bytes + length
        self._wire = wire
        self._start, self._stop = head.size_bytes, min(here, head.size_bytes + length)

    def pieces(self) -> Iterator[memoryview]:
        """See :class:`Answer`."""
        buffer, start, stop = self._wire.buffer, self._start, self._stop
        left = self.length - (stop - start)
        while left:
            if stop < len(buffer):  # else it came with the head
                size = self._wire.fill(buffer[stop : stop + left])
                if size == 0:
                    raise IncompleteRead(b"", left)
                stop += size or 0
                left -= size or 0
            yield buffer[start:stop]
            start = stop = 0
        if stop > start:
            yield buffer[start:stop]


class _AnyAnswer:
    """One as http.client reads it."""

    def __init__(self, wire: Wire, here: int, method: str) -> None:
        stream = io.BufferedReader(cast(Any, _Incoming(wire, here)))
        self._response = HTTPResponse(cast(Any, _WireAsSocket(stream)), method=method)
        self._response.begin()
        self.status, self.length = self._response.status, self._response.length
        self.is_kept = not self._response.will_close
        self.content_range = self._response.getheader("content-range")

    @property
    def head(self) -> bytes:
        """See :class:`Answer`."""
        response = self._response
        lines = [f"HTTP/1.1 {response.status} {response.reason}"]
        lines += [f"{k}: {v}" for k, v in response.getheaders() if k.lower() not in _HOP_BY_HOP]
        length = response.getheader("content-length")
        if length is not None:
            lines.append(f"Content-Length: {length}")
        elif self.length is None:
            lines.append("Transfer-Encoding: chunked")
        elif response.status not in (204, 304):
            lines.append("Content-Length: 0")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def pieces(self) -> Iterator[memoryview]:
        """See :class:`Answer`."""
        yield memoryview(b"")  # the head goes at once: S3 may think for minutes after it
        left = self.length
        while left is None or left > 0:
            data = self._response.read1(PIECE_BYTES if left is None else min(left, PIECE_BYTES))
            if not data:
                if left is not None:
                    raise IncompleteRead(b"", left)
                return
            left = None if left is None else left - len(data)
            yield memoryview(bytearray(data))


class _Incoming(io.RawIOBase):
    """What a wire receives, what lies in its buffer first."""

    def __init__(self, wire: Wire, here: int) -> None:
        self._wire, self._here = wire, wire.buffer[:here]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._here:
            return self._wire.some(memoryview(buffer))
        size = min(len(buffer), len(self._here))
        buffer[:size], self._here = self._here[:size], self._here[size:]
        return size


class _WireAsSocket:
    """As much of a socket as an HTTPResponse wants."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream

    def makefile(self, mode: str) -> io.BufferedReader:
        return self._stream
