"""From what a caller calls a repository to its catalog."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Protocol

from dstream.catalog import Catalog, Generation
from dstream.errors import InvalidInputError
from dstream.format.checkpoint import KIND, CheckpointManifest, decode_checkpoint
from dstream.store.base import Store
from dstream.store.opening import open_store


class HasCatalog(Protocol):
    """An open repository, such as ``dstream.open`` gives."""

    @property
    def catalog(self) -> Catalog:
        """Its catalog."""
        ...


Repository = str | os.PathLike[str] | Catalog | HasCatalog
"""A URL or path, an open repository, or its catalog."""


@contextmanager
def opened(repo: Repository) -> Iterator[Catalog]:
    """The repository's catalog. Connections that this opened are closed at the end."""
    if isinstance(repo, str | os.PathLike):
        store = open_store(repo)
        try:
            yield Catalog.open(store)
        finally:
            store.close()
    else:
        yield repo if isinstance(repo, Catalog) else repo.catalog


def parts_of(repo: Repository) -> tuple[Store, Catalog | None]:
    """The repository's store, which can be pickled, and its catalog where one is open."""
    if isinstance(repo, str | os.PathLike):
        return open_store(repo), None
    catalog = repo if isinstance(repo, Catalog) else repo.catalog
    return catalog.store, catalog


def checkpoint_of(catalog: Catalog, generation: Generation) -> CheckpointManifest:
    """The manifest of a checkpoint generation.

    Raises:
        InvalidInputError: the generation is no checkpoint.
        CorruptDataError: the stored manifest is damaged, or names what must not be followed.
    """
    global _last
    if generation.kind != KIND:
        raise InvalidInputError(
            f"{generation.label} is a {generation.kind}, expected a {KIND}", kind=generation.kind
        )
    last = _last
    if last is not None and last[0] == generation.manifest.sha256:
        return last[1]
    data = catalog.manifest_bytes(generation)
    manifest = decode_checkpoint(data, f"manifest of {generation.label}")
    remember(generation, manifest)
    return manifest


def remember(generation: Generation, manifest: CheckpointManifest) -> None:
    """Keep this manifest for the next look at the same generation."""
    global _last
    _last = (generation.manifest.sha256, manifest)


# The last manifest of this process. Known by the hash of its bytes, so it cannot be stale, and
# replaced as a whole, so it needs no lock.
_last: tuple[str, CheckpointManifest] | None = None


def tool() -> str:
    """Name and version of this program, for manifests."""
    try:
        return f"dstream {metadata.version('dstream')}"
    except metadata.PackageNotFoundError:
        return "dstream (from its source)"
