"""The process dies at every request of a publish and of a fetch, and is run again."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from catalog_audit import audit
from catalog_made import create_catalog, open_catalog
from checkpoint_made import files_in, make_folder, stored_files
from checkpoint_workers import fetch_and_die, publish_and_die, replace_and_die
from cut_store import Crash, Cut, CutStore
from dstream.catalog import Catalog
from dstream.checkpoint import Published, fetch, publish
from dstream.errors import DstreamError
from dstream.store.base import Store
from dstream.store.memory import MemoryStore
from dstream.store.opening import open_store
from s3_services import S3Place

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints that share some files."""
    root = tmp_path_factory.mktemp("folders")
    return make_folder(root / "one", large=True), make_folder(root / "two", salt=1, large=True)


def prepared(old: Path) -> MemoryStore:
    memory = MemoryStore()
    publish(create_catalog(memory, "creator"), old, "run", step=1, threads=1)
    return memory


def job(catalog: Catalog, folder: Path) -> Published:
    return publish(catalog, folder, "run", step=2, promote="prod", threads=1)


def check_whole(catalog: Catalog, old: Path, new: Path) -> int:
    """Only whole generations are visible; returns how many."""
    entries = catalog.generations("run")
    assert stored_files(catalog, "run@v1") == files_in(old)
    for entry in entries[1:]:
        assert stored_files(catalog, entry.label) == files_in(new)
    aliases = catalog.aliases("run")
    # latest and prod move together with the generation, or not at all.
    assert aliases == ({"latest": 1} if len(entries) == 1 else {"latest": 2, "prod": 2})
    return len(entries)


@pytest.mark.parametrize("when", list(Cut))
def test_a_publish_that_fails_anywhere_can_be_run_again(
    folders: tuple[Path, Path], when: Cut
) -> None:
    old, new = folders
    counting = CutStore(prepared(old))
    job(open_catalog(counting, "count"), new)
    assert counting.requests >= 6
    for at in range(1, counting.requests + 1):
        memory = prepared(old)
        acknowledged = None
        try:
            acknowledged = job(open_catalog(CutStore(memory, at, when), "first"), new)
        except (Crash, DstreamError):
            pass
        visible = check_whole(open_catalog(memory, "reader"), old, new)
        assert visible in (1, 2)
        again = job(open_catalog(memory, "second"), new)
        assert again.generation.version == 2
        if acknowledged is not None:
            assert acknowledged.generation == again.generation
        assert check_whole(open_catalog(memory, "reader"), old, new) == 2
        audit(memory)


@pytest.mark.parametrize("when", list(Cut))
def test_a_fetch_that_fails_anywhere_can_be_run_again(
    folders: tuple[Path, Path], tmp_path: Path, when: Cut
) -> None:
    old, _ = folders
    memory = prepared(old)
    counting = CutStore(memory)
    fetch(open_catalog(counting), "run", tmp_path / "count", threads=1)
    assert counting.requests >= 8
    for at in range(1, counting.requests + 1):
        dest = tmp_path / f"{when}-{at}"
        with pytest.raises((Crash, DstreamError)):
            fetch(open_catalog(CutStore(memory, at, when)), "run", dest, threads=1)
        assert not dest.exists()
        fetch(open_catalog(memory), "run", dest, threads=1)
        assert files_in(dest) == files_in(old)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".dstream")]


def run_process(work: Callable[..., None], *arguments: object) -> int | None:
    process = FORK.Process(target=work, args=arguments)
    process.start()
    process.join()
    code = process.exitcode
    process.close()
    return code


@pytest.mark.parametrize("when", [Cut.BEFORE, Cut.AFTER])
def test_a_publish_killed_at_any_request(
    folders: tuple[Path, Path], tmp_path: Path, when: Cut
) -> None:
    old, new = folders
    prepared, point = tmp_path / "prepared", tmp_path / "point"
    publish(Catalog.create(open_store(prepared)), old, "run", step=1)
    seen = []
    for at in itertools.count(1):
        store = copied(prepared, point)
        code = run_process(publish_and_die, str(point), str(new), at, str(when))
        seen.append(check_whole(Catalog.open(store), old, new))
        assert job(Catalog.open(store), new).generation.version == 2
        assert check_whole(Catalog.open(store), old, new) == 2
        if code == 0:
            break
        assert code == -9
    assert len(seen) > 6
    assert seen == sorted(seen)
    assert seen[-2:] == ([1, 2] if when is Cut.BEFORE else [2, 2])


def copied(prepared: Path, point: Path) -> Store:
    """The repository anew; its files are never written to, only replaced."""
    shutil.rmtree(point, ignore_errors=True)
    shutil.copytree(prepared, point, copy_function=os.link)
    return open_store(point)


@pytest.mark.parametrize("when", [Cut.BEFORE, Cut.AFTER])
def test_a_fetch_killed_at_any_request(
    folders: tuple[Path, Path], tmp_path: Path, when: Cut
) -> None:
    old, _ = folders
    url, dest = tmp_path / "repo", tmp_path / "dest"
    publish(Catalog.create(open_store(url)), old, "run")
    for at in itertools.count(1):
        code = run_process(fetch_and_die, str(url), str(dest), at, str(when))
        if code == 0:
            break
        assert code == -9
        assert not dest.exists()
        fetch(Catalog.open(open_store(url)), "run", dest)
        assert files_in(dest) == files_in(old)
        shutil.rmtree(dest)
    assert at > 8
    assert files_in(dest) == files_in(old)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".dstream")]


@pytest.mark.rgw
@pytest.mark.parametrize("when", [Cut.BEFORE, Cut.AFTER])
def test_killed_on_ceph(
    rgw_bucket: S3Place,
    folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: Cut,
) -> None:
    for name, value in rgw_bucket.environment.items():
        monkeypatch.setenv(name, value)
    old, new = folders
    url = f"{rgw_bucket.url}/repo"
    with closing(open_store(url)) as store:
        publish(Catalog.create(store), old, "run", step=1)
        for at in (3, 5, 7):
            code = run_process(publish_and_die, url, str(new), at, str(when))
            visible = check_whole(Catalog.open(store), old, new)
            assert code == -9 or visible == 2
        job(Catalog.open(store), new)
        assert check_whole(Catalog.open(store), old, new) == 2
        dest = tmp_path / "dest"
        for at in (4, 7):
            assert run_process(fetch_and_die, url, str(dest), at, str(when)) == -9
            assert not dest.exists()
        fetch(Catalog.open(store), "run", dest)
        assert files_in(dest) == files_in(new)


@pytest.mark.parametrize("name", ["_exchange", "retire"])
def test_a_replacement_that_is_killed_is_the_old_or_the_new(
    folders: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    old, new = folders
    url, dest = str(tmp_path / "repo"), tmp_path / "dest"
    with closing(open_store(url)) as store:
        catalog = Catalog.create(store)
        publish(catalog, old, "run", step=1)
        fetch(catalog, "run", dest)
        publish(catalog, new, "run", step=2)
        assert run_process(replace_and_die, url, str(dest), name) == -9
        assert files_in(dest) == files_in(old if name == "_exchange" else new)
        fetch(catalog, "run", dest, replace=True)
        assert files_in(dest) == files_in(new)
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".dstream")]
