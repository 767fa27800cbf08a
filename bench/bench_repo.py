"""A repository for the benchmarks: videos ingested where they lie."""

from __future__ import annotations

import subprocess
import sys

from dstream.catalog import Catalog
from dstream.store.opening import open_store

NAME = "bench"
"""Of the artifact."""


def ingest_in_place(repo: str, source: str) -> None:
    """Make the repository unless it is there, and index the videos of ``source`` in it."""
    Catalog.create(open_store(repo), exist_ok=True)
    command = [sys.executable, "-m", "dstream_cli", "ingest", source, "--name", NAME]
    subprocess.run(
        [*command, "--in-place", "--repo", repo, "--json"], stdout=subprocess.DEVNULL, check=True
    )
