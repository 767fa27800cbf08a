"""Several ranks save and load through torch.distributed.checkpoint: real processes, gloo."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dstream.catalog import Catalog
from dstream.checkpoint.repository import checkpoint_of
from dstream.errors import NotFoundError
from dstream.store.opening import open_store
from s3_services import S3Place

pytest.importorskip("torch", exc_type=ImportError)

import checkpoint_ranks as ranks_module

# Ranks are forked from a process that has torch imported and has done nothing else.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch.distributed.checkpoint", "torch.distributed.tensor"])


def run_ranks(
    tmp_path: Path, work: Callable[..., None], ranks: int, url: str, *arguments: object
) -> tuple[list[dict[str, Any] | None], list[int | None]]:
    """Run ``work`` on every rank; what each reported, and the exit codes."""
    out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
    out.mkdir()
    meeting = str(out / "meeting")
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    processes = [
        SERVER.Process(
            target=ranks_module.enter,
            args=(environment, work, rank, ranks, meeting, url, str(out), *arguments),
        )
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    codes: list[int | None] = []
    for process in processes:
        process.join()
        codes.append(process.exitcode)
        process.close()
    reports = [
        json.loads(path.read_text()) if (path := out / f"rank{rank}.json").exists() else None
        for rank in range(ranks)
    ]
    return reports, codes


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An empty repository in a folder."""
    where = str(tmp_path / "repo")
    with closing(open_store(where)) as store:
        Catalog.create(store)
    return where


def check_saves(tmp_path: Path, url: str) -> None:
    reports, codes = run_ranks(tmp_path, ranks_module.save_many, 4, url)
    assert codes == [0] * 4
    assert reports == [{"labels": ["run@v1", "run@v2", "run@v3"]}] * 4
    # Plans were cached, and still no generation wrote into an earlier one.
    for reference, salt in (("run@v1", 0), ("run@latest", 2)):
        reports, codes = run_ranks(tmp_path, ranks_module.load_resharded, 2, url, reference, salt)
        assert codes == [0, 0]
        assert (
            reports
            == [
                {
                    "label": f"run@v{salt + 1}",
                    "loader_state": {"position": salt * 7},
                    "same": True,
                    "optimizer": True,
                }
            ]
            * 2
        )


def test_four_ranks_save_and_two_load(tmp_path: Path, url: str) -> None:
    check_saves(tmp_path, url)
    with closing(open_store(url)) as store:
        catalog = Catalog.open(store)
        manifests = [checkpoint_of(catalog, g) for g in catalog.generations("run")]
        keys = [{file.object.key for file in manifest.files} for manifest in manifests]
        assert not keys[0] & keys[1]
        assert not keys[1] & keys[2]
        assert catalog.resolve("run").attrs["world_size"] == 4


@pytest.mark.rgw
def test_four_ranks_save_to_ceph(
    tmp_path: Path, rgw_bucket: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in rgw_bucket.environment.items():
        monkeypatch.setenv(name, value)
    with closing(open_store(f"{rgw_bucket.url}/repo")) as store:
        Catalog.create(store)
    check_saves(tmp_path, f"{rgw_bucket.url}/repo")


@pytest.mark.parametrize("how", ["raises", "killed"])
def test_a_lost_rank_leaves_nothing_visible(tmp_path: Path, url: str, how: str) -> None:
    reports, codes = run_ranks(tmp_path, ranks_module.save_and_lose_a_rank, 4, url, how)
    for report in reports[:3] if how == "killed" else reports:
        assert report is not None
        assert report["error"] is not None
    assert codes[3] == (-9 if how == "killed" else 0)
    with closing(open_store(url)) as store:
        catalog = Catalog.open(store)
        assert catalog.head().seq == 0
        with pytest.raises(NotFoundError):
            catalog.resolve("run")
        assert list(store.list("data/")), "bytes were on their way"


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_latest_never_means_an_unfinished_save(tmp_path: Path, url: str, kind: str) -> None:
    run_ranks(tmp_path, ranks_module.save_many, 2, url)
    reports, codes = run_ranks(tmp_path, ranks_module.save_async, 2, url, kind)
    assert codes == [0, 0]
    for report in reports:
        assert report is not None
        assert set(report["seen"]) <= {"run@v3", "run@v4"}
        assert (report["before"], report["after"]) == ("run@v3", "run@v4")
    reports, _ = run_ranks(tmp_path, ranks_module.load_resharded, 1, url, "run@prod", 5)
    assert reports[0] is not None
    assert reports[0]["same"]


def test_ranks_that_mean_different_generations_are_refused(tmp_path: Path, url: str) -> None:
    run_ranks(tmp_path, ranks_module.save_many, 2, url)
    reports, _ = run_ranks(tmp_path, ranks_module.load_different, 2, url)
    for report in reports:
        assert report is not None
        assert "different generations (run@v1, run@v2)" in report["error"]
