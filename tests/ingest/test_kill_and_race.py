from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import numpy as np
import pytest

from dstream.catalog import Catalog
from dstream.ingest import Layout
from dstream.store.opening import open_store
from ingest_made import check_bytes, content, fill, place, some_videos
from ingest_workers import ingest_folder, killed_ingest

FILES = {**some_videos(12), "v004.txt": b"side", "bad.mp4": b"no video"}
KEYS = [f"v{i:03d}.mp4" for i in range(12)]
KILLS = 10
CHANGES = {Layout.PACKED: 70, Layout.IN_PLACE: 46}
"""About as many renames, links and removals as a whole ingest makes."""
PROCESSES = multiprocessing.get_context("spawn")


@pytest.mark.parametrize("layout", list(Layout))
def test_killed_at_ten_random_moments_it_shows_whole_generations_and_completes(
    tmp_path: Path, layout: Layout
) -> None:
    fill(tmp_path / "source", FILES)
    repository = tmp_path / "repo"
    Catalog.create(open_store(repository))
    generator = np.random.default_rng(11)
    killed = 0
    for number, moment in enumerate(generator.integers(1, CHANGES[layout], KILLS)):
        name = f"clips-{number}"
        process = PROCESSES.Process(
            target=killed_ingest,
            args=(
                str(repository),
                str(tmp_path / "source"),
                name,
                {"layout": layout},
                int(moment),
            ),
        )
        process.start()
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL)
        killed += process.exitcode != 0
        catalog = Catalog.open(open_store(repository))
        if name in catalog.names():
            assert sorted(content(catalog, name).keys) == KEYS
        here = place(repository, tmp_path / "source")
        here.ingest(name, shard_bytes=8_000, group_files=2, layout=layout)
        found = content(here.catalog, name)
        assert sorted(found.keys) == KEYS
        check_bytes(here, found, FILES)
        assert len(here.catalog.generations(name)) == 1
        assert not [key for key in here.objects() if key.startswith("_ds/ses/")]
    assert killed >= KILLS - 1


@pytest.mark.parametrize("same_name", [False, True])
@pytest.mark.parametrize("same_source", [False, True])
def test_two_at_once_both_commit_and_lose_nothing(
    tmp_path: Path, same_name: bool, same_source: bool
) -> None:
    fill(tmp_path / "source-0", FILES)
    fill(tmp_path / "source-1", {f"other/{name}": data for name, data in FILES.items()})
    repository = tmp_path / "repo"
    Catalog.create(open_store(repository))
    names = ["clips", "clips" if same_name else "more"]
    sources = [tmp_path / "source-0", tmp_path / f"source-{0 if same_source else 1}"]
    processes = [
        PROCESSES.Process(target=ingest_folder, args=(str(repository), str(source), name, {}))
        for name, source in zip(names, sources, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    here = place(repository, sources[0])
    expected: dict[str, set[str]] = {}
    for name, source in zip(names, sources, strict=True):
        prefix = "" if source == sources[0] else "other/"
        expected.setdefault(name, set()).update(prefix + key for key in KEYS)
    for name, keys in expected.items():
        found = content(here.catalog, name)
        assert set(found.keys) == keys
        check_bytes(here, found, FILES | {f"other/{name}": data for name, data in FILES.items()})
    generations = sum(len(here.catalog.generations(name)) for name in here.catalog.names())
    assert generations == (1 if same_name and same_source else 2)
    again = here.ingest(names[0])
    assert not again.published
