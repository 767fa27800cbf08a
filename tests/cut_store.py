"""A store that dies, or loses the answer, at its k-th request: for trying every k.

And a death at the k-th change of a folder, within a request.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dstream.errors import DstreamError, OutcomeUnknownError, StorageError
from dstream.measure import Purpose
from dstream.store.base import Blob, Capabilities, ObjectInfo, Store, Upload

T = TypeVar("T")


class Crash(BaseException):
    """Stands for SIGKILL: nothing of the library may catch it."""


class Cut(StrEnum):
    """What happens at request number ``at``."""

    BEFORE = "before"
    """The process dies before the request is sent."""
    AFTER = "after"
    """It dies after the request was carried out."""
    LOST = "lost"
    """The request is carried out, its answer is lost, and the process lives on."""


def crash() -> None:
    """A death that the test survives."""
    raise Crash


def kill_self() -> None:
    """A real SIGKILL of this process."""
    os.kill(os.getpid(), signal.SIGKILL)


_CHANGES = frozenset({"os.link", "os.remove", "os.rename"})


def kill_at_change(number: int) -> None:
    """A real SIGKILL of this process just before the n-th time that it renames, links or removes.

    For processes that die soon: it cannot be taken back.
    """
    left = [number]

    def counted(event: str, _: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            left[0] -= 1
            if left[0] <= 0:
                kill_self()

    sys.addaudithook(counted)


class CutStore:
    """Counts requests, and cuts one of them. Deleting n keys counts as n: stores do it by key.

    Once dead it stays dead, for all threads: other than after a SIGKILL they would go on.
    """

    def __init__(
        self,
        inner: Store,
        at: int = 0,
        cut: Cut = Cut.BEFORE,
        die: Callable[[], None] = crash,
    ) -> None:
        self.inner = inner
        self.at = at
        self.cut = cut
        self.requests = 0
        self._die = die
        self._dead = False
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def _request(self, call: Callable[[], T], *, conditional: bool = False) -> T:
        with self._lock:
            if self._dead:
                raise Crash
            self.requests += 1
            mine = self.requests == self.at
            self._dead = mine and self.cut is not Cut.LOST
        if not mine:
            return call()
        if self.cut is Cut.BEFORE:
            self._die()
        try:
            answer = call()
        except DstreamError as error:
            if self.cut is Cut.AFTER:
                self._die()
            raise self._lost(conditional) from error
        if self.cut is Cut.AFTER:
            self._die()
        del answer
        raise self._lost(conditional)

    def _lost(self, conditional: bool) -> DstreamError:
        kind = OutcomeUnknownError if conditional else StorageError
        return kind(f"injected: the answer of request {self.at} was lost")

    def head(
        self, key: str, *, version: str | None = None, purpose: Purpose = Purpose.OTHER
    ) -> ObjectInfo:
        return self._request(lambda: self.inner.head(key, version=version, purpose=purpose))

    def get(
        self,
        key: str,
        start_byte: int = 0,
        stop_byte: int | None = None,
        *,
        expect_etag: str | None = None,
        version: str | None = None,
        purpose: Purpose = Purpose.OTHER,
    ) -> Blob:
        return self._request(
            lambda: self.inner.get(
                key,
                start_byte,
                stop_byte,
                expect_etag=expect_etag,
                version=version,
                purpose=purpose,
            )
        )

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        return self._request(lambda: self.inner.put(key, data, purpose=purpose))

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        return self._request(
            lambda: self.inner.put_if_absent(key, data, purpose=purpose), conditional=True
        )

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        return self._request(lambda: self.inner.upload(key, path, purpose=purpose))

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        found = self._request(
            lambda: tuple(
                self.inner.list(prefix, start_after=start_after, limit=limit, purpose=purpose)
            )
        )
        return iter(found)

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        failed: dict[str, str] = {}
        for key in keys:
            failed |= self._request(partial(self.inner.delete_many, [key], purpose=purpose))
        return failed

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        return iter(self._request(lambda: tuple(self.inner.list_uploads(prefix))))

    def abort_upload(self, upload: Upload) -> None:
        self._request(lambda: self.inner.abort_upload(upload))

    def close(self) -> None:
        self.inner.close()
