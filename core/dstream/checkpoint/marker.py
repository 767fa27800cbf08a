"""The note in a fetched folder that says what it is: written last, so it means complete."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping

from dstream.catalog import Generation
from dstream.checkpoint.tree import Tree, told, write_at
from dstream.errors import DstreamError
from dstream.format.checkpoint import MAX_MANIFEST_BYTES, CheckpointManifest
from dstream.format.paths import MARKER_NAME


def marker_document(
    generation: Generation, manifest: CheckpointManifest, url: str
) -> dict[str, object]:
    """What the note says."""
    return {
        "v": 1,
        "repository": url,
        "name": generation.name,
        "version": generation.version,
        "seq": generation.seq,
        "step": generation.step,
        "attrs": dict(generation.attrs),
        "manifest_sha256": generation.manifest.sha256,
        "files": len(manifest.files),
        "bytes": manifest.size_bytes,
        "loader_state": manifest.loader_state,
    }


def write_marker(folder: Tree, document: Mapping[str, object]) -> None:
    """Leave the note, durably."""
    descriptor = folder.create(MARKER_NAME, 0o644)
    try:
        with told(folder.where / MARKER_NAME):
            write_at(descriptor, 0, json.dumps(document, indent=1, sort_keys=True).encode())
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_marker(folder: Tree) -> dict[str, object]:
    """What the note says; empty where there is none, or nothing that can be read."""
    try:
        descriptor = folder.open_existing(MARKER_NAME)
    except DstreamError:
        return {}
    if descriptor is None:
        return {}
    with open(descriptor, "rb") as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def is_complete(folder: Tree, generation: Generation, manifest: CheckpointManifest) -> bool:
    """Whether the folder holds this very generation, by its note and the sizes of its files."""
    if read_marker(folder).get("manifest_sha256") != generation.manifest.sha256:
        return False
    for file in manifest.files:
        parent, _, name = file.path.rpartition("/")
        try:
            with folder.folder(parent) as below:
                status = below.status(name)
        except DstreamError:
            return False
        if status is None or not stat.S_ISREG(status.st_mode):
            return False
        if status.st_size != file.object.size_bytes:
            return False
    return True
