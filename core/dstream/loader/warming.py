"""Fills a node's cache with a data set before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from dstream.errors import DstreamError, InvalidInputError
from dstream.loader.clips import Clips
from dstream.loader.reader import ClipReader
from dstream.media.clip import Extent, gop_extent
from dstream.units import KIB, MIB

_RUN_BYTES = 8 * MIB
"""Neighbouring GOPs are asked for together, up to this size."""
_MERGE_GAP_BYTES = 64 * KIB
_MAX_FAILED = 100


@dataclass(frozen=True, slots=True)
class Warmed:
    """What warming did so far."""

    files: int = 0
    """Videos that were gone through."""
    files_total: int = 0
    gop_bytes: int = 0
    """Bytes of their GOPs, whether they were fetched or were there already."""
    is_full: bool = False
    """The budget was used up before the end."""
    failed: tuple[tuple[str, str], ...] = ()
    """(sample key, message) of videos that could not be read: the first hundred."""


def warm(
    clips: Clips, *, threads: int = 16, progress: Callable[[Warmed], None] | None = None
) -> Warmed:
    """Read every GOP of every video through the cache, until it is full.

    Args:
        clips: of a data set that was opened with a cache.
        threads: videos that are read at the same time.
        progress: told after each video.

    Raises:
        InvalidInputError: there is no cache.
    """
    cache = clips.cache
    if cache is None:
        raise InvalidInputError("nothing to warm: open the data set with cache=, or DSTREAM_CACHE")
    reader = ClipReader(
        clips.source, clips.settings, clips.meter, None, _MERGE_GAP_BYTES, cache=cache
    )
    samples = _one_of_each_file(clips)
    numbers = iter(samples)
    done = Warmed(files_total=len(samples))
    pending: dict[Future[int], int] = {}
    with ThreadPoolExecutor(threads, thread_name_prefix="dstream-warm") as pool:
        while True:
            while len(pending) < 2 * threads and not (cache.is_full or cache.is_off):
                number = next(numbers, None)
                if number is None:
                    break
                pending[pool.submit(_warm_file, reader, number)] = number
            if not pending:
                return replace(done, is_full=cache.is_full)
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                done = _counted(done, clips, pending.pop(future), future)
                if progress is not None:
                    progress(done)


def _counted(done: Warmed, clips: Clips, number: int, future: Future[int]) -> Warmed:
    done = replace(done, files=done.files + 1)
    try:
        return replace(done, gop_bytes=done.gop_bytes + future.result())
    except DstreamError as error:
        failed = (*done.failed, (clips.source.key(number), str(error)))
        return replace(done, failed=failed[:_MAX_FAILED])


def _one_of_each_file(clips: Clips) -> list[int]:
    """The first sample of every video file."""
    first: dict[object, int] = {}
    for number in range(clips.samples):
        first.setdefault(clips.source.file_of(number), number)
    return list(first.values())


def _warm_file(reader: ClipReader, number: int) -> int:
    sample = reader.source.resolve(number)
    gops = sample.index.gops
    extents = [gop_extent(gops, gop) for gop in range(len(gops))]
    for run in _runs(extents):
        reader.fetch_extents(sample.video, run)
    return sum(extent.size_bytes for extent in extents)


def _runs(extents: list[Extent]) -> Iterator[list[Extent]]:
    run: list[Extent] = []
    size_bytes = 0
    for extent in extents:
        if run and size_bytes + extent.size_bytes > _RUN_BYTES:
            yield run
            run, size_bytes = [], 0
        run.append(extent)
        size_bytes += extent.size_bytes
    if run:
        yield run
