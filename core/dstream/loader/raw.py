"""A bare listing as a source of samples: every video is indexed just before its first clip."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dstream.clock import Clock
from dstream.errors import InvalidInputError, MediaError, NotFoundError, SourceChangedError
from dstream.format.index import VideoIndex, VideoTrack
from dstream.loader.index_size import index_bytes
from dstream.loader.plan import Window
from dstream.loader.single_flight import SingleFlightCache, one_each
from dstream.loader.source import FileLocation, KeyIndex, Sample
from dstream.measure import Meter, Purpose
from dstream.media.index import index_video
from dstream.media.kinds import VIDEO_SUFFIXES, is_hidden, kind_by_name
from dstream.media.reader import StoreReader
from dstream.store.base import ObjectInfo, Store, check_key
from dstream.store.opening import open_store
from dstream.store.options import StoreOptions
from dstream.units import MIB

INDEX_CACHE_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """The videos of a source at one moment."""

    videos: tuple[ObjectInfo, ...]
    """In byte order of their keys."""

    @property
    def sha256(self) -> str:
        """Hash of all keys, sizes and ETags: ranks that list other objects have another."""
        digest = hashlib.sha256()
        for video in self.videos:
            digest.update(repr((video.key, video.size_bytes, video.etag, video.version)).encode())
        return digest.hexdigest()


def is_video_name(name: str) -> bool:
    """Whether a bare listing takes a file of this name for a video.

    >>> is_video_name("a/b.MP4"), is_video_name("a/.b.mp4"), is_video_name("mp4")
    (True, False, False)
    """
    return not is_hidden(name) and kind_by_name(name) is True


def list_videos(store: Store, meter: Meter) -> Listing:
    """List a source once.

    Args:
        store: the source.
        meter: counts videos that are left out as ``("list-skip", reason)``: empty ones, and those
            whose name nothing can be read by.

    Raises:
        NotFoundError: nothing in it is a video by its name.
    """
    objects = list(store.list(purpose=Purpose.LISTING))
    videos = []
    for info in objects:
        if not is_video_name(info.key):
            continue
        if not info.size_bytes:
            meter.event("list-skip", "empty")
        elif not _is_key(info.key):
            meter.event("list-skip", "bad-name")
        else:
            videos.append(info)
    if not videos:
        raise NotFoundError(
            f"{store.url} has no video: of {len(objects)} objects none is non-empty and ends in "
            f"{', '.join(sorted(VIDEO_SUFFIXES))}",
            store=store.url,
            objects=len(objects),
        )
    videos.sort(key=lambda info: info.key.encode())
    return Listing(tuple(videos))


def open_listing(
    source: str | os.PathLike[str] | Store,
    options: StoreOptions | None,
    meter: Meter,
    clock: Clock,
) -> tuple[Store, Listing]:
    """A source's store and its videos; a single file is a source of one.

    Raises:
        NotFoundError: nothing is there.
        InvalidInputError: it is neither a URL, nor a path, nor a store.
    """
    if not isinstance(source, str | os.PathLike):
        if not hasattr(source, "capabilities"):
            raise InvalidInputError(f"source must be a URL, a path or a store, got {source!r:.200}")
        return source, list_videos(source, meter)

    def opened(url: str) -> Store:
        return open_store(url, options=options, meter=meter, clock=clock)

    text = os.fspath(source)
    folder, slash, name = text.rstrip("/").rpartition("/")
    folder = folder if slash else "."
    if "://" not in text and Path(text).is_file():
        return _single(opened(folder or "/"), name)
    store = opened(text)
    try:
        return store, list_videos(store, meter)
    except NotFoundError:
        if "://" not in folder or not is_video_name(name):
            raise
        return _single(opened(folder), name)


def _single(store: Store, name: str) -> tuple[Store, Listing]:
    return store, Listing((store.head(name, purpose=Purpose.LISTING),))


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except InvalidInputError:
        return False
    return True


class RawSource:
    """Whole videos of a listing, each one sample with ``clips_per_file`` slots.

    Args:
        store: the source; it is only read.
        listing: its videos.
        clips_per_file: slots of each file, placed evenly once it is indexed.
        meter: counts files that had to be read from end to end.
        max_index_bytes: refuse a file whose index would cost more than this.
        index_cache_bytes: budget for indexes in memory; one that fell out is read again.
    """

    def __init__(
        self,
        store: Store,
        listing: Listing,
        meter: Meter,
        *,
        clips_per_file: int = 1,
        max_index_bytes: int | None = None,
        index_cache_bytes: int = INDEX_CACHE_BYTES,
    ) -> None:
        if clips_per_file < 1:
            raise InvalidInputError(f"clips_per_file must be at least 1, got {clips_per_file}")
        self.name = store.url
        self.fingerprint = listing.sha256
        self.listing = listing
        self._store = store
        self._meter = meter
        self._clips_per_file = clips_per_file
        self._max_index_bytes = max_index_bytes
        # What is no video stays none, and a replaced file stays replaced: no second look.
        self._indexes: SingleFlightCache[int, VideoIndex] = SingleFlightCache(
            index_cache_bytes,
            index_bytes,
            remember=(MediaError, SourceChangedError, NotFoundError),
        )
        self._keys: SingleFlightCache[str, KeyIndex] = SingleFlightCache(1, one_each)

    def __len__(self) -> int:
        return len(self.listing.videos)

    def slot_counts(self, window: Window) -> NDArray[np.int64]:
        """int64 [N]: the same for every file, since nothing is known of any."""
        return np.full(len(self), self._clips_per_file, dtype=np.int64)

    def key(self, sample: int) -> str:
        """The object's key."""
        return self.listing.videos[sample].key

    def keys(self) -> list[str]:
        """All keys in order."""
        return [video.key for video in self.listing.videos]

    def file_of(self, sample: int) -> int:
        """The sample itself: each is a file."""
        return sample

    def find(self, key: str) -> int:
        """The number of the sample with this key, or NotFoundError."""
        return self._keys.get("", lambda: KeyIndex(self.name, self.keys(), self.key)).find(key)

    def known_tracks(self, slots: NDArray[np.int64]) -> list[tuple[str, VideoTrack]]:
        """Nothing is known before the files are read."""
        return []

    def resolve(self, sample: int) -> Sample:
        """A video with its index, which is read now unless it is at hand."""
        info = self.listing.videos[sample]
        index = self._indexes.get(sample, lambda: self._read_index(info))
        return Sample(
            key=info.key,
            index=index,
            start_pts=index.track.start_pts,
            end_pts=index.track.end_pts,
            video=FileLocation(
                info.key, self._store, info.key, 0, info.size_bytes, info.etag, info.version
            ),
        )

    def _read_index(self, info: ObjectInfo) -> VideoIndex:
        reader = StoreReader(self._store, info, Purpose.INDEX, info.version)
        index = index_video(reader, max_index_bytes=self._max_index_bytes)[0]
        self._meter.event("index", "full-pass" if index.cost.full_pass else "by-ranges")
        return index
