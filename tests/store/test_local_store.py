"""Oddities of folders: links, permissions, names, full disks, files changed under a reader."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstream.errors import (
    AlreadyExistsError,
    DstreamError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    SourceChangedError,
    StorageError,
    UnsafeStoreError,
)
from dstream.measure import Meter
from dstream.store.local import LocalStore
from dstream.store.local_errors import translate
from dstream.store.local_walk import TEMP_PREFIX
from dstream.store.retry import is_retryable


@pytest.fixture
def skipped() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def store(tmp_path: Path, meter: Meter, skipped: list[tuple[str, str]]) -> LocalStore:
    (tmp_path / "root").mkdir()
    return LocalStore(
        tmp_path / "root",
        meter=meter,
        on_skip=lambda name, reason: skipped.append((name, reason)),
    )


def keys(store: LocalStore, prefix: str = "") -> list[str]:
    return [info.key for info in store.list(prefix)]


def root(store: LocalStore) -> Path:
    return Path(store.url)


def test_links_are_followed_and_loops_survived(
    store: LocalStore, tmp_path: Path, skipped: list[tuple[str, str]], meter: Meter
) -> None:
    store.put("a/1.mp4", b"1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "2.mp4").write_bytes(b"2")
    (root(store) / "b").symlink_to(outside)
    (root(store) / "c.mp4").symlink_to(outside / "2.mp4")
    (root(store) / "a" / "up").symlink_to(root(store))
    (outside / "self").symlink_to(outside)
    (root(store) / "me").symlink_to("me")
    (root(store) / "gone.mp4").symlink_to("nowhere")
    assert keys(store) == ["a/1.mp4", "b/2.mp4", "c.mp4"]
    assert store.get("b/2.mp4").data == b"2"
    assert sorted(skipped) == [
        ("a/up/", "symlink-loop"),
        ("b/self/", "symlink-loop"),
        ("gone.mp4", "dangling-link"),
        ("me", "symlink-loop"),
    ]
    assert meter.snapshot().event("list-skip") == {"symlink-loop": 3, "dangling-link": 1}


def test_only_regular_files_are_objects(store: LocalStore, skipped: list[tuple[str, str]]) -> None:
    store.put("x.mp4/inner.mp4", b"")
    os.mkfifo(root(store) / "pipe.mp4")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root(store) / "socket.mp4"))
        assert keys(store) == ["x.mp4/inner.mp4"]
        for key in ("x.mp4", "pipe.mp4", "socket.mp4"):
            with pytest.raises(NotFoundError):
                store.get(key)
            with pytest.raises(NotFoundError):
                store.head(key)
    assert sorted(skipped) == [("pipe.mp4", "not-a-file"), ("socket.mp4", "not-a-file")]


def test_names_that_are_not_utf8_are_skipped_and_named(
    store: LocalStore, skipped: list[tuple[str, str]]
) -> None:
    store.put("good.mp4", b"")
    folder = os.fsencode(root(store))
    for name in (b"bad\xff.mp4", b"dir\xfe"):
        if name.startswith(b"dir"):
            os.mkdir(folder + b"/" + name)
        else:
            os.close(os.open(folder + b"/" + name, os.O_CREAT))
    assert keys(store) == ["good.mp4"]
    assert sorted(skipped) == [("bad\\xff.mp4", "bad-name"), ("dir\\xfe", "bad-name")]


def test_deep_trees_end_at_the_longest_key(
    store: LocalStore, skipped: list[tuple[str, str]]
) -> None:
    store.put("/".join("d" * 200 for _ in range(5)), b"")  # 1,004 bytes
    deepest = root(store).joinpath(*("d" * 200 for _ in range(4)), "e" * 150, "f" * 100)
    deepest.parent.mkdir()
    deepest.write_bytes(b"")
    assert len(keys(store)) == 1
    assert [reason for _, reason in skipped] == ["bad-name"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_folders_are_named_and_the_rest_listed(
    store: LocalStore, skipped: list[tuple[str, str]]
) -> None:
    store.put("a/1", b"")
    store.put("b/2", b"")
    (root(store) / "a").chmod(0)
    assert keys(store) == ["b/2"]
    assert skipped == [("a/", "no-permission")]
    with pytest.raises(PermissionDeniedError):
        store.get("a/1")
    (root(store) / "a").chmod(0o700)


def test_an_unreadable_folder_below_does_not_end_the_listing(
    store: LocalStore, skipped: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for tests that run as root: the refusal comes from ``scandir`` itself."""
    store.put("a/1", b"")
    store.put("b/2", b"")
    scandir = os.scandir

    def refuse(path: Path) -> Iterator[os.DirEntry[str]]:
        if Path(path).name in closed:
            raise PermissionError(errno.EACCES, "no", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    closed = {"a"}
    assert keys(store) == ["b/2"]
    assert skipped == [("a/", "no-permission")]
    closed = {"a", "root"}
    with pytest.raises(PermissionDeniedError, match="root"):
        keys(store)
    with pytest.raises(PermissionDeniedError, match="a"):
        keys(store, "a/")


def test_missing_and_misplaced_roots(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        keys(LocalStore(tmp_path / "nowhere"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotFoundError):
        keys(LocalStore(tmp_path / "file"))
    with pytest.raises(InvalidInputError):
        LocalStore(tmp_path / "file").put("k", b"")
    store = LocalStore(tmp_path / "new" / "folder")
    store.put("k", b"")
    assert keys(store) == ["k"]


def test_files_and_folders_exclude_each_other(store: LocalStore) -> None:
    store.put("a", b"file")
    store.put("b/c", b"")
    for write in (store.put, store.put_if_absent):
        with pytest.raises(InvalidInputError):
            write("a/below", b"")
    with pytest.raises(InvalidInputError):
        store.put("b", b"")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("b", b"")
    with pytest.raises(InvalidInputError):
        store.put("n" * 300, b"")
    assert list(store.delete_many([("b", None)])) == ["b"]
    assert keys(store) == ["a", "b/c"]
    assert list(store.list_uploads()) == []


def test_large_trees_stream(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        store.put(f"{number:02}/f", b"")
    opened: list[str] = []
    scandir = os.scandir

    def watch(path: Path) -> Iterator[os.DirEntry[str]]:
        opened.append(Path(path).name)
        return scandir(path)

    monkeypatch.setattr("os.scandir", watch)
    listing = store.list()
    assert next(listing).key == "00/f"
    assert opened == ["root", "00"]
    listing.close()  # type: ignore[attr-defined]
    opened.clear()
    assert [info.key for info in store.list(start_after="37/zz")] == ["38/f", "39/f"]
    assert opened == ["root", "37", "38", "39"]
    opened.clear()
    assert keys(store, "12/") == ["12/f"]
    assert opened == ["12"]


def test_a_replaced_file_is_a_changed_source(store: LocalStore) -> None:
    info = store.put("k", b"12345")
    path = root(store) / "k"
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChangedError, match="k"):
        store.get("k", 0, 2, expect_etag=info.etag)
    assert store.get("k", 0, 2).info.etag == "5-1"


def test_a_file_overwritten_during_the_read_is_noticed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = store.put("k", b"12345")
    pread = os.pread

    def meddle(descriptor: int, size: int, offset: int) -> bytes:
        (root(store) / "k").write_bytes(b"abcde")
        os.utime(root(store) / "k", ns=(5, 5))
        return pread(descriptor, size, offset)

    monkeypatch.setattr("os.pread", meddle)
    with pytest.raises(SourceChangedError):
        store.get("k", expect_etag=info.etag)


def test_a_lost_answer_of_link_is_settled_by_the_link_count(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lose(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "sent twice")

    monkeypatch.setattr("os.link", lose)
    store.put_if_absent("k", b"ours")
    assert store.get("k").data == b"ours"
    monkeypatch.undo()
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("k", b"theirs")


def test_file_systems_without_links_are_refused(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(UnsafeStoreError):
        store.put_if_absent("k", b"")
    assert list(store.list_uploads()) == []


def test_a_commit_whose_folder_could_not_be_synced_is_unknown(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr("dstream.store.local._sync_folder", fail)
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("k", b"")


@pytest.mark.parametrize("write", ["put", "put_if_absent"])
def test_a_full_disk_leaves_nothing_behind(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(StorageError, match="full") as caught:
        getattr(store, write)("folderless", b"data")
    assert not is_retryable(caught.value)
    assert caught.value.code == "ENOSPC"
    monkeypatch.undo()
    assert os.listdir(root(store)) == []


@pytest.mark.parametrize("write", ["put", "put_if_absent", "upload"])
def test_a_disk_that_takes_only_a_part_leaves_nothing_behind(
    store: LocalStore, tmp_path: Path, write: str
) -> None:
    """The system writes what fits and says how much: an error comes only with the next write."""
    path = tmp_path / "local"
    path.write_bytes(b"x" * 10_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        with pytest.raises(StorageError) as caught:
            getattr(store, write)("k", path if write == "upload" else path.read_bytes())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "EFBIG"
    assert os.listdir(root(store)) == []


@pytest.mark.parametrize(
    ("number", "kind", "retryable"),
    [
        (errno.EACCES, PermissionDeniedError, False),
        (errno.EROFS, PermissionDeniedError, False),
        (errno.EIO, StorageError, True),
        (errno.ESTALE, StorageError, True),
        (errno.EMFILE, StorageError, True),
        (errno.EDQUOT, StorageError, False),
        (errno.ENOENT, NotFoundError, False),
        (errno.ENAMETOOLONG, InvalidInputError, False),
    ],
)
def test_operating_system_errors_have_a_meaning(
    number: int, kind: type[DstreamError], retryable: bool
) -> None:
    error = translate(OSError(number, os.strerror(number)), "read", "k", Path("/r"))
    assert type(error) is kind
    assert is_retryable(error) is retryable
    assert "/r/k" in str(error)


def test_temporary_files_are_invisible_and_reserved(store: LocalStore) -> None:
    (root(store) / "sub").mkdir()
    (root(store) / "sub" / f"{TEMP_PREFIX}abc").write_bytes(b"half")
    assert keys(store) == []
    (upload,) = store.list_uploads()
    assert upload.key == f"sub/{TEMP_PREFIX}abc"
    with pytest.raises(InvalidInputError):
        store.get(upload.key)
    store.put("victim", b"")
    (harmless,) = [u for u in store.list_uploads()]
    with pytest.raises(InvalidInputError):
        store.abort_upload(type(harmless)("victim", "victim", 0.0))
    store.abort_upload(upload)
    assert list(store.list_uploads()) == []
    assert keys(store) == ["victim"]


def test_a_pickled_store_forgets_its_callback_only(store: LocalStore) -> None:
    store.put("k", b"1")
    copy: LocalStore = pickle.loads(pickle.dumps(store))
    assert copy.get("k").data == b"1"
    assert copy.on_skip is None
