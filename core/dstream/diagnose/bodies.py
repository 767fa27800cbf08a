"""Request bodies on their way through: by length or in HTTP chunks, their own chunks re-signed."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from io import BufferedIOBase

from dstream.diagnose.sigv4 import (
    Key,
    Signature,
    SignatureRefusedError,
    chunk_signature,
    trailer_signature,
)
from dstream.errors import InvalidInputError
from dstream.units import KIB, MIB

PIECE_BYTES = 256 * KIB
MAX_SIGNED_CHUNK_BYTES = 64 * MIB
"""A signed chunk is held whole, to check it before it goes on."""
_MAX_LINE_BYTES = 16 * KIB

SIGNED_CHUNKS = ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
"""Values of ``x-amz-content-sha256`` whose body is signed chunk by chunk."""


class SenderGoneError(ConnectionError):
    """Who sends a body went away in the middle of it."""


class Body:
    """A request's body as it was framed by its sender.

    Args:
        stream: where it is read from.
        length: its ``Content-Length``; None for HTTP chunks.
    """

    def __init__(self, stream: BufferedIOBase, length: int | None) -> None:
        self._stream = stream
        self.length = length
        self._chunked = length is None
        self._left = length or 0
        self.is_ended = length == 0
        """All of it was read: what comes next on the connection is another request."""
        self.received_bytes = 0

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end.

        Raises:
            SenderGoneError: as it says.
            InvalidInputError: the HTTP chunks are malformed.
        """
        if self._chunked and not self._left and not self.is_ended:
            self._next_chunk()
        if self.is_ended:
            return b""
        try:
            data = self._stream.read(min(size, self._left))
        except OSError as error:
            raise SenderGoneError from error
        if not data:
            raise SenderGoneError
        self._left -= len(data)
        self.received_bytes += len(data)
        if not self._left:
            if self._chunked:
                self._line()
            else:
                self.is_ended = True
        return data

    def _next_chunk(self) -> None:
        self._left = hex_size(self._line().partition(b";")[0])
        if not self._left:
            self.is_ended = True
            while self._line():
                pass

    def _line(self) -> bytes:
        try:
            line = self._stream.readline(_MAX_LINE_BYTES)
        except OSError as error:
            raise SenderGoneError from error
        if line.endswith(b"\r\n"):
            return line[:-2]
        if line.endswith(b"\n") or len(line) == _MAX_LINE_BYTES:
            raise InvalidInputError("a line of a chunked body is too long, or ends without CR")
        raise SenderGoneError

    def pieces(self) -> Iterator[bytes]:
        """The rest of the body."""
        while data := self.read(PIECE_BYTES):
            yield data


def hex_size(text: bytes) -> int:
    """A chunk's size. Raises ``InvalidInputError`` when it is none."""
    try:
        if not text or text.strip(b"0123456789abcdefABCDEF"):
            raise ValueError(text)
        return int(text, 16)
    except ValueError as error:
        raise InvalidInputError(f"{text!r:.60} is no size of a chunk") from error


class _Lines:
    """Reads a :class:`Body` by lines and exact counts."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._kept = bytearray()

    def line(self) -> bytes:
        while (end := self._kept.find(b"\r\n")) < 0:
            self._more()
            if len(self._kept) > MAX_SIGNED_CHUNK_BYTES:
                raise InvalidInputError("a line of a signed body is too long")
        line = bytes(self._kept[:end])
        del self._kept[: end + 2]
        return line

    def exactly(self, size: int) -> bytes:
        while len(self._kept) < size:
            self._more()
        data = bytes(self._kept[:size])
        del self._kept[:size]
        return data

    def end(self) -> None:
        """Nothing is left. Raises ``InvalidInputError`` where there is."""
        if self._kept or self._body.read(1):
            raise InvalidInputError("a signed body goes on behind its end")

    def _more(self) -> None:
        data = self._body.read(PIECE_BYTES)
        if not data:
            raise InvalidInputError("a signed body ends in the middle of a chunk")
        self._kept += data


def resigned(
    body: Body, check: tuple[Signature, Key], make: tuple[Signature, Key]
) -> Iterator[bytes]:
    """A body of signed chunks, each checked with one key and signed with another.

    Of the same length as before: signatures have one length.

    Args:
        body: ``size;chunk-signature=...`` lines and data, as
            "Signature Calculations: Transferring Payload in Multiple Chunks" has it.
        check: the client's signature of the request, and its key.
        make: ours.

    Raises:
        SignatureRefusedError: a chunk was not signed with the client's key.
        InvalidInputError: the chunks are malformed or too large.
    """
    (theirs, their_key), (ours, our_key) = check, make
    lines = _Lines(body)
    size = -1
    while size:
        head, _, claimed = lines.line().partition(b";chunk-signature=")
        size = hex_size(head)
        if size > MAX_SIGNED_CHUNK_BYTES:
            raise InvalidInputError(f"a signed chunk of {size} bytes is too large to check")
        data = lines.exactly(size)
        theirs = chunk_signature(theirs, their_key.secret, data)
        _require(theirs, claimed)
        ours = chunk_signature(ours, our_key.secret, data)
        yield b"%s;chunk-signature=%s\r\n%s" % (head, ours.value.encode(), data)
        if size:
            lines.line()
            yield b"\r\n"
    yield from _trailer(lines, theirs, their_key, ours, our_key)
    lines.end()


def _trailer(
    lines: _Lines, theirs: Signature, their_key: Key, ours: Signature, our_key: Key
) -> Iterator[bytes]:
    signed = b""
    while line := lines.line():
        name, _, value = line.partition(b":")
        if name != b"x-amz-trailer-signature":
            signed += line + b"\n"
            yield line + b"\r\n"
            continue
        _require(trailer_signature(theirs, their_key.secret, signed), value)
        ours = trailer_signature(ours, our_key.secret, signed)
        yield b"x-amz-trailer-signature:%s\r\n" % ours.value.encode()
    yield b"\r\n"


def _require(expected: Signature, claimed: bytes) -> None:
    if not hmac.compare_digest(expected.value.encode(), claimed.strip()):
        raise SignatureRefusedError(
            "a chunk's signature does not match: the proxy serves only what is signed with the "
            "key in its environment",
            code="SignatureDoesNotMatch",
        )
