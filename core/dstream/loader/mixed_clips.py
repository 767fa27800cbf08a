"""Several data sets as one: the clips of a mixture."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from dstream.cache.cache import ExtentCache
from dstream.errors import InvalidInputError, NotFoundError
from dstream.format.index import VideoTrack
from dstream.loader.clips import Clips
from dstream.loader.mixture import Component, MixedOrder, shares_of
from dstream.loader.plan import Order, Window
from dstream.loader.settings import ClipSettings
from dstream.loader.source import Sample, SampleSource
from dstream.measure import MeterSum, sum_of


def mix(components: Sequence[tuple[Clips, float]]) -> Mixture:
    """One stream of clips out of several data sets, each with its share.

    Every stretch of a few clips (``Mixture.cycle``) has each component's exact share, in a new
    order; each component is shuffled by itself and begins anew when it is through, so small ones
    repeat while large ones last. An epoch has as many clips as the components have together,
    unless ``clips_per_epoch`` says otherwise.

    Args:
        components: clips, and how much of the mixture they are: any positive numbers. The same
            frames, rates, sampling and pixels everywhere; pictures of one size, as in any batch.

    Raises:
        InvalidInputError: weights or components do not go together.
    """
    pairs = _pairs(components)
    return Mixture([clips for clips, _ in pairs], [weight for _, weight in pairs])


class Mixture(Clips):
    """Clips of several data sets, mixed by weight. Made by :func:`mix`; used like other clips.

    By number its clips are those of the first component, then of the second, and so on; by key
    the first component that has it answers.
    """

    _may_be_affine = False

    def __init__(self, components: Sequence[Clips], weights: Sequence[float]) -> None:
        shares = shares_of(weights)
        first = components[0]
        recipes = [clips._recipe for clips in components]
        facts = [_facts(clips.settings) for clips in components]
        for name in facts[0]:
            _check_equal(name, [each[name] for each in facts])
        _check_equal("recipe", [None if recipe is None else recipe.name for recipe in recipes])
        _check_equal("pin", [clips.pin for clips in components])
        names = _unique([clips.source.name for clips in components])
        self.components = tuple(
            Component(name, len(clips), share)
            for name, clips, share in zip(names, components, shares, strict=True)
        )
        apart = list({id(clips.meter): clips for clips in components}.values())
        opened = [clips._opened for clips in apart if clips._opened is not None]
        super().__init__(
            MixedSource([clips.source for clips in components]),
            first.settings,
            first.meter if len(apart) == 1 else MeterSum([clips.meter for clips in apart]),
            first._recipe,
            array=first._array,
            clock=first._clock,
            opened=sum_of(opened) if len(opened) == len(apart) else None,
            view=first._view,
            cache=_cache_of(components),
        )

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "components": self.components}

    @property
    def cycle(self) -> int:
        """After so many clips each component had its exact share."""
        return sum(component.share for component in self.components)

    def arrange(self, alike: Order) -> Order:
        """The order of the mixture."""
        return MixedOrder.mixed(self.components, alike)


class MixedSource:
    """The samples of several sources, one after another."""

    def __init__(self, sources: Sequence[SampleSource]) -> None:
        self._sources = tuple(sources)
        self._first = np.cumsum([0, *map(len, sources)])
        self.name = " + ".join(source.name for source in sources)
        parts = [source.fingerprint for source in sources]
        self.fingerprint = hashlib.sha256(repr(parts).encode()).hexdigest()

    def __len__(self) -> int:
        return int(self._first[-1])

    def slot_counts(self, window: Window) -> NDArray[np.int64]:
        """int64 [N] slots of each sample."""
        return np.concatenate([source.slot_counts(window) for source in self._sources])

    def key(self, sample: int) -> str:
        """A sample's key; samples of two sources may have the same."""
        source, number = self._locate(sample)
        return source.key(number)

    def keys(self) -> list[str]:
        """All keys in order."""
        return [key for source in self._sources for key in source.keys()]

    def file_of(self, sample: int) -> Hashable:
        """What tells a sample's video file from others."""
        source, number = self._locate(sample)
        return source.name, source.file_of(number)

    def find(self, key: str) -> int:
        """The number of the first sample with this key, or NotFoundError."""
        for first, source in zip(self._first.tolist(), self._sources, strict=False):
            try:
                return int(first) + source.find(key)
            except NotFoundError:
                continue
        raise NotFoundError(f"{self.name} has no sample {key!r}", key=key)

    def resolve(self, sample: int) -> Sample:
        """A sample with its index; raises as its source does."""
        source, number = self._locate(sample)
        return source.resolve(number)

    def known_tracks(self, slots: NDArray[np.int64]) -> list[tuple[str, VideoTrack]]:
        """One sample key and its track for every kind of picture, source by source."""
        return [
            known
            for first, source in zip(self._first.tolist(), self._sources, strict=False)
            for known in source.known_tracks(slots[first : first + len(source)])
        ]

    def _locate(self, sample: int) -> tuple[SampleSource, int]:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} is outside range({len(self)})")
        number = int(np.searchsorted(self._first, sample, side="right")) - 1
        return self._sources[number], sample - int(self._first[number])


def _cache_of(components: Sequence[Clips]) -> ExtentCache | None:
    """The first one there is; it lets the segments of all data sets stay."""
    caches = [clips.cache for clips in components if clips.cache is not None]
    if not caches:
        return None
    caches[0].read_too(cache.label for cache in caches)
    return caches[0]


def _check_equal(what: str, values: Sequence[object]) -> None:
    for number, value in enumerate(values):
        if value != values[0]:
            raise InvalidInputError(
                f"all components of a mixture need the same {what}: the first has "
                f"{values[0]!r:.200}, number {number + 1} has {value!r:.200}"
            )


def _facts(settings: ClipSettings) -> dict[str, object]:
    """What makes a clip what it is, by the names that users give it."""
    facts = asdict(settings)
    return {**facts.pop("window"), **facts.pop("pixels"), **facts}


def _pairs(given: object) -> list[tuple[Clips, float]]:
    """The components, if they are given as they should be."""
    # Clips can be iterated over as well: that would decode all of them.
    pairs: list[tuple[Clips, float]] = []
    for pair in given if isinstance(given, Iterable) and not isinstance(given, Clips) else [given]:
        clips, weight = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
        if not isinstance(clips, Clips) or not isinstance(weight, Real):
            raise InvalidInputError(
                "a mixture is made of pairs of clips and weights, such as "
                f"dstream.mix([(clips, 0.7), (others, 0.3)]); got {pair!r:.80}"
            )
        pairs.append((clips, float(weight)))
    return pairs


def _unique(names: Sequence[str]) -> list[str]:
    """The names, with a number where one comes several times.

    >>> _unique(["a", "b", "a"])
    ['a', 'b', 'a #2']
    """
    found: dict[str, int] = {}
    unique = []
    for name in names:
        found[name] = found.get(name, 0) + 1
        unique.append(name if found[name] == 1 else f"{name} #{found[name]}")
    return unique
