from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkpoint_made import files_in, make_folder
from cli_runner import dstream
from dstream.clock import SystemClock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint beside an empty repository, which the environment names."""
    monkeypatch.setenv("DSTREAM_REPO", str(tmp_path / "repo"))
    assert dstream("init", tmp_path / "repo").code == 0
    return make_folder(tmp_path / "source")


def test_from_a_folder_to_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"epoch": 2}')
    ran = dstream(
        "publish", folder, "--name", "run", "--step", 500, "--attr", "loss=0.5",
        "--attr", "sha=0a1b", "--promote", "prod", "--loader-state", tmp_path / "state.json",
        "--message", "nightly", "--json",
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    done = ran.document()
    assert (done["reference"], done["published"], done["uploaded_files"]) == ("run@v1", True, 5)
    ran = dstream("fetch", "run@prod", tmp_path / "dest", "--json")
    assert ran.code == 0
    assert files_in(Path(ran.document()["path"])) == files_in(folder)
    shown = dstream("show", "run", "--json").document()
    assert shown["attrs"] == {"loss": 0.5, "sha": "0a1b"}
    assert (shown["step"], shown["loader_state"]) == (500, {"epoch": 2})
    assert {file["path"] for file in shown["files"]} == set(files_in(folder))
    assert shown["aliases"] == ["latest", "prod"]


def test_the_same_job_again_is_the_same_generation(folder: Path, tmp_path: Path) -> None:
    first = dstream("publish", folder, "--name", "run", "--step", 1)
    again = dstream("publish", folder, "--name", "run", "--step", 1)
    assert (first.code, again.code) == (0, 0)
    assert "Published run@v1" in first.out
    assert "Nothing new: this is run@v1" in again.out
    assert dstream("fetch", "run", tmp_path / "dest").out.startswith("Fetched run@v1")
    assert dstream("fetch", "run", tmp_path / "dest").out.startswith("Already there: run@v1")


def test_one_line_for_scripts(folder: Path, tmp_path: Path) -> None:
    ran = dstream("show", "run@latest", "--quiet")
    assert (ran.code, ran.out) == (10, "")
    for step in (200, 100):
        assert dstream("publish", folder, "--name", "run", "--step", step, "--quiet").code == 0
    ran = dstream("show", "run@latest", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "run@v1\n", "")
    assert dstream("show", "run@newest", "--quiet").out == "run@v2\n"
    long = tmp_path / ("d" * 100)
    ran = dstream("fetch", "run", long, "--quiet", "--layout", "transformers")
    assert ran.out == f"{long / 'checkpoint-200'}\n"


def test_show_tells_a_person(folder: Path) -> None:
    dstream("publish", folder, "--name", "run", "--step", 5, "--attr", "loss=0.5")
    ran = dstream("show", "run")
    for expected in ("run@v1 (latest)", "5 files", "weights.bin", "loss"):
        assert expected in ran.out


def test_failures_have_their_codes(folder: Path, tmp_path: Path) -> None:
    publish = ("publish", folder, "--name", "run", "--idempotency-key", "job")
    assert dstream("fetch", "run", tmp_path / "dest").code == 10
    assert dstream(*publish).code == 0
    (folder / "more").write_text("x")
    assert dstream(*publish).code == 11
    (folder / "link").symlink_to("more")
    ran = dstream("publish", folder, "--name", "run")
    assert ran.code == 2
    assert "--follow" in ran.err
    assert dstream("publish", folder, "--name", "run", "--follow").code == 0
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "mine").write_text("x")
    ran = dstream("fetch", "run", tmp_path / "dest", "--json")
    assert ran.code == 12
    assert json.loads(ran.err)["error"] == "RefusedError"
    assert dstream("fetch", "run", tmp_path / "dest", "--replace").code == 0
    assert dstream("fetch", "run", tmp_path / "x", "--layout", "accelerate").code == 2
    assert dstream("publish", folder, "--name", "a@b").code == 2
    for wrong in ("absent.json", "more"):
        ran = dstream("publish", folder, "-n", "run", "--follow", "--loader-state", folder / wrong)
        assert ran.code == 2


def test_nothing_that_is_printed_holds_a_credential(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    # Nobody listens there: each call is tried to its last attempt.
    monkeypatch.setattr(SystemClock, "sleep", lambda clock, duration_s: None)
    said = ""
    for verb in (
        ("publish", folder, "--name", "run", "--debug"),
        ("fetch", "run", tmp_path / "dest", "--debug"),
        ("show", "run@latest", "--quiet", "--json"),
    ):
        ran = dstream(*verb, "--repo", "s3://user-bucket/r", "--s3-arg", "SSECustomerKey=hidden")
        assert ran.code == 1
        said += ran.out + ran.err
    assert "the-secret" not in said
    assert "hidden" not in said


def test_a_pins_token_is_one_line_for_scripts(folder: Path) -> None:
    assert dstream("publish", folder, "--name", "run").code == 0
    token = dstream("pin", "--id", "p" * 60, "--json").document()["token"]
    assert len(token) > 120
    for verb in (("pin", "--id", "p" * 60), ("renew", "p" * 60)):
        assert dstream(*verb, "--quiet").out == token + "\n"
