"""A store under which the process dies, or loses an answer, at one numbered request."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from dstream.errors import OutcomeUnknownError, StorageError
from dstream.measure import Purpose
from dstream.store.base import Blob, Capabilities, ObjectInfo, Store, Upload

T = TypeVar("T")


class When(StrEnum):
    BEFORE = "before"
    """The process dies before the request is sent."""
    AFTER = "after"
    """It dies when the request was carried out."""
    LOST = "lost"
    """The request is carried out, its answer is lost, and the process lives on."""


class Death(BaseException):
    """Stands for SIGKILL: nothing of the library may catch it."""


def raise_death() -> None:
    raise Death


def kill_self() -> None:
    """A real SIGKILL of this process."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStore:
    """Wraps a store. ``requests`` counts; at request number ``at`` it happens."""

    def __init__(
        self,
        inner: Store,
        at: int = 0,
        when: When = When.BEFORE,
        die: Callable[[], None] = raise_death,
    ) -> None:
        self.inner = inner
        self.at, self.when, self.die = at, when, die
        self.requests = 0
        self._lock = threading.Lock()

    def _around(self, call: Callable[[], T], *, commit: bool = False) -> T:
        with self._lock:
            self.requests += 1
            mine = self.requests == self.at
        if mine and self.when is When.BEFORE:
            self.die()
        result = call()
        if mine and self.when is When.AFTER:
            self.die()
        if mine and self.when is When.LOST:
            kind = OutcomeUnknownError if commit else StorageError
            raise kind("injected: the answer was lost")
        return result

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def head(
        self, key: str, *, version: str | None = None, purpose: Purpose = Purpose.OTHER
    ) -> ObjectInfo:
        return self._around(lambda: self.inner.head(key, version=version, purpose=purpose))

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
        return self._around(
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
        return self._around(lambda: self.inner.put(key, data, purpose=purpose))

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        return self._around(
            lambda: self.inner.put_if_absent(key, data, purpose=purpose), commit=True
        )

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        return self._around(lambda: self.inner.upload(key, path, purpose=purpose))

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        found = self._around(
            lambda: tuple(
                self.inner.list(prefix, start_after=start_after, limit=limit, purpose=purpose)
            )
        )
        return iter(found)

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        return self._around(lambda: self.inner.delete_many(keys, purpose=purpose))

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        return self.inner.list_uploads(prefix)

    def abort_upload(self, upload: Upload) -> None:
        self.inner.abort_upload(upload)

    def close(self) -> None:
        self.inner.close()
