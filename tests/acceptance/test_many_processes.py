"""Real processes: two ingests at once, kills at random requests, shares that end as one."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

import dstream
from acceptance_made import batch_hashes, end_of, placed, relay, start_cli
from dstream.ingest import Layout
from dstream.store.opening import open_store
from ingest_made import check_bytes, content, fill, some_videos
from s3_services import S3Place
from s3_stub import Request

VIDEOS = 12
FILES = {**some_videos(VIDEOS), "v004.txt": b"side", "bad.mp4": b"no video"}
KEYS = [f"v{i:03d}.mp4" for i in range(VIDEOS)]
KILLS = 4
DONE_IN_PART = 3
SMALL = ("--shard-size", "8KB", "--workers", "2")


@pytest.fixture
def server(rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> S3Place:
    """Ceph with a source on it; child processes reach it by their environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", rgw_bucket.endpoint_url)
    store = open_store(f"{rgw_bucket.url}/source")
    for name, data in FILES.items():
        store.put(name, data)
    store.close()
    return rgw_bucket


def succeed(*arguments: object) -> dict[str, object]:
    code, out, err = end_of(start_cli(*arguments, "--json"))
    assert code in (0, DONE_IN_PART), err
    document: dict[str, object] = json.loads(out)
    return document


def check_two_at_once(repository: str, first: str, second: str, name: str) -> None:
    """Start two processes together; both must commit, and nothing may be lost."""
    names = ["clips", name]
    running = [
        start_cli("ingest", source, "--name", each, "--repo", repository, "--json", *SMALL)
        for source, each in zip((first, second), names, strict=True)
    ]
    for code, out, err in map(end_of, running):
        assert code == DONE_IN_PART, err
        assert json.loads(out)["published"]
    with placed(repository, first) as here:
        expected: dict[str, list[str]] = {}
        for each, prefix in zip(names, ("", "other/"), strict=True):
            expected.setdefault(each, []).extend(prefix + key for key in KEYS)
        for each, keys in expected.items():
            assert sorted(content(here.catalog, each).keys) == sorted(keys)
        versions = sum(len(here.catalog.generations(each)) for each in set(names))
        assert versions == 2
    with dstream.open(repository) as repo:
        for each, keys in expected.items():
            clips = repo.clips(each, frames=2, array="numpy")
            assert {clips[key].video.shape for key in keys} == {(2, 3, 48, 64)}


@pytest.mark.parametrize("name", ["clips", "more"])
def test_two_processes_ingest_at_once_and_both_commit(tmp_path: Path, name: str) -> None:
    first = fill(tmp_path / "first", FILES)
    second = fill(tmp_path / "second", {f"other/{key}": data for key, data in FILES.items()})
    repository = str(tmp_path / "repo")
    succeed("init", repository)
    check_two_at_once(repository, str(first), str(second), name)


@pytest.mark.rgw
@pytest.mark.parametrize("name", ["clips", "more"])
def test_two_processes_ingest_at_once_on_ceph(server: S3Place, name: str) -> None:
    store = open_store(f"{server.url}/second")
    for key, data in FILES.items():
        store.put(f"other/{key}", data)
    store.close()
    repository = f"{server.url}/repo"
    succeed("init", repository)
    check_two_at_once(repository, f"{server.url}/source", f"{server.url}/second", name)


class Watch:
    """Counts a process's requests, remembers what it read and wrote, and may kill it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self.left = -1
        self.requests: list[tuple[str, str]] = []

    def __call__(self, request: Request) -> None:
        with self.lock:
            path = unquote(urlsplit(request.path).path).split("/", 2)[-1]
            self.requests.append((request.method, path))
            self.left -= 1
            if self.left == 0 and self.process is not None:
                self.process.kill()

    def source_files(self) -> set[str]:
        """Names of the source's files that were read."""
        found = {path for verb, path in self.requests if verb == "GET"}
        return {path.partition("/")[2] for path in found if path.startswith("source/")} - {""}


@pytest.mark.rgw
def test_killed_at_random_requests_to_ceph_it_shows_whole_generations_and_completes(
    server: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = f"{server.url}/repo"
    succeed("init", repository)
    watch = Watch()
    generator = np.random.default_rng(23)
    kills = resumed = 0
    with relay(server, watch) as stub:
        run = ("ingest", f"{server.url}/source", "--repo", repository, "--workers", "1", "--json",
               "--shard-size", "8KB")  # fmt: skip
        monkeypatch.setenv("AWS_ENDPOINT_URL", stub.endpoint_url)
        succeed(*run, "--name", "whole")
        total = len(watch.requests)
        for number in range(KILLS):
            name = f"clips-{number}"
            with watch.lock:
                watch.requests.clear()
                watch.left = int(generator.integers(total // 3, total))
                watch.process = process = start_cli(*run, "--name", name)
            code, _, _ = end_of(process)
            kills += code == -signal.SIGKILL
            with placed(repository, f"{server.url}/source", server.options) as here:
                if name in here.catalog.names():
                    assert sorted(content(here.catalog, name).keys) == KEYS
                shards = {key: here.repository.head(key).etag for key in here.objects(".tar")}
                journalled = len(here.objects(".entry"))
            watch.requests.clear()
            document = succeed(*run, "--name", name)
            again = int(str(document["resumed_files"]))
            assert not journalled or again or not document["published"]
            # What was finished is not read again, and its shards are not written again.
            assert len(watch.source_files() & {*KEYS, "bad.mp4"}) == VIDEOS + 1 - again
            written = {path.partition("/")[2] for verb, path in watch.requests if verb == "PUT"}
            with placed(repository, f"{server.url}/source", server.options) as here:
                found = content(here.catalog, name)
                assert sorted(found.keys) == KEYS
                check_bytes(here, found, FILES)
                assert len(here.catalog.generations(name)) == 1
                assert len(shards.keys() & written) <= len(shards) - journalled
                assert all(here.repository.head(key).etag == shards[key] for key in shards)
            resumed += again
    assert kills >= KILLS - 1
    assert resumed > 0


@pytest.mark.parametrize("layout", list(Layout))
def test_shares_in_three_processes_equal_one_plain_ingest(tmp_path: Path, layout: Layout) -> None:
    source = fill(tmp_path / "source", FILES)
    shared, plain = str(tmp_path / "shared"), str(tmp_path / "plain")
    run = ("ingest", source, "--name", "clips", *SMALL)
    how = ("--in-place",) if layout is Layout.IN_PLACE else ()
    succeed("init", shared)
    succeed("init", plain)
    succeed(*run, *how, "--repo", plain)
    jobs = [
        start_cli(*run, *how, "--repo", shared, "--part", f"{i}/3", "--into", "night", "--json")
        for i in (1, 2, 3)
    ]
    samples = 0
    for code, out, err in map(end_of, jobs):
        assert code in (0, DONE_IN_PART), err
        samples += json.loads(out)["samples"]
        assert not json.loads(out)["published"]
    assert samples == VIDEOS
    assert end_of(start_cli("show", "clips", "--repo", shared))[0] == 10
    document = succeed("ingest", "--finish", "night", "--repo", shared)
    assert (document["published"], document["version"], document["samples"]) == (True, 1, VIDEOS)
    with placed(shared, str(source)) as here, placed(plain, str(source)) as other:
        one, two = content(here.catalog, "clips"), content(other.catalog, "clips")
        assert sorted(one.keys) == sorted(two.keys) == KEYS
        check_bytes(here, one, FILES)
        assert [row["reason"] for row in one.quarantine] == ["not-media"]
        assert one.manifest.totals == two.manifest.totals
        assert len(here.catalog.generations("clips")) == 1
    loader = {"batch_size": 4, "epochs": 2}
    batches = [batch_hashes(url, "clips", loader, frames=4, seed=2) for url in (shared, plain)]
    assert batches[0] == batches[1]
    assert len(batches[0]) >= 6
