"""Small sources to ingest, and ways to look at what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dstream.catalog import Catalog
from dstream.format.index import VideoIndex
from dstream.format.index_codec import decode_index_entry
from dstream.format.manifest import Manifest
from dstream.format.root import Generation
from dstream.format.tables import read_table
from dstream.ingest import IngestResult, IngestSettings, SkipLog, ingest
from dstream.measure import Meter
from dstream.store.base import Store
from dstream.store.opening import StoreOptions, open_store
from dstream_recipes.video import RECIPE
from made_video import make_video

SMALL = {"frames": 12, "size": (64, 48), "gop": 6, "b_frames": 1}


@lru_cache(maxsize=64)
def video_bytes(seed: int = 0, container: str = "mp4", frames: int = 12) -> bytes:
    """A small video; another seed, other bytes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "video"
        make_video(path, **{**SMALL, "frames": frames}, container=container, seed=seed)  # type: ignore[arg-type]
        return path.read_bytes()


def fill(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def some_videos(count: int, folder: str = "", first: int = 0) -> dict[str, bytes]:
    """``v000.mp4`` and so on, each of its own content."""
    return {
        f"{folder}v{number:03d}.mp4": video_bytes(number) for number in range(first, first + count)
    }


@dataclass
class Place:
    """A repository and a source, and one meter for both."""

    repository: Store
    source: Store
    catalog: Catalog
    meter: Meter
    skips: SkipLog = field(default_factory=SkipLog)

    def ingest(self, name: str = "clips", recipe: Any = RECIPE, **settings: Any) -> IngestResult:
        """Ingest the source."""
        self.skips.entries.clear()
        progress = settings.pop("progress", None)
        settings.setdefault("workers", 2)
        return ingest(
            self.catalog,
            self.source,
            name,
            recipe=recipe,
            settings=IngestSettings(**settings),
            progress=progress,
            meter=self.meter,
            skips=self.skips,
        )

    def objects(self, suffix: str = "") -> list[str]:
        """Keys of the repository's objects that end so."""
        return [info.key for info in self.repository.list() if info.key.endswith(suffix)]


def place(
    repository_url: str | Path, source_url: str | Path, options: StoreOptions | None = None
) -> Place:
    """Open (or create) a repository beside a source."""
    meter = Meter()
    skips = SkipLog()
    repository = open_store(repository_url, options=options, meter=meter)
    source = open_store(source_url, options=options, meter=meter, on_skip=skips)
    catalog = Catalog.create(repository, exist_ok=True)
    return Place(repository, source, catalog, meter, skips)


@dataclass(frozen=True)
class Content:
    """All tables of a generation, its parts joined and their row numbers shifted."""

    manifest: Manifest
    files: list[dict[str, Any]]
    streams: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    quarantine: list[dict[str, Any]]

    @property
    def keys(self) -> list[str]:
        """Sample keys."""
        return [row["key"] for row in self.samples]


def content(catalog: Catalog, generation: Generation | str) -> Content:
    """Read everything of a generation and check that its rows fit each other."""
    if isinstance(generation, str):
        generation = catalog.resolve(generation)
    manifest = catalog.dataset(generation)
    found = Content(manifest, [], [], [], [])
    for part in manifest.parts:
        files, streams = _rows(catalog, part.files), _rows(catalog, part.streams)
        samples = _rows(catalog, part.samples)
        for row in streams:
            assert 0 <= row["file"] < len(files)
            row["file"] += len(found.files)
        for row in samples:
            assert row["streams"]
            assert all(0 <= i < len(streams) for i in row["streams"])
            row["streams"] = [int(i) + len(found.streams) for i in row["streams"]]
            row["side"] = [int(i) + len(found.files) for i in row["side"]]
        found.files.extend(files)
        found.streams.extend(streams)
        found.samples.extend(samples)
        if part.quarantine is not None:
            found.quarantine.extend(_rows(catalog, part.quarantine))
    totals = manifest.totals
    assert (totals.files, totals.streams, totals.samples, totals.quarantined) == (
        len(found.files),
        len(found.streams),
        len(found.samples),
        len(found.quarantine),
    )
    assert len(set(found.keys)) == len(found.keys)
    return found


def stored_bytes(place: Place, row: Mapping[str, Any]) -> bytes:
    """The bytes of a row of the file table."""
    store = place.repository if row["store"] < 0 else place.source
    start = int(row["offset_bytes"])
    return store.get(row["object"], start, start + int(row["size_bytes"])).data


def stored_index(place: Place, row: Mapping[str, Any]) -> VideoIndex:
    """The index of a row of the stream table."""
    start = int(row["index_offset_bytes"])
    stop = start + int(row["index_size_bytes"])
    return decode_index_entry(place.repository.get(row["index_object"], start, stop).data)


def check_bytes(place: Place, found: Content, files: Mapping[str, bytes]) -> None:
    """Every stored file holds exactly the source's bytes."""
    for row in found.files:
        assert stored_bytes(place, row) == files[row["name"]], row["name"]


def _rows(catalog: Catalog, ref: Any) -> list[dict[str, Any]]:
    columns = read_table(catalog.store.get(ref.key).data)
    values = {name: _plain(column) for name, column in columns.items()}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    assert len(rows) == ref.rows
    return rows


def _plain(column: NDArray[Any]) -> list[Any]:
    items: list[Any] = column.tolist()
    return [item.tolist() if isinstance(item, np.ndarray) else item for item in items]
