from __future__ import annotations

import errno
import multiprocessing
import pickle
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pyarrow.dataset
import pyarrow.fs
import pytest
import webdataset

from checkpoint_made import files_in, make_folder
from dstream.catalog import Catalog
from dstream.checkpoint import publish
from dstream.errors import InvalidInputError, SourceChangedError
from dstream.filesystem.spec import DstreamFileSystem
from dstream.ingest.settings import Layout
from dstream.store.opening import open_store
from ingest_made import fill, place, some_videos, video_bytes

VIDEOS = {
    **some_videos(3),
    "v000.actions.jsonl": b'{"t": 0}\n',
    "deep/x.mp4": video_bytes(9),
}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """As the entry point of an installed package does it."""
    fsspec.register_implementation("dstream", DstreamFileSystem, clobber=True)
    yield
    DstreamFileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``packed@v1``, ``there@v1`` (in place), ``team/run@v1`` and ``team/run@v2`` (checkpoints)."""
    root = tmp_path_factory.mktemp("dstream-fs")
    fill(root / "videos", VIDEOS)
    here = place(root / "repo", root / "videos")
    here.ingest("packed", layout=Layout.PACKED)
    here.ingest("there", layout=Layout.IN_PLACE)
    catalog = Catalog.open(open_store(root / "repo"))
    publish(catalog, make_folder(root / "one"), "team/run")
    publish(catalog, make_folder(root / "two", salt=1), "team/run")
    return root / "repo"


@pytest.fixture
def fs(repo: Path) -> DstreamFileSystem:
    return DstreamFileSystem(repo, skip_instance_cache=True)


@pytest.mark.parametrize("name", ["packed", "there"])
def test_the_files_of_a_data_set_are_those_of_its_source(fs: DstreamFileSystem, name: str) -> None:
    assert {
        path.removeprefix(f"{name}@v1/files/"): fs.cat_file(path)
        for path in fs.find(f"{name}@v1/files")
    } == VIDEOS


def test_a_checkpoint_is_the_published_tree(fs: DstreamFileSystem, repo: Path) -> None:
    found = {path: fs.cat_file(path) for path in fs.find("team/run@v2")}
    assert found == {f"team/run@v2/{k}": v for k, v in files_in(repo.parent / "two").items()}


def test_the_tree_can_be_walked_from_its_root(fs: DstreamFileSystem) -> None:
    assert fs.ls("", detail=False) == ["packed@latest", "team", "there@latest"]
    assert fs.ls("dstream://team", detail=False) == ["team/run@latest"]
    assert fs.ls("packed@v1", detail=False) == [
        "packed@v1/files", "packed@v1/shards", "packed@v1/tables",
    ]  # fmt: skip
    assert fs.ls("packed@v1/files", detail=False) == [
        "packed@v1/files/deep", "packed@v1/files/v000.actions.jsonl", "packed@v1/files/v000.mp4",
        "packed@v1/files/v001.mp4", "packed@v1/files/v002.mp4",
    ]  # fmt: skip
    assert fs.ls("packed@v1/files/v001.mp4")[0]["size"] == len(VIDEOS["v001.mp4"])
    assert fs.ls("there@v1/shards") == []
    walked = [path for folder, _, files in fs.walk("") for path in files]
    assert len(walked) == 2 * (len(VIDEOS) + 3) + 1 + 5
    assert fs.isdir("packed@v1/files/deep")
    assert fs.isfile("packed@v1/files/deep/x.mp4")
    assert not fs.exists("packed@v1/files/dee")


@pytest.mark.parametrize(
    "path",
    ["packed@v9/files/v000.mp4", "packed@v1/files/none.mp4", "packed@v1/other/x", "nobody", "no@v1",
     "team/run@v2/model/none"],
)  # fmt: skip
def test_what_is_not_there_is_a_file_that_is_not_found(fs: DstreamFileSystem, path: str) -> None:
    for look in (fs.info, fs.ls, fs.cat_file, fs.open):
        if look not in (fs.info, fs.ls) and path == "nobody":
            continue  # above the generations there are no files
        with pytest.raises(FileNotFoundError):
            look(path)


@pytest.mark.parametrize(
    "path",
    [
        "packed@v1/../there@v1/files/v000.mp4",
        "packed@v1/files/../../../../etc/passwd",
        "/etc/passwd",
        "dstream:///etc/passwd",
        "packed@v1//files",
        "packed@v1/./files",
        "packed@v1/files/a\0b",
        "../packed@v1",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(fs: DstreamFileSystem, path: str) -> None:
    for look in (fs.info, fs.ls, fs.cat_file, fs.open, fs.exists):
        with pytest.raises(InvalidInputError, match="unusable path"):
            look(path)


def test_nothing_can_be_written(fs: DstreamFileSystem, tmp_path: Path) -> None:
    writes: list[tuple[Any, tuple[Any, ...]]] = [
        (fs.mkdir, ("a",)), (fs.rm, ("packed@v1",)), (fs.pipe_file, ("x", b"")),
        (fs.open, ("packed@v1/files/x", "wb")), (fs.touch, ("x",)), (fs.mv, ("a", "b")),
        (fs.put_file, (str(tmp_path), "x")), (fs.cp_file, ("a", "b")), (fs.makedirs, ("a",)),
    ]  # fmt: skip
    for write, given in writes:
        with pytest.raises(OSError, match="read-only") as caught:
            write(*given)
        assert caught.value.errno == errno.EROFS


def test_a_reference_means_the_same_generation_for_ever(repo: Path, tmp_path: Path) -> None:
    catalog = Catalog.open(open_store(repo))
    publish(catalog, make_folder(tmp_path / "a"), "moving")
    fs = DstreamFileSystem(repo, skip_instance_cache=True)
    assert fs.cat_file("moving@latest/model/weights.bin") == bytes(1000)
    publish(catalog, make_folder(tmp_path / "b", salt=7), "moving")
    assert fs.cat_file("moving@latest/model/weights.bin") == bytes(1000)
    # Also where it was only resolved, then sent to another process.
    sent = pickle.loads(pickle.dumps(fs))
    assert sent.info("moving@latest/run.sh")["generation"] == "moving@v1"
    assert fs.info("moving@newest/run.sh")["generation"] == "moving@v2"
    fs.invalidate_cache()
    assert fs.cat_file("moving@latest/model/weights.bin") == bytes([7]) * 1000


def test_an_open_file_goes_on_in_another_process_where_it_was(fs: DstreamFileSystem) -> None:
    data = VIDEOS["v001.mp4"]
    with fs.open("packed@v1/files/v001.mp4", block_size=100) as file:
        assert file.read(10) == data[:10]
        with pickle.loads(pickle.dumps(file)) as other:
            assert other.blocksize == 100
            assert other.read() == data[10:]
        file.seek(-5, 2)
        assert file.read(100) == data[-5:]
        assert file.read() == b""


def _read_in_child(fs: DstreamFileSystem, path: str, out: Any) -> None:
    out.put(fs.cat_file(path))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_reads_what_its_parent_had_not_looked_at(
    fs: DstreamFileSystem, method: str
) -> None:
    fs.cat_file("packed@v1/files/v000.mp4")
    context: Any = multiprocessing.get_context(method)
    out = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(fs, "there@v1/files/v001.mp4", out))
    child.start()
    assert out.get() == VIDEOS["v001.mp4"]
    child.join(30)
    assert child.exitcode == 0


def test_reads_are_exact_and_counted(fs: DstreamFileSystem) -> None:
    path = "packed@v1/files/v000.mp4"
    fs.info(path)
    before = fs.report()
    ranges = [(0, 10), (10, 30), (200, 250), (5, 12), (40, 40)]
    plan = fs.read_plan(path, ranges)
    assert [(read.stop_byte - read.start_byte, read.serves) for read in plan.reads] == [
        (30, (0, 3, 1)), (50, (2,)),
    ]  # fmt: skip
    assert (plan.needed_bytes, plan.read_bytes, plan.merged_ranges) == (87, 80, 3)
    assert fs.report() == before
    starts, ends = zip(*ranges, strict=True)
    found = fs.cat_ranges([path] * 5, list(starts), list(ends), on_error="raise")
    assert found == [VIDEOS["v000.mp4"][start:end] for start, end in ranges]
    done = fs.report().minus(before)
    assert (done.ranges, done.needed_bytes, done.reads) == (5, 87, 2)
    assert (done.requests, done.received_bytes, done.other_requests) == (2, 80, 0)
    assert len(fs.read_plan(path, ranges, max_gap_bytes=170).reads) == 1
    with fs.open(path) as file:
        file.seek(1000)
        assert file.read(7) == VIDEOS["v000.mp4"][1000:1007]
    assert fs.report().minus(before).received_bytes == 87


def test_neighbours_in_a_shard_become_one_read(fs: DstreamFileSystem) -> None:
    one, two = "packed@v1/files/v000.mp4", "packed@v1/files/v000.actions.jsonl"
    whole: list[tuple[int | None, int | None]] = [(None, None), (None, None)]
    assert len(fs.read_plan([one, two], whole).reads) == 2
    assert len(fs.read_plan([one, two], whole, max_gap_bytes=2048).reads) == 1
    found = fs.cat_ranges([one, two], None, None, max_gap=2048)
    assert found == [VIDEOS["v000.mp4"], VIDEOS["v000.actions.jsonl"]]


def test_the_error_of_one_range_leaves_the_others(fs: DstreamFileSystem) -> None:
    good = "packed@v1/files/v001.mp4"
    found = fs.cat_ranges(["packed@v1/files/none", good], 0, 4)
    assert isinstance(found[0], FileNotFoundError)
    assert found[1] == VIDEOS["v001.mp4"][:4]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["packed@v1/files/none", good], 0, 4, on_error="raise")


def test_a_file_that_was_replaced_in_place_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "videos", VIDEOS)
    here = place(tmp_path / "repo", tmp_path / "videos")
    here.ingest("there", layout=Layout.IN_PLACE)
    fs = DstreamFileSystem(tmp_path / "repo", skip_instance_cache=True)
    (tmp_path / "videos" / "v001.mp4").write_bytes(VIDEOS["v001.mp4"][::-1])
    with pytest.raises(SourceChangedError, match=r"v001\.mp4"):
        fs.cat_file("there@v1/files/v001.mp4", 0, 10)
    with fs.open("there@v1/files/v001.mp4") as file, pytest.raises(SourceChangedError):
        file.read(10)


def test_the_second_read_comes_from_the_node_cache(repo: Path, tmp_path: Path) -> None:
    fs = DstreamFileSystem(
        repo, cache=tmp_path / "cache", cache_bytes="100MB", skip_instance_cache=True
    )
    for _ in range(2):
        assert fs.cat_file("packed@v1/files/v000.mp4", 0, 1000) == VIDEOS["v000.mp4"][:1000]
    done = fs.report()
    assert (done.requests, done.cache_misses, done.cache_hits, done.cache_hit_bytes) == (
        1, 1, 1, 1000,
    )  # fmt: skip


def test_a_url_can_hold_its_repository(fs: DstreamFileSystem, repo: Path) -> None:
    url = fs.unstrip_protocol("packed@v1/files/v000.mp4")
    with fsspec.open(url) as file:
        assert file.read() == VIDEOS["v000.mp4"]
    with fsspec.open("dstream://packed@v1/files/v000.mp4", repo=str(repo)) as file:
        assert file.read() == VIDEOS["v000.mp4"]
    with pytest.raises(InvalidInputError, match="no repository"):
        fsspec.open("dstream://packed@v1/files/v000.mp4").open()


def test_installing_the_package_registers_the_protocol() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, name = project["project"]["entry-points"]["fsspec.specs"]["dstream"].partition(":")
    assert (module, name) == (DstreamFileSystem.__module__, DstreamFileSystem.__name__)


def test_pandas_and_pyarrow_read_the_tables(fs: DstreamFileSystem, repo: Path) -> None:
    frame = pandas.read_parquet(
        "dstream://packed@v1/tables/files/part-00000.parquet", storage_options={"repo": str(repo)}
    )
    assert sorted(frame["name"]) == sorted(VIDEOS)
    samples = pandas.read_parquet(
        "dstream://packed@v1/tables/samples", storage_options={"repo": str(repo)}
    )
    assert sorted(samples["key"]) == sorted(name for name in VIDEOS if name.endswith(".mp4"))
    files = pyarrow.dataset.dataset(
        "packed@v1/tables/files", filesystem=pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    )
    assert files.count_rows() == len(VIDEOS)
    sides = files.to_table(filter=pyarrow.dataset.field("role") == "side")
    assert sides["name"].to_pylist() == ["v000.actions.jsonl"]


@pytest.mark.parametrize("streaming", [True, False])
def test_hf_datasets_read_the_tables(repo: Path, tmp_path: Path, streaming: bool) -> None:
    datasets: Any = pytest.importorskip("datasets")
    made = datasets.load_dataset(
        "parquet",
        data_files="dstream://packed@v1/tables/samples/*.parquet",
        storage_options={"repo": str(repo)},
        cache_dir=str(tmp_path),
        streaming=streaming,
    )
    keys = [row["key"] for row in made["train"]]
    assert sorted(keys) == sorted(name for name in VIDEOS if name.endswith(".mp4"))


def test_webdataset_reads_a_shard(
    fs: DstreamFileSystem, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = fs.ls("packed@v1/shards", detail=False)

    def opened(url: str, *_: Any, **__: Any) -> Any:
        return fsspec.open(url, repo=str(repo), block_size=65536).open()

    monkeypatch.setitem(webdataset.gopen_schemes, "dstream", opened)
    samples = list(webdataset.WebDataset(f"dstream://{shard}", shardshuffle=False))
    assert {sample["__key__"]: sample["mp4"] for sample in samples} == {
        name.removesuffix(".mp4"): data for name, data in VIDEOS.items() if name.endswith(".mp4")
    }
