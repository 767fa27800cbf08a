"""Looking at a cache and emptying it, from outside of any run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dstream.cache.folder import BusyError, CacheFolder
from dstream.cache.layout import DATA, INDEX, SegmentName, scope_of
from dstream.cache.segment import read_records
from dstream.clock import Clock
from dstream.errors import NotFoundError, StorageError


@dataclass(frozen=True, slots=True)
class DataSetUse:
    """What one data set has in a cache."""

    label: str
    """Its repository and name, or its source."""
    in_use: bool
    """Some process reads it through the cache now."""
    segments: int
    extents: int
    extent_bytes: int
    """Bytes of its extents."""
    file_bytes: int
    """Bytes of its files."""


@dataclass(frozen=True, slots=True)
class CacheStat:
    """What is in a cache."""

    directory: str
    budget_bytes: int | None
    """None where it cannot be read."""
    reserved_bytes: int
    """Capacities of all segments: what counts against the budget."""
    file_bytes: int
    segments: int
    extents: int
    extent_bytes: int
    broken_slots: int
    """Slots of index files that are torn or rotten."""
    data_sets: tuple[DataSetUse, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was, or would be, deleted."""

    segments: int
    file_bytes: int
    labels: tuple[str, ...]


def cache_stat(directory: Path, clock: Clock) -> CacheStat:
    """What a cache holds, read from its index files; no extent is verified.

    Raises:
        NotFoundError: there is no cache.
        FormatVersionError: a newer dstream made it.
    """
    folder = CacheFolder(directory, clock)
    names = _segments(folder)
    broken = 0
    uses: list[DataSetUse] = []
    for scope in sorted({name.scope for name in names}):
        mine = [name for name in names if name.scope == scope]
        sizes: list[int] = []
        for name in mine:
            found, slots = _extent_sizes(folder, name)
            sizes += found
            broken += slots
        uses.append(
            DataSetUse(
                folder.label(scope),
                folder.is_used(scope),
                len(mine),
                len(sizes),
                sum(sizes),
                _file_bytes(folder, mine),
            )
        )
    return CacheStat(
        str(directory),
        folder.budget_bytes(),
        sum(name.capacity_bytes for name in names),
        sum(use.file_bytes for use in uses),
        len(names),
        sum(use.extents for use in uses),
        sum(use.extent_bytes for use in uses),
        broken,
        tuple(uses),
    )


def clear_cache(
    directory: Path, clock: Clock, *, label: str | None = None, dry_run: bool = False
) -> Cleared:
    """Delete a cache's segments, also those in use: their readers fetch again what they need.

    Args:
        directory: of the cache; it and its budget stay.
        clock: for the wait on the lock.
        label: only those of this data set, as :class:`DataSetUse` names it.
        dry_run: delete nothing.

    Raises:
        NotFoundError: there is no cache, or nothing of that data set in it.
        StorageError: it is being changed, or cannot be written.
    """
    folder = CacheFolder(directory, clock)
    names = _segments(folder)
    if label is not None:
        kept = sorted({folder.label(name.scope) for name in names})
        names = [name for name in names if name.scope == scope_of(label)]
        if not names:
            raise NotFoundError(
                f"the cache in {directory} holds nothing of {label!r}; it holds "
                f"{', '.join(map(repr, kept)) or 'nothing at all'}",
                directory=str(directory),
                label=label,
                labels=kept,
            )
    labels = tuple(sorted({folder.label(name.scope) for name in names}))
    freed = _file_bytes(folder, names)
    if not dry_run:
        try:
            with folder.locked():
                freed = folder.delete(names)
        except BusyError as error:
            raise StorageError(
                f"the cache in {directory} is being changed by another process; try again"
            ) from error
        except OSError as error:
            raise StorageError(f"the cache in {directory} cannot be cleared: {error}") from error
    return Cleared(len(names), freed, labels)


def _segments(folder: CacheFolder) -> list[SegmentName]:
    try:
        return folder.list()
    except OSError as error:
        raise NotFoundError(
            f"there is no cache in {folder.directory} ({error.strerror}); "
            "`dstream bench --cache` and cache= make one",
            directory=str(folder.directory),
        ) from error


def _extent_sizes(folder: CacheFolder, name: SegmentName) -> tuple[list[int], int]:
    try:
        records, _, broken = read_records(folder.segments, name, 0)
    except OSError:  # deleted since it was listed
        return [], 0
    return [record.size_bytes for record in records if not record.is_seal], broken


def _file_bytes(folder: CacheFolder, names: list[SegmentName]) -> int:
    total = 0
    for name in names:
        for suffix in (DATA, INDEX):
            try:
                total += (folder.segments / f"{name}{suffix}").stat().st_size
            except OSError:
                continue
    return total
