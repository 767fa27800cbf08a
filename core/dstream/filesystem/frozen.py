"""A repository of which every reference, once used, means the same generation for ever."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dstream.api import Repo
from dstream.api import open as open_repo
from dstream.cache.record import ByteRange
from dstream.cache.settings import CacheBytes, CacheWish
from dstream.checkpoint.repository import checkpoint_of
from dstream.errors import InvalidInputError, NotFoundError
from dstream.filesystem.contents import Contents, checkpoint_contents, dataset_contents
from dstream.filesystem.paths import PROTOCOL, FilePath, parse_path
from dstream.filesystem.plan import NEEDED, RANGES, READS, PlannedRead, Wanted, plan_reads
from dstream.forks import renew_after_fork
from dstream.format.checkpoint import KIND as CHECKPOINT
from dstream.measure import Purpose
from dstream.store.opening import open_store
from dstream.store.options import StoreOptions


class FrozenRepo:
    """Opened when it is first used. Thread-safe, also in a forked child.

    Args:
        url: of the repository, or a pin's token; None is an error at the first use.
        options: how to reach the stores.
        cache: directory of the node's cache.
        cache_bytes: what it may take.
        threads: reads at the same time of one call.
    """

    def __init__(
        self,
        url: str | None,
        options: StoreOptions | None,
        cache: CacheWish,
        cache_bytes: CacheBytes,
        threads: int,
    ) -> None:
        self._url = url
        self._options = options
        self._cache_wish = (cache, cache_bytes)
        self._threads = threads
        self._opened: Repo | None = None
        self._contents: dict[str, Contents] = {}
        self.labels: dict[str, str] = {}
        """Reference -> the ``NAME@v3`` that it means."""
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, where a thread of the parent may hold the lock."""
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        """Of the repository."""
        if self._url is None:
            raise InvalidInputError(
                "no repository: give repo= (storage_options={'repo': 's3://bucket/repo'}), or "
                "put it into the URL; docs/filesystem.md shows how"
            )
        return self._url

    @property
    def repo(self) -> Repo:
        """The open repository."""
        with self._lock:
            if self._opened is None:
                cache, cache_bytes = self._cache_wish
                self._opened = open_repo(
                    self.url, options=self._options, cache=cache, cache_bytes=cache_bytes
                )
            return self._opened

    def forget(self) -> None:
        """Let references be resolved again."""
        with self._lock:
            self._contents.clear()
            self.labels.clear()

    def names(self, folder: str) -> list[str]:
        """Paths directly below ``folder``, the beginning of a name.

        Raises:
            FileNotFoundError: no name begins so.
        """
        prefix = f"{folder}/" if folder else ""
        below = [name for name in self.repo.names() if name.startswith(prefix)]
        if folder and not below:
            raise missing(folder, "; a generation is NAME@v3, NAME@alias or NAME@latest")
        parts = (name[len(prefix) :].partition("/") for name in below)
        return sorted({prefix + (one if slash else f"{one}@latest") for one, slash, _ in parts})

    def find(self, path: str) -> tuple[FilePath, Contents | None]:
        """What a path means, and the files of its generation; None above the generations.

        Raises:
            InvalidInputError: it can be no path.
            FileNotFoundError: there is no such generation.
        """
        parsed = parse_path(path)
        if parsed.reference is None:
            return parsed, None
        with self._lock:
            if parsed.reference not in self._contents:
                try:
                    found = self._resolved(parsed.reference)
                except NotFoundError as error:
                    raise missing(path, f": {error}") from error
                self._contents[parsed.reference] = found
                self.labels[parsed.reference] = found.generation.label
            return parsed, self._contents[parsed.reference]

    def wanted(self, path: str, start: int | None, end: int | None) -> Wanted:
        """Bytes ``[start, end)`` of a file, as of a slice.

        Raises:
            FileNotFoundError, IsADirectoryError: there is no such file.
        """
        parsed, contents = self.find(path)
        location = None if contents is None else contents.file(parsed.inside)
        if location is None:
            if contents is None or contents.is_folder(parsed.inside):
                raise IsADirectoryError(errno.EISDIR, "is a folder", path)
            raise missing(path)
        first, last, _ = slice(start, end).indices(location.size_bytes)
        return location, first, max(first, last)

    def read(self, wanted: list[Wanted], max_gap_bytes: int, keep_errors: bool) -> list[Any]:
        """The bytes of each range.

        Args:
            wanted: in any order.
            max_gap_bytes: ranges at most this far apart become one read.
            keep_errors: put the error of a read into its places, instead of raising it.
        """
        plan, meter = plan_reads(wanted, max_gap_bytes), self.repo.meter
        meter.add(RANGES, plan.ranges)
        meter.add(NEEDED, plan.needed_bytes)
        meter.add(READS, len(plan.reads))
        results: list[Any] = [b""] * len(wanted)

        def one(read: PlannedRead) -> None:
            try:
                data = self._bytes(read)
            except Exception as error:
                if not keep_errors:
                    raise
                for place in read.serves:
                    results[place] = error
                return
            for place in read.serves:
                results[place] = read.cut(data, wanted[place])

        if len(plan.reads) == 1:
            one(plan.reads[0])
        elif plan.reads:
            with ThreadPoolExecutor(min(self._threads, len(plan.reads))) as pool:
                list(pool.map(one, plan.reads))
        return results

    def _bytes(self, read: PlannedRead) -> bytes:
        location = read.location
        at = location.offset_bytes

        def fetch() -> bytes:
            return location.read(read.start_byte - at, read.stop_byte - at, Purpose.DATA)

        cache = self.repo.cache(PROTOCOL)
        if cache is None:
            return fetch()
        extent = ByteRange(read.start_byte, read.stop_byte)
        return cache.read(location.identity, [extent], lambda _: [fetch()])[0]

    def _resolved(self, reference: str) -> Contents:
        repo = self.repo
        generation = repo.catalog.resolve(self.labels.get(reference, reference))
        if generation.kind == CHECKPOINT:
            manifest = checkpoint_of(repo.catalog, generation)
            return checkpoint_contents(generation, manifest, repo.store)
        return dataset_contents(
            generation,
            repo.catalog.dataset(generation),
            repo.store,
            lambda url: open_store(url, options=self._options, meter=repo.meter),
        )


def missing(path: str, hint: str = "") -> FileNotFoundError:
    """The error that readers of file systems expect of a path that is not there."""
    return FileNotFoundError(errno.ENOENT, f"no such file or folder{hint}", path)
