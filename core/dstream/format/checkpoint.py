"""The manifest of a checkpoint generation: its files, as zstd-compressed JSON.

Every file is one object. Objects may belong to earlier generations: an unchanged file is named
again, not stored again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dstream.errors import CorruptDataError, FormatVersionError, InvalidInputError
from dstream.format.fields import Fields
from dstream.format.paths import path_clash, path_fault
from dstream.format.refs import ObjectRef
from dstream.format.zjson import decode_document, encode_document

VERSION = 1
MIN_READER = 1
"""The oldest reader that understands what this one writes."""

KIND = "checkpoint"
MAX_MANIFEST_BYTES = 64 << 20
"""Unpacked size beyond which a manifest is taken for damage: about 250,000 files."""

_MODE_BITS = 0o777


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint."""

    path: str
    """Relative, with ``/``; see :mod:`dstream.format.paths`."""
    object: ObjectRef
    """Where its bytes are; the whole object is the file."""
    mode: int = 0o644
    """Permission bits, without set-user-id and the like."""


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """One checkpoint generation."""

    files: tuple[CheckpointFile, ...]
    """Sorted by path."""
    tool: str
    """Name and version of the program that wrote it."""
    loader_state: Mapping[str, object] | None = field(default=None, hash=False)
    """Where the data loader stood, as JSON; None where it was not given."""
    kind: str = KIND

    @property
    def size_bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(file.object.size_bytes for file in self.files)

    def file(self, path: str) -> CheckpointFile | None:
        """The file of that path, or None."""
        return next((file for file in self.files if file.path == path), None)


def encode_checkpoint(manifest: CheckpointManifest) -> bytes:
    """The manifest's bytes; equal manifests give equal bytes.

    Raises:
        InvalidInputError: a path that cannot be published, paths that clash, or a loader state
            that JSON cannot hold.
    """
    _check_paths([file.path for file in manifest.files], InvalidInputError, "the checkpoint")
    document: dict[str, object] = {
        "version": VERSION,
        "min_reader": MIN_READER,
        "kind": manifest.kind,
        "tool": manifest.tool,
        "files": [
            {"path": file.path, "mode": file.mode & _MODE_BITS, **file.object.as_doc()}
            for file in sorted(manifest.files, key=lambda file: file.path)
        ],
    }
    if manifest.loader_state is not None:
        document["loader_state"] = dict(manifest.loader_state)
    data = encode_document(document)
    # What could not be read back must not be published.
    decode_checkpoint(data)
    return data


def decode_checkpoint(data: bytes, where: str = "manifest") -> CheckpointManifest:
    """The manifest that :func:`encode_checkpoint` got. Unknown fields are ignored.

    Raises:
        CorruptDataError: no checkpoint manifest, damaged, impossibly large, or with paths or
            keys that a fetch must not follow; the path is named.
        FormatVersionError: a newer dstream wrote it and older readers must not read it.
    """
    fields = Fields(decode_document(data, max_bytes=MAX_MANIFEST_BYTES, where=where), where)
    version, min_reader = fields.take("version", int), fields.take("min_reader", int)
    if min_reader > VERSION:
        raise FormatVersionError(
            f"{where}: written in format {version}, which needs a reader of format "
            f"{min_reader}; this dstream reads up to {VERSION}: update it",
            min_reader=min_reader,
        )
    kind = fields.take("kind", str)
    if kind != KIND:
        raise CorruptDataError(f"{where}: holds a {kind[:60]!r}, expected a {KIND}", where=where)
    files = tuple(_file(document, where) for document in fields.take_list("files"))
    _check_paths([file.path for file in files], CorruptDataError, where)
    state = fields.rest().get("loader_state")
    if state is not None and not isinstance(state, dict):
        raise CorruptDataError(f"{where}: its loader_state is no JSON object", where=where)
    return CheckpointManifest(files, fields.take("tool", str), state)


def _file(document: object, where: str) -> CheckpointFile:
    fields = Fields(document, where)
    path = fields.take("path", str)
    reference = ObjectRef.from_doc(document, f"{where}: file {path[:200]!r}")
    fault = path_fault(reference.key)
    if fault is not None:
        raise CorruptDataError(
            f"{where}: file {path[:200]!r}: unusable object name {reference.key[:200]!r}: {fault}",
            path=path,
            where=where,
        )
    return CheckpointFile(path, reference, fields.take("mode", int) & _MODE_BITS)


def _check_paths(
    paths: list[str], error: type[CorruptDataError] | type[InvalidInputError], where: str
) -> None:
    for path in paths:
        fault = path_fault(path)
        if fault is not None:
            raise error(f"{where}: unusable path {path[:200]!r}: {fault}", path=path)
    clash = path_clash(paths)
    if clash is not None:
        one, other = clash
        raise error(
            f"{where}: {one[:200]!r} and {other[:200]!r} cannot both be written: they are the "
            "same to some file systems, or one is a folder of the other",
            path=other,
            clashes_with=one,
        )
