"""What the processes of the ingest tests run; importable, so that they can be spawned."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

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
    left = [after_changes]

    def counted(event: str, _: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.link", "os.remove"):
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(counted)
    ingest_folder(repository, source, name, settings)
