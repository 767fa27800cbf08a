"""What the loader needs of a data set, whether it was ingested or is a bare listing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from dstream.cache.record import ByteRange, ObjectIdentity, identity_of
from dstream.errors import NotFoundError, ShortReadError, SourceChangedError
from dstream.format.index import VideoIndex, VideoTrack
from dstream.loader.plan import Window
from dstream.measure import Purpose
from dstream.store.base import Store


@dataclass(frozen=True, slots=True, eq=False)
class FileLocation:
    """Where a stored file's bytes lie, and how to know that they are still the same."""

    name: str
    """What the user calls the file: its path relative to the source."""
    store: Store
    key: str
    """The object in ``store``."""
    offset_bytes: int
    """First byte of the file in the object."""
    size_bytes: int
    etag: str | None
    """What every read insists on; None for objects of the repository, which never change."""
    version: str | None = None

    @property
    def identity(self) -> ObjectIdentity | None:
        """Which bytes these are, for a cache; None where the ETag does not tell."""
        return identity_of(self.store.url, self.key, self.etag, self.version)

    def byte_range(
        self, start_byte: int, size_bytes: int, checksum: int | None = None
    ) -> ByteRange:
        """``size_bytes`` of the file from ``start_byte`` on, as a range of its object."""
        start = self.offset_bytes + start_byte
        return ByteRange(start, start + size_bytes, checksum)

    def read(self, start_byte: int, stop_byte: int, purpose: Purpose) -> bytes:
        """Bytes ``[start_byte, stop_byte)`` of the file.

        Raises:
            SourceChangedError, NotFoundError, ShortReadError: naming the file; it was replaced,
                deleted or truncated after it was indexed.
        """
        try:
            blob = self.store.get(
                self.key,
                self.offset_bytes + start_byte,
                self.offset_bytes + stop_byte,
                expect_etag=self.etag,
                version=self.version,
                purpose=purpose,
            )
        except (SourceChangedError, NotFoundError, ShortReadError) as error:
            happened = {
                SourceChangedError: "was replaced after it was indexed; ingest it again",
                NotFoundError: "is gone; it was there when it was indexed",
                ShortReadError: "is shorter than when it was indexed",
            }[type(error)]
            raise type(error)(
                f"{self.name!r} in {self.store.url} {happened} ({error})",
                **{**error.facts, "file": self.name, "store": self.store.url},
            ) from error
        return blob.data


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sample, ready for planning reads."""

    key: str
    index: VideoIndex
    start_pts: int
    """Its span ``[start_pts, end_pts)`` in the track's ticks."""
    end_pts: int
    video: FileLocation
    side: Mapping[str, FileLocation] = field(default_factory=dict)
    """Its side files by suffix."""

    @property
    def duration_s(self) -> float:
        """Length of the span in seconds."""
        return float((self.end_pts - self.start_pts) * self.index.track.time_base)

    @property
    def rate(self) -> float:
        """Average frames per second."""
        return float(self.index.track.rate)


class SampleSource(Protocol):
    """All samples of a data set by number. Thread-safe."""

    @property
    def fingerprint(self) -> str:
        """Hash of what is listed: equal on all ranks that see the same data."""
        ...

    @property
    def name(self) -> str:
        """What messages call the data set."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def slot_counts(self, window: Window) -> NDArray[np.int64]:
        """int64 [N] slots of each sample."""
        ...

    def key(self, sample: int) -> str:
        """A sample's key."""
        ...

    def keys(self) -> list[str]:
        """All keys in order."""
        ...

    def file_of(self, sample: int) -> Hashable:
        """What tells a sample's video file from others; samples of one file share it."""
        ...

    def find(self, key: str) -> int:
        """The number of the sample with this key.

        Raises:
            NotFoundError: there is none.
        """
        ...

    def resolve(self, sample: int) -> Sample:
        """A sample with its index, which is read from the store when it is not at hand.

        Raises:
            MediaError: the file gives no frames.
            SourceChangedError, NotFoundError, ShortReadError: it is no longer what was listed.
        """
        ...

    def known_tracks(self, slots: NDArray[np.int64]) -> list[tuple[str, VideoTrack]]:
        """One sample key and its track for every kind of picture among samples with slots.

        Empty where nothing is known before the files are read.
        """
        ...


class KeyIndex:
    """Finds samples by key; built when first asked, and takes 16 bytes a sample.

    Args:
        name: what messages call the data set.
        keys: all keys in order.
        key_of: the key of a sample.
    """

    def __init__(self, name: str, keys: Iterable[str], key_of: Callable[[int], str]) -> None:
        self._name = name
        self._key_of = key_of
        hashes = np.fromiter(map(_hash, keys), dtype=np.uint64)
        self._places = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._places]

    def find(self, key: str) -> int:
        """Place of ``key``, the first where several samples have it.

        Raises:
            NotFoundError: there is none.
        """
        hashed = np.uint64(_hash(key))
        low, high = (int(np.searchsorted(self._hashes, hashed, side)) for side in _SIDES)
        for place in self._places[low:high].tolist():
            if self._key_of(place) == key:
                return int(place)
        hint = f"; keys look like {self._key_of(0)!r}" if len(self._places) else ""
        raise NotFoundError(f"{self._name} has no sample {key!r}{hint}", key=key)


_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode(errors="surrogatepass"))
