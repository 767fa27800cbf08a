"""From a source to the videos in it and what lies beside them, in one fixed order."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import xxhash

from dstream.errors import (
    DstreamError,
    InvalidInputError,
    MediaReason,
    NotFoundError,
    PermissionDeniedError,
)
from dstream.ingest.settings import IngestSettings, Quarantined, Share
from dstream.measure import Meter, Purpose
from dstream.media.kinds import (
    SNIFF_BYTES,
    is_hidden,
    kind_by_name,
    looks_like_video,
    stem_of,
    suffix_of,
)
from dstream.recipe import FileKind
from dstream.store.base import ObjectInfo, Store, check_key

_FORMAT_MARK = "_ds/format.json"

KindOf = Callable[[str], bool | None]
"""As :func:`kind_by_name`: True for a file that gives samples, None where its bytes decide."""


class SkipLog:
    """Collects what a source's listing leaves out; give it to ``open_store`` as ``on_skip``."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []
        """(printable name, reason) in the order of the listing."""

    def __call__(self, name: str, reason: str) -> None:
        """Remember one entry."""
        self.entries.append((name, reason))


@dataclass(frozen=True, slots=True)
class Unit:
    """Files that stay together: the videos of one folder and stem, and what lies beside them."""

    stem: str
    """Folder and stem: what identifies it, whichever files come and go."""
    videos: tuple[ObjectInfo, ...]
    side: tuple[ObjectInfo, ...]

    @property
    def objects(self) -> tuple[ObjectInfo, ...]:
        """All its files, videos first."""
        return self.videos + self.side

    @property
    def size_bytes(self) -> int:
        """Sum of all its files."""
        return sum(info.size_bytes for info in self.objects)


@dataclass(frozen=True, slots=True)
class Scan:
    """A source's content."""

    units: tuple[Unit, ...]
    """In byte order of their names."""
    quarantined: tuple[Quarantined, ...] = field(default=())
    """Videos that cannot be named or read."""
    listed: int = 0
    """Objects in the source."""


def scan(
    source: Store,
    settings: IngestSettings,
    meter: Meter,
    skips: SkipLog | None = None,
    files: FileKind | None = None,
) -> Scan:
    """List a source and find its videos, or the files of another kind.

    Raises:
        NotFoundError: there is no such source, or no video in it.
        PermissionDeniedError: the source itself cannot be listed.
    """
    skips = skips or SkipLog()
    objects = list(source.list(purpose=Purpose.LISTING))
    kind_of = kind_by_name if files is None else partial(_has_suffix, files.suffixes)
    usable, bad = _usable(source.url, objects, settings, meter, kind_of)
    bad += _left_out(source.url, skips.entries, meter, kind_of)
    videos, others = _sorted_out(source, usable, settings.workers, meter, kind_of)
    units = make_units(videos, others)
    if not units and not bad:
        told = _nothing_found(source.url, len(objects), settings, files)
        raise NotFoundError(told, source=source.url)
    bad.sort(key=lambda row: row.name)
    return Scan(units, tuple(bad), len(objects))


def _has_suffix(suffixes: frozenset[str], name: str) -> bool:
    return suffix_of(name) in suffixes


def in_share(stem: str, share: Share) -> bool:
    """Whether a unit belongs to a job: by its stem alone, so that a later listing agrees."""
    return xxhash.xxh3_64_intdigest(stem.encode()) % share.count == share.index - 1


def make_units(videos: Iterable[ObjectInfo], others: Iterable[ObjectInfo]) -> tuple[Unit, ...]:
    """Videos by folder and stem, each with the other files whose name goes on after the stem.

    A file between two stems (``run7.left.json`` beside ``run7.mp4`` and ``run7.left.mp4``)
    belongs to the longer one.
    """
    by_stem: dict[str, list[ObjectInfo]] = {}
    for info in videos:
        by_stem.setdefault(stem_of(info.key), []).append(info)
    side: dict[str, list[ObjectInfo]] = {}
    for info in others:
        stem = info.key
        folder_length = info.key.rfind("/") + 1
        while (dot := stem.rfind(".", folder_length + 1)) >= 0:
            stem = stem[:dot]
            if stem in by_stem:
                side.setdefault(stem, []).append(info)
                break
    units = [
        Unit(
            stem,
            tuple(sorted(found, key=lambda info: info.key.encode())),
            tuple(sorted(side.get(stem, ()), key=lambda info: info.key.encode())),
        )
        for stem, found in by_stem.items()
    ]
    return tuple(sorted(units, key=lambda unit: unit.videos[0].key.encode()))


def _usable(
    url: str,
    objects: Sequence[ObjectInfo],
    settings: IngestSettings,
    meter: Meter,
    kind_of: KindOf,
) -> tuple[list[ObjectInfo], list[Quarantined]]:
    """What may be read, and videos whose names cannot be used."""
    wanted = _wanted(settings)
    repositories = tuple(
        info.key.removesuffix(_FORMAT_MARK) for info in objects if _is_format_mark(info.key)
    )
    usable: list[ObjectInfo] = []
    bad: list[Quarantined] = []
    for info in objects:
        if info.key.endswith("/"):
            continue  # a folder's marker, as consoles make them
        if is_hidden(info.key):
            meter.event("scan-skip", "hidden")
        elif repositories and _inside(info.key, repositories):
            meter.event("scan-skip", "inside-a-repository")
        elif not wanted(info.key):
            meter.event("scan-skip", "not-wanted")
        else:
            fault = _name_fault(info.key)
            if fault is None:
                usable.append(info)
            elif kind_of(info.key) is not False:
                bad.append(_bad(url, info.key, MediaReason.BAD_NAME, fault, info))
            else:
                meter.event("scan-skip", "bad-name")
    return usable, bad


def _wanted(settings: IngestSettings) -> Callable[[str], bool]:
    def wanted(name: str) -> bool:
        if not settings.recursive and "/" in name:
            return False
        if settings.include and not any(fnmatch.fnmatchcase(name, p) for p in settings.include):
            return False
        if name in settings.quarantine:
            return False
        return not any(fnmatch.fnmatchcase(name, p) for p in settings.exclude)

    return wanted


def _is_format_mark(key: str) -> bool:
    return key == _FORMAT_MARK or key.endswith("/" + _FORMAT_MARK)


def _inside(key: str, repositories: tuple[str, ...]) -> bool:
    return any(key.startswith((f"{prefix}_ds/", f"{prefix}data/")) for prefix in repositories)


def _name_fault(name: str) -> str | None:
    try:
        check_key(name)
    except InvalidInputError as error:
        return str(error)
    return None


_LISTING_REASONS = {
    "bad-name": (MediaReason.BAD_NAME, "its name cannot be a key"),
    "no-permission": (MediaReason.UNREADABLE, "no permission to read it"),
    "unreadable": (MediaReason.UNREADABLE, "it cannot be read"),
    "dangling-link": (MediaReason.UNREADABLE, "a link to nothing"),
    "symlink-loop": (MediaReason.UNREADABLE, "a link that leads back to itself"),
}


def _left_out(
    url: str, entries: Sequence[tuple[str, str]], meter: Meter, kind_of: KindOf
) -> list[Quarantined]:
    """Quarantine rows for what the listing could not give and may have been video."""
    rows: list[Quarantined] = []
    for name, reason in entries:
        known = _LISTING_REASONS.get(reason)
        is_folder = name.endswith("/")
        unread_folder = is_folder and reason != "symlink-loop"
        if known is None or not (unread_folder or kind_of(name) is True):
            meter.event("scan-skip", reason)
            continue
        what = f"folder: {known[1]}" if is_folder else known[1]
        rows.append(_bad(url, name, known[0], what))
    return rows


def _bad(
    url: str, name: str, reason: MediaReason, detail: str, info: ObjectInfo | None = None
) -> Quarantined:
    shown = name.encode("utf-8", "backslashreplace").decode()
    return Quarantined(
        shown,
        f"{url}/{shown}",
        info.size_bytes if info else 0,
        info.etag if info else "",
        str(reason),
        detail.encode("utf-8", "backslashreplace").decode(),
    )


def _sorted_out(
    source: Store, usable: Sequence[ObjectInfo], workers: int, meter: Meter, kind_of: KindOf
) -> tuple[list[ObjectInfo], list[ObjectInfo]]:
    """(videos, other files); files of unknown kind are opened to see."""
    kinds = [kind_of(info.key) for info in usable]
    unknown = [info for info, kind in zip(usable, kinds, strict=True) if kind is None]

    def sniff(info: ObjectInfo) -> bool:
        if info.size_bytes == 0:
            return False
        stop = min(SNIFF_BYTES, info.size_bytes)
        try:
            head = source.get(info.key, 0, stop, purpose=Purpose.INDEX).data
        except DstreamError as error:
            if not isinstance(error, PermissionDeniedError | NotFoundError):
                raise
            meter.event("scan-skip", "unreadable")
            return False
        return looks_like_video(head)

    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="dstream-sniff") as pool:
        found = {
            info.key
            for info, is_video in zip(unknown, pool.map(sniff, unknown), strict=True)
            if is_video
        }
    videos = [i for i, kind in zip(usable, kinds, strict=True) if kind or i.key in found]
    others = [i for i, kind in zip(usable, kinds, strict=True) if not kind and i.key not in found]
    return videos, others


def _nothing_found(url: str, listed: int, settings: IngestSettings, files: FileKind | None) -> str:
    chosen = ""
    chosen_by = settings.include, settings.exclude, settings.quarantine
    if any(chosen_by) or not settings.recursive:
        chosen = " that the patterns and options let through"
    seen = "it is empty" if listed == 0 else f"none of its {listed} files is one"
    if files is not None:
        wanted = ", ".join(sorted(files.suffixes))
        return f"no files of this recipe in {url}{chosen}: {seen}; it takes {wanted}"
    suffixes = ", ".join(sorted(VIDEO_EXAMPLES))
    return (
        f"no videos in {url}{chosen}: {seen}; files are taken by suffix ({suffixes} ...) or by "
        "their first bytes"
    )


VIDEO_EXAMPLES = (".mp4", ".mov", ".mkv", ".webm", ".ts", ".avi")
