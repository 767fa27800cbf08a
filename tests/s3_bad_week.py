"""A server that has a bad week: a given share of reads fails, each kind counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from s3_stub import Answerer, Reply, Request, s3_error

SHARES = {
    "throttled": 0.05,
    "reset": 0.02,
    "short-read": 0.01,
    "read-deadline": 0.01,
    "wrong": 0.01,
}
"""As the loader counts them; ``wrong`` bytes are its ``refetch``."""


class BadWeek:
    """Answers as ``inner`` does, but for the mishaps. ``happened`` counts them.

    Args:
        inner: the server's right answers.
        seed: of the draws.
        stall_s: how long a stall lasts, before the headers or in mid-body by turns.
        has_checksum: whether a read is of bytes that have one: only those are made wrong.
        shares: probability of each kind.
    """

    def __init__(
        self,
        inner: Answerer,
        *,
        seed: int,
        stall_s: float,
        has_checksum: Callable[[Request], bool],
        shares: dict[str, float] = SHARES,
    ) -> None:
        self._inner, self._stall_s, self._has_checksum = inner, stall_s, has_checksum
        self._shares = shares
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self.happened: Counter[str] = Counter()
        self.reads = 0

    def __call__(self, request: Request) -> Reply:
        kind = self._draw(request) if request.method == "GET" else None
        if kind == "throttled":
            return s3_error(503, "SlowDown")
        if kind == "reset":
            return Reply(reset=True)
        reply = self._inner(request)
        return reply if kind is None else self._spoiled(kind, reply)

    def _draw(self, request: Request) -> str | None:
        with self._lock:
            self.reads += 1
            drawn = self._rng.random()
            for kind, share in self._shares.items():
                drawn -= share
                if drawn < 0:
                    if kind == "wrong" and not self._has_checksum(request):
                        return None
                    if kind == "read-deadline" and "list-type" in request.path:
                        return None  # a listing is waited for: it may take a server long
                    self.happened[kind] += 1
                    return kind
        return None

    def _spoiled(self, kind: str, reply: Reply) -> Reply:
        half = len(reply.body) // 2
        if kind == "short-read":
            return replace(reply, cut_at=half)
        if kind == "read-deadline":
            at = half if self.happened[kind] % 2 else None
            return replace(reply, stall_s=self._stall_s, stall_at=at)
        wrong = bytearray(reply.body)
        wrong[half] ^= 0x10
        return replace(reply, body=bytes(wrong))
