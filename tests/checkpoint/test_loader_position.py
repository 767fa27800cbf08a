"""Model and data position in one generation: saved, killed, loaded, and the exact next clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dstream
import dstream.checkpoint
from dstream.errors import InvalidInputError
from dstream.store.opening import open_store
from loader_data import batch_hash, fill, new_url, publish, videos

torch: Any = pytest.importorskip("torch", exc_type=ImportError)


@pytest.fixture
def url(tmp_path: Path) -> str:
    source = new_url()
    fill(open_store(source), videos(tmp_path / "made", 2, frames=36, size=(64, 64)))
    publish(url := str(tmp_path / "repo"), source, packed=True)
    return url


def test_the_next_clips_are_those_after_the_saved_step(url: str, tmp_path: Path) -> None:
    with dstream.open(url) as repo:
        token = repo.pin(["d"], pin_id="run").token
        clips = repo.clips("d", frames=4, pin=token)
        with clips.loader(2, epochs=2) as loader:
            expected = [batch_hash(batch) for batch in loader]
        with clips.loader(2, epochs=2) as loader:
            for step, _ in zip(range(1, 12), loader, strict=False):
                if step % 5 == 0:
                    state = {"w": torch.full((3,), float(step))}
                    repo.save(state, "run7", step=step, loader=loader)
    # Another process would begin here, after the data went on.
    fill(open_store(more := new_url()), videos(tmp_path / "more", 1, frames=36, size=(64, 64)))
    publish(url, more, packed=True)
    with dstream.open(url) as repo:
        state = {"w": torch.zeros(3)}
        first = repo.load(state, "run7")
        assert first.loader_state is not None
        clips = repo.clips("d", frames=4, pin=str(first.loader_state["pin"]))
        with clips.loader(2, epochs=2, workers=1, prefetch=4) as loader:
            found = dstream.checkpoint.load(state, repo.catalog, "run7", loader=loader)
            assert (found.generation.step, state["w"].tolist()) == (10, [10.0] * 3)
            assert [batch_hash(batch) for batch in loader] == expected[10:]
        with repo.clips("d", frames=4).loader(2) as loader:
            with pytest.raises(InvalidInputError, match="data was d@v1"):
                repo.load(state, "run7", loader=loader)


def test_what_cannot_be_is_refused(url: str) -> None:
    with dstream.open(url) as repo, repo.clips("d", frames=4).loader(2) as loader:
        state = {"w": torch.zeros(3)}
        with pytest.raises(InvalidInputError, match="loader= or loader_state="):
            repo.save(state, "run7", step=1, loader=loader, loader_state={"position": 1})
        assert "run7" not in repo.names()
        repo.save(state, "run7", step=1)
        with pytest.raises(
            InvalidInputError, match="run7@v1 was saved without a loader's position"
        ):
            repo.load(state, "run7", loader=loader)
        assert loader.position == 0
