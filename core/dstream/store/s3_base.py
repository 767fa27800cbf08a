"""What every S3 operation shares: clients made when needed, and one counted request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from dstream.clock import Clock, SystemClock
from dstream.errors import PermissionDeniedError, StorageError
from dstream.forks import renew_after_fork
from dstream.measure import Meter, Purpose
from dstream.store.base import check_key
from dstream.store.local_walk import Skip
from dstream.store.metered import Attempt
from dstream.store.options import StoreOptions
from dstream.store.ranges import check_prefix
from dstream.store.retry import Retrier
from dstream.store.s3_client import Clients, check_bucket
from dstream.store.s3_errors import EXPIRED, Target, translated
from dstream.store.s3_ranged import RangedReader

T = TypeVar("T")


class S3Base:
    """One prefix of one bucket. Clients belong to a process: made anew after fork and pickle."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        options: StoreOptions | None = None,
        *,
        meter: Meter | None = None,
        clock: Clock | None = None,
        retrier: Retrier | None = None,
        on_skip: Skip | None = None,
    ) -> None:
        self._bucket = check_bucket(bucket)
        folder = prefix.rstrip("/")
        self._prefix = check_prefix(f"{folder}/") if folder else ""
        self._root_length = len(self._prefix.encode())
        self._options = options or StoreOptions()
        self._meter = meter or Meter()
        self._clock: Clock = clock or SystemClock()
        self._retrier = retrier
        self.on_skip = on_skip
        self._if_match = True
        self._bulk_delete = True
        self._versioned: bool | None = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget clients and connections; in a forked child they are the parent's."""
        self._lock = threading.Lock()
        self._made: tuple[Clients, RangedReader] | None = None

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def close(self) -> None:
        """Close the connections; the next call makes new ones."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made[1].close()
            made[0].close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # Clients hold sockets, and a callback belongs to the process that gave it.
        return {**state, "_lock": None, "_made": None, "on_skip": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.renew()
        renew_after_fork(self)

    def _ready(self) -> tuple[Clients, RangedReader]:
        made = self._made
        if made is None:
            with self._lock:
                if self._made is None:
                    clients = Clients(self._bucket, self._options)
                    self._made = (clients, self._reader(clients))
                made = self._made
        return made

    def _reader(self, clients: Clients) -> RangedReader:
        return RangedReader(self._bucket, clients, self._options, self._meter)

    def _ready_for(self, target: Target) -> tuple[Clients, RangedReader]:
        with translated(target):
            return self._ready()

    def _target(self, operation: str, key: str, *, conditional: bool = False) -> Target:
        return Target(operation, self._bucket, self._whole_key(key), key, conditional)

    def _whole_key(self, key: str) -> str:
        return self._prefix + check_key(key, root_length=self._root_length)

    def _request(
        self,
        verb: str,
        purpose: Purpose,
        target: Target,
        call: Callable[[Clients], T],
        sent_bytes: int = 0,
    ) -> T:
        """One counted request by boto3; a second one where the bucket is in another region."""

        def once() -> T:
            clients, _ = self._ready_for(target)
            with Attempt(self._meter, self._clock, verb, purpose, sent_bytes), translated(target):
                return call(clients)

        return self._accepted(once)

    def _accepted(self, once: Callable[[], T]) -> T:
        """Run a request again with new credentials, or for the region that AWS names.

        Both answers are definite refusals, so this is safe for put-if-absent too.
        """
        used = self._made
        try:
            return once()
        except PermissionDeniedError as error:
            if error.facts.get("code") not in EXPIRED or not self._has_newer_credentials(used):
                raise
        except StorageError as error:
            region = error.facts.get("bucket_region")
            if not isinstance(region, str) or region == self._options.region:
                raise
            self._meter.event("redirect", "bucket-region")
            self._options = replace(self._options, region=region)
            self.close()
        return once()

    def _has_newer_credentials(self, used: tuple[Clients, RangedReader] | None) -> bool:
        """Look for credentials anew, as at the start, after those were refused as expired.

        Credentials that come with an expiry are renewed by botocore before it. This is for the
        others: in a file that somebody rewrites, or whose server's clock is ahead of ours.
        """
        with self._lock:
            if self._made is not used:
                return True  # another thread has been here
            if used is None:
                return False
            clients = Clients(self._bucket, self._options)
            if clients.key() == used[0].key():
                clients.close()
                return False
            self._made = (clients, self._reader(clients))
        # Other threads may be in the middle of an answer: theirs are closed when they are done.
        self._meter.event("credentials", "refreshed")
        return True

    def _skip(self, name: str, reason: str) -> None:
        """Count what a listing leaves out, and say so."""
        self._meter.event("list-skip", reason)
        if self.on_skip is not None:
            self.on_skip(name, reason)

    def _persist(self, action: Callable[[], T]) -> T:
        """Retry one step of a longer operation on its own, where there is a retrier."""
        return self._retrier.call(action) if self._retrier is not None else action()
