from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from catalog_made import create_catalog, manifest, open_catalog
from dstream.catalog import Catalog
from dstream.checkpoint import CopyProgress, publish
from dstream.checkpoint.repository import checkpoint_of
from dstream.checkpoint.staging import SMALL_BYTES
from dstream.clock import FakeClock
from dstream.errors import ConflictError, InvalidInputError, NotFoundError, SourceChangedError
from dstream.format.paths import MARKER_NAME
from dstream.measure import Meter
from dstream.store.memory import MemoryStore
from dstream.store.metered import Metered
from dstream.store.opening import open_store
from dstream.units import MIB
from s3_services import S3Place


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def catalog(memory: MemoryStore) -> Catalog:
    return create_catalog(memory)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small checkpoint."""
    root = tmp_path / "ckpt"
    (root / "model").mkdir(parents=True)
    (root / "model" / "weights.bin").write_bytes(b"w" * 1000)
    (root / "model" / "bias.bin").write_bytes(b"b" * 10)
    (root / ".metadata").write_bytes(b"m")
    (root / "empty.txt").write_bytes(b"")
    (root / "run.sh").write_text("#!/bin/sh")
    (root / "run.sh").chmod(0o755)
    return root


def contents(catalog: Catalog, reference: str) -> dict[str, bytes]:
    stored = checkpoint_of(catalog, catalog.resolve(reference))
    return {f.path: catalog.store.get(f.object.key).data for f in stored.files}


def test_files_attributes_and_alias_become_visible_together(catalog: Catalog, folder: Path) -> None:
    done = publish(
        catalog, folder, "run", attrs={"loss": 0.5}, step=100, message="m", promote="prod",
        loader_state={"epoch": 1},
    )  # fmt: skip
    assert done.is_new
    assert (done.files, done.uploaded_files, done.size_bytes) == (5, 5, 1020)
    assert contents(catalog, "run") == {
        "model/weights.bin": b"w" * 1000,
        "model/bias.bin": b"b" * 10,
        ".metadata": b"m",
        "empty.txt": b"",
        "run.sh": b"#!/bin/sh",
    }
    entry = catalog.resolve("run@prod")
    assert (entry.kind, entry.step, entry.attrs) == ("checkpoint", 100, {"loss": 0.5})
    stored = checkpoint_of(catalog, entry)
    assert stored.loader_state == {"epoch": 1}
    assert {f.path: oct(f.mode) for f in stored.files}["run.sh"] == "0o755"
    assert catalog.head().seq == 1, "one transaction"


def test_publishing_again_returns_the_same_generation(catalog: Catalog, folder: Path) -> None:
    first = publish(catalog, folder, "run", step=1)
    again = publish(catalog, folder, "run", step=1, message="another run of the job")
    assert again.generation == first.generation
    assert (again.is_new, again.uploaded_files) == (False, 0)
    assert publish(catalog, folder, "run", step=2).generation.version == 2
    assert publish(catalog, folder, "run", step=2, promote="prod").generation.version == 3


def test_unchanged_files_are_named_again(
    memory: MemoryStore, catalog: Catalog, folder: Path
) -> None:
    publish(catalog, folder, "run", step=1)
    (folder / "model" / "bias.bin").write_bytes(b"B" * 10)
    (folder / "model" / "weights.bin").rename(folder / "renamed.bin")
    second = publish(catalog, folder, "run", step=2)
    assert (second.uploaded_files, second.uploaded_bytes) == (1, 10)
    assert second.generation.parent == 1
    assert len(list(memory.list("data/"))) == 6
    assert contents(catalog, "run@v1")["model/bias.bin"] == b"b" * 10
    assert contents(catalog, "run@v2")["model/bias.bin"] == b"B" * 10
    assert contents(catalog, "run@v2")["renamed.bin"] == b"w" * 1000


def test_latest_is_the_highest_step_not_the_last_commit(catalog: Catalog, folder: Path) -> None:
    for step in (200, 100):
        publish(catalog, folder, "run", step=step)
    assert catalog.resolve("run@latest").step == 200
    assert catalog.resolve("run@newest").step == 100


def test_a_key_stands_for_one_content(catalog: Catalog, folder: Path) -> None:
    first = publish(catalog, folder, "run", idempotency_key="job-7")
    publish(catalog, folder, "run", step=5, attrs={"x": 1})
    assert publish(catalog, folder, "run", idempotency_key="job-7").generation == first.generation
    (folder / "more").write_text("x")
    with pytest.raises(ConflictError, match="job-7"):
        publish(catalog, folder, "run", idempotency_key="job-7")


def test_a_single_file_is_a_checkpoint(catalog: Catalog, folder: Path) -> None:
    publish(catalog, folder / "run.sh", "one")
    assert contents(catalog, "one") == {"run.sh": b"#!/bin/sh"}


def test_requests_are_n_plus_two(memory: MemoryStore, folder: Path) -> None:
    create_catalog(memory)
    meter = Meter()
    catalog = open_catalog(Metered(memory, meter, FakeClock()))

    def cost(step: int) -> dict[tuple[str, str], int]:
        before = meter.snapshot()
        publish(catalog, folder, "run", step=step)
        requests = meter.snapshot().minus(before).requests
        return {(k.verb, str(k.purpose)): v.count for k, v in requests.items()}

    commit = {("put", "table"): 1, ("put-if-absent", "log"): 1}
    assert cost(1) == {("put", "copy"): 5, **commit}
    assert cost(2) == commit, "all files unchanged, the earlier manifest remembered"
    (folder / "run.sh").write_text("#!/bin/xx")
    assert cost(3) == {("put", "copy"): 1, **commit}


def test_requests_of_a_large_file_are_its_parts_plus_two_and_a_head(
    moto_bucket: S3Place, tmp_path: Path
) -> None:
    meter = Meter()
    options = replace(moto_bucket.options, part_bytes=5 * MIB)
    store = open_store(f"{moto_bucket.url}/repo", options=options, meter=meter)
    create_catalog(store)
    catalog = open_catalog(store)
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(bytes(range(256)) * (12 * MIB // 256))
    catalog.head()
    before = meter.snapshot()
    publish(catalog, folder, "run", step=1)
    requests = meter.snapshot().minus(before).requests
    copied = {k.verb: v.count for k, v in requests.items() if str(k.purpose) == "copy"}
    assert copied == {"create-upload": 1, "upload-part": 3, "complete-upload": 1, "head": 1}
    rest = {(k.verb, str(k.purpose)): v.count for k, v in requests.items()}
    assert sum(rest.values()) == sum(copied.values()) + 2, "a manifest and a commit"
    store.close()


def test_a_base_that_is_retired_meanwhile_is_not_relied_on(
    memory: MemoryStore, catalog: Catalog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(catalog, folder, "run", step=1)
    real = Catalog.publish
    answers = [ConflictError("retired", reason="parent")]

    def publishing(self: Catalog, *args: object, **named: object) -> object:
        if answers:
            raise answers.pop()
        return real(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Catalog, "publish", publishing)
    done = publish(catalog, folder, "run", step=2)
    assert done.uploaded_files == 5
    assert done.generation.parent is None


def test_large_files_go_by_upload_and_are_hashed_meanwhile(
    memory: MemoryStore, catalog: Catalog, tmp_path: Path
) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(os.urandom(SMALL_BYTES + 12345))
    told: list[CopyProgress] = []
    publish(catalog, large, "run", progress=told.append)
    assert contents(catalog, "run")["large.bin"] == large.read_bytes()
    assert told[-1] == CopyProgress(1, 1, SMALL_BYTES + 12345, SMALL_BYTES + 12345)
    publish(catalog, large, "run", step=2)
    assert len(list(memory.list("data/"))) == 1


class Growing(MemoryStore):
    """While the first object is written, the file of that job grows."""

    def __init__(self, victim: Path) -> None:
        super().__init__()
        self.victim = victim

    def _grow(self) -> None:
        with self.victim.open("ab") as file:
            file.write(b"more")

    def put(self, key, data, **named):  # type: ignore[no-untyped-def]
        if key.startswith("data/"):
            self._grow()
        return super().put(key, data, **named)

    def upload(self, key, path, **named):  # type: ignore[no-untyped-def]
        info = super().upload(key, path, **named)
        self._grow()
        return info


@pytest.mark.parametrize("size", [10, SMALL_BYTES + 1])
def test_a_file_that_changes_is_refused(tmp_path: Path, size: int) -> None:
    victim = tmp_path / "weights.bin"
    victim.write_bytes(bytes(size))
    store = Growing(victim)
    catalog = create_catalog(store)
    with pytest.raises(SourceChangedError, match="changed while"):
        publish(catalog, victim, "run")
    with pytest.raises(NotFoundError):
        catalog.resolve("run")


def test_a_file_that_comes_meanwhile_is_noticed(catalog: Catalog, folder: Path) -> None:
    def late(_: CopyProgress) -> None:
        (folder / "late").write_text("x")

    with pytest.raises(SourceChangedError):
        publish(catalog, folder, "run", progress=late)
    assert catalog.names() == []


def test_links_are_refused_or_followed(catalog: Catalog, folder: Path, tmp_path: Path) -> None:
    (folder / "last").symlink_to("run.sh")
    with pytest.raises(InvalidInputError, match=r"symbolic link.*--follow") as caught:
        publish(catalog, folder, "run")
    assert caught.value.facts["path"] == "last"
    publish(catalog, folder, "run", follow=True)
    assert contents(catalog, "run")["last"] == b"#!/bin/sh"
    (folder / "outside").symlink_to(tmp_path)
    with pytest.raises(InvalidInputError, match="link to a folder"):
        publish(catalog, folder, "run", follow=True)
    (folder / "outside").unlink()
    (folder / "outside").symlink_to("nothing")
    with pytest.raises(InvalidInputError, match="link to nothing"):
        publish(catalog, folder, "run", follow=True)


def test_what_is_no_file_is_refused(catalog: Catalog, folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidInputError, match="no regular file"):
        publish(catalog, folder, "run")
    (folder / "pipe").unlink()
    for name in ("a\nb", "b\x1b[2J"):
        (folder / name).write_text("x")
        with pytest.raises(InvalidInputError, match="control character"):
            publish(catalog, folder, "run")
        (folder / name).unlink()
    bad = os.path.join(os.fsencode(folder), b"\xff")
    Path(os.fsdecode(bad)).write_text("x")
    with pytest.raises(InvalidInputError, match="Unicode"):
        publish(catalog, folder, "run")
    os.unlink(bad)
    (folder / "RUN.sh").write_text("x")
    with pytest.raises(InvalidInputError, match="rename one"):
        publish(catalog, folder, "run")
    (tmp_path / "nothing").mkdir()
    for path in ("nothing", "absent"):
        with pytest.raises(InvalidInputError):
            publish(catalog, tmp_path / path, "run")
    assert catalog.names() == []


def test_empty_folders_and_the_note_of_fetch_are_left_out(catalog: Catalog, folder: Path) -> None:
    (folder / "logs" / "old").mkdir(parents=True)
    (folder / MARKER_NAME).write_text("{}")
    meter = Meter()
    publish(catalog, folder, "run", meter=meter)
    assert meter.snapshot().event("publish-skip") == {"empty-folder": 1}
    assert not any(MARKER_NAME in path or "logs" in path for path in contents(catalog, "run"))


def test_a_dataset_does_not_become_a_checkpoint(catalog: Catalog, folder: Path) -> None:
    catalog.publish_dataset("clips", manifest("a"), session=catalog.begin_session())
    with pytest.raises(ConflictError, match="is a dataset"):
        publish(catalog, folder, "clips")


@pytest.mark.parametrize("kind", ["local", "moto", "rgw"])
def test_on_real_stores(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, folder: Path
) -> None:
    if kind == "rgw":
        request.applymarker(pytest.mark.rgw)
    (folder / "large.bin").write_bytes(os.urandom(20 << 20))
    if kind == "local":
        store = open_store(tmp_path / "repo")
    else:
        place: S3Place = request.getfixturevalue(f"{kind}_bucket")
        store = open_store(f"{place.url}/r", options=place.options)
    with closing(store):
        catalog = Catalog.create(store)
        assert publish(catalog, folder, "run", step=1).uploaded_files == 6
        assert publish(catalog, folder, "run", step=2).uploaded_files == 0
        assert contents(catalog, "run")["large.bin"] == (folder / "large.bin").read_bytes()
