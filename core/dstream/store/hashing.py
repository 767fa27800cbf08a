"""Hashes of whole objects, in constant memory."""

from __future__ import annotations

import hashlib

from dstream.measure import Purpose
from dstream.store.base import Store
from dstream.units import MIB

_CHUNK_BYTES = 8 * MIB


def object_sha256(store: Store, key: str, size_bytes: int) -> str:
    """SHA-256 of an object's first ``size_bytes``, as hex digits; read piece by piece."""
    digest = hashlib.sha256()
    for start in range(0, size_bytes, _CHUNK_BYTES):
        stop = min(size_bytes, start + _CHUNK_BYTES)
        digest.update(store.get(key, start, stop, purpose=Purpose.COPY).data)
    return digest.hexdigest()
