"""What passes between an S3 client and its server: requests by kind, and their bytes.

Counted where all peers pass, in the relay, so that the figures mean the same for each of them.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from delay_relay import relay


@dataclass
class Traffic:
    """Sums since the relay began. Kinds: data (GET of an object), list, head, other."""

    requests: Counter[str] = field(default_factory=Counter)
    received_bytes: Counter[str] = field(default_factory=Counter)
    """Responses with their headers, as far as they were handed on."""

    def copy(self) -> Traffic:
        return Traffic(Counter(self.requests), Counter(self.received_bytes))

    def minus(self, before: Traffic) -> Traffic:
        requests, received = self.copy().requests, self.copy().received_bytes
        requests.subtract(before.requests)
        received.subtract(before.received_bytes)
        return Traffic(requests, received)


def kind_of(method: str, target: str) -> str:
    """The kind of a path-style request.

    >>> kind_of("GET", "/bucket/a/b.mp4"), kind_of("GET", "/bucket?list-type=2&prefix=a%2F")
    ('data', 'list')
    >>> kind_of("HEAD", "/bucket/a/b.mp4"), kind_of("PUT", "/bucket/a")
    ('head', 'other')
    """
    if method == "HEAD":
        return "head"
    if method != "GET":
        return "other"
    key = urlsplit(target).path.strip("/").partition("/")[2]
    return "data" if key else "list"


_LAST_CHUNK = re.compile(rb"(?:^|\r\n)0\r\n(?:[^\r\n]+\r\n)*\r\n")


class ConnectionCount:
    """Follows the requests of one HTTP/1.1 connection; responses belong to the last request."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._head = b""
        self._body_left = 0
        self._in_chunks = False
        self._kind = "other"

    def sent(self, data: bytes) -> None:
        while data:
            if self._in_chunks:
                body = self._head + data
                last = _LAST_CHUNK.search(body)
                self._in_chunks = last is None
                # What may be the beginning of the last chunk and its trailers is kept.
                self._head, data = (b"", body[last.end() :]) if last else (body[-4096:], b"")
            elif self._body_left:
                used = min(self._body_left, len(data))
                self._body_left, data = self._body_left - used, data[used:]
            else:
                head, end, data = (self._head + data).partition(b"\r\n\r\n")
                self._head = b"" if end else head
                if end:
                    self._began(head.decode("latin-1"))

    def received(self, data: bytes) -> None:
        self._traffic.received_bytes[self._kind] += len(data)

    def _began(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        method, target, *_ = first.split(" ")
        fields = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        self._body_left = int(fields.get("content-length", 0))
        self._in_chunks = "chunked" in fields.get("transfer-encoding", "")
        self._kind = kind_of(method, target)
        self._traffic.requests[self._kind] += 1


@contextmanager
def counting_relay(target_port: int, rtt_s: float) -> Iterator[tuple[str, Traffic]]:
    """A relay in a thread of its own; gives its endpoint and what it counts."""
    traffic, loop = Traffic(), asyncio.new_event_loop()
    server = loop.run_until_complete(
        relay(target_port, rtt_s, watch=lambda: ConnectionCount(traffic))
    )
    thread = threading.Thread(target=loop.run_forever, name="relay")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", traffic
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(_end(asyncio.all_tasks(loop)))
        loop.close()


async def _end(tasks: Iterable[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
