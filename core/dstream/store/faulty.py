"""Faults on purpose: a store that fails as scripted or by a seeded chance. For tests.

The fault that matters most is the one after the write landed: the caller hears of a failure and
must not believe it. For ``put_if_absent`` that is ``OutcomeUnknownError``, as on a real store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import numpy as np

from dstream.clock import Clock, SystemClock
from dstream.errors import (
    DstreamError,
    OutcomeUnknownError,
    ShortReadError,
    StorageError,
    ThrottledError,
)
from dstream.forks import renew_after_fork
from dstream.measure import Purpose
from dstream.store.base import Blob, Capabilities, ObjectInfo, Store, Upload

T = TypeVar("T")


class FaultKind(StrEnum):
    """What goes wrong."""

    BEFORE = "before"
    """The request never arrives: ``StorageError``; a put-if-absent did not land."""
    LOST_REQUEST = "lost-request"
    """As ``BEFORE``, but a put-if-absent cannot know: ``OutcomeUnknownError``."""
    AFTER = "after"
    """The request is carried out and its answer lost."""
    SHORT = "short"
    """A read ends early."""
    THROTTLE = "throttle"
    """The store asks to slow down."""
    DELAY = "delay"
    """The request works, but ``delay_s`` later."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, for the calls that it fits."""

    kind: FaultKind
    verb: str = "*"
    """``get``, ``put``, ``put-if-absent``, ``head``, ``list``, ``delete``, ``upload`` or ``*``."""
    key_part: str = ""
    """Only keys (or prefixes) that contain this."""
    skip: int = 0
    """Fitting calls that pass before it strikes."""
    times: int = 1
    """Fitting calls that it strikes after that; -1 for all."""
    chance: float = 1.0
    """Probability of striking, drawn from the store's generator."""
    delay_s: float = 0.0
    """For ``DELAY``; for ``THROTTLE`` the wait that the store asks for, 0 for none."""


class FaultyStore:
    """Wraps a store and injects faults. ``struck`` and ``calls`` tell what happened."""

    def __init__(
        self,
        inner: Store,
        faults: Sequence[Fault] = (),
        *,
        rng: np.random.Generator | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._inner = inner
        self._faults = tuple(faults)
        self._fitted = [0] * len(self._faults)
        self._rng = rng or np.random.default_rng(0)
        self._clock: Clock = clock or SystemClock()
        self.calls: list[tuple[str, str]] = []
        """(verb, key) of every call that came in."""
        self.struck: list[tuple[FaultKind, str, str]] = []
        """(kind, verb, key) of every fault that struck."""
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """A new lock, in a forked child."""
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """That of the wrapped store."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """Those of the wrapped store."""
        return self._inner.capabilities

    def head(
        self, key: str, *, version: str | None = None, purpose: Purpose = Purpose.OTHER
    ) -> ObjectInfo:
        """As the wrapped store, or a fault."""
        with self._around("head", key):
            return self._inner.head(key, version=version, purpose=purpose)

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
        """As the wrapped store, or a fault."""
        with self._around("get", key) as fault:
            blob = self._inner.get(
                key,
                start_byte,
                stop_byte,
                expect_etag=expect_etag,
                version=version,
                purpose=purpose,
            )
            if fault is FaultKind.SHORT:
                half = len(blob.data) // 2
                raise ShortReadError(
                    f"{key}: injected: the answer ended after {half} bytes",
                    key=key,
                    received_bytes=half,
                )
            return blob

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        """As the wrapped store, or a fault."""
        with self._around("put", key):
            return self._inner.put(key, data, purpose=purpose)

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        """As the wrapped store, or a fault."""
        with self._around("put-if-absent", key):
            return self._inner.put_if_absent(key, data, purpose=purpose)

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        """As the wrapped store, or a fault."""
        with self._around("upload", key):
            return self._inner.upload(key, path, purpose=purpose)

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        """As the wrapped store; ``AFTER`` and ``SHORT`` strike in the middle."""
        with self._around("list", prefix) as fault:
            found = self._inner.list(prefix, start_after=start_after, limit=limit, purpose=purpose)
            if fault not in (FaultKind.SHORT, FaultKind.AFTER):
                yield from found
                return
            whole = tuple(found)
            yield from whole[: len(whole) // 2]
            raise StorageError(f"{prefix}: injected: the listing broke off", key=prefix)

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        """As the wrapped store, or a fault; it fits by the first key."""
        wanted = tuple(keys)
        with self._around("delete", wanted[0][0] if wanted else ""):
            return self._inner.delete_many(wanted, purpose=purpose)

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        """As the wrapped store."""
        return self._inner.list_uploads(prefix)

    def abort_upload(self, upload: Upload) -> None:
        """As the wrapped store."""
        self._inner.abort_upload(upload)

    def close(self) -> None:
        """Close the wrapped store."""
        self._inner.close()

    def _around(self, verb: str, key: str) -> _Around:
        return _Around(self._draw(verb, key), verb, key, self._clock)

    def _draw(self, verb: str, key: str) -> Fault | None:
        """The first fault that strikes this call; all that fit count it."""
        with self._lock:
            self.calls.append((verb, key))
            chosen: Fault | None = None
            for number, fault in enumerate(self._faults):
                if fault.verb not in ("*", verb) or fault.key_part not in key:
                    continue
                turn = self._fitted[number] - fault.skip
                self._fitted[number] += 1
                due = turn >= 0 and (fault.times < 0 or turn < fault.times)
                if due and chosen is None and self._rng.random() < fault.chance:
                    chosen = fault
            if chosen is not None:
                self.struck.append((chosen.kind, verb, key))
            return chosen

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.renew()
        renew_after_fork(self)


class _Around:
    """Strikes before the call's block, or after it has done its work."""

    def __init__(self, fault: Fault | None, verb: str, key: str, clock: Clock) -> None:
        self._fault = fault
        self._verb = verb
        self._key = key
        self._clock = clock

    def __enter__(self) -> FaultKind | None:
        fault = self._fault
        if fault is None:
            return None
        if fault.kind is FaultKind.DELAY:
            self._clock.sleep(fault.delay_s)
        elif fault.kind is FaultKind.THROTTLE:
            raise ThrottledError(
                f"{self._key}: injected: slow down",
                key=self._key,
                code="SlowDown",
                retry_after_s=fault.delay_s or None,
            )
        elif fault.kind is FaultKind.BEFORE:
            raise self._lost(False)
        elif fault.kind is FaultKind.LOST_REQUEST:
            raise self._lost(True)
        return fault.kind

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A request that the store refused has an answer, and that answer is lost too.
        decided = kind is None or issubclass(kind, DstreamError)
        if self._fault is not None and self._fault.kind is FaultKind.AFTER and decided:
            raise self._lost(True)

    def _lost(self, sent: bool) -> DstreamError:
        message = f"{self._key}: injected: the {'answer' if sent else 'request'} was lost"
        if sent and self._verb == "put-if-absent":
            return OutcomeUnknownError(message, key=self._key)
        return StorageError(message, key=self._key)
