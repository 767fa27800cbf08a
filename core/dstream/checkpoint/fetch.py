"""Fetching a checkpoint: assemble it under a hidden name, check every byte, rename once."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from dstream.catalog import Catalog, Generation
from dstream.checkpoint.download import Downloader
from dstream.checkpoint.layout import Place, place_for
from dstream.checkpoint.marker import is_complete, marker_document, write_marker
from dstream.checkpoint.progress import Progress, Tally
from dstream.checkpoint.repository import Repository, checkpoint_of, opened
from dstream.checkpoint.swap import is_free, open_staging, put_in_place, retire, sweep
from dstream.checkpoint.tree import Tree, told
from dstream.errors import RefusedError
from dstream.format.checkpoint import CheckpointManifest
from dstream.format.paths import MARKER_NAME
from dstream.measure import Meter

STAGING_PREFIX = ".dstream-fetch-"
THREADS = 8


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch did."""

    generation: Generation
    path: Path
    """The checkpoint's folder."""
    files: int
    size_bytes: int
    kept_files: int
    """Files that an interrupted fetch had finished."""
    was_there: bool
    """The folder was complete already; nothing was read."""


def fetch(
    repo: Repository,
    reference: str,
    dest: str | os.PathLike[str],
    *,
    layout: str = "plain",
    replace: bool = False,
    threads: int = THREADS,
    progress: Progress | None = None,
    meter: Meter | None = None,
    sync: bool = True,
) -> Fetched:
    """Fetch a checkpoint into a folder that appears whole, or not at all.

    It is assembled under a hidden name beside ``dest``, every file is checked against its
    SHA-256, and one rename puts it in place. A fetch that was interrupted leaves the hidden
    folder; the next one of the same generation goes on with it. A folder that is this very
    generation already is left alone.

    Args:
        repo: the repository.
        reference: ``name``, ``name@v3``, ``name@alias`` or ``name@newest``.
        dest: the folder to make; for the other layouts the folder of the run, in which the
            checkpoint's folder is made.
        layout: how the checkpoint's folder is called; see :data:`dstream.checkpoint.LAYOUTS`.
        replace: take the place of another folder that is there; it is exchanged by one rename
            and then deleted.
        threads: reads at the same time.
        progress: told now and then, by one thread at a time.
        meter: counts files that had to be fetched twice, and fallbacks.
        sync: make everything durable before the rename, so that a power cut does not leave an
            empty file in a complete folder.

    Raises:
        NotFoundError: there is no such generation, or it has been collected.
        InvalidInputError: it is no checkpoint, or an unusable destination or layout.
        RefusedError: something else is at the destination, or a link is in the way.
        ConflictError: another process is fetching the same to the same place.
        CorruptDataError: stored bytes are gone or are not what was published, or the manifest
            names what must not be written; the object or the file is named.
    """
    meter = meter or Meter()
    with opened(repo) as catalog:
        generation = catalog.resolve(reference)
        manifest = checkpoint_of(catalog, generation)
        place = place_for(layout, dest, generation)
        with told(place.root):
            os.makedirs(place.root, exist_ok=True)
        folder, _, name = place.relative.rpartition("/")
        with Tree.at(place.root) as root, root.folder(folder, make=True) as parent:
            job = _Fetch(catalog, generation, manifest, place, root, parent, name, meter)
            return job.run(replace, threads, progress, sync)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One fetch, with its folders open."""

    catalog: Catalog
    generation: Generation
    manifest: CheckpointManifest
    place: Place
    root: Tree
    parent: Tree
    name: str
    meter: Meter

    def run(self, replace: bool, threads: int, progress: Progress | None, sync: bool) -> Fetched:
        tally = Tally(len(self.manifest.files), self.manifest.size_bytes, progress)
        was_there = self._is_there(replace)
        if was_there:
            # Left behind where a fetch was killed between exchanging and deleting.
            if self.root.status(self._staging) is not None:
                with open_staging(self.root, self._staging):
                    retire(self.root, self._staging)
        else:
            with open_staging(self.root, self._staging) as staging:
                self._fill(staging, threads, tally, sync)
                put_in_place(
                    self.root,
                    self._staging,
                    self.parent,
                    self.name,
                    replace=replace,
                    meter=self.meter,
                )
        sweep(self.root, self.meter)
        return Fetched(
            self.generation,
            self.place.path,
            files=len(self.manifest.files),
            size_bytes=self.manifest.size_bytes,
            kept_files=tally.now.files_kept,
            was_there=was_there,
        )

    @property
    def _staging(self) -> str:
        """The hidden name: the same for every fetch of this generation to this place.

        Made of hexadecimal digits only, since some frameworks search names for a pattern.
        """
        text = f"{self.generation.manifest.sha256}/{self.place.relative}"
        return f"{STAGING_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def _is_there(self, replace: bool) -> bool:
        if is_free(self.parent, self.name):
            return False
        with self.parent.folder(self.name) as there:
            if is_complete(there, self.generation, self.manifest):
                return True
        if not replace:
            raise RefusedError(
                f"{self.place.path} is there already and is not {self.generation.label}, or not "
                "all of it; give --replace to put it in its place, or another destination",
                path=str(self.place.path),
            )
        return False

    def _fill(self, staging: Tree, threads: int, tally: Tally, sync: bool) -> None:
        wanted = {file.path for file in self.manifest.files}
        for path in list(staging.files()):
            if path not in wanted:
                staging.remove(path)
        download = Downloader(
            self.catalog.store, staging, threads=threads, tally=tally, meter=self.meter, sync=sync
        )
        with self.catalog.told_if_gone(self.generation):
            download.run(self.manifest.files)
        write_marker(
            staging, marker_document(self.generation, self.manifest, self.catalog.store.url)
        )
        extra = set(staging.files()) - wanted - {MARKER_NAME}
        if extra:
            raise RefusedError(
                f"somebody wrote {sorted(extra)[0]!r} into {staging.where} while it was filled",
                path=sorted(extra)[0],
            )
        if sync:
            staging.sync()
