"""Every file of the media folder, in the way it is streamed, against the table of outcomes."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from media_outcomes import EXACT, OUTCOMES, outcome_on_disk, videos

TABLE: dict[str, str] = json.loads(OUTCOMES.read_text())


@pytest.mark.media
def test_every_real_file_gives_exact_clips_or_its_known_reason(media_dir: Path) -> None:
    paths = sorted(videos(media_dir), key=lambda path: path.stat().st_size, reverse=True)
    # Other processes, so that a file that hangs or crashes libav ends a worker, not the tests.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), mp_context=spawn) as pool:
        found = dict(zip(paths, pool.map(outcome_on_disk, paths), strict=True))
    names = {str(path.relative_to(media_dir)): outcome for path, outcome in found.items()}
    different = {
        name: f"{outcome.outcome}, not {TABLE.get(name)}: {outcome.detail}"
        for name, outcome in names.items()
        if outcome.outcome != TABLE.get(name)
    }
    assert different == {}
    assert names.keys() == TABLE.keys()


def test_the_table_counts_what_is_streamed() -> None:
    assert len(TABLE) == 136
    assert sum(outcome == EXACT for outcome in TABLE.values()) == 81
