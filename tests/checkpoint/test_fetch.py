from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from catalog_made import create_catalog, manifest
from checkpoint_made import files_in, make_folder
from dstream.catalog import Catalog, PublishOptions
from dstream.checkpoint import CopyProgress, fetch, publish
from dstream.checkpoint import download as download_module
from dstream.checkpoint import swap as swap_module
from dstream.checkpoint.download import PIECE_BYTES
from dstream.checkpoint.repository import checkpoint_of
from dstream.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    ShortReadError,
)
from dstream.format.paths import MARKER_NAME
from dstream.format.zjson import encode_document
from dstream.measure import Meter
from dstream.store.base import Blob
from dstream.store.memory import MemoryStore
from dstream.store.opening import open_store
from lifecycle_made import AT_ONCE
from s3_services import S3Place

SHA = "0" * 64


@pytest.fixture
def catalog() -> Catalog:
    return create_catalog(MemoryStore())


@pytest.fixture
def source(tmp_path: Path, catalog: Catalog) -> Path:
    """A published folder: run@v1, step 100."""
    folder = make_folder(tmp_path / "source", large=True)
    publish(catalog, folder, "run", step=100, attrs={"loss": 0.25}, loader_state={"epoch": 3})
    return folder


class LateStart(MemoryStore):
    """Answers for the first piece of an object only after it was asked for the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for_last = threading.Event()

    def get(
        self, key: str, start_byte: int = 0, stop_byte: int | None = None, **named: Any
    ) -> Blob:
        blob = super().get(key, start_byte, stop_byte, **named)
        if start_byte and stop_byte == blob.info.size_bytes:
            self.asked_for_last.set()
        elif stop_byte == PIECE_BYTES:
            assert self.asked_for_last.wait(20)
        return blob


def test_pieces_that_arrive_out_of_order_land_where_they_belong(tmp_path: Path) -> None:
    late = create_catalog(LateStart())
    folder = make_folder(tmp_path / "source", large=True)
    publish(late, folder, "run")
    assert files_in(fetch(late, "run", tmp_path / "dest").path) == files_in(folder)


@pytest.mark.parametrize(("sync", "counted"), [(True, 1), (False, 0)])
def test_a_system_without_early_writing_is_counted_and_served(
    catalog: Catalog,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sync: bool,
    counted: int,
) -> None:
    monkeypatch.setattr(download_module, "write_behind", lambda *_: False)
    meter = Meter()
    done = fetch(catalog, "run", tmp_path / "dest", meter=meter, sync=sync, threads=1)
    assert files_in(done.path) == files_in(source)
    assert meter.snapshot().events.get(("fallback", "write-behind"), 0) == counted


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".dstream")]


def test_the_folder_is_the_one_that_was_published(
    catalog: Catalog, source: Path, tmp_path: Path
) -> None:
    told: list[CopyProgress] = []
    done = fetch(catalog, "run", tmp_path / "deep" / "dest", progress=told.append)
    assert files_in(done.path) == files_in(source)
    assert os.access(done.path / "run.sh", os.X_OK)
    assert not os.access(done.path / "empty.txt", os.X_OK)
    assert (done.files, done.kept_files, done.was_there) == (6, 0, False)
    assert told[-1].bytes_done == told[-1].bytes_total == done.size_bytes
    note = json.loads((done.path / MARKER_NAME).read_text())
    assert (note["name"], note["version"], note["step"]) == ("run", 1, 100)
    assert note["loader_state"] == {"epoch": 3}
    assert hidden(tmp_path / "deep") == []


def test_fetching_again_reads_nothing(catalog: Catalog, source: Path, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    fetch(catalog, "run", dest)
    before = os.stat(dest / "run.sh").st_mtime_ns
    assert fetch(catalog, "run@latest", dest).was_there
    assert os.stat(dest / "run.sh").st_mtime_ns == before


@pytest.mark.parametrize("damage", ["gone", "shorter", "link", "marker"])
def test_a_folder_that_was_changed_is_not_taken_for_complete(
    catalog: Catalog, source: Path, tmp_path: Path, damage: str
) -> None:
    dest = tmp_path / "dest"
    fetch(catalog, "run", dest)
    (dest / "run.sh").unlink()
    if damage == "shorter":
        (dest / "run.sh").write_text("#")
    elif damage == "link":
        (dest / "run.sh").symlink_to("empty.txt")
    elif damage == "marker":
        (dest / "run.sh").write_text("#!/bin/sh")
        (dest / MARKER_NAME).write_text("[" * 100_000)
    with pytest.raises(RefusedError, match="--replace"):
        fetch(catalog, "run", dest)
    assert not fetch(catalog, "run", dest, replace=True).was_there
    assert files_in(dest) == files_in(source)
    assert hidden(tmp_path) == []


def test_another_folder_is_kept_unless_told(catalog: Catalog, source: Path, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    dest.mkdir()
    (dest / "mine.txt").write_text("mine")
    with pytest.raises(RefusedError, match="there already"):
        fetch(catalog, "run", dest)
    assert (dest / "mine.txt").read_text() == "mine"
    fetch(catalog, "run", dest, replace=True)
    assert files_in(dest) == files_in(source)
    assert hidden(tmp_path) == []


def test_an_empty_folder_is_filled(catalog: Catalog, source: Path, tmp_path: Path) -> None:
    (tmp_path / "dest").mkdir()
    fetch(catalog, "run", tmp_path / "dest")
    assert files_in(tmp_path / "dest") == files_in(source)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_replacing_takes_the_newer_generation(
    catalog: Catalog,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    can_exchange: bool,
) -> None:
    if not can_exchange:
        monkeypatch.setattr(swap_module, "_exchange", lambda *_: False)
    dest, meter = tmp_path / "dest", Meter()
    fetch(catalog, "run", dest)
    (source / "run.sh").write_text("#!/bin/new")
    publish(catalog, source, "run", step=200)
    fetch(catalog, "run", dest, replace=True, meter=meter)
    assert (dest / "run.sh").read_text() == "#!/bin/new"
    assert hidden(tmp_path) == []
    expected = {} if can_exchange else {"rename-exchange": 1}
    assert meter.snapshot().event("fallback") == expected


def test_a_reader_sees_the_old_folder_or_the_new_one(
    catalog: Catalog, source: Path, tmp_path: Path
) -> None:
    dest = tmp_path / "dest"
    fetch(catalog, "run", dest)
    before = files_in(dest)
    (source / "model" / "bias.bin").write_bytes(b"new")
    publish(catalog, source, "run", step=200)

    def look(_: CopyProgress) -> None:
        assert files_in(dest) == before

    fetch(catalog, "run", dest, replace=True, progress=look)
    assert files_in(dest) == files_in(source)


def test_an_interrupted_fetch_goes_on(catalog: Catalog, source: Path, tmp_path: Path) -> None:
    class Interrupted(BaseException):
        pass

    def stop(progress: CopyProgress) -> None:
        if progress.files_done == 3:
            raise Interrupted

    dest = tmp_path / "dest"
    with pytest.raises(Interrupted):
        fetch(catalog, "run", dest, progress=stop, threads=1)
    assert not dest.exists()
    (staging,) = hidden(tmp_path)
    # Finished files are kept if their bytes are right, and only then.
    (tmp_path / staging / "large.bin").write_bytes(b"wrong")
    (tmp_path / staging / "stranger").write_bytes(b"x")
    done = fetch(catalog, "run", dest)
    assert done.kept_files >= 2
    assert files_in(dest) == files_in(source)
    assert hidden(tmp_path) == []


def test_two_fetches_to_one_place_do_not_mix(
    catalog: Catalog, source: Path, tmp_path: Path
) -> None:
    seen: list[Exception] = []

    def second(_: CopyProgress) -> None:
        if not seen:
            with pytest.raises(ConflictError, match="another process is fetching") as caught:
                fetch(catalog, "run", tmp_path / "dest")
            seen.append(caught.value)

    fetch(catalog, "run", tmp_path / "dest", progress=second)
    assert seen
    assert files_in(tmp_path / "dest") == files_in(source)


def test_a_place_taken_meanwhile_is_a_conflict(
    catalog: Catalog, source: Path, tmp_path: Path
) -> None:
    def rival(_: CopyProgress) -> None:
        (tmp_path / "dest").mkdir(exist_ok=True)
        (tmp_path / "dest" / "theirs").write_text("x")

    with pytest.raises(ConflictError, match="meanwhile"):
        fetch(catalog, "run", tmp_path / "dest", progress=rival)
    assert files_in(tmp_path / "dest") == {"theirs": b"x"}


@pytest.mark.parametrize(
    ("layout", "where"),
    [
        ("checkpoint-step", "checkpoint-100"),
        ("transformers", "checkpoint-100"),
        ("accelerate", "checkpoints/checkpoint_100"),
        ("torchtitan", "step-100"),
        ("lightning", "last.ckpt"),
    ],
)
def test_layouts(catalog: Catalog, source: Path, tmp_path: Path, layout: str, where: str) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    during: set[str] = set()

    def look(_: CopyProgress) -> None:
        during.update(p.name for p in run.iterdir())
        # Accelerate takes whatever is in this folder for a checkpoint.
        assert list((run / "checkpoints").iterdir()) == []

    assert fetch(catalog, "run", run, layout=layout, progress=look).path == run / where
    assert files_in(run / where) == files_in(source)
    assert fetch(catalog, "run", run, layout=layout).was_there
    (staging,) = during - {"checkpoints"}
    assert "step-" not in staging
    assert "last" not in staging


def test_a_layout_by_step_needs_one(catalog: Catalog, source: Path, tmp_path: Path) -> None:
    publish(catalog, source, "other")
    with pytest.raises(InvalidInputError, match="no step"):
        fetch(catalog, "other", tmp_path / "run", layout="torchtitan")
    with pytest.raises(InvalidInputError, match="unknown layout"):
        fetch(catalog, "other", tmp_path / "run", layout="orbax")
    for dest in ("", "/", "a\0b"):
        with pytest.raises(InvalidInputError):
            fetch(catalog, "other", dest)


def test_what_there_is_not(catalog: Catalog, source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        fetch(catalog, "nothing", tmp_path / "dest")
    with pytest.raises(NotFoundError):
        fetch(catalog, "run@v9", tmp_path / "dest")
    catalog.publish_dataset("clips", manifest("a"), session=catalog.begin_session())
    with pytest.raises(InvalidInputError, match="is a dataset"):
        fetch(catalog, "clips", tmp_path / "dest")
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize("how", ["other bytes", "longer", "shorter", "gone"])
def test_damaged_objects_are_never_put_in_place(
    catalog: Catalog, source: Path, tmp_path: Path, how: str
) -> None:
    stored = checkpoint_of(catalog, catalog.resolve("run")).file("model/weights.bin")
    assert stored is not None
    key = stored.object.key
    if how == "gone":
        catalog.store.delete_many([(key, None)])
    else:
        size = {"other bytes": 1000, "longer": 1001, "shorter": 999}[how]
        catalog.store.put(key, b"x" * size)
    with pytest.raises((CorruptDataError, ShortReadError)) as caught:
        fetch(catalog, "run", tmp_path / "dest")
    assert key in str(caught.value)
    assert not (tmp_path / "dest").exists()


def test_a_generation_collected_during_a_fetch_is_told(
    catalog: Catalog, source: Path, tmp_path: Path
) -> None:
    """Somebody had retired it, and the grace of collection was over."""
    generation = catalog.resolve("run@v1")

    def collect(_: object) -> None:
        if catalog.aliases("run"):
            catalog.remove_alias("run", "latest")
            catalog.retire("run@v1")
            catalog.gc(AT_ONCE)

    with pytest.raises(NotFoundError, match=r"run@v1 was collected"):
        fetch(catalog, "run@v1", tmp_path / "dest", threads=1, progress=collect)
    assert catalog.head().record("run", generation.version) is None
    assert not (tmp_path / "dest").exists()


# Links in the way. -------------------------------------------------------------------------


def staging_name(catalog: Catalog, tmp_path: Path) -> str:
    """The hidden name that a fetch to ``dest`` uses."""
    seen: list[str] = []
    other = tmp_path / "look"
    other.mkdir()
    fetch(catalog, "run", other / "dest", progress=lambda _: seen.extend(hidden(other)))
    return seen[0]


def test_a_link_at_the_destination_is_refused(
    catalog: Catalog, source: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "dest").symlink_to(victim)
    for replace in (False, True):
        with pytest.raises(RefusedError, match="symbolic link"):
            fetch(catalog, "run", tmp_path / "dest", replace=replace)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(victim)
    with pytest.raises(RefusedError, match="checkpoints is a symbolic link"):
        fetch(catalog, "run", tmp_path / "run", layout="accelerate")
    (tmp_path / "file").write_text("x")
    with pytest.raises(RefusedError, match="no folder"):
        fetch(catalog, "run", tmp_path / "file", replace=True)
    assert list(victim.iterdir()) == []
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("where", ["", "model", "run.sh", "model/weights.bin", "pipe"])
def test_links_in_the_hidden_folder_are_refused(
    catalog: Catalog, source: Path, tmp_path: Path, where: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "weights.bin").write_text("theirs")
    staging = tmp_path / staging_name(catalog, tmp_path)
    trap = staging / where if where else staging
    trap.parent.mkdir(parents=True, exist_ok=True)
    if where == "pipe":
        os.mkfifo(trap)
    else:
        trap.symlink_to(victim / "weights.bin" if "." in where else victim)
    with pytest.raises(RefusedError) as caught:
        fetch(catalog, "run", tmp_path / "dest")
    assert str(trap) in str(caught.value)
    assert {p.name for p in victim.iterdir()} == {"weights.bin"}
    assert (victim / "weights.bin").read_text() == "theirs"
    assert not (tmp_path / "dest").exists()


def test_a_hard_link_in_the_hidden_folder_is_not_written_through(
    catalog: Catalog, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("theirs")
    staging = tmp_path / staging_name(catalog, tmp_path)
    staging.mkdir()
    os.link(tmp_path / "victim", staging / "run.sh")
    fetch(catalog, "run", tmp_path / "dest")
    assert (tmp_path / "victim").read_text() == "theirs"
    assert (tmp_path / "dest" / "run.sh").read_text() == "#!/bin/sh"


def test_a_folder_of_somebody_else_is_refused(
    catalog: Catalog, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(RefusedError, match="another user"):
        fetch(catalog, "run", tmp_path / "dest")


def test_the_lock_is_given_back(catalog: Catalog, source: Path, tmp_path: Path) -> None:
    fetch(catalog, "run", tmp_path / "dest")
    descriptor = os.open(tmp_path / "dest", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


# Manifests of a hostile publisher. ---------------------------------------------------------


def hostile(catalog: Catalog, *paths: str, mode: int = 0o644) -> None:
    catalog.store.put("data/x", b"x")
    sha = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    files = [{"path": p, "key": "data/x", "size": 1, "sha256": sha, "mode": mode} for p in paths]
    data = encode_document(
        {"version": 1, "min_reader": 1, "kind": "checkpoint", "tool": "t", "files": files}
    )
    catalog.publish(catalog.begin_session(), "evil", "checkpoint", data, PublishOptions())


@pytest.mark.parametrize(
    "paths",
    [("../evil",), ("/evil",), ("a/../../evil",), ("a\0b",), ("a", "a"), ("a", "A"), ("a", "a/b"),
     (MARKER_NAME,), ("",), ("a\x1b[2J",)],
    ids=range(10),
)  # fmt: skip
def test_hostile_manifests_write_nothing(
    catalog: Catalog, tmp_path: Path, paths: tuple[str, ...]
) -> None:
    hostile(catalog, *paths)
    with pytest.raises(CorruptDataError) as caught:
        fetch(catalog, "evil", tmp_path / "run" / "dest")
    assert repr(paths[-1]) in str(caught.value)
    assert "evil@v1" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_modes_do_not_pass_the_umask(catalog: Catalog, tmp_path: Path) -> None:
    hostile(catalog, "a", mode=0o7777)
    before = os.umask(0o027)
    try:
        fetch(catalog, "evil", tmp_path / "dest")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "dest" / "a").stat().st_mode) == 0o750


def test_a_manifest_of_something_else_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    catalog.publish(catalog.begin_session(), "evil", "checkpoint", b"\x80\x04pickle")
    with pytest.raises(CorruptDataError, match="evil@v1"):
        fetch(catalog, "evil", tmp_path / "dest")


@pytest.mark.parametrize("kind", ["local", "moto", "rgw"])
def test_on_real_stores(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if kind == "rgw":
        request.applymarker(pytest.mark.rgw)
    if kind == "local":
        store = open_store(tmp_path / "repo")
    else:
        place: S3Place = request.getfixturevalue(f"{kind}_bucket")
        store = open_store(f"{place.url}/r", options=place.options)
    folder = make_folder(tmp_path / "source", large=True)
    with closing(store):
        catalog = Catalog.create(store)
        publish(catalog, folder, "run", step=1)
        fetch(catalog, "run", tmp_path / "dest")
        assert files_in(tmp_path / "dest") == files_in(folder)
