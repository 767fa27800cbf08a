"""Every real file, in place and packed, on a folder and on Ceph: exact clips or a known reason."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import pytest

from acceptance_media import CLIPS_OF_A_KIND, KINDS, MAX_CPU_S, Reference, reference, stream
from dstream.ingest import Layout
from dstream.store.opening import StoreOptions, open_store
from ingest_made import Content, content, place
from media_outcomes import EXACT, OUTCOMES
from s3_services import S3Place, own_bucket

TABLE: dict[str, str] = json.loads(OUTCOMES.read_text())
EXACT_NAMES = sorted(name for name, outcome in TABLE.items() if outcome == EXACT)
PLACES = [(layout, where) for where in ("local", "rgw") for layout in Layout]
PROCESSES = 2


@dataclass(frozen=True)
class Stored:
    """The media folder after one ingest."""

    url: str
    endpoint_url: str | None
    found: Content
    quarantined: dict[str, str]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Other processes, so that a file that hangs or crashes libav ends a worker, not the tests."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as executor:
        yield executor


@pytest.fixture(scope="module")
def references(media_dir: Path, pool: ProcessPoolExecutor) -> dict[str, Reference]:
    """What each file must give in each of the places. Made once, the largest files first."""
    names = sorted(EXACT_NAMES, key=lambda name: -(media_dir / name).stat().st_size)
    found = pool.map(reference, repeat(media_dir), names, repeat(len(PLACES)))
    return {each.name: each for each in found}


@pytest.fixture(scope="module")
def bucket(request: pytest.FixtureRequest, media_dir: Path) -> Iterator[S3Place]:
    with own_bucket(request.getfixturevalue("rgw")) as server:
        store = open_store(f"{server.url}/media", options=server.options)
        for path in sorted(media_dir.rglob("*")):
            if path.is_file():
                store.put(str(path.relative_to(media_dir)), path.read_bytes())
        store.close()
        yield server


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(place, marks=pytest.mark.rgw if place[1] == "rgw" else ()) for place in PLACES
    ],
    ids=lambda place: f"{place[1]}-{place[0]}",
)
def stored(
    request: pytest.FixtureRequest, media_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Stored]:
    layout, where = request.param
    options: StoreOptions | None = None
    source, repository = str(media_dir), str(tmp_path_factory.mktemp("repository") / "repo")
    if where == "rgw":
        server: S3Place = request.getfixturevalue("bucket")
        source, repository = f"{server.url}/media", f"{server.url}/{layout}"
        options = server.options
    here = place(repository, source, options)
    result = here.ingest("media", layout=layout, shard_bytes=4 << 20)
    quarantined = {row.name: row.reason for row in result.quarantined}
    found = content(here.catalog, "media")
    here.source.close()
    here.repository.close()
    return PLACES.index(request.param), Stored(
        repository, options.endpoint_url if options else None, found, quarantined
    )


@pytest.mark.media
def test_media_matrix_only_two_files_have_frames_that_no_decoder_gives(
    references: dict[str, Reference],
) -> None:
    damaged = {name: each.missing_frames for name, each in references.items()}
    assert {name: count for name, count in damaged.items() if count} == {
        "androidx/sample_with_invalid_nalu.mp4": 1,
        "decord/corrupted.mp4": 1,
    }
    clips = [clip for each in references.values() for place in each.clips for clip in place]
    assert sum(clip.is_refused for clip in clips) < len(clips) // 200


@pytest.mark.media
def test_media_matrix_every_file_streams_exactly(
    stored: tuple[int, Stored], references: dict[str, Reference], pool: ProcessPoolExecutor
) -> None:
    number, here = stored
    assert sorted(here.found.keys) == EXACT_NAMES
    names = sorted(references, key=lambda name: -references[name].cpu_s)
    given = list(
        pool.map(
            stream,
            repeat(here.url),
            repeat(here.endpoint_url),
            names,
            [references[name].clips[number] for name in names],
        )
    )
    assert {each.name: each.faults for each in given if each.faults} == {}
    assert len(given) == 81
    assert {each.clips for each in given} == {len(KINDS) * CLIPS_OF_A_KIND}
    assert {each.name: each.cpu_s for each in given if each.cpu_s > MAX_CPU_S} == {}


@pytest.mark.media
def test_media_matrix_every_other_file_is_quarantined_with_its_reason(
    stored: tuple[int, Stored],
) -> None:
    _, here = stored
    expected = {name: reason for name, reason in TABLE.items() if reason != EXACT}
    assert here.quarantined == expected
    assert {row["name"]: row["reason"] for row in here.found.quarantine} == expected
    assert all(row["detail"] for row in here.found.quarantine)
    assert Counter(expected.values()) == {
        "no-video-track": 39,
        "encrypted": 10,
        "undecodable": 3,
        "no-frames": 2,
        "damaged": 1,
    }
    assert len(expected) == 55
