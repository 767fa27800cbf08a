"""The store contract: what dstream asks of an object store, and what each answer promises.

Every implementation passes one contract test suite (``tests/store/``). The rules:

* Keys are relative to the store's ``url``, use ``/``, and are checked by :func:`check_key`.
* A read returns exactly the bytes asked for or raises; it never pads and never shortens.
* ``expect_etag`` makes a read fail with ``SourceChangedError`` when the object is another one.
* ``put`` replaces as a whole: a reader sees the old bytes or the new ones.
* ``put_if_absent`` creates or raises ``AlreadyExistsError``; of concurrent callers exactly one
  wins. An attempt whose answer was lost raises ``OutcomeUnknownError``: it may have landed.
  No wrapper ever retries it (a retry turns one's own success into a refusal).
* Missing object: ``NotFoundError``. Missing permission: ``PermissionDeniedError``. Throttled:
  ``ThrottledError``. Anything else of the environment: ``StorageError``. No other exception of
  a backend leaves a store.
* Stores may be used by many threads, survive a fork (connections are reopened), and pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from dstream.errors import InvalidInputError
from dstream.measure import Purpose

MAX_KEY_BYTES = 1024
"""S3's limit for a whole key, prefix included; kept for every store so that data can move."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of one object."""

    key: str
    size_bytes: int
    etag: str
    """Opaque identity of the bytes. Local files: size and mtime. Never a content hash."""
    version: str | None = None
    """VersionId in a versioned bucket, else None."""
    last_modified_s: float | None = None
    """The store's own clock, seconds since the epoch."""
    server_date_s: float | None = None
    """The store's clock when it answered, for ages without trusting ours."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that were read, and the object they came from."""

    data: bytes
    info: ObjectInfo
    """``size_bytes`` is the whole object's size, also for a ranged read."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was begun and not finished."""

    key: str
    upload_id: str
    initiated_s: float


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do, as data."""

    conditional_put: bool
    """``put_if_absent`` can be trusted. For S3 this is claimed here and proved by a probe."""
    ordered_list: bool
    """``list`` yields keys in byte order of their UTF-8."""
    versioned: bool = False
    """Overwritten bytes stay readable by ``version``."""


class Store(Protocol):
    """An object store, rooted at one prefix. See the module for the rules."""

    @property
    def url(self) -> str:
        """Where the store is rooted, without credentials: ``s3://bucket/prefix``, a path ..."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        ...

    def head(
        self, key: str, *, version: str | None = None, purpose: Purpose = Purpose.OTHER
    ) -> ObjectInfo:
        """Facts of one object, without its bytes."""
        ...

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
        """Bytes ``[start_byte, stop_byte)`` of an object, or all from ``start_byte``.

        Raises:
            ShortReadError: the object, or the answer, ends before ``stop_byte``.
            SourceChangedError: the object's ETag is not ``expect_etag``.
        """
        ...

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        """Write or replace one small object."""
        ...

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        """Create one small object, or raise ``AlreadyExistsError``. See the module."""
        ...

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        """Write one object from a local file, in parts when large. Constant memory."""
        ...

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with ``prefix`` (a string prefix, not a folder)."""
        ...

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        """Delete (key, version) pairs; returns key -> reason for those that could not be."""
        ...

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        """Multipart uploads that were begun below ``prefix`` and neither ended nor aborted."""
        ...

    def abort_upload(self, upload: Upload) -> None:
        """Forget an unfinished multipart upload and its parts. Unknown ones are no error."""
        ...

    def close(self) -> None:
        """Give connections back. The store may be used again; it reconnects."""
        ...


def check_key(key: str, *, root_length: int = 0) -> str:
    """Return ``key`` if it is a plain relative name, else raise.

    Args:
        key: the name to check; it may come from outside (a manifest, a tar, a listing).
        root_length: bytes that the store's own prefix adds to it.

    Raises:
        InvalidInputError: empty, absolute, holding ``..``, NUL or an empty part, not
            encodable as UTF-8, or too long.

    >>> check_key("a/b.mp4")
    'a/b.mp4'
    """
    reason = _key_fault(key, root_length)
    if reason is not None:
        shown = key if len(key) <= 200 else key[:200] + "…"
        raise InvalidInputError(f"unusable object name {shown!r}: {reason}", key=key)
    return key


@lru_cache(maxsize=1024)
def _key_fault(key: str, root_length: int) -> str | None:
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if not key:
        return "it is empty"
    if "\0" in key:
        return "it holds a NUL character"
    if key.startswith("/"):
        return "it is absolute"
    if any(part in ("", ".", "..") for part in key.split("/")):
        return "a part of it is empty, '.' or '..'"
    if len(encoded) + root_length > MAX_KEY_BYTES:
        return f"it is longer than {MAX_KEY_BYTES} bytes"
    return None
