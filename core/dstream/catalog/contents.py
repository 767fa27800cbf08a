"""Which objects generations are made of, read from their manifests and tables."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from dstream.catalog.publishing import ManifestObjects
from dstream.errors import CorruptDataError, NotFoundError
from dstream.format.checkpoint import CheckpointManifest
from dstream.format.manifest import Manifest, Part, TableRef
from dstream.format.references import decode_any_manifest, referenced_objects, table_keys
from dstream.format.refs import ObjectRef
from dstream.format.root import Generation, sha256_hex
from dstream.format.tables import Columns, read_table
from dstream.measure import Purpose
from dstream.store.base import Store


class Contents:
    """Reads what generations name. Parts that several generations share are read once."""

    def __init__(self, store: Store, manifests: ManifestObjects) -> None:
        self._store = store
        self._manifests = manifests
        self._parts: dict[tuple[str, str], frozenset[str]] = {}

    def named(self, generation: Generation) -> list[ObjectRef]:
        """The objects that the manifest itself names, with their sizes and hashes.

        Raises:
            NotFoundError: the manifest is gone.
            CorruptDataError: it is damaged, or its kind is unknown.
        """
        return referenced_objects(self._decoded(generation))

    def keys(self, generation: Generation) -> set[str]:
        """Keys of all of a generation's objects in the repository, but not its manifest's.

        Raises:
            NotFoundError: the manifest or a table is gone.
            CorruptDataError: one of them is damaged.
        """
        manifest = self._decoded(generation)
        found = {ref.key for ref in referenced_objects(manifest)}
        if isinstance(manifest, Manifest):
            for part in manifest.parts:
                found |= self.part_keys(part)
        return found

    def part_keys(self, part: Part) -> frozenset[str]:
        """Keys of the shards and index groups that a part's tables name."""
        place = (part.files.key, part.streams.key)
        if place not in self._parts:
            files = self.table(part.files, ("object", "store"))
            streams = self.table(part.streams, ("index_object",))
            self._parts[place] = frozenset(table_keys(files, streams))
        return self._parts[place]

    def table(self, ref: TableRef, columns: tuple[str, ...] | None = None) -> Columns:
        """Columns of a table, its bytes checked; raises as :meth:`keys`."""
        data = self._store.get(ref.key, purpose=Purpose.TABLE).data
        if len(data) != ref.size_bytes or sha256_hex(data) != ref.sha256:
            raise CorruptDataError(
                f"table {ref.key}: {len(data)} bytes that are not those its manifest names",
                key=ref.key,
            )
        return read_table(data, columns, rows=ref.rows)

    def _decoded(self, generation: Generation) -> Manifest | CheckpointManifest:
        data = self._manifests.read_bytes(generation.manifest)
        return decode_any_manifest(generation.kind, data)


class KeptKeys:
    """The keys that must stay, as 64-bit hashes: a collision keeps an object too many.

    Raises:
        CorruptDataError: what a kept generation is made of cannot be read, so that nothing can
            be said to be garbage.
    """

    def __init__(self, contents: Contents, generations: Iterable[Generation]) -> None:
        self._hashes: set[int] = set()
        for generation in generations:
            try:
                keys = contents.keys(generation)
            except (NotFoundError, CorruptDataError) as error:
                if generation.condemned_seq is not None:
                    continue  # on its way out; another sweep is ahead of this one
                raise CorruptDataError(
                    f"{generation.label} is to be kept, but what it is made of cannot be read "
                    f"({error}); nothing was deleted. Restore it, or retire it",
                    name=generation.name,
                    version=generation.version,
                ) from error
            self._hashes.update(xxhash.xxh3_64_intdigest(key.encode()) for key in keys)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and xxhash.xxh3_64_intdigest(key.encode()) in self._hashes
