"""Every verb on a real repository of small videos."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cli_runner import Ran, dstream
from dstream.diagnose.bench.document import BenchDocument
from dstream.errors import MediaReason
from made_video import make_video


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three good videos, one file that is none, and a name for terminals to choke on."""
    folder = tmp_path_factory.mktemp("source")
    make_video(folder / "a.mp4", frames=60)
    make_video(folder / "deep er" / "b.mkv", frames=60, container="mkv", vfr=True)
    make_video(folder / "evil\x1b[31m.mp4", frames=45, size=(96, 64), rotation_deg=90)
    (folder / "broken.mp4").write_bytes(b"not a video at all")
    return folder


@pytest.fixture(scope="module")
def repo(source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("repository") / "new")
    assert dstream("init", url).code == 0
    ran = dstream("ingest", source, "--name", "clips", "--repo", url, "-m", "the first")
    assert ran.code == 3
    return url


@pytest.fixture(autouse=True)
def _environment(repo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSTREAM_REPO", repo)


def fits(ran: Ran) -> bool:
    return all(len(line) <= 80 and "\x1b" not in line for line in ran.out.splitlines())


def test_init_refuses_what_is_there(repo: str) -> None:
    ran = dstream("init", repo)
    assert (ran.code, ran.out) == (11, "")
    assert "is a dstream repository already" in ran.err


def test_init_json(tmp_path: Path) -> None:
    ran = dstream("init", tmp_path / "x", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.document() == {"repository": str(tmp_path / "x"), "seq": 0}


def test_ingest_reports_what_it_added_and_what_it_left_out(source: Path) -> None:
    ran = dstream("ingest", source, "--name", "other")
    assert ran.code == 3
    assert fits(ran)
    assert ran.out.startswith("Published other@v1\nadded        3 samples in 3 files")
    assert "not-media" in ran.out
    assert "broken.mp4" in ran.out
    again = dstream("ingest", source, "--name", "other", "--json")
    assert again.code == 0
    document = again.document()
    assert (document["published"], document["version"], document["samples"]) == (False, 1, 0)
    assert document["unchanged_files"] >= 3


def test_ingest_leaves_no_empty_folder(repo: str) -> None:
    assert [
        path for path in Path(repo).rglob("*") if path.is_dir() and not any(path.iterdir())
    ] == []


def test_ingest_json_names_the_quarantined(source: Path) -> None:
    ran = dstream("ingest", source, "--name", "third", "--in-place", "--json")
    assert (ran.code, ran.err) == (3, "")
    document = ran.document()
    (row,) = document["quarantined"]
    assert row["name"] == "broken.mp4"
    assert row["reason"] in set(MediaReason)
    assert document["samples"] == 3
    assert document["requests"]["requests"]


def test_shares_are_committed_together(source: Path) -> None:
    for share in ("1/2", "2/2"):
        ran = dstream("ingest", source, "-n", "shared", "--part", share, "--into", "key-1")
        assert ran.code in (0, 3)
        assert ran.out.startswith(f"Share {share[0]} of 2 is done")
        assert dstream("show", "shared").code == 10
    ran = dstream("ingest", source, "--name", "other", "--finish", "key-1")
    assert ran.code == 2
    assert "are for the dataset 'shared'" in ran.err
    ran = dstream("ingest", "--finish", "key-1", "--json")
    assert ran.code == 3
    assert ran.document()["samples"] == 3
    assert dstream("show", "shared", "--json").document()["totals"]["samples"] == 3


def test_finishing_what_was_never_begun_is_not_found() -> None:
    assert dstream("ingest", "--finish", "nothing-here").code == 10


def test_a_source_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    ran = dstream("ingest", tmp_path / "gone", "--name", "x")
    assert ran.code == 10
    assert str(tmp_path / "gone") in ran.err
    (tmp_path / "empty").mkdir()
    ran = dstream("ingest", tmp_path / "empty", "--name", "x")
    assert ran.code == 10
    assert "no videos" in ran.err


def test_a_recipe_that_is_not_there_is_told_before_anything_is_read(source: Path) -> None:
    ran = dstream("ingest", source, "--name", "x", "--recipe", "gampelay")
    assert ran.code == 10
    assert "installed: arrays, gameplay, video" in ran.err
    ran = dstream("ingest", source, "--name", "x", "--recipe", "gameplay", "--recipe-arg", "a=1")
    assert ran.code == 2
    assert "has no parameter 'a'" in ran.err


def test_ls_lists_names_with_their_latest(repo: str) -> None:
    ran = dstream("ls")
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran)
    assert ran.out.splitlines()[0].split()[:4] == ["name", "latest", "kind", "samples"]
    document = dstream("ls", "--json").document()
    (found,) = (item for item in document["artifacts"] if item["name"] == "clips")
    assert document["repository"] == repo
    assert (found["latest"], found["aliases"], found["totals"]["samples"]) == (1, {"latest": 1}, 3)


def test_ls_of_an_empty_repository_says_what_to_do(tmp_path: Path) -> None:
    dstream("init", tmp_path / "empty")
    ran = dstream("ls", "--repo", tmp_path / "empty")
    assert (ran.code, ran.out) == (0, "")
    assert "dstream ingest" in ran.err


def test_show_a_generation(source: Path) -> None:
    ran = dstream("show", "clips@v1")
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran)
    for part in ("clips@v1 (latest)", "the first", "matroska", "64x96", "variable", "not-media"):
        assert part in ran.out
    document = dstream("show", "clips", "--json").document()
    assert document["sources"] == [str(source)]
    assert document["recipe"]["name"] == "video"
    assert sum(kind["streams"] for kind in document["kinds"]) == 3
    assert [row["name"] for row in document["quarantine"]] == ["broken.mp4"]


def test_show_a_sample() -> None:
    ran = dstream("show", "clips", "deep er/b.mkv")
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran)
    for part in ("h264", "matroska", "variable rate", "GOPs", "bytes by GOP", "█"):
        assert part in ran.out
    document = dstream("show", "clips@newest", "deep er/b.mkv", "--json").document()
    assert document["sample"]["key"] == "deep er/b.mkv"
    (track,) = document["tracks"]
    assert len(track["gops"]["size_bytes"]) == track["gops"]["count"] == 2


def test_show_an_array_in_rows(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    np.save(tmp_path / "source" / "a.npy", np.zeros((100, 4, 6), "f4"))
    repo = str(tmp_path / "repo")
    assert dstream("init", repo).code == 0
    ingest = ("ingest", tmp_path / "source", "--name", "latents", "--recipe", "arrays")
    estimate = dstream(*ingest, "--dry-run").out
    assert "expected  1 usable file, 100 rows in all" in estimate
    assert "video" not in estimate
    ran = dstream(*ingest, "--repo", repo)
    assert ran.code == 0
    assert "video" not in ran.err
    warmed = dstream("cache", "warm", "latents", "--repo", repo, "--cache", tmp_path / "cache",
                     "--cache-bytes", "64MB")  # fmt: skip
    assert warmed.out.startswith("files  1 of 1")
    assert "video" not in warmed.out + warmed.err
    assert " dataset        1  100 rows  " in dstream("ls", "--repo", repo).out
    told = dstream("show", "latents", "--repo", repo).out
    assert re.search(r"^length +100 rows$", told, re.MULTILINE)
    assert re.search(r"^npy +array .* 1 +100 rows$", told, re.MULTILINE)
    told = dstream("show", "latents", "a.npy", "--repo", repo).out
    assert re.search(r"^span +100 rows from 0$", told, re.MULTILINE)
    assert "float32[4,6]" in told
    assert "rows    100" in told
    assert not any(word in told for word in ("video", "GOP", "pixels", "frame"))


@pytest.mark.parametrize("verb", [["bench"], ["plan"], ["show"], ["cache", "warm"]], ids=" ".join)
def test_a_folder_that_was_taken_for_a_name_is_pointed_at(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DSTREAM_CACHE_BYTES", "64MB")
    ran = dstream(*verb, "films")
    assert (ran.code, ran.out) == (10, "")
    assert "./films" not in ran.err
    (tmp_path / "films").mkdir()
    ran = dstream(*verb, "films")
    assert (ran.code, ran.out) == (10, "")
    assert "nothing is named 'films'" in ran.err
    assert "'films' was taken for a name; what lies here is ./films" in ran.err


def test_show_a_rotated_sample_with_a_wild_name() -> None:
    ran = dstream("show", "clips", "evil\x1b[31m.mp4")
    assert ran.code == 0
    assert fits(ran)
    assert "64x96, turned by 90°" in ran.out
    assert "45 frames" in ran.out


def test_show_a_raw_file(source: Path) -> None:
    ran = dstream("show", source / "a.mp4")
    assert ran.code == 0
    assert fits(ran)
    assert "60 frames" in ran.out
    by_url = dstream("show", (source / "a.mp4").as_uri(), "--json").document()
    assert by_url["tracks"][0]["frames"] == 60
    ran = dstream("show", source / "broken.mp4")
    assert ran.code == 1
    assert dstream("show", source / "gone.mp4").code == 10


def test_show_a_folder_says_what_to_do_with_it(source: Path) -> None:
    for target in (str(source), source.as_uri(), source.as_uri() + "/", "file:///tmp", "s3://raw"):
        ran = dstream("show", target)
        assert (ran.code, ran.out) == (2, "")
        assert "is a folder" in ran.err
        assert f"`dstream bench {target}`" in ran.err
        assert "dstream ingest" in ran.err


def test_show_tells_the_form_of_pixels(source: Path) -> None:
    assert "64x96, turned by 90°, square pixels" in " ".join(
        dstream("show", "clips", "evil\x1b[31m.mp4").out.split()
    )


def test_names_with_ends_of_lines_are_one_line(tmp_path: Path) -> None:
    name = "two\nlines\r\x85.mp4"
    make_video(tmp_path / "in" / name, frames=30)
    dstream("init", tmp_path / "repo")
    repo = ["--repo", tmp_path / "repo"]
    assert dstream("ingest", tmp_path / "in", "--name", "odd", "--in-place", *repo).code == 0
    ran = dstream("show", "odd", name, *repo)
    assert ran.code == 0
    assert ran.out.splitlines()[0] == r"two\nlines\r\x85.mp4"
    assert any(r"two\nlines\r\x85.mp4" in line for line in ran.out.splitlines()[1:])


@pytest.mark.parametrize("target", ["nothing", "clips@v9", "clips@prod"])
def test_show_what_is_not_there(target: str) -> None:
    ran = dstream("show", target)
    assert (ran.code, ran.out) == (10, "")
    assert target.partition("@")[0] in ran.err


def test_show_a_key_that_is_not_there() -> None:
    ran = dstream("show", "clips", "zzz.mp4")
    assert ran.code == 10
    assert "no sample 'zzz.mp4'" in ran.err


def test_log_is_newest_first(repo: str) -> None:
    ran = dstream("log")
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran)
    assert ran.out.splitlines()[-1].endswith("create")
    document = dstream("log", "--json", "--limit", "0").document()
    seqs = [commit["seq"] for commit in document["commits"]]
    assert seqs == sorted(seqs, reverse=True)
    assert seqs[-1] == 0
    assert len(dstream("log", "--json", "-n", "1").document()["commits"]) == 1


def test_bench_a_dataset_and_a_raw_source_in_one_vocabulary(source: Path) -> None:
    options = ["--clips", "6", "--frames", "4", "--batch-size", "2", "--resize", "32x32"]
    ran = dstream("bench", "clips", *options)
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran)
    packed = dstream("bench", "clips", *options, "--fps", "10", "--json").document()
    raw = dstream("bench", source / "a.mp4", *options, "--json").document()
    assert packed.keys() == raw.keys()
    assert packed["report"].keys() == raw["report"].keys()
    assert packed["report"]["clips"] == raw["report"]["clips"] == 6
    assert packed["report"]["data_requests_per_clip"] >= 1


def test_bench_says_first_what_sets_the_pace(source: Path) -> None:
    options = ["--clips", "6", "--frames", "4", "--batch-size", "2", "--resize", "32x32"]
    ran = dstream("bench", "clips", *options, "--step-ms", "120", "--details")
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran)
    told = " ".join(ran.out.split())
    assert told.startswith("The training step sets the pace: 120 ms a batch allow")
    assert "data requests" in told
    assert "cache: no --cache was given" in told
    document = BenchDocument.parse(dstream("bench", "clips", *options, "--json").out)
    assert document.settings["batch_size"] == 2
    measured = {stage.name for stage in document.stages if stage.measured}
    assert {"list", "fetch", "decode", "convert", "collate"} <= measured
    assert 0 < document.whole.explained_share <= 1
    assert document.whole.efficiency is not None


def test_plan_tells_what_nodes_would_read(source: Path) -> None:
    job = ["--nodes", "2", "--ranks-per-node", "1", "--batch-size", "2", "--cache", "1GB"]
    assumed = ["--videos", "40", "--seconds", "60", "--resume-nodes", "1", *job]
    ran = dstream("plan", *assumed)
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran)
    document = dstream("plan", *assumed, "--json").document()
    runs = {(run["shuffle"], len(run["nodes"])): run["epochs"] for run in document["runs"]}
    assert set(runs) == {("affine", 1), ("affine", 2), ("global", 1), ("global", 2)}
    assert runs["affine", 1][0]["amplification"] < 1.1 < runs["global", 1][0]["amplification"]
    assert runs["affine", 1][1]["bytes_read"] == 0
    assert all(e["clips_lost"] == e["clips_repeated"] == 0 for run in runs.values() for e in run)
    for target in ("clips", source / "a.mp4"):
        document = dstream("plan", target, "--frames", "4", *job, "--json").document()
        assert document["clips"] > 0
        assert document["runs"][0]["epochs"][0]["bytes_unique"] > 0
    chosen = dstream("plan", "clips", "--frames", "4", *job, "--where", "key < 'b'", "--json")
    assert chosen.document()["clips"] == 15  # of a.mp4 alone
    for wrong in (
        ["--nodes", "2"],
        ["clips", "--videos", "3"],
        ["clips", "--seconds", "3"],
        ["clips", "--frames", "10000"],
        ["--videos", "3", "--where", "true"],
        ["--videos", "3", "--resume-at", "1"],
        ["--videos", "3", "--resume-nodes", "2", "--resume-at", "2"],
        ["--videos", "3", "--resume-nodes", "0"],
        ["--videos", "3", "--nodes", "1000000"],
    ):
        assert dstream("plan", *wrong).code == 2, wrong


def test_bench_counts_what_gives_no_clip(source: Path, tmp_path: Path) -> None:
    options = ["--clips", "12", "--frames", "4", "--batch-size", "2", "--resize", "32x32"]
    ran = dstream("bench", source, *options)
    assert ran.code == 3
    assert fits(ran)
    assert "Skipped" in ran.out
    assert "not-media" in ran.out
    assert "broken.mp4" in ran.out
    ran = dstream("bench", source, *options, "--json")
    document = ran.document()
    assert ran.code == 3
    assert document["report"]["skips"]["not-media"] >= 1
    assert [(f["sample_key"], f["reason"]) for f in document["skipped"]] == [
        ("broken.mp4", "not-media")
    ]
    ran = dstream("bench", source, *options, "--on-error", "raise")
    assert (ran.code, ran.out) == (1, "")
    assert "broken.mp4" in ran.err
    # Of a dataset it is an error at once, unless it is asked for.
    folder, url = tmp_path / "in", tmp_path / "repo"
    for name in ("a.mp4", "b.mp4"):
        make_video(folder / name, frames=60)
    dstream("init", url)
    dstream("ingest", folder, "--name", "placed", "--in-place", "--repo", url)
    (folder / "a.mp4").unlink()
    assert dstream("bench", "placed", *options, "--repo", url).code == 10
    ran = dstream("bench", "placed", *options, "--repo", url, "--on-error", "skip")
    assert ran.code == 3
    assert "not-found" in ran.out


def test_bench_crops_to_one_size(source: Path) -> None:
    options = ["--clips", "4", "--frames", "4", "--batch-size", "4", "--resize", "64"]
    assert dstream("bench", "clips", *options).code == 2  # one number keeps the aspect
    assert dstream("bench", "clips", *options, "--crop", "48x48").code == 0


def test_bench_needs_one_size_and_names_the_option(source: Path) -> None:
    ran = dstream("bench", "clips", "--clips", "4", "--frames", "4", "--batch-size", "4")
    assert ran.code == 2
    assert "resize" in ran.err


def test_bench_names_splits_only_of_datasets(source: Path) -> None:
    assert dstream("bench", source, "--split", "val").code == 2
    assert dstream("bench", "clips", "--split", "val").code == 2


def test_show_tells_what_bench_can_choose_by(source: Path) -> None:
    document = dstream("show", "clips", "--json").document()
    assert document["splits"] == {"train": 3}
    assert "train 3" in dstream("show", "clips").out
    assert dstream("bench", source, "--where", "width > 1").code == 2
    wanted = ["--clips", "4", "--frames", "4", "--batch-size", "1", "--split", "train"]
    assert dstream("bench", "clips", *wanted, "--where", "width > 1 and fps > 1").code == 0
    ran = dstream("bench", "clips", *wanted, "--where", "motion > 1")
    assert ran.code == 2
    assert "there is no column 'motion'; there are" in ran.err
    assert "random() is not allowed" in dstream("bench", "clips", "--where", "random() < 1").err


def test_a_source_that_changed_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    make_video(folder / "a.mp4", frames=60)
    dstream("init", tmp_path / "repo")
    at = ["--repo", tmp_path / "repo"]
    assert dstream("ingest", folder, "--name", "x", "--in-place", *at).code == 0
    make_video(folder / "a.mp4", frames=60, seed=3)
    ran = dstream("bench", "x", "--clips", "2", "--frames", "4", *at, "--json")
    assert (ran.code, ran.out) == (12, "")
    error = json.loads(ran.err)
    assert error["error"] == "SourceChangedError"
    assert "a.mp4" in error["message"]


def test_recipes_lists_and_shows() -> None:
    ran = dstream("recipes")
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran)
    names = [item["name"] for item in dstream("recipes", "--json").document()["recipes"]]
    assert {"video", "gameplay"} <= set(names)
    assert dstream("recipes", "gameplay", "--json").document()["params"]["align"] == "auto"
    assert dstream("recipes", "nope").code == 10


def test_a_dry_run_estimates_both_layouts_and_writes_nothing(source: Path, repo: str) -> None:
    before = {path for path in Path(repo).rglob("*") if path.is_file()}
    ran = dstream("ingest", source, "--name", "never", "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert fits(ran)
    for part in ("packed", "in place", "bytes written", "dollars a month", "1 not-media"):
        assert part in ran.out
    document = dstream("ingest", source, "--name", "never", "--dry-run", "--json").document()
    assert document["videos"] == 4
    assert document["in_place"]["bytes_written"] < document["packed"]["bytes_written"]
    assert {path for path in Path(repo).rglob("*") if path.is_file()} == before
