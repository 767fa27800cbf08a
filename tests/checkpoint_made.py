"""Small checkpoints for tests: folders, and what a repository holds of them."""

from __future__ import annotations

from pathlib import Path

from dstream.catalog import Catalog
from dstream.checkpoint.repository import checkpoint_of
from dstream.checkpoint.staging import SMALL_BYTES

LARGE_BYTES = 2 * SMALL_BYTES + 12345


def make_folder(root: Path, *, salt: int = 0, large: bool = False) -> Path:
    """A folder of a few files, one of them executable, one empty, one hidden."""
    (root / "model").mkdir(parents=True)
    (root / "model" / "weights.bin").write_bytes(bytes([salt]) * 1000)
    (root / "model" / "bias.bin").write_bytes(b"b" * 10)
    (root / ".metadata").write_bytes(b"m")
    (root / "empty.txt").write_bytes(b"")
    (root / "run.sh").write_text("#!/bin/sh")
    (root / "run.sh").chmod(0o755)
    if large:
        # No block is like another, so that one in the wrong place shows.
        blocks = (
            (number * 7 + salt).to_bytes(4, "big") * 1024
            for number in range(LARGE_BYTES // 4096 + 1)
        )
        (root / "large.bin").write_bytes(b"".join(blocks)[:LARGE_BYTES])
    return root


def files_in(folder: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file, without fetch's own note."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".dstream-generation.json"
    }


def stored_files(catalog: Catalog, reference: str) -> dict[str, bytes]:
    """The same of a generation, read object by object."""
    manifest = checkpoint_of(catalog, catalog.resolve(reference))
    return {f.path: catalog.store.get(f.object.key).data for f in manifest.files}
