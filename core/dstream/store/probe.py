"""Finding out, before anything depends on it, whether a store keeps its promises."""

from __future__ import annotations

import contextlib
import secrets

from dstream.errors import (
    AlreadyExistsError,
    DstreamError,
    OutcomeUnknownError,
    PermissionDeniedError,
    StorageError,
    UnsafeStoreError,
)
from dstream.measure import Purpose
from dstream.store.base import Store

PROBE_PREFIX = "_ds/probe/"
_FIRST = b"dstream probe: first"
_SECOND = b"dstream probe: other"
_ATTEMPTS = 3


def probe_conditional_put(store: Store) -> None:
    """Prove that of two put-if-absent on one key only the first is let through.

    Some servers answer 200 to both and overwrite: commits there would silently lose each other.
    Ranged reads are checked on the same object. It is deleted afterwards.

    Raises:
        UnsafeStoreError: the store lets the second write through, or reads wrongly.
        DstreamError: the store could not be asked (no permission, unreachable ...).
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _probe(store)
        except OutcomeUnknownError:
            # An answer was lost, which says nothing of the store: ask anew, on another key.
            continue
    _probe(store)


def _probe(store: Store) -> None:
    key = f"{PROBE_PREFIX}{secrets.token_hex(16)}"
    try:
        _require_refusal(store, key)
        _require_ranges(store, key)
    finally:
        # Publishing never deletes: a store that forbids it can hold a repository all the same.
        with contextlib.suppress(PermissionDeniedError):
            store.delete_many([(key, None)], purpose=Purpose.OTHER)


def _require_refusal(store: Store, key: str) -> None:
    try:
        store.put_if_absent(key, _FIRST, purpose=Purpose.OTHER)
    except AlreadyExistsError as error:
        raise _unsafe(store, "it says that a key which never was exists", key) from error
    except StorageError as error:
        if error.facts.get("status") == 501:
            raise _unsafe(store, "it does not implement conditional writes", key) from error
        raise
    try:
        store.put_if_absent(key, _SECOND, purpose=Purpose.OTHER)
    except AlreadyExistsError:
        found = store.get(key, purpose=Purpose.OTHER).data
        if found != _FIRST:
            raise _unsafe(store, "it refused the second write but changed the bytes", key) from None
        return
    raise _unsafe(store, "it let a second write of the same key through", key)


def _require_ranges(store: Store, key: str) -> None:
    try:
        blob = store.get(key, 8, 13, purpose=Purpose.OTHER)
    except DstreamError as error:
        if isinstance(error, StorageError) and error.facts.get("code") == "unexpected-answer":
            raise _unsafe(store, "it does not answer ranged reads rightly", key) from error
        raise
    if blob.data != _FIRST[8:13] or blob.info.size_bytes != len(_FIRST):
        raise _unsafe(store, "it does not answer ranged reads rightly", key)


def _unsafe(store: Store, fault: str, key: str) -> UnsafeStoreError:
    return UnsafeStoreError(
        f"{store.url} cannot hold a repository: {fault} (probed with {key}). Concurrent commits "
        "could overwrite each other unnoticed. Use a store that honours If-None-Match: * on PUT, "
        "for example AWS S3, Ceph RGW, Cloudflare R2, or a local folder",
        url=store.url,
        key=key,
    )
