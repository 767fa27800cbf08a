"""A store in this process's memory: for tests, demonstrations and dry runs."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dstream.clock import Clock, SystemClock
from dstream.errors import AlreadyExistsError, NotFoundError, SourceChangedError
from dstream.forks import renew_after_fork
from dstream.measure import Purpose
from dstream.store.base import Blob, Capabilities, ObjectInfo, Upload, check_key
from dstream.store.local_errors import source_opened
from dstream.store.ranges import check_prefix, check_range, stop_within


@dataclass(frozen=True, slots=True)
class _Version:
    data: bytes
    etag: str
    version: str | None
    modified_s: float


@dataclass(slots=True, weakref_slot=True)
class _Space:
    """The objects that stores of one name share. The last version of a key is the current."""

    token: str
    versioned: bool
    objects: dict[str, tuple[_Version, ...]] = field(default_factory=dict)
    written: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def renew(self) -> None:
        self.lock = threading.Lock()

    def state(self) -> tuple[object, ...]:
        with self.lock:
            return (self.token, self.versioned, dict(self.objects), self.written)


# By token, so that a store unpickled in its own process finds its own objects again.
_SPACES: weakref.WeakValueDictionary[str, _Space] = weakref.WeakValueDictionary()
_NAMED: dict[str, _Space] = {}
_REGISTRY_LOCK = threading.Lock()


def _space(token: str, versioned: bool) -> _Space:
    space = _Space(token, versioned)
    _SPACES[token] = space
    renew_after_fork(space)
    return space


class MemoryStore:
    """Objects in a dict. Unpickled in another process it is a copy as of the pickling.

    ETags are unique per write, so that a replacement by equal bytes is seen too.
    """

    def __init__(
        self, prefix: str = "", *, versioned: bool = False, clock: Clock | None = None
    ) -> None:
        self._space = _space(secrets.token_hex(8), versioned)
        folder = prefix.rstrip("/")
        self._prefix = check_prefix(f"{folder}/") if folder else ""
        self._name = self._space.token
        self._clock: Clock = clock or SystemClock()

    @classmethod
    def named(cls, name: str, prefix: str = "", *, clock: Clock | None = None) -> MemoryStore:
        """The store ``memory://name/prefix`` of this process; made when first asked for."""
        store = cls(prefix, clock=clock)
        with _REGISTRY_LOCK:
            if name not in _NAMED:
                _NAMED[name] = store._space
            store._space = _NAMED[name]
        store._name = name
        return store

    @property
    def url(self) -> str:
        """``memory://name/prefix``."""
        return f"memory://{self._name}/{self._prefix}".rstrip("/")

    @property
    def capabilities(self) -> Capabilities:
        """All of them; ``versioned`` as it was made."""
        return Capabilities(
            conditional_put=True, ordered_list=True, versioned=self._space.versioned
        )

    def head(
        self, key: str, *, version: str | None = None, purpose: Purpose = Purpose.OTHER
    ) -> ObjectInfo:
        """Facts of one object."""
        return self._info(key, self._find(key, version))

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
        """Bytes ``[start_byte, stop_byte)``."""
        check_range(key, start_byte, stop_byte)
        found = self._find(key, version)
        if expect_etag is not None and expect_etag != found.etag:
            raise SourceChangedError(
                f"{key}: ETag is {found.etag}, expected {expect_etag}: the object was replaced",
                key=key,
                etag=found.etag,
                expected_etag=expect_etag,
            )
        stop = stop_within(key, start_byte, stop_byte, len(found.data))
        return Blob(found.data[start_byte:stop], self._info(key, found))

    def put(self, key: str, data: bytes, *, purpose: Purpose = Purpose.OTHER) -> ObjectInfo:
        """Write or replace one object."""
        with self._space.lock:
            return self._write(key, bytes(data))

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        """Create one object, or raise ``AlreadyExistsError``."""
        with self._space.lock:
            if self._full(key) in self._space.objects:
                raise AlreadyExistsError(f"{key}: exists already", key=key)
            return self._write(key, bytes(data))

    def upload(self, key: str, path: Path, *, purpose: Purpose = Purpose.COPY) -> ObjectInfo:
        """Write one object from a local file."""
        with source_opened(path) as source:
            return self.put(key, source.read(), purpose=purpose)

    def list(
        self,
        prefix: str = "",
        *,
        start_after: str | None = None,
        limit: int | None = None,
        purpose: Purpose = Purpose.LISTING,
    ) -> Iterator[ObjectInfo]:
        """Objects as of the first one taken, in byte order of their keys."""
        wanted = self._prefix + check_prefix(prefix)
        with self._space.lock:
            found = [
                (key[len(self._prefix) :], versions[-1])
                for key, versions in self._space.objects.items()
                if key.startswith(wanted)
            ]
        found.sort(key=lambda entry: entry[0].encode())
        after = (start_after or "").encode(errors="surrogatepass")
        left = len(found) if limit is None else limit
        for key, version in found:
            if left <= 0:
                return
            if start_after is None or key.encode() > after:
                left -= 1
                yield self._info(key, version)

    def delete_many(
        self, keys: Iterable[tuple[str, str | None]], *, purpose: Purpose = Purpose.OTHER
    ) -> dict[str, str]:
        """Delete; without a version all of a key's versions go, as there are no markers here."""
        with self._space.lock:
            for key, version in keys:
                versions = self._space.objects.pop(self._full(key), ())
                kept = tuple(v for v in versions if version is not None and v.version != version)
                if kept:
                    self._space.objects[self._full(key)] = kept
        return {}

    def list_uploads(self, prefix: str = "") -> Iterator[Upload]:
        """None: uploads are one step here."""
        check_prefix(prefix)
        return iter(())

    def abort_upload(self, upload: Upload) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key, root_length=len(self._prefix.encode()))

    def _find(self, key: str, version: str | None) -> _Version:
        with self._space.lock:
            versions = self._space.objects.get(self._full(key), ())
        for candidate in reversed(versions):
            if version is None or candidate.version == version:
                return candidate
        raise NotFoundError(f"{self.url}: there is no object {key!r}", key=key, version=version)

    def _write(self, key: str, data: bytes) -> ObjectInfo:
        space, full = self._space, self._full(key)
        space.written += 1
        etag = f"{space.written:08x}"
        made = _Version(data, etag, etag if space.versioned else None, self._clock.now_s())
        space.objects[full] = (*(space.objects.get(full, ()) if space.versioned else ()), made)
        return self._info(key, made)

    def _info(self, key: str, found: _Version) -> ObjectInfo:
        return ObjectInfo(
            key,
            len(found.data),
            found.etag,
            found.version,
            last_modified_s=found.modified_s,
            server_date_s=self._clock.now_s(),
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (_revive, (self._space.state(), self._name, self._prefix, self._clock))


def _revive(
    state: tuple[str, bool, dict[str, tuple[_Version, ...]], int],
    name: str,
    prefix: str,
    clock: Clock,
) -> MemoryStore:
    store = MemoryStore(prefix, clock=clock)
    token, versioned, objects, written = state
    with _REGISTRY_LOCK:
        space = _SPACES.get(token)
        if space is None:
            space = _space(token, versioned)
            space.objects, space.written = objects, written
            if name != token:
                _NAMED.setdefault(name, space)
        store._space, store._name = space, name
    return store
