"""The seam for kinds of data: what a sample is, and what rides along with a clip.

A recipe is an object with the attributes and methods of :class:`Recipe`. It is found by an
installed entry point of the group ``dstream.recipes``, or in a Python file given by path that
defines ``RECIPE``. Ingest asks it for the samples of each video; the loader asks it for the
arrays of each clip.

A recipe with parameters has two more members: ``params``, the mapping that the manifest
records, and ``configured(params) -> Recipe``, which returns a recipe with those parameters or
raises ``InvalidInputError``. Values may arrive as text (from a command line).

A recipe of files that are no videos has a member ``files``, a :class:`FileKind`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError, NotFoundError
from dstream.format.index import VideoIndex, VideoTrack
from dstream.media.reader import RandomReader

Label = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file that shares a video's folder and stem: ``run7.actions.jsonl`` of ``run7.mp4``."""

    name: str
    """Path relative to the source."""
    suffix: str
    """What follows the stem, with its dots: ``.actions.jsonl``."""
    size_bytes: int
    read: Callable[[], bytes]
    """Fetches the whole file."""


@dataclass(frozen=True, slots=True)
class VideoFile:
    """One indexed video, as a recipe sees it at ingest."""

    name: str
    """Path relative to the source."""
    tracks: Sequence[VideoTrack]
    """Its video tracks, the best first."""
    frame_pts_s: Callable[[], NDArray[np.float64]] | None
    """float64 [N] seconds from the first frame of ``tracks[0]``, display order; None where
    the index has no packet table."""
    side: Mapping[str, SideFile]
    """Side files by suffix."""


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """The part ``[start_pts, end_pts)`` of one track, in the track's ticks."""

    track: int
    """Position in ``VideoFile.tracks``."""
    start_pts: int
    end_pts: int
    name: str = "video"


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One sample to be written to the sample table."""

    key: str
    """Unique in the artifact."""
    group: str
    """Session, scene or recording that it belongs to."""
    streams: tuple[StreamSpan, ...]
    split: str = "train"
    side: tuple[str, ...] = ()
    """Suffixes of the side files that its clips need."""
    labels: Mapping[str, Label] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileKind:
    """Files that a recipe makes samples of, where they are no videos."""

    suffixes: frozenset[str]
    """What their names end in, lower case, with the dot. Others lie beside them."""
    index: Callable[[RandomReader], list[VideoIndex]]
    """Finds the tracks of a file and their packets; raises ``MediaError``."""
    align_bytes: int
    """A packed file begins at a multiple of this: a power of two, 512 or more."""


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """Which frames a clip shows, for looking up what belongs to them."""

    sample_key: str
    pts_s: NDArray[np.float64]
    """float64 [T] seconds from the first frame of the file."""
    frame_index: NDArray[np.int64] | None
    """int64 [T] position of each frame in the file's display order; None where unknown."""


class Recipe(Protocol):
    """What ingest and the loader ask of a kind of data."""

    @property
    def name(self) -> str:
        """Short name, recorded in the manifest."""
        ...

    @property
    def needs_packets(self) -> bool:
        """True when samples or side data need frame numbers of every file (a full index)."""
        ...

    def samples(self, video: VideoFile) -> Sequence[SampleSpec]:
        """The samples of one video file.

        Raises:
            MediaError: with reason ``bad-side-file``; the video is quarantined.
        """
        ...

    def side_data(
        self, facts: ClipFacts, side: Mapping[str, bytes]
    ) -> Mapping[str, NDArray[np.generic]]:
        """Arrays whose first axis is the clip's T frames, by name.

        Args:
            facts: the clip's frames.
            side: bytes of the sample's side files by suffix.

        Raises:
            MediaError: with reason ``bad-side-file``.
        """
        ...


ENTRY_POINT_GROUP = "dstream.recipes"


def recipe_params(recipe: Recipe) -> dict[str, Label]:
    """The parameters that a recipe was configured with, as the manifest records them."""
    params: Mapping[str, Label] = getattr(recipe, "params", {})
    return dict(params)


def files_of(recipe: Recipe) -> FileKind | None:
    """Which files the recipe makes samples of; None for videos."""
    files: FileKind | None = getattr(recipe, "files", None)
    return files


def installed_recipes() -> dict[str, str]:
    """Name -> ``module:attribute`` of every recipe that an installed package offers."""
    return {point.name: point.value for point in sorted(entry_points(group=ENTRY_POINT_GROUP))}


def installed_recipe(name: str, params: Mapping[str, Label] | None = None) -> Recipe:
    """The recipe that an installed package offers under ``name``. Never reads a path.

    Names that come out of a manifest go through here, so that stored bytes cannot choose
    which file of this machine is run.

    Raises:
        NotFoundError: no installed package offers it, or its module does not import.
        InvalidInputError: it does not take these parameters.
    """
    points = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not points:
        offered = ", ".join(installed_recipes()) or "none"
        raise NotFoundError(
            f"no installed recipe is called {name!r}; installed: {offered}. A recipe of your "
            "own is given as the path of its Python file",
            recipe=name,
        )
    try:
        recipe = points[0].load()
    except (ImportError, AttributeError) as error:
        raise NotFoundError(
            f"recipe {name!r} ({points[0].value}) could not be imported: {error}", recipe=name
        ) from error
    return _configured(recipe, name, params)


def load_recipe(where: str, params: Mapping[str, Label] | None = None) -> Recipe:
    """The recipe that a user named: an installed name, or the path of a Python file.

    What ends in ``.py`` is a path; the file defines ``RECIPE``. Its code is run.

    Raises:
        NotFoundError: there is no such recipe or file.
        InvalidInputError: the file fails, defines no recipe, or takes no such parameters.
    """
    if not where.endswith(".py"):
        return installed_recipe(where, params)
    return FileRecipe(where, params)


class FileRecipe:
    """A recipe from a Python file. Pickles as its path, so that spawned workers load it anew."""

    def __init__(self, path: str, params: Mapping[str, Label] | None = None) -> None:
        self.path = path
        self._recipe = _configured(_run_recipe_file(Path(path)), path, params)
        self.params = dict(params or {})

    def __reduce__(self) -> tuple[type[FileRecipe], tuple[str, dict[str, Label]]]:
        return FileRecipe, (self.path, self.params)

    @property
    def name(self) -> str:
        """The name that the file's recipe gives itself."""
        return self._recipe.name

    @property
    def needs_packets(self) -> bool:
        """See :class:`Recipe`."""
        return self._recipe.needs_packets

    @property
    def files(self) -> FileKind | None:
        """See :class:`FileKind`."""
        return files_of(self._recipe)

    def samples(self, video: VideoFile) -> Sequence[SampleSpec]:
        """See :class:`Recipe`."""
        return self._recipe.samples(video)

    def side_data(
        self, facts: ClipFacts, side: Mapping[str, bytes]
    ) -> Mapping[str, NDArray[np.generic]]:
        """See :class:`Recipe`."""
        return self._recipe.side_data(facts, side)


def _run_recipe_file(path: Path) -> object:
    if not path.is_file():
        raise NotFoundError(f"there is no recipe file {path}", path=str(path))
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"dstream_recipe_{digest}", path)
    if spec is None or spec.loader is None:
        raise InvalidInputError(f"{path} is not a Python file", path=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything
        del sys.modules[spec.name]
        raise InvalidInputError(
            f"recipe file {path} fails: {type(error).__name__}: {error}", path=str(path)
        ) from error
    try:
        return module.RECIPE
    except AttributeError as error:
        raise InvalidInputError(f"{path} defines no RECIPE", path=str(path)) from error


def _configured(recipe: object, where: str, params: Mapping[str, Label] | None) -> Recipe:
    """Check that ``recipe`` is one, and give it its parameters by its method ``configured``."""
    missing = [part for part in _RECIPE_PARTS if not hasattr(recipe, part)]
    if missing:
        raise InvalidInputError(
            f"RECIPE of {where!r} is no recipe: it lacks {', '.join(missing)}", recipe=where
        )
    if not params:
        return cast("Recipe", recipe)
    if not hasattr(recipe, "configured"):
        raise InvalidInputError(
            f"recipe {where!r} takes no parameters, got {', '.join(sorted(params))}", recipe=where
        )
    return cast("Recipe", recipe.configured(params))


_RECIPE_PARTS = ("name", "needs_packets", "samples", "side_data")
