"""Reading and writing catalog shards, with a memory of the last ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from dstream.errors import CorruptDataError, NotFoundError
from dstream.forks import renew_after_fork
from dstream.format.catalog_shard import Record, Shard, ShardRef, decode_shard, encode_shard
from dstream.format.root import sha256_hex
from dstream.measure import Purpose
from dstream.store.base import Store
from dstream.units import MIB

CACHE_BYTES = 16 * MIB
"""Stored bytes of the shards that are remembered; in memory they take some ten times that."""


class ShardObjects:
    """The catalog shards of one repository. For many threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: OrderedDict[str, Shard] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock after a fork."""
        self._lock = threading.Lock()

    def load(self, ref: ShardRef) -> Shard:
        """A shard, checked against the root's hash; one request where it is not remembered.

        Raises:
            NotFoundError: collection has deleted it: the root that names it is old.
            CorruptDataError: its bytes are not those that the root means.
        """
        with self._lock:
            held = self._held.get(ref.key)
            if held is not None:
                self._held.move_to_end(ref.key)
                return held
        try:
            data = self._store.get(ref.key, purpose=Purpose.LOG).data
        except NotFoundError as error:
            raise NotFoundError(
                f"{self._store.url}: catalog shard {ref.key} is gone: the root that names it is "
                "no longer the newest and nobody pinned it; open the repository again",
                key=ref.key,
            ) from error
        if len(data) != ref.size_bytes or sha256_hex(data) != ref.sha256:
            raise CorruptDataError(
                f"catalog shard {ref.key}: got {len(data)} bytes with hash "
                f"{sha256_hex(data)[:16]}…, the root says {ref.size_bytes} bytes with "
                f"{ref.sha256[:16]}…",
                key=ref.key,
            )
        return self._remember(ref, decode_shard(data, ref))

    def write(self, seq: int, records: Sequence[Record]) -> ShardRef:
        """Store a shard that root ``seq`` will name. Nobody sees it before that."""
        data = encode_shard(records)
        ref = ShardRef(seq, records[0][0], len(records), len(data), sha256_hex(data))
        self._store.put(ref.key, data, purpose=Purpose.LOG)
        self._remember(ref, decode_shard(data, ref))
        return ref

    def _remember(self, ref: ShardRef, shard: Shard) -> Shard:
        with self._lock:
            self._held[ref.key] = shard
            self._sizes[ref.key] = ref.size_bytes
            while len(self._held) > 1 and sum(self._sizes.values()) > CACHE_BYTES:
                oldest, _ = self._held.popitem(last=False)
                del self._sizes[oldest]
        return shard
