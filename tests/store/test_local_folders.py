"""Folders come with the first object in them and go with the last, whoever else is at work."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dstream.errors import InvalidInputError, NotFoundError
from dstream.store.local import LocalStore
from dstream.store.local_walk import TEMP_PREFIX


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "root").mkdir()
    return LocalStore(tmp_path / "root")


def keys(store: LocalStore) -> list[str]:
    return [info.key for info in store.list()]


def root(store: LocalStore) -> Path:
    return Path(store.url)


def test_emptied_folders_go_with_their_last_object(store: LocalStore) -> None:
    for key in ("a/b/c/one", "a/b/two", "top", "d/e/three"):
        store.put(key, b"x")
    assert store.delete_many([("a/b/c/one", None), ("top", None), ("d/e/three", None)]) == {}
    assert sorted(os.listdir(root(store))) == ["a"]
    assert os.listdir(root(store) / "a" / "b") == ["two"]
    store.delete_many([("a/b/two", None)])
    assert os.listdir(root(store)) == []  # the root itself stays
    store.delete_many([("a/b/two", None)])
    store.put_if_absent("a/b/two", b"again")
    assert keys(store) == ["a/b/two"]
    os.mkdir(root(store) / "mine")  # not emptied by us
    store.delete_many([("mine/none", None)])
    assert (root(store) / "mine").is_dir()


def test_a_folder_that_is_not_there_is_called_one(tmp_path: Path) -> None:
    absent = LocalStore(tmp_path / "absent")
    with pytest.raises(NotFoundError, match=r"there is no folder or file .*absent$"):
        list(absent.list())
    with pytest.raises(NotFoundError, match=r"there is no file .*absent/a$"):
        absent.head("a")


def test_an_aborted_upload_leaves_no_folder(store: LocalStore) -> None:
    folder = root(store) / "x" / "y"
    folder.mkdir(parents=True)
    (folder / f"{TEMP_PREFIX}dead").touch()
    (upload,) = store.list_uploads()
    store.abort_upload(upload)
    assert os.listdir(root(store)) == []


def test_a_folder_that_vanishes_under_a_writer_is_made_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open
    lost = iter(["a/b", "a", "a/b"])

    def open_late(path: object, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and (folder := next(lost, None)) is not None:
            for below in ("a/b", "a")[: 1 if folder == "a/b" else 2]:
                os.rmdir(root(store) / below)
        return opened(path, flags, mode)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_late)
    store.put("a/b/one", b"x")
    assert next(lost, None) is None
    assert store.get("a/b/one").data == b"x"


@pytest.mark.parametrize("write", ["put", "put_if_absent", "upload"])
def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(
    store: LocalStore, tmp_path: Path, write: str
) -> None:
    (tmp_path / "source").write_bytes(b"x")

    def turn(worker: int) -> int:
        for number in range(150):
            key = f"deep/er/folder/{worker}-{number}"
            if write == "upload":
                store.upload(key, tmp_path / "source")
            else:
                getattr(store, write)(key, b"x")
            assert store.get(key).data == b"x"
            assert [info.key for info in store.list(key)] == [key]
            assert store.delete_many([(key, None)]) == {}
        return worker

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(turn, range(4))) == [0, 1, 2, 3]
    assert os.listdir(root(store)) == []


def test_one_object_written_and_deleted_at_the_same_time(store: LocalStore) -> None:
    def turn(worker: int) -> None:
        for _ in range(200):
            if worker % 2:
                store.put("a/b", b"x")
            else:
                assert store.delete_many([("a/b", None)]) == {}

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(turn, range(4)))


def test_a_link_that_leads_nowhere_is_no_folder(store: LocalStore) -> None:
    (root(store) / "away").symlink_to("nowhere")
    with pytest.raises(InvalidInputError, match="not a folder"):
        store.put("away/a", b"x")
