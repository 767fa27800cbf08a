"""Which objects a generation is made of: what collection must keep and verification must find.

A checkpoint's manifest names all of its objects. A dataset's names its tables, and the tables
name shards and index groups: see :func:`table_keys`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dstream.format.checkpoint import KIND as CHECKPOINT
from dstream.format.checkpoint import CheckpointManifest, decode_checkpoint
from dstream.format.manifest import Manifest, decode_manifest
from dstream.format.refs import ObjectRef

IN_REPOSITORY = -1
"""``files.store`` of a file whose object lies in the repository."""


def decode_any_manifest(kind: str, data: bytes) -> Manifest | CheckpointManifest:
    """The manifest of a generation of this kind.

    Raises:
        CorruptDataError, FormatVersionError: as the decoder of that kind.
    """
    return decode_checkpoint(data) if kind == CHECKPOINT else decode_manifest(data)


def referenced_objects(manifest: Manifest | CheckpointManifest) -> list[ObjectRef]:
    """Every object that the manifest itself names, each once, in the manifest's order.

    Of a dataset these are the tables only. The manifest's own object is not among them.
    """
    if isinstance(manifest, CheckpointManifest):
        found = [file.object for file in manifest.files]
    else:
        found = [
            ObjectRef(table.key, table.size_bytes, table.sha256)
            for part in manifest.parts
            for table in (part.files, part.streams, part.samples, part.quarantine)
            if table is not None
        ]
    return list({reference.key: reference for reference in found}.values())


def table_keys(
    files: Mapping[str, Iterable[object]], streams: Mapping[str, Iterable[object]]
) -> set[str]:
    """Keys of the repository's objects that the tables of one part name: shards, index groups.

    Args:
        files: columns ``object`` and ``store`` of the part's files.
        streams: column ``index_object`` of its streams.
    """
    shards = {
        str(key)
        for key, store in zip(files["object"], files["store"], strict=True)
        if store == IN_REPOSITORY
    }
    return shards | {str(key) for key in streams["index_object"]}
