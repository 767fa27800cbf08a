"""What ``show`` tells of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dstream.catalog import Catalog, Generation
from dstream.checkpoint.repository import checkpoint_of
from dstream.units import format_bytes
from dstream_cli.plain import counted
from dstream_cli.render import Facts, Part, Table

Document = dict[str, Any]

_SHOWN_FILES = 12


def checkpoint_facts(catalog: Catalog, generation: Generation) -> Document:
    """What ``show NAME --json`` prints of a checkpoint beside the facts of any generation."""
    manifest = checkpoint_of(catalog, generation)
    return {
        "step": generation.step,
        "tool": manifest.tool,
        "bytes": manifest.size_bytes,
        "loader_state": manifest.loader_state,
        "files": [
            {
                "path": file.path,
                "bytes": file.object.size_bytes,
                "sha256": file.object.sha256,
                "mode": f"{file.mode:04o}",
                "object": file.object.key,
            }
            for file in manifest.files
        ],
    }


def checkpoint_parts(
    document: Document, title: str, facts: Sequence[tuple[str, object]]
) -> list[Part]:
    """The same for people."""
    files = document["files"]
    told: list[tuple[str, object]] = [("kind", "checkpoint"), *facts]
    if document["step"] is not None:
        told.append(("step", f"{document['step']:,}"))
    told.append(("holds", f"{counted(len(files), 'file')}, {format_bytes(document['bytes'])}"))
    if document["loader_state"] is not None:
        told.append(("loader state", "yes"))
    told += [(str(name), value) for name, value in sorted(document["attrs"].items())]
    largest = sorted(files, key=lambda file: -file["bytes"])[:_SHOWN_FILES]
    rows = [(file["path"], format_bytes(file["bytes"])) for file in largest]
    parts: list[Part] = [Facts(told, title=title), Table(("file", ">size"), rows)]
    if len(files) > len(rows):
        parts.append(f"… and {len(files) - len(rows)} smaller files; --json has all")
    return parts
