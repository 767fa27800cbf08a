"""The manifest of a dataset generation: which tables make it up, as zstd-compressed JSON.

It names table parts, never single files, so it stays small at any number of files. An append
adds parts and keeps the earlier ones as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dstream.errors import ConflictError, CorruptDataError, FormatVersionError
from dstream.format.zjson import decode_document, encode_document

VERSION = 1
MIN_READER = 1
"""The oldest reader that understands what this one writes."""

MAX_MANIFEST_BYTES = 32 << 20
"""Unpacked size beyond which a manifest is taken for damage: some 30,000 parts."""

LAYOUTS = ("packed", "in_place")


@dataclass(frozen=True, slots=True)
class TableRef:
    """One Parquet table of the repository."""

    key: str
    size_bytes: int
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class ObjectCount:
    """How many objects of a kind a part has, and their bytes. The tables name them."""

    count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that were published together. Row numbers in its tables refer to its own tables."""

    files: TableRef
    streams: TableRef
    samples: TableRef
    quarantine: TableRef | None
    layout: str
    """``packed`` or ``in_place``."""
    source: int
    """Which of ``Manifest.sources`` the files came from (``files.store`` 0 reads from it)."""
    indexes: ObjectCount = ObjectCount()
    """Index groups; ``streams.index_object`` names them."""
    shards: ObjectCount = ObjectCount()
    """Tar shards; ``files.object`` names them."""


@dataclass(frozen=True, slots=True)
class RecipeRef:
    """What made samples of files."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all parts."""

    files: int = 0
    """Stored files, side files included."""
    bytes: int = 0
    """Their sizes."""
    samples: int = 0
    streams: int = 0
    duration_s: float = 0.0
    """Length of all streams."""
    quarantined: int = 0

    def plus(self, other: Totals) -> Totals:
        """Field-wise sum."""
        return Totals(
            *(getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self))
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """One dataset generation."""

    recipe: RecipeRef
    sources: tuple[str, ...]
    """URLs of the sources, without credentials."""
    parts: tuple[Part, ...]
    totals: Totals
    tool: str
    """Name and version of the program that wrote it."""
    kind: str = "dataset"

    def source_url(self, part: Part, store: int) -> str | None:
        """Where a file of ``part`` with this ``files.store`` lies; None for the repository."""
        return None if store < 0 else self.sources[part.source]


def merge_manifests(base: Manifest | None, new: Manifest) -> Manifest:
    """What an append publishes: the parts of ``base``, then those of ``new``.

    Parts keep their tables; only their places in the list of sources move.

    Raises:
        ConflictError: the two were made by different recipes.
    """
    if base is None:
        return new
    if (base.recipe.name, dict(base.recipe.params)) != (new.recipe.name, dict(new.recipe.params)):
        raise ConflictError(
            f"the dataset was made by recipe {base.recipe.name} {dict(base.recipe.params)}, this "
            f"append by {new.recipe.name} {dict(new.recipe.params)}: use the same recipe, "
            "replace the dataset, or publish under another name",
            base=base.recipe.name,
            new=new.recipe.name,
        )
    sources = list(base.sources)
    for url in new.sources:
        if url not in sources:
            sources.append(url)
    moved = tuple(
        dataclasses.replace(part, source=sources.index(new.sources[part.source]))
        for part in new.parts
    )
    return dataclasses.replace(
        new,
        sources=tuple(sources),
        parts=base.parts + moved,
        totals=base.totals.plus(new.totals),
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's bytes; equal manifests give equal bytes.

    Raises:
        RefusedError: its text is longer than ``MAX_MANIFEST_BYTES``, so it could not be read.
    """
    document = dataclasses.asdict(manifest)
    document["recipe"]["params"] = dict(manifest.recipe.params)
    document["version"] = VERSION
    document["min_reader"] = MIN_READER
    return encode_document(document, max_bytes=MAX_MANIFEST_BYTES, where="manifest")


def decode_manifest(data: bytes) -> Manifest:
    """The manifest that :func:`encode_manifest` got. Unknown fields are ignored.

    Raises:
        CorruptDataError: no manifest, damaged, or impossibly large.
        FormatVersionError: a newer dstream wrote it and older readers must not read it.
    """
    document: dict[str, Any] = decode_document(data, max_bytes=MAX_MANIFEST_BYTES, where="manifest")
    try:
        if int(document["min_reader"]) > VERSION:
            raise FormatVersionError(
                f"manifest: written in format {document['version']}, which needs a reader of "
                f"format {document['min_reader']}; this dstream reads up to {VERSION}: update it",
                min_reader=document["min_reader"],
            )
        parts = tuple(_part(part) for part in document["parts"])
        manifest = Manifest(
            kind=str(document["kind"]),
            recipe=RecipeRef(str(document["recipe"]["name"]), dict(document["recipe"]["params"])),
            sources=tuple(str(url) for url in document["sources"]),
            parts=parts,
            totals=_build(Totals, document["totals"]),
            tool=str(document["tool"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"manifest: its content cannot be read: {error!r}") from error
    for part in parts:
        if not 0 <= part.source < len(manifest.sources) or part.layout not in LAYOUTS:
            raise CorruptDataError(f"manifest: a part has source {part.source}, {part.layout!r}")
    return manifest


def _part(document: Mapping[str, Any]) -> Part:
    quarantine = document["quarantine"]
    return Part(
        files=_build(TableRef, document["files"]),
        streams=_build(TableRef, document["streams"]),
        samples=_build(TableRef, document["samples"]),
        quarantine=None if quarantine is None else _build(TableRef, quarantine),
        layout=str(document["layout"]),
        source=int(document["source"]),
        indexes=_build(ObjectCount, document["indexes"]),
        shards=_build(ObjectCount, document["shards"]),
    )


def _build(cls: type[Any], document: Mapping[str, Any]) -> Any:
    """A flat dataclass from a JSON object, its values checked by their type."""
    values: dict[str, Any] = {}
    for spec in dataclasses.fields(cls):
        value = document[spec.name]
        wanted = {"int": int, "str": str, "float": float}[str(spec.type)]
        if wanted is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ValueError(f"{cls.__name__}.{spec.name} is {value!r:.60}")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{cls.__name__}.{spec.name} is negative")
        values[spec.name] = value
    return cls(**values)
