"""Trying again: the one place that does, bounded, jittered and counted.

Retried are ``StorageError`` and its kinds (throttling, short reads, resets, 5xx), unless the
error says ``retry=False`` (a full disk, an object that is really too short) or a permission is
missing. Everything else is an answer, not an accident. ``put_if_absent`` is never retried here:
its answer may have been lost after the write landed, and a second attempt would turn one's own
success into a refusal. Whoever commits resolves that by reading back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from dstream.clock import Clock, SystemClock
from dstream.errors import (
    DstreamError,
    InvalidInputError,
    PermissionDeniedError,
    ShortReadError,
    StorageError,
    ThrottledError,
)
from dstream.measure import Meter, Purpose
from dstream.store.base import Blob, Capabilities, ObjectInfo, Store, Upload
from dstream.store.metered import outcome_of
from dstream.store.patience import current

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to try."""

    attempts: int = 8
    """Attempts of one call in all; 1 turns retrying off."""
    first_wait_s: float = 0.1
    """Longest wait after the first failure; it doubles with each further one."""
    longest_wait_s: float = 10.0
    """Longest wait that we choose ourselves."""
    longest_retry_after_s: float = 60.0
    """Longest wait that a server may ask for; if it wants more, the call fails at once."""

    def __post_init__(self) -> None:
        waits = (self.first_wait_s, self.longest_wait_s, self.longest_retry_after_s)
        if self.attempts < 1 or min(waits) < 0:
            raise InvalidInputError(f"unusable {self}: attempts must be >= 1, waits >= 0 seconds")


def is_retryable(error: DstreamError) -> bool:
    """Whether another attempt may succeed. Pure.

    >>> is_retryable(ThrottledError("slow down")), is_retryable(InvalidInputError("no"))
    (True, False)
    """
    return (
        isinstance(error, StorageError)
        and not isinstance(error, PermissionDeniedError)
        and error.facts.get("retry", True) is True
    )


_NOT_SERVING = (429, 502, 503, 504)


def is_outage(error: DstreamError) -> bool:
    """Whether an error that outlasts all attempts may tell of the whole store. Pure.

    No answer, or that nobody serves now. An answer that is cut short again and again, and an
    internal error, are the object's.

    >>> is_outage(StorageError("reset")), is_outage(StorageError("disk", status=500))
    (True, False)
    """
    status = error.facts.get("status")
    return (
        is_retryable(error)
        and not isinstance(error, ShortReadError)
        and (status is None or status in _NOT_SERVING)
    )


def wait_s(policy: RetryPolicy, failures: int, error: DstreamError, share: float) -> float | None:
    """Seconds to wait before the next attempt, or None when there is to be none. Pure.

    Args:
        failures: attempts that failed so far, at least 1.
        share: the jitter, in [0, 1): waits are spread over their whole length, so that many
            clients that failed together do not come back together.

    >>> wait_s(RetryPolicy(first_wait_s=1, longest_wait_s=3), 2, StorageError("reset"), 0.5)
    1.0
    """
    if failures >= policy.attempts or not is_retryable(error):
        return None
    # The exponent is bounded before it is used: a long budget must not overflow a float.
    longest_s = min(policy.longest_wait_s, policy.first_wait_s * 2.0 ** min(failures - 1, 64))
    asked_s = error.facts.get("retry_after_s")
    if isinstance(asked_s, int | float):
        if asked_s > policy.longest_retry_after_s:
            return None
        return max(0.0, asked_s) + share * policy.first_wait_s
    return share * longest_s


class Retrier:
    """Runs actions again as :class:`RetryPolicy` says. Counts ``retry`` and ``throttle``."""

    def __init__(
        self,
        policy: RetryPolicy,
        rng: np.random.Generator,
        meter: Meter,
        clock: Clock | None = None,
    ) -> None:
        self._policy = policy
        self._rng = rng
        self._meter = meter
        self._clock: Clock = clock or SystemClock()

    def call(self, action: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """The action's result; its last error when the attempts are used up."""
        failures = 0
        while True:
            try:
                result = action(*given, **named)
            except DstreamError as error:
                failures += 1
                if not self.pause(failures, error):
                    raise
            else:
                patience = current()
                if patience is not None:
                    patience.answered()
                return result

    def pause(self, failures: int, error: DstreamError) -> bool:
        """Wait as long as is due; False when there is to be no further attempt."""
        if isinstance(error, ThrottledError):
            self._meter.event("throttle", str(error.facts.get("code", "unknown")))
        share = float(self._rng.random())
        pause_s = wait_s(self._policy, failures, error, share)
        patience = current()
        if pause_s is None and is_outage(error) and patience is not None and patience.bears(error):
            pause_s = share * self._policy.longest_wait_s
        if pause_s is None:
            if is_retryable(error):
                self._meter.event("retry-exhausted", outcome_of(error))
                # Whoever wraps this has nothing to add by trying the whole again.
                error.facts = {**error.facts, "retry": False}
            return False
        self._meter.event("retry", outcome_of(error))
        if patience is not None:
            return patience.sleep(self._clock, pause_s)
        self._clock.sleep(pause_s)
        return True


class Retrying:
    """A store whose idempotent calls are retried. See the module."""

    def __init__(self, inner: Store, retrier: Retrier) -> None:
        self._inner = inner
        self._retrier = retrier

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
        """Retried."""
        return self._retrier.call(self._inner.head, key, version=version, purpose=purpose)

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
        """Retried, short reads too; from the start of the range."""
        return self._retrier.call(
            self._inner.get,
            key,
            start_byte,
            stop_byte,
            expect_etag=expect_etag,
            version=version,
            purpose=purpose,
        )

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        """Retried: the same bytes twice are the same object."""
        return self._retrier.call(self._inner.put, key, data, purpose=purpose)

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        """One attempt, never more. See the module."""
        return self._inner.put_if_absent(key, data, purpose=purpose)

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        """Retried as a whole; the S3 store retries single parts before that."""
        return self._retrier.call(self._inner.upload, key, path, purpose=purpose)

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        """Retried from the last key seen, where the store lists in order."""
        failures = 0
        seen = 0
        after = start_after
        while True:
            left = None if limit is None else limit - seen
            try:
                for info in self._inner.list(
                    prefix, start_after=after, limit=left, purpose=purpose
                ):
                    failures, seen, after = 0, seen + 1, info.key
                    yield info
                return
            except DstreamError as error:
                failures += 1
                if not is_retryable(error):
                    raise
                if seen and not self._inner.capabilities.ordered_list:
                    raise
                if not self._retrier.pause(failures, error):
                    raise

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        """Retried: deleting what is gone is no error."""
        wanted = tuple(keys)
        return self._retrier.call(self._inner.delete_many, wanted, purpose=purpose)

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        """Retried as a whole."""
        return iter(self._retrier.call(lambda: tuple(self._inner.list_uploads(prefix))))

    def abort_upload(self, upload: Upload) -> None:
        """Retried."""
        self._retrier.call(self._inner.abort_upload, upload)

    def close(self) -> None:
        """Close the wrapped store."""
        self._inner.close()
