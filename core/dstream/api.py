"""The way in: open a repository, or stream a bare folder or bucket of videos."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from dstream.cache.cache import ExtentCache
from dstream.cache.settings import CacheBytes, CacheSettings, CacheWish, cache_settings
from dstream.catalog import Catalog, Generation, LogEntry
from dstream.catalog.facade import RepoLifecycle
from dstream.catalog.tokens import Token
from dstream.checkpoint.facade import RepoCheckpoints
from dstream.clock import Clock, SystemClock
from dstream.errors import InvalidInputError, NotFoundError
from dstream.format.chosen_rows import Choice
from dstream.format.manifest import Manifest
from dstream.format.where import parse_where
from dstream.loader.clips import Clips
from dstream.loader.generation import TABLE_CACHE_BYTES, GenerationSource
from dstream.loader.pins import FrozenView
from dstream.loader.plan import Sampling, Window, whole
from dstream.loader.raw import INDEX_CACHE_BYTES, RawSource, open_listing
from dstream.loader.settings import ArrayKind, ClipSettings
from dstream.measure import Meter
from dstream.media.pixels import PixelSettings
from dstream.recipe import Recipe, installed_recipe, load_recipe
from dstream.store.base import Store
from dstream.store.opening import open_store
from dstream.store.options import StoreOptions

__all__ = ["Clips", "Repo", "Shown", "clips", "open"]

Size = int | tuple[int, int]
Url = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Shown:
    """One generation and what it is made of."""

    generation: Generation
    manifest: Manifest
    aliases: dict[str, int]
    """Alias -> version of the same name."""


@dataclass(frozen=True, slots=True)
class _SourceOpener:
    """Opens the sources of data that was left in place. Can be pickled."""

    options: StoreOptions
    meter: Meter
    clock: Clock

    def __call__(self, url: str) -> Store:
        return open_store(url, options=self.options, meter=self.meter, clock=self.clock)


class Repo(RepoLifecycle, RepoCheckpoints):
    """An open repository. Use it as a context manager, or close it, to give connections back.

    Pickled to another process it is opened again there, at the same pin if it is at one.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        meter: Meter,
        options: StoreOptions,
        clock: Clock,
        *,
        at: int | str | None = None,
        cache: CacheSettings | None = None,
    ) -> None:
        self.store = store
        self.catalog = catalog
        self.meter = meter
        """Counts everything that is done through this object."""
        self._options = options
        self._clock = clock
        self._at = at
        self._cache = cache
        self._caches: dict[str, ExtentCache] = {}

    def __reduce__(self) -> tuple[object, ...]:
        opened = (self.store, self.meter, self._options, self._clock, self._at, self._cache)
        return _reopened, opened

    def cache(self, name: str) -> ExtentCache | None:
        """The node's cache as the artifact ``name`` uses it, or None without one.

        Raises:
            InvalidInputError: the directory is a file, or no budget was ever set.
        """
        if self._cache is not None and name not in self._caches:
            label = f"{self.store.url} {name}"
            self._caches[name] = self._cache.open(label, self.meter, self._clock)
        return self._caches.get(name)

    def names(self) -> list[str]:
        """Names of all artifacts, sorted."""
        return self.catalog.names()

    def log(self, limit: int | None = 20) -> list[LogEntry]:
        """The last commits, newest first."""
        return self.catalog.log(limit)

    def show(self, reference: str) -> Shown:
        """What ``name``, ``name@v3``, ``name@alias`` or ``name@newest`` is.

        Raises:
            NotFoundError: there is no such generation.
            InvalidInputError: it is no data set, or not a reference.
        """
        generation = self.catalog.resolve(reference)
        return Shown(
            generation, self.catalog.dataset(generation), self.catalog.aliases(generation.name)
        )

    def at(self, seq: int | str) -> Repo:
        """The repository as root ``seq``, or the root of a pin's token, lists it: for ever.

        Costs one request. It shares this one's store and meter, and cannot be changed.

        Raises:
            NotFoundError: there is no such root, or it was cleared by collection.
            CorruptDataError: the root is not the one that the token was made of.
        """
        catalog = Catalog.open_at(self.store, seq, self._clock, meter=self.meter)
        return Repo(
            self.store,
            catalog,
            self.meter,
            self._options,
            self._clock,
            at=seq,
            cache=self._cache,
        )

    def clips(
        self,
        reference: str,
        *,
        frames: int,
        stride: int | None = None,
        fps: float | None = None,
        sampling: Sampling = "uniform",
        seed: int = 0,
        resize: Size | None = None,
        crop: tuple[int, int] | None = None,
        crop_mode: Literal["center", "random"] = "center",
        pixels: Literal["rgb", "native"] = "rgb",
        split: str | None = None,
        stream: str | None = None,
        where: str | None = None,
        recipe: str | Recipe | None = "installed",
        array: ArrayKind | None = None,
        table_cache_bytes: int = TABLE_CACHE_BYTES,
        pin: str | int | None = None,
    ) -> Clips:
        """The clips of a data set.

        Args:
            reference: ``name``, ``name@v3``, ``name@alias`` or ``name@newest``.
            frames: frames in a clip.
            stride: take every ``stride``-th frame; 1 when ``fps`` is not given either.
            fps: take frames by time, this many a second; exact on variable frame rates.
            sampling: ``uniform`` starts anywhere in a slot, ``grid`` at its beginning,
                ``keyframe`` at the keyframe before: cheapest to decode.
            seed: of the order and the starts.
            resize: the shorter side in pixels, or (height, width).
            crop: (height, width) cut out afterwards.
            crop_mode: ``center`` or ``random``.
            pixels: ``rgb``: uint8; ``native`` keeps deep and grey pixels as they are.
            split: only samples of this split.
            stream: which of a sample's streams, by name; the first by default.
            where: only samples for which this SQL expression is true, such as
                ``"width >= 1280 and motion > 0.02"``: over label columns and facts of the stream
                and its file. Evaluated here, once; see ``docs/loader.md`` for what it may use.
            recipe: reads side files: a recipe, its installed name or the path of its file; by
                default the installed one that the data set was made with; None for none.
            array: ``torch`` or ``numpy``; torch where it is installed by default.
            table_cache_bytes: budget for packet tables in memory.
            pin: a pin's token, or a root's number: the reference means what it meant there, on
                every rank and as long as the clips are used. Loaders renew the pin while they
                run, on rank 0; a role that may only read is warned that it cannot.

        Raises:
            NotFoundError: there is no such generation.
            InvalidInputError: an argument is impossible, or a recipe is needed.
        """
        settings = _settings(
            frames, stride, fps, sampling, seed, PixelSettings(resize, crop, crop_mode, pixels)
        )
        choice = Choice(stream, split, None if where is None else parse_where(where))
        opened = self.meter.snapshot()
        catalog = self.catalog if pin is None else self.at(pin).catalog
        generation = catalog.resolve(reference)
        manifest = catalog.dataset(generation)
        source = GenerationSource(
            generation.label,
            self.store,
            manifest,
            _SourceOpener(self._options, self.meter, self._clock),
            choice=choice,
            table_cache_bytes=whole("table_cache_bytes", table_cache_bytes),
        )
        reader = _recipe(recipe, manifest, source)
        return Clips(
            source,
            settings,
            self.meter,
            reader,
            array=array,
            clock=self._clock,
            opened=opened,
            view=FrozenView.of(catalog, self._clock),
            cache=self.cache(generation.name),
        )

    def close(self) -> None:
        """Give connections back, and the cache's segments to other processes."""
        for cache in self._caches.values():
            cache.close()
        self.store.close()

    def __enter__(self) -> Repo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open(
    url: Url,
    *,
    options: StoreOptions | None = None,
    meter: Meter | None = None,
    clock: Clock | None = None,
    cache: CacheWish = None,
    cache_bytes: CacheBytes = None,
) -> Repo:
    """Open the repository at ``url``.

    Args:
        url: ``s3://bucket/prefix``, ``file:///folder``, a path, ``memory://name``, or a pin's
            token: then the repository as it was pinned, which cannot be changed. One read.
        options: credentials' profile, endpoint, retries. Sources of data that was left in
            place are opened with the same.
        meter: counts everything; a new one by default, readable as ``repo.meter``.
        clock: for waits and durations.
        cache: a directory of this node that keeps what clips have read, shared by all
            processes; ``DSTREAM_CACHE`` by default, False for none.
        cache_bytes: what it may take, such as ``"200GB"``; ``DSTREAM_CACHE_BYTES`` by default,
            else what was set last.

    Raises:
        NotFoundError: there is no repository.
        FormatVersionError: a newer dstream made it.
    """
    meter, clock, options = meter or Meter(), clock or SystemClock(), options or StoreOptions()
    node = cache_settings(cache, cache_bytes, os.environ)
    token = Token.find(os.fspath(url))
    if token is not None and token.url:
        store = open_store(token.url, options=options, meter=meter, clock=clock)
        pinned = Catalog.open_at(store, str(token), clock, meter=meter)
        return Repo(store, pinned, meter, options, clock, at=str(token), cache=node)
    store = open_store(url, options=options, meter=meter, clock=clock)
    catalog = Catalog.open(store, clock, meter=meter)
    return Repo(store, catalog, meter, options, clock, cache=node)


def _reopened(
    store: Store,
    meter: Meter,
    options: StoreOptions,
    clock: Clock,
    at: int | str | None,
    cache: CacheSettings | None,
) -> Repo:
    if at is None:
        catalog = Catalog.open(store, clock, meter=meter)
    else:
        catalog = Catalog.open_at(store, at, clock, meter=meter)
    return Repo(store, catalog, meter, options, clock, at=at, cache=cache)


def clips(
    source: Url | Store,
    *,
    frames: int,
    stride: int | None = None,
    fps: float | None = None,
    sampling: Sampling = "uniform",
    seed: int = 0,
    resize: Size | None = None,
    crop: tuple[int, int] | None = None,
    crop_mode: Literal["center", "random"] = "center",
    pixels: Literal["rgb", "native"] = "rgb",
    clips_per_file: int = 1,
    max_index_bytes: int | None = None,
    index_cache_bytes: int = INDEX_CACHE_BYTES,
    array: ArrayKind | None = None,
    options: StoreOptions | None = None,
    meter: Meter | None = None,
    clock: Clock | None = None,
    cache: CacheWish = None,
    cache_bytes: CacheBytes = None,
) -> Clips:
    """The clips of raw videos, nothing prepared: costs one listing.

    Each video is indexed just before its first clip. Durations are unknown until then, so every
    file has ``clips_per_file`` slots, whatever its length.

    Args:
        source: folder, bucket prefix or video file; or an open store that counts on ``meter``.
        frames: see :meth:`Repo.clips`, and so for the others up to ``pixels``.
        stride: take every ``stride``-th frame; 1 when ``fps`` is not given either.
        fps: take frames by time.
        sampling: where clips start.
        seed: of the order and the starts.
        resize: the shorter side, or (height, width).
        crop: (height, width) cut out afterwards.
        crop_mode: ``center`` or ``random``.
        pixels: ``rgb`` or ``native``.
        clips_per_file: slots of each file.
        max_index_bytes: refuse files whose index would cost more: some must be read from end to
            end. They fail with the reason ``index-too-large``.
        index_cache_bytes: budget for indexes in memory.
        array: ``torch`` or ``numpy``.
        options: credentials' profile, endpoint, retries.
        meter: counts everything; readable as ``clips.meter``.
        clock: for waits and durations.
        cache: see :func:`open`.
        cache_bytes: see :func:`open`.

    Raises:
        NotFoundError: the source is not there, or holds no video.
        InvalidInputError: an argument is impossible.
    """
    settings = _settings(
        frames, stride, fps, sampling, seed, PixelSettings(resize, crop, crop_mode, pixels)
    )
    meter, clock = meter or Meter(), clock or SystemClock()
    opened = meter.snapshot()
    node = cache_settings(cache, cache_bytes, os.environ)
    store, listing = open_listing(source, options, meter, clock)
    raw = RawSource(
        store,
        listing,
        meter,
        clips_per_file=clips_per_file,
        max_index_bytes=max_index_bytes,
        index_cache_bytes=whole("index_cache_bytes", index_cache_bytes),
    )
    kept = None if node is None else node.open(store.url, meter, clock)
    return Clips(raw, settings, meter, array=array, clock=clock, opened=opened, cache=kept)


def _settings(
    frames: int,
    stride: int | None,
    fps: float | None,
    sampling: Sampling,
    seed: int,
    pixels: PixelSettings,
) -> ClipSettings:
    if stride is None and fps is None:
        stride = 1
    return ClipSettings(Window(frames, stride, fps), sampling, seed, pixels)


def _recipe(
    recipe: str | Recipe | None, manifest: Manifest, source: GenerationSource
) -> Recipe | None:
    """The recipe that reads side files. Stored bytes can only name an installed one."""
    if isinstance(recipe, str) and recipe != "installed":
        recipe = load_recipe(recipe, manifest.recipe.params)
    if recipe is None or not source.has_side_files:
        return None
    if not isinstance(recipe, str):
        return recipe
    try:
        return installed_recipe(manifest.recipe.name, manifest.recipe.params)
    except NotFoundError as error:
        raise InvalidInputError(
            f"{source.name} has side files that recipe {manifest.recipe.name!r} reads, and it is "
            f"not installed ({error}); give recipe= the path of its Python file, or recipe=None "
            "for the video alone",
            recipe=manifest.recipe.name,
        ) from error
