"""Real files, ingested both ways: equal clips, and errors that name the file."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import dstream
from dstream import Clip, Clips
from dstream.catalog import Catalog
from dstream.ingest import IngestSettings, Layout, ingest
from dstream.recipe import installed_recipe
from dstream.store.opening import open_store

Repos = dict[Layout, dstream.Repo]


@pytest.fixture(scope="module")
def repositories(media_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Repos:
    made = {}
    for layout in (Layout.PACKED, Layout.IN_PLACE):
        url = str(tmp_path_factory.mktemp("repository") / "repo")
        ingest(
            Catalog.create(open_store(url)),
            open_store(media_dir),
            "media",
            recipe=installed_recipe("video"),
            settings=IngestSettings(layout=layout, workers=2),
        )
        made[layout] = dstream.open(url)
    return made


def outcome(clips: Clips, key: str, start_s: float) -> str:
    """Hash of a clip's frames, or the kind of error."""
    try:
        clip: Clip = clips.clip(key, start_s=start_s)
    except dstream.InvalidInputError:
        return "too short"
    except dstream.DstreamError as error:
        return f"{type(error).__name__}, named: {key in str(error)}"
    return hashlib.sha256(np.asarray(clip.video).tobytes() + clip.pts_s.tobytes()).hexdigest()


@pytest.mark.media
@pytest.mark.parametrize("options", [{"stride": 2}, {"fps": 7.5}])
def test_both_layouts_give_equal_clips(repositories: Repos, options: dict[str, float]) -> None:
    packed, in_place = (
        repo.clips("media", frames=4, array="numpy", **options)  # type: ignore[arg-type]
        for repo in repositories.values()
    )
    assert packed.keys() == in_place.keys()
    assert len(packed) == len(in_place)
    decoded = 0
    for key in packed.keys():
        for start_s in (0.0, 1.3):
            got = outcome(packed, key, start_s)
            assert outcome(in_place, key, start_s) == got
            assert not got.endswith("named: False")
            decoded += len(got) == 64
    assert decoded > 1.5 * packed.samples
