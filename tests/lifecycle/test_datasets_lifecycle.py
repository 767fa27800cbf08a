"""Collection and verification of data sets: tables, shards and index groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dstream
from dstream.catalog import Catalog, GcSettings
from dstream.clock import FakeClock
from dstream.errors import ConflictError, NotFoundError, RefusedError
from dstream.format.repository import SESSION_PREFIX
from dstream.ingest import IngestSettings, ingest
from dstream.loader.clips import Clips
from dstream.store.base import Store
from dstream.store.local import LocalStore
from dstream.store.opening import open_store
from dstream_recipes.video import RECIPE
from lifecycle_made import AT_ONCE
from made_video import make_video


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number in range(2):
        make_video(tmp_path / "videos" / f"v{number}.mp4", frames=60)
    return tmp_path / "videos"


@pytest.fixture
def catalog(tmp_path: Path, source: Path) -> Catalog:
    made = Catalog.create(LocalStore(tmp_path / "repo"))
    publish(made, source)
    return made


def publish(catalog: Catalog, source: Path, *, replace: bool = False) -> None:
    ingest(
        catalog,
        LocalStore(source),
        "clips",
        settings=IngestSettings(replace=replace),
        recipe=RECIPE,
    )


def tars(store: Store) -> list[str]:
    return [info.key for info in store.list("data/") if info.key.endswith(".tar")]


def test_parts_that_later_generations_share_stay(catalog: Catalog, source: Path) -> None:
    make_video(source / "v2.mp4", frames=60)
    publish(catalog, source)
    (source / "v1.mp4").unlink()
    publish(catalog, source, replace=True)
    assert [g.version for g in catalog.generations("clips")] == [1, 2, 3]
    report = catalog.gc(GcSettings(keep_last=1, grace_s=0, session_grace_s=0))
    assert report.swept == ["clips@v1", "clips@v2"]
    assert report.deleted["object"] > 0
    assert catalog.verify(deep=True).is_whole
    assert len(tars(catalog.store)) == 2, "v3 has rows in the shards of both earlier ones"
    with dstream.open(catalog.store.url) as repo:
        clips = repo.clips("clips", frames=4, array="numpy")
        assert clips.keys() == ["v0", "v2"] or len(clips.keys()) == 2
        assert np.asarray(clips[0].video).size


def test_a_replacement_needs_what_it_takes_over(
    catalog: Catalog, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base is given up while it runs: it fails, and is not left without its shards."""
    from dstream.ingest import commit as ingest_commit

    honest = ingest_commit._publish

    def slow(*arguments: object) -> object:
        other = Catalog.open(catalog.store)
        other.remove_alias("clips", "latest")
        other.retire("clips@v1")
        other.gc(GcSettings(grace_s=0))
        return honest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ingest_commit, "_publish", slow)
    make_video(source / "v2.mp4", frames=60)
    with pytest.raises(ConflictError):
        publish(catalog, source, replace=True)
    assert Catalog.open(catalog.store).verify(deep=True).is_whole


def test_journals_of_fenced_sessions_go(catalog: Catalog, source: Path) -> None:
    session = catalog.begin_session("cut-off")
    catalog.store.put(f"{SESSION_PREFIX}cut-off/0-of-1/00000000-x.entry", b"x")
    make_video(source / "v2.mp4", frames=60)
    publish(catalog, source)
    assert catalog.gc(AT_ONCE).deleted["journal"] == 2
    assert not list(catalog.store.list(SESSION_PREFIX))
    assert session.base_seq < catalog.head().upload_floor


def damage(catalog: Catalog, suffix: str, at: float) -> str:
    key = next(info.key for info in catalog.store.list("data/") if info.key.endswith(suffix))
    data = bytearray(catalog.store.get(key).data)
    data[int(len(data) * at)] ^= 0xFF
    catalog.store.put(key, bytes(data))
    return key


@pytest.mark.parametrize(("suffix", "at"), [(".tar", 0.4), (".idx", 0.6), (".parquet", 0.5)])
def test_deep_verification_finds_a_flipped_bit(catalog: Catalog, suffix: str, at: float) -> None:
    assert catalog.verify(deep=True).is_whole
    key = damage(catalog, suffix, at)
    report = catalog.verify(deep=True)
    assert not report.is_whole
    assert key in {damage.where for damage in report.damages}


@pytest.mark.parametrize("suffix", [".tar", ".idx", ".parquet"])
def test_verification_finds_what_is_missing_or_short(catalog: Catalog, suffix: str) -> None:
    key = next(info.key for info in catalog.store.list("data/") if info.key.endswith(suffix))
    data = catalog.store.get(key).data
    catalog.store.delete_many([(key, None)])
    assert [d.where for d in catalog.verify().damages if d.where == key]
    catalog.store.put(key, data[: len(data) // 2])
    found = catalog.verify(deep=suffix == ".idx")
    assert [d.where for d in found.damages if d.where == key]


def test_clips_of_a_pin_stay_what_they_were(catalog: Catalog, source: Path) -> None:
    url = catalog.store.url
    with dstream.open(url) as repo:
        pinned = repo.pin(["clips"], pin_id="run", ttl_s=3600)
        make_video(source / "v2.mp4", frames=60)
        publish(catalog, source)
        now = repo.clips("clips", frames=4, array="numpy")
        then = repo.clips("clips", frames=4, array="numpy", pin=pinned.token)
        assert (len(now.keys()), len(then.keys())) == (3, 2)
        repo.gc(GcSettings(keep_last=1, grace_s=0, session_grace_s=0))
        assert same(then, repo.at(pinned.pin.seq).clips("clips", frames=4, array="numpy"))
    with dstream.open(pinned.token) as frozen:
        assert same(then, frozen.clips("clips", frames=4, array="numpy"))
        assert frozen.show("clips").generation.version == 1
        for change in (lambda: frozen.pin(), lambda: frozen.gc(), lambda: frozen.unpin("run")):
            with pytest.raises(RefusedError, match="never changes"):
                change()
    with dstream.open(url) as repo:
        repo.unpin("run")
        assert repo.gc(GcSettings(keep_last=1, grace_s=0)).swept == ["clips@v1"]
        with pytest.raises(NotFoundError):
            repo.catalog.resolve("clips@v1")
        with pytest.raises(NotFoundError, match=r"clips@v1 was collected.*pin 'run' is gone"):
            repo.clips("clips", frames=4, array="numpy", pin=pinned.token)
    with dstream.open(pinned.token) as frozen:
        with pytest.raises(NotFoundError, match=r"clips@v1 was collected.*pin 'run' is gone"):
            frozen.clips("clips", frames=4, array="numpy")


def same(one: Clips, other: Clips) -> bool:
    return one.fingerprint == other.fingerprint and one.keys() == other.keys()


def test_frozen_catalogs_ask_once(catalog: Catalog) -> None:
    frozen = Catalog.open_at(open_store(catalog.store.url), 1, FakeClock())
    assert frozen.head() is frozen.head()
    assert frozen.recent() is frozen.head()
    assert [g.version for g in frozen.generations("clips")] == [1]
