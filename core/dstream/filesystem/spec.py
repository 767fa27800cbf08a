"""The fsspec file system: read-only, of frozen generations, with every read planned."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from dstream.cache.settings import CacheBytes, CacheWish
from dstream.errors import InvalidInputError
from dstream.filesystem.contents import Contents
from dstream.filesystem.frozen import FrozenRepo, missing
from dstream.filesystem.paths import PROTOCOL, join_url, split_url
from dstream.filesystem.plan import ReadPlan, ReadReport, Wanted, plan_reads, report_of
from dstream.loader.source import FileLocation
from dstream.store.options import StoreOptions

THREADS = 8
Info = dict[str, Any]


class DstreamFileSystem(AbstractFileSystem):
    """The files of a repository's generations, as ``NAME@REF/FILE``. See docs/filesystem.md.

    A reference is resolved when it is first used and then means that generation for as long as
    this object lives, wherever it is pickled to. Reads ask for the bytes that are wanted and no
    others. Thread-safe, and usable in forked children.

    Args:
        repo: URL or path of the repository, or a pin's token; a ``dstream://`` URL may have it.
        options: how to reach the stores.
        cache: directory of the node's cache; see :func:`dstream.open`.
        cache_bytes: what it may take.
        block_size: bytes that an opened file reads at least, ahead of its reader; 0 for exactly
            what is asked for.
        max_gap_bytes: ranges at most this far apart become one read.
        threads: reads at the same time of one call.

    Raises:
        InvalidInputError: an argument is impossible.
    """

    protocol = PROTOCOL
    root_marker = ""

    def __init__(
        self,
        repo: str | os.PathLike[str] | None = None,
        *,
        options: StoreOptions | None = None,
        cache: CacheWish = None,
        cache_bytes: CacheBytes = None,
        block_size: int = 0,
        max_gap_bytes: int = 0,
        threads: int = THREADS,
        **fsspec_options: Any,
    ) -> None:
        super().__init__(**fsspec_options)
        if min(block_size, max_gap_bytes) < 0 or threads < 1:
            raise InvalidInputError(
                f"block_size and max_gap_bytes must be at least 0 and threads at least 1, got "
                f"{block_size}, {max_gap_bytes} and {threads}"
            )
        self._block_size = block_size
        self._max_gap_bytes = max_gap_bytes
        url = None if repo is None else os.fspath(repo)
        self._frozen = FrozenRepo(url, options, cache, cache_bytes, threads)

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.storage_args, self.storage_options, dict(self._frozen.labels))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return split_url(os.fspath(path))[1]

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        repo, _ = split_url(path)
        return {} if repo is None else {"repo": repo}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path, with the repository in it."""
        return join_url(self._frozen.url, self._strip_protocol(name))

    @property
    def fsid(self) -> str:
        """Tells file systems of different repositories apart."""
        return f"{PROTOCOL}-{self._frozen.url}"

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What is directly below ``path``, or the file itself."""
        path = self._strip_protocol(path)
        parsed, contents = self._frozen.find(path)
        if contents is None:
            infos = [_folder_info(name) for name in self._frozen.names(parsed.inside)]
        elif (file := contents.file(parsed.inside)) is not None:
            infos = [_file_info(path, file, contents)]
        elif contents.is_folder(parsed.inside):
            infos = [
                _folder_info(f"{parsed.reference}/{inside}")
                if child is None
                else _file_info(f"{parsed.reference}/{inside}", child, contents)
                for inside, child in contents.children(parsed.inside)
            ]
        else:
            raise missing(path)
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> Info:
        """Name, size in bytes, type; of files ``ETag``, ``generation``, ``object``, ``offset``."""
        path = self._strip_protocol(path)
        parsed, contents = self._frozen.find(path)
        if contents is None:
            self._frozen.names(parsed.inside)
            return _folder_info(path)
        file = contents.file(parsed.inside)
        if file is not None:
            return _file_info(path, file, contents)
        if contents.is_folder(parsed.inside):
            return _folder_info(path)
        raise missing(path)

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is a file or folder; other failures than its absence are raised."""
        return self._type(path) is not None

    def isfile(self, path: str) -> bool:
        """Whether ``path`` is a file."""
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        """Whether ``path`` is a folder."""
        return self._type(path) == "directory"

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def checksum(self, path: str) -> int:
        """Equal as long as the bytes are."""
        return int(self.ukey(path), 16)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget what references mean; the next use resolves them again."""
        self._frozen.forget()

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Bytes ``[start, end)`` of a file by one read; negative ones count from its end."""
        return bytes(self._frozen.read([self._wanted(path, start, end)], 0, False)[0])

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Bytes of many ranges: merged where they touch, or lie at most ``max_gap`` bytes apart.

        Errors are returned in their places, or raised with ``on_error="raise"``.
        """
        if not isinstance(paths, list):
            raise TypeError(f"paths must be a list, got {type(paths).__name__}")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        results: list[Any] = [None] * len(paths)
        wanted: dict[int, Wanted] = {}
        for place, given in enumerate(zip(paths, starts, ends, strict=True)):
            try:
                wanted[place] = self._wanted(*given)
            except Exception as error:
                if on_error != "return":
                    raise
                results[place] = error
        gap = self._max_gap_bytes if max_gap is None else max_gap
        found = self._frozen.read(list(wanted.values()), gap, on_error == "return")
        for place, data in zip(wanted, found, strict=True):
            results[place] = data
        return results

    def read_plan(
        self,
        path: str | Sequence[str],
        ranges: Iterable[tuple[int | None, int | None]],
        *,
        max_gap_bytes: int | None = None,
    ) -> ReadPlan:
        """The reads that :meth:`cat_ranges` would make of these ranges. Makes none of them.

        Args:
            path: of all ranges, or one for each.
            ranges: (start, end) in bytes.
            max_gap_bytes: this file system's by default.

        Raises:
            FileNotFoundError: there is no such file.
        """
        ranges = list(ranges)
        paths = [path] * len(ranges) if isinstance(path, str) else path
        return plan_reads(
            [self._wanted(one, *given) for one, given in zip(paths, ranges, strict=True)],
            self._max_gap_bytes if max_gap_bytes is None else max_gap_bytes,
        )

    def report(self) -> ReadReport:
        """What this object has done so far, in this process."""
        return report_of(self._frozen.repo.meter.snapshot())

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        cache_type: str | None = None,
        **_: Any,
    ) -> DstreamFile:
        if mode != "rb":
            self._refuse()
        location, _start, size_bytes = self._wanted(path, None, None)
        block = self._block_size if block_size is None else block_size
        return DstreamFile(
            self,
            path,
            location,
            block_size=block,
            cache_type=cache_type or ("readahead" if block else "none"),
            cache_options=cache_options,
            size=size_bytes,
        )

    def _wanted(self, path: str, start: int | None, end: int | None) -> Wanted:
        return self._frozen.wanted(self._strip_protocol(path), start, end)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError(
            errno.EROFS,
            "dstream:// is read-only; `dstream publish` and `dstream ingest` make generations",
        )

    # The base class would ignore some of these silently.
    mkdir = makedirs = rmdir = rm = rm_file = _rm = touch = cp_file = mv = _refuse
    put_file = pipe_file = _refuse


class DstreamFile(AbstractBufferedFile):
    """A file of a generation, opened for reading."""

    def __init__(
        self, fs: DstreamFileSystem, path: str, location: FileLocation, **named: Any
    ) -> None:
        super().__init__(fs, path, "rb", **named)
        self._location = location

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self.fs, self.path, self.blocksize, self.cache.name, self.loc)

    def _fetch_range(self, start: int, end: int) -> bytes:
        wanted = (self._location, start, max(start, min(end, self.size)))
        return bytes(self.fs._frozen.read([wanted], 0, False)[0])


def _restored(
    args: tuple[Any, ...], options: Mapping[str, Any], labels: dict[str, str]
) -> DstreamFileSystem:
    """In another process: what was resolved already stays what it was."""
    made = DstreamFileSystem(*args, **options, skip_instance_cache=True)
    made._frozen.labels.update(labels)
    return made


def _reopened(
    fs: DstreamFileSystem, path: str, block_size: int, cache_type: str, place: int
) -> DstreamFile:
    file = fs._open(path, block_size=block_size, cache_type=cache_type)
    file.seek(place)
    return file


def _folder_info(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory"}


def _file_info(path: str, file: FileLocation, contents: Contents) -> Info:
    return {
        "name": path,
        "size": file.size_bytes,
        "type": "file",
        "ETag": file.etag,
        "generation": contents.generation.label,
        "object": f"{file.store.url}/{file.key}",
        "offset": file.offset_bytes,
    }
