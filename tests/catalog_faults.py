"""A store whose log writes go wrong as told: before or after landing, or much later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path

from dstream.errors import (
    AlreadyExistsError,
    OutcomeUnknownError,
    PermissionDeniedError,
    StorageError,
    ThrottledError,
)
from dstream.format.root import LOG_PREFIX
from dstream.measure import Purpose
from dstream.store.base import Blob, Capabilities, ObjectInfo, Store, Upload


class Fault(Enum):
    NONE = "none"
    FAIL_BEFORE = "fail-before"
    """A 5xx; nothing landed."""
    FAIL_AFTER = "fail-after"
    """A 5xx; it landed."""
    LOST_BEFORE = "lost-before"
    """No answer; nothing landed."""
    LOST_AFTER = "lost-after"
    """No answer; it landed."""
    LATE = "late"
    """No answer; it is on its way and lands when ``deliver`` is called."""
    OWN_EXISTS = "own-exists"
    """It landed, and a hidden resend was refused: 412 on one's own success."""
    BUSY = "busy"
    """409: another write to the slot is being decided."""
    THROTTLED_BEFORE = "throttled-before"
    THROTTLED_AFTER = "throttled-after"
    DENIED = "denied"
    """403; nothing landed."""


_LANDS = {Fault.FAIL_AFTER, Fault.LOST_AFTER, Fault.OWN_EXISTS, Fault.THROTTLED_AFTER}


class ScriptedStore:
    """Wraps a store; one client's view of it. Each log write takes the next fault."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.faults: deque[Fault] = deque()
        self.failing_gets = 0
        """So many reads of the log fail from now on."""
        self.before_log_put: deque[Callable[[], object]] = deque()
        """Each runs just before one log write: a rival who is faster."""
        self.unlisted = 0
        """So many of the log's newest entries are not listed yet."""
        self.late: list[tuple[str, bytes]] = []
        self.log_puts: list[tuple[str, bytes]] = []

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def deliver(self) -> None:
        """Let everything that is still on its way arrive."""
        late, self.late = self.late, []
        for key, data in late:
            try:
                self.inner.put_if_absent(key, data)
            except AlreadyExistsError:
                continue

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        if not key.startswith(LOG_PREFIX):
            return self.inner.put_if_absent(key, data, purpose=purpose)
        self.log_puts.append((key, data))
        if self.before_log_put:
            self.before_log_put.popleft()()
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is Fault.NONE:
            return self.inner.put_if_absent(key, data, purpose=purpose)
        if fault is Fault.LATE:
            self.late.append((key, data))
        if fault in _LANDS:
            self.inner.put_if_absent(key, data, purpose=purpose)
        raise _error(fault, key)

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
        if key.startswith(LOG_PREFIX) and self.failing_gets > 0:
            self.failing_gets -= 1
            raise StorageError(f"injected: read of {key} failed", key=key)
        return self.inner.get(
            key, start_byte, stop_byte, expect_etag=expect_etag, version=version, purpose=purpose
        )

    def head(
        self, key: str, *, version: str | None = None, purpose: Purpose = Purpose.OTHER
    ) -> ObjectInfo:
        return self.inner.head(key, version=version, purpose=purpose)

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        return self.inner.put(key, data, purpose=purpose)

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        return self.inner.upload(key, path, purpose=purpose)

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        if prefix != LOG_PREFIX or not self.unlisted:
            return self.inner.list(prefix, start_after=start_after, limit=limit, purpose=purpose)
        found = list(self.inner.list(prefix, start_after=start_after, purpose=purpose))
        # Newest first; the oldest was there when the client was told of the repository.
        known = found[min(self.unlisted, len(found) - 1) :] if found else []
        return iter(known[:limit])

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        return self.inner.delete_many(keys, purpose=purpose)

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        return self.inner.list_uploads(prefix)

    def abort_upload(self, upload: Upload) -> None:
        self.inner.abort_upload(upload)

    def close(self) -> None:
        self.inner.close()


def _error(fault: Fault, key: str) -> Exception:
    said = f"injected: {fault.value} on {key}"
    if fault in (Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LATE):
        return OutcomeUnknownError(said, key=key)
    if fault is Fault.OWN_EXISTS:
        return AlreadyExistsError(said, key=key)
    if fault is Fault.BUSY:
        return StorageError(said, key=key, code="ConditionalRequestConflict")
    if fault in (Fault.THROTTLED_BEFORE, Fault.THROTTLED_AFTER):
        return ThrottledError(said, key=key, retry_after_s=0.1)
    if fault is Fault.DENIED:
        return PermissionDeniedError(said, key=key, operation="put")
    return StorageError(said, key=key)
