"""One suite that every store passes. A subclass gives ``store``: tests/store/test_contract.py."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dstream.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    ShortReadError,
    SourceChangedError,
)
from dstream.store.base import Store, Upload
from dstream.store.probe import probe_conditional_put

DATA = bytes(range(256)) * 4

ODD_KEYS = (
    "with space.mp4",
    "ünïcödé/日本語/🎬.mp4",
    "decomposed-u\u0308.mp4",
    "a+b&c=d.mp4",
    "100%.mp4",
    "percent%20already.mp4",
    "hash#tag.mp4",
    "what?versionId=1.mp4",
    "quote'\"<>.mp4",
    "back\\slash.mp4",
    "tilde~star*(paren)!$@:;,.mp4",
    "dots...mp4",
    ".hidden",
    "trailing space ",
    "long/" + "/".join("x" * 99 for _ in range(9)),
)

# Code points where the order of UTF-8 and of UTF-16 differ, and "/" against its neighbours.
ORDERED_KEYS = ("a", "a!", "a-b", "a.b", "a/b", "a/b/c", "a0", "ab", "b", "z\uffee", "z\U0001f3ac")


class StoreContract:
    """The rules of ``dstream.store.base``, as tests."""

    def test_reads_are_exact(self, store: Store) -> None:
        store.put("k", DATA)
        assert store.get("k").data == DATA
        for start, stop in ((0, 1), (0, 1024), (5, 6), (1000, 1024), (100, 700)):
            blob = store.get("k", start, stop)
            assert blob.data == DATA[start:stop]
            assert blob.info.size_bytes == len(DATA)
        assert store.get("k", 1000).data == DATA[1000:]

    def test_empty_reads_and_empty_objects(self, store: Store) -> None:
        store.put("k", DATA)
        store.put("empty", b"")
        assert store.get("k", 7, 7).data == b""
        assert store.get("k", len(DATA)).data == b""
        assert store.get("empty").data == b""
        assert store.head("empty").size_bytes == 0
        assert store.get("empty", 0, 0).data == b""
        with pytest.raises(ShortReadError):
            store.get("empty", 0, 1)

    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 1025), (1000, 2000), (1024, 1025), (1025, None), (5000, 5001)]
    )
    def test_past_the_end_is_a_short_read(self, store: Store, start: int, stop: int | None) -> None:
        store.put("k", DATA)
        with pytest.raises(ShortReadError) as caught:
            store.get("k", start, stop)
        assert caught.value.size_bytes == len(DATA)

    def test_an_impossible_range_is_refused(self, store: Store) -> None:
        store.put("k", DATA)
        for start, stop in ((-1, 5), (5, 4)):
            with pytest.raises(InvalidInputError):
                store.get("k", start, stop)

    def test_all_answers_agree_on_the_object(self, store: Store) -> None:
        info = store.put("k", DATA)
        assert (info.key, info.size_bytes) == ("k", len(DATA))
        head = store.head("k")
        (listed,) = store.list()
        for other in (head, store.get("k").info, store.get("k", 1, 2).info, listed):
            assert (other.key, other.size_bytes, other.etag) == ("k", len(DATA), info.etag)
        assert head.last_modified_s is not None
        assert head.server_date_s is not None

    def test_expected_etag(self, store: Store) -> None:
        old = store.put("k", DATA)
        assert store.get("k", 3, 9, expect_etag=old.etag).data == DATA[3:9]
        new = store.put("k", DATA[::-1] + b"!")
        assert new.etag != old.etag
        for start, stop in ((3, 9), (0, None), (3, 3)):
            with pytest.raises(SourceChangedError):
                store.get("k", start, stop, expect_etag=old.etag)
        assert store.get("k", 3, 9, expect_etag=new.etag).data == DATA[::-1][3:9]

    def test_put_replaces_as_a_whole(self, store: Store) -> None:
        store.put("k", DATA)
        store.put("k", b"short")
        assert store.get("k").data == b"short"

    def test_put_if_absent(self, store: Store) -> None:
        info = store.put_if_absent("k", b"first")
        assert store.head("k").etag == info.etag
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent("k", b"other")
        assert store.get("k").data == b"first"
        store.delete_many([("k", None)])
        store.put_if_absent("k", b"again")
        assert store.get("k").data == b"again"

    def test_of_racing_creators_one_wins(self, store: Store) -> None:
        threads, rounds = 8, 12
        barrier = threading.Barrier(threads)

        def race(number: int) -> list[bool]:
            won = []
            for turn in range(rounds):
                barrier.wait()
                try:
                    store.put_if_absent(f"race/{turn}", f"{number}".encode())
                    won.append(True)
                except AlreadyExistsError:
                    won.append(False)
            return won

        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(race, range(threads)))
        for turn in range(rounds):
            winners = [number for number in range(threads) if results[number][turn]]
            assert len(winners) == 1
            assert store.get(f"race/{turn}").data == f"{winners[0]}".encode()

    def test_missing_objects(self, store: Store) -> None:
        store.put("there", b"")
        for call in (store.get, store.head):
            with pytest.raises(NotFoundError):
                call("not-there")
            with pytest.raises(NotFoundError):
                call("there/below")
        with pytest.raises(NotFoundError):
            store.get("not-there", 1, 2, expect_etag="x")

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a//b", "a/", "..", "a/../b", "./a", "a\0b", "\ud800", "x" * 1025],
        ids=repr,
    )
    def test_unusable_keys_are_refused_everywhere(self, store: Store, key: str) -> None:
        for call in (store.get, store.head):
            with pytest.raises(InvalidInputError):
                call(key)
        for write in (store.put, store.put_if_absent):
            with pytest.raises(InvalidInputError):
                write(key, b"")
        with pytest.raises(InvalidInputError):
            store.delete_many([(key, None)])

    def test_listing_never_leaves_the_root(self, store: Store) -> None:
        for prefix in ("..", "../", "a/../../", "/etc/", "a//"):
            with pytest.raises(InvalidInputError):
                list(store.list(prefix))

    @pytest.mark.parametrize("key", ODD_KEYS, ids=lambda key: str(key)[:20])
    def test_odd_names(self, store: Store, key: str) -> None:
        info = store.put(key, DATA)
        assert info.key == key
        assert store.get(key, 10, 20, expect_etag=info.etag).data == DATA[10:20]
        assert store.head(key).key == key
        assert [found.key for found in store.list()] == [key]
        assert [found.key for found in store.list(key)] == [key]
        assert list(store.list(start_after=key)) == []
        assert store.delete_many([(key, None)]) == {}
        assert list(store.list()) == []

    def test_listing_order_and_start(self, store: Store) -> None:
        assert store.capabilities.ordered_list
        keys = [key for key in ORDERED_KEYS if not key.startswith("a/b/")]
        keys = [key for key in keys if key != "a"]  # a folder cannot hold "a" and "a/b"
        for key in reversed(keys):
            store.put(key, key.encode())
        assert [info.key for info in store.list()] == sorted(keys, key=str.encode)
        for after in (*keys, "a/", "a/a", "a/z", "0", "zz", "a/b/c"):
            wanted = [key for key in sorted(keys, key=str.encode) if key.encode() > after.encode()]
            assert [info.key for info in store.list(start_after=after)] == wanted

    def test_listing_prefix_and_limit(self, store: Store) -> None:
        keys = ["cam/1.mp4", "cam/2.mp4", "camera/3.mp4", "deep/er/still/4.mp4", "x.mp4"]
        for key in keys:
            store.put(key, b"")

        def listed(prefix: str, **named: object) -> list[str]:
            return [info.key for info in store.list(prefix, **named)]  # type: ignore[arg-type]

        assert listed("cam") == ["cam/1.mp4", "cam/2.mp4", "camera/3.mp4"]
        assert listed("cam/") == ["cam/1.mp4", "cam/2.mp4"]
        assert listed("cam/2") == ["cam/2.mp4"]
        assert listed("deep/er/") == ["deep/er/still/4.mp4"]
        assert listed("nothing/") == []
        assert listed("", limit=2) == keys[:2]
        assert listed("", limit=0) == []
        assert listed("", limit=99) == keys
        assert listed("", start_after="cam/2.mp4", limit=2) == keys[2:4]
        assert listed("cam", start_after="cam/1.mp4", limit=1) == ["cam/2.mp4"]

    def test_delete_many(self, store: Store) -> None:
        for number in range(5):
            store.put(f"d/{number}", b"")
        gone = [(f"d/{number}", None) for number in (0, 2, 4)]
        assert store.delete_many([*gone, ("d/never", None)]) == {}
        assert [info.key for info in store.list("d/")] == ["d/1", "d/3"]
        assert store.delete_many(gone) == {}
        assert store.delete_many([]) == {}

    def test_upload(self, store: Store, tmp_path: Path, large_bytes: int) -> None:
        for name, size in (("empty", 0), ("small", 1000), ("large", large_bytes)):
            source = tmp_path / f"{name}.bin"
            source.write_bytes(os.urandom(1 << 20) * (size >> 20) + os.urandom(size & 0xFFFFF))
            info = store.upload(f"up/{name}", source)
            assert (info.key, info.size_bytes) == (f"up/{name}", size)
            assert store.head(f"up/{name}").etag == info.etag
            assert store.get(f"up/{name}").data == source.read_bytes()
        assert list(store.list_uploads()) == []

    def test_upload_replaces_and_needs_its_file(self, store: Store, tmp_path: Path) -> None:
        source = tmp_path / "file"
        source.write_bytes(b"new")
        store.put("k", DATA)
        store.upload("k", source)
        assert store.get("k").data == b"new"
        for path in (tmp_path / "missing", tmp_path):
            with pytest.raises(InvalidInputError):
                store.upload("k", path)
        assert store.get("k").data == b"new"

    def test_unfinished_uploads_can_be_swept(self, store: Store) -> None:
        store.put("data/done", b"")
        begun = self.begin_upload(store, "data/begun")
        if begun is None:
            assert list(store.list_uploads()) == []
            return
        assert [info.key for info in store.list()] == ["data/done"]
        (upload,) = store.list_uploads("data/")
        assert list(store.list_uploads("other/")) == []
        store.abort_upload(upload)
        assert list(store.list_uploads()) == []
        store.abort_upload(upload)

    def begin_upload(self, store: Store, key: str) -> Upload | None:
        """Leave an upload unfinished behind the store's back; None where there is no such thing."""
        return None

    def test_survives_pickling(self, store: Store) -> None:
        store.put("k", DATA)
        copy: Store = pickle.loads(pickle.dumps(store))
        assert copy.url == store.url
        assert copy.get("k", 1, 3).data == DATA[1:3]
        copy.put("k2", b"2")
        assert copy.get("k2").data == b"2"
        copy.close()

    # The pool's threads are idle at the fork, which is what Python 3.12 warns of.
    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_survives_a_fork(self, store: Store) -> None:
        store.put("k", DATA)
        assert store.get("k", 0, 8).data == DATA[:8]
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_read_in_child, args=(store, sender))
        child.start()
        sender.close()
        for start in range(50):
            assert store.get("k", start, start + 100).data == DATA[start : start + 100]
        assert receiver.poll(60)
        assert receiver.recv() == "ok"
        child.join(60)
        receiver.close()
        assert child.exitcode == 0

    def test_many_threads(self, store: Store) -> None:
        store.put("k", DATA)

        def work(number: int) -> bool:
            start = number % 900
            fine = store.get("k", start, start + 100).data == DATA[start : start + 100]
            store.put(f"t/{number}", f"{number}".encode())
            return fine and store.get(f"t/{number}").data == f"{number}".encode()

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(work, range(160)))
        assert len(list(store.list("t/"))) == 160

    def test_may_be_used_after_closing(self, store: Store) -> None:
        store.put("k", DATA)
        store.close()
        assert store.get("k", 0, 4).data == DATA[:4]
        store.close()
        store.close()

    def test_passes_the_probe(self, store: Store) -> None:
        probe_conditional_put(store)
        assert list(store.list()) == []

    def test_the_url_names_the_root(self, store: Store) -> None:
        assert store.url
        assert "secret" not in store.url


def _read_in_child(store: Store, sender: multiprocessing.connection.Connection) -> None:
    try:
        for start in range(50):
            assert store.get("k", start, start + 50).data == DATA[start : start + 50]
        store.put("from-child", b"x")
        sender.send("ok")
    except BaseException as error:
        sender.send(repr(error))
        raise
