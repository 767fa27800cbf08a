"""Which files a generation shows, and where their bytes lie."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping

from dstream.catalog import Generation
from dstream.errors import CorruptDataError, InvalidInputError
from dstream.forks import renew_after_fork
from dstream.format.checkpoint import CheckpointManifest
from dstream.format.manifest import Manifest, Part, TableRef
from dstream.format.refs import ObjectRef
from dstream.format.schema import REPOSITORY, Table
from dstream.format.tables import read_table
from dstream.loader.part import fetch_object
from dstream.loader.source import FileLocation
from dstream.measure import Purpose
from dstream.store.base import Store, check_key

_FILE_COLUMNS = ("name", "object", "store", "offset_bytes", "size_bytes", "etag", "version")

Files = Mapping[str, FileLocation]
Opener = Callable[[str], Store]


class Listing:
    """Files by path, and the folders that these make."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._paths = sorted(files)

    def file(self, path: str) -> FileLocation | None:
        """The file of that path, or None."""
        return self._files.get(path)

    def children(self, folder: str) -> list[tuple[str, FileLocation | None]]:
        """(path, file, or None for a folder) directly below ``folder``; empty where it is none."""
        prefix = f"{folder}/" if folder else ""
        found: list[tuple[str, FileLocation | None]] = []
        place = bisect_left(self._paths, prefix)
        while place < len(self._paths) and self._paths[place].startswith(prefix):
            path = self._paths[place]
            name, slash, _ = path[len(prefix) :].partition("/")
            if slash:
                found.append((prefix + name, None))
                place = bisect_left(self._paths, f"{prefix}{name}0")  # "0" comes after "/"
            else:
                found.append((path, self._files[path]))
                place += 1
        return found


class Contents:
    """The files of one generation, in sections; each is listed when it is first looked at.

    Thread-safe, also in a forked child.

    Args:
        generation: that they belong to.
        sections: folder -> what lists its files, by paths that begin with it. A single section
            ``""`` has all.
    """

    def __init__(self, generation: Generation, sections: Mapping[str, Callable[[], Files]]) -> None:
        self.generation = generation
        self._sections = sections
        self._listed: dict[str, Listing] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, where a thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    def file(self, path: str) -> FileLocation | None:
        """The file of that path, or None."""
        listing = self._section(path)
        return None if listing is None else listing.file(path)

    def children(self, folder: str) -> list[tuple[str, FileLocation | None]]:
        """See :meth:`Listing.children`."""
        if not folder and "" not in self._sections:
            return [(name, None) for name in self._sections]
        listing = self._section(folder)
        return [] if listing is None else listing.children(folder)

    def is_folder(self, path: str) -> bool:
        """Whether there is anything below ``path``. The top is a folder, even an empty one."""
        return not path or path in self._sections or bool(self.children(path))

    def _section(self, path: str) -> Listing | None:
        name = "" if "" in self._sections else path.partition("/")[0]
        if name not in self._sections:
            return None
        with self._lock:
            if name not in self._listed:
                self._listed[name] = Listing(self._sections[name]())
            return self._listed[name]


def checkpoint_contents(
    generation: Generation, manifest: CheckpointManifest, store: Store
) -> Contents:
    """The published tree. Its paths were checked when the manifest was read."""
    files = {file.path: _whole(store, file.path, file.object) for file in manifest.files}
    return Contents(generation, {"": lambda: files})


def dataset_contents(
    generation: Generation, manifest: Manifest, store: Store, open_source: Opener
) -> Contents:
    """``tables/``, ``files/`` and ``shards/`` of a data set.

    Args:
        generation: of the data set.
        manifest: its own.
        store: the repository.
        open_source: opens the store of data that was left in place, by its URL.
    """
    columns: list[list[FileLocation]] = []
    sources: dict[str, Store] = {}

    def source(url: str) -> Store:
        if url not in sources:
            sources[url] = open_source(url)
        return sources[url]

    def rows() -> list[list[FileLocation]]:
        if not columns:
            columns.extend(_stored(part, manifest, store, source) for part in manifest.parts)
        return columns

    return Contents(
        generation,
        {
            "files": lambda: _named(rows()),
            "shards": lambda: _shards(rows(), store),
            "tables": lambda: _tables(manifest, store),
        },
    )


def _tables(manifest: Manifest, store: Store) -> Files:
    found: dict[str, FileLocation] = {}
    for number, part in enumerate(manifest.parts):
        refs: dict[Table, TableRef | None] = {
            Table.FILES: part.files,
            Table.STREAMS: part.streams,
            Table.SAMPLES: part.samples,
            Table.QUARANTINE: part.quarantine,
        }
        for kind, ref in refs.items():
            if ref is not None:
                path = f"tables/{kind}/part-{number:05d}.parquet"
                found[path] = FileLocation(path, store, ref.key, 0, ref.size_bytes, None)
    return found


def _stored(part: Part, manifest: Manifest, store: Store, source: Opener) -> list[FileLocation]:
    """Every file of a part, in the table's order.

    Raises:
        CorruptDataError: a name or a place that no file can have.
    """
    ref = part.files
    data = fetch_object(store, ref.key, ref.size_bytes, ref.sha256)
    table = read_table(data, _FILE_COLUMNS, rows=ref.rows)
    found: list[FileLocation] = []
    for name, key, number, offset, size, etag, version in zip(
        *(table[column] for column in _FILE_COLUMNS), strict=True
    ):
        here = int(number) == REPOSITORY
        try:
            check_key(str(name))
            check_key(str(key))
        except InvalidInputError as error:
            raise CorruptDataError(f"{ref.key}: {error}", key=ref.key, path=str(name)) from error
        if offset < 0 or size < 0:
            raise CorruptDataError(
                f"{ref.key}: file {str(name)[:200]!r} has {size} bytes at {offset}", key=ref.key
            )
        found.append(
            FileLocation(
                str(name),
                store if here else source(manifest.sources[part.source]),
                str(key),
                int(offset),
                int(size),
                # A shard is written once, under a name of its own; the source's ETag is not its.
                etag=None if here else str(etag),
                version=None if here or version is None else str(version),
            )
        )
    return found


def _named(parts: Iterable[list[FileLocation]]) -> Files:
    """Files by name; where parts share a name, the later ones' lie below ``part-00001/``."""
    found: dict[str, FileLocation] = {}
    for number, files in enumerate(parts):
        for file in files:
            path = f"files/{file.name}"
            if path in found:
                path = f"files/part-{number:05d}/{file.name}"
            if path in found:
                raise CorruptDataError(f"two files of a part are called {file.name!r:.200}")
            found[path] = file
    return found


def _shards(parts: Iterable[list[FileLocation]], store: Store) -> Files:
    """Tar shards as they are; one listing for each upload session tells their sizes."""
    keys = {file.key for files in parts for file in files if file.store is store}
    folders = {key.rpartition("/")[0] for key in keys}
    found: dict[str, FileLocation] = {}
    for folder in sorted(folders):
        for info in store.list(f"{folder}/", purpose=Purpose.LISTING):
            if info.key in keys:
                path = f"shards/{info.key.rpartition('/')[2]}"
                found[path] = FileLocation(path, store, info.key, 0, info.size_bytes, None)
    return found


def _whole(store: Store, path: str, ref: ObjectRef) -> FileLocation:
    return FileLocation(path, store, ref.key, 0, ref.size_bytes, None)
