"""What the processes of the ingest tests run; importable, so that they can be spawned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cut_store import kill_at_change
from ingest_made import place


def ingest_folder(repository: str, source: str, name: str, settings: dict[str, Any]) -> None:
    """Ingest a folder in small groups."""
    place(Path(repository), Path(source)).ingest(
        name, shard_bytes=8_000, group_files=2, workers=2, **settings
    )


def killed_ingest(
    repository: str, source: str, name: str, settings: dict[str, Any], after_changes: int
) -> None:
    """Ingest, and die by SIGKILL just before the ``after_changes``-th change of a folder."""
    kill_at_change(after_changes)
    ingest_folder(repository, source, name, settings)
