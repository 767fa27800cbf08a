from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli_runner import dstream
from dstream import errors
from dstream_cli.options import EXIT_CODES, Common
from dstream_cli.usage import spoken


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Common, "catalog", fail)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.DstreamError, 1),
        (errors.InvalidInputError, 2),
        (errors.PartialError, 3),
        (errors.NotFoundError, 10),
        (errors.ConflictError, 11),
        (errors.UnsafeStoreError, 12),
        (errors.SourceChangedError, 12),
        (errors.FormatVersionError, 12),
        (errors.OutcomeUnknownError, 13),
        (errors.StorageError, 1),
        (errors.CorruptDataError, 1),
    ],
)
def test_errors_have_exit_codes(
    kind: type[errors.DstreamError], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, kind("the disk is gone", key="a/b", bytes_seen=3))
    ran = dstream("ls", "--repo", "x")
    assert (ran.code, ran.out, ran.err) == (code, "", "dstream: the disk is gone\n")
    assert code in EXIT_CODES
    ran = dstream("ls", "--repo", "x", "--json")
    assert (ran.code, ran.out) == (code, "")
    assert json.loads(ran.err) == {
        "error": kind.__name__,
        "message": "the disk is gone",
        "exit_code": code,
        "facts": {"key": "a/b", "bytes_seen": 3},
    }


OPTIONS = {
    name: "--" + name.replace("_", "-")
    for name in ("batch_size", "cache", "cache_bytes", "clips_per_gop", "crop", "resize", "where")
}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("give cache_bytes, or set DSTREAM_CACHE_BYTES",
         "give --cache-bytes, or set DSTREAM_CACHE_BYTES"),
        ("cache_bytes='5GB' needs cache= or DSTREAM_CACHE",
         "--cache-bytes '5GB' needs --cache or DSTREAM_CACHE"),
        ("give resize=(height, width), or resize=N, or batch_size=1",
         "give --resize HEIGHTxWIDTH, or --resize N, or --batch-size 1"),
        ("clips_per_gop=4 with 3 partitions", "--clips-per-gop 4 with 3 partitions"),
        ("use a smaller batch_size, or last='wrap'", "use a smaller --batch-size, or last='wrap'"),
        # What the user wrote is not touched.
        ("where='crop=1 or \"' is no SQL", "--where 'crop=1 or \"' is no SQL"),
        ("where='cut off at crop=1", "--where 'cut off at crop=1"),
        ("sample 'crop=1.mp4' of a/crop=2.mp4", "sample 'crop=1.mp4' of a/crop=2.mp4"),
        # Words, and what the verb has no option for.
        ("the cache has a crop where it is", "the cache has a crop where it is"),
        ("max_failures=3, or recipe=None, or cache=None",
         "max_failures=3, or recipe=None, or cache=None"),
    ],
)  # fmt: skip
def test_the_library_s_arguments_are_told_as_options(message: str, told: str) -> None:
    assert spoken(message, OPTIONS) == told


def test_an_error_names_what_can_be_typed(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video")
    ran = dstream("bench", tmp_path, "--cache", tmp_path / "cache")
    assert ran.code == 2
    assert "give --cache-bytes, or set DSTREAM_CACHE_BYTES" in ran.err
    ran = dstream("bench", tmp_path, "--cache-bytes", "5GB", "--json")
    assert json.loads(ran.err)["message"].startswith("--cache-bytes '5GB' needs --cache or ")
    ran = dstream("bench", tmp_path, "--clips-per-gop", "2", "--no-shuffle")
    assert "--clips-per-gop needs a shuffled order" in ran.err


def test_what_nobody_expected_hints_at_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyError("boom"))
    ran = dstream("ls", "--repo", "x")
    assert ran.code == 1
    assert ran.err.startswith("dstream: KeyError: 'boom'\n")
    assert "--debug" in ran.err
    assert "Traceback" not in ran.err
    ran = dstream("ls", "--repo", "x", "--debug")
    assert ran.err.startswith("Traceback")
    assert json.loads(dstream("ls", "--repo", "x", "--json").err)["error"] == "KeyError"


def test_what_does_not_fit_into_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, MemoryError("Unable to allocate 3.49 TiB"))
    ran = dstream("ls", "--repo", "x")
    assert ran.code == 1
    assert ran.err.startswith("dstream: there is not enough memory (Unable to allocate 3.49 TiB);")
    assert len(ran.err.splitlines()) == 1
    assert json.loads(dstream("ls", "--repo", "x", "--json").err)["error"] == "StorageError"


def test_more_threads_than_any_machine_runs_are_refused() -> None:
    for option in ("--workers", "--fetchers"):
        ran = dstream("bench", ".", option, "100000")
        assert (ran.code, ran.out) == (2, "")
        assert f"'{option}': '100000' was given, expected 1024 or less" in ran.err


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    ran = dstream("ls", "--repo", "x")
    assert (ran.code, ran.err) == (130, "dstream: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["ls", "--frobnicate"], "No such option: --frobnicate"),
        (["ls"], "no repository: give --repo URL, or set DSTREAM_REPO"),
        (["bench", "nosuch"], "'nosuch' was taken for a name in one; a path is ./nosuch"),
        (["plan", "nosuch"], "'nosuch' was taken for a name in one; a path is ./nosuch"),
        (["show", "nosuch"], "'nosuch' was taken for a name in one; a path is ./nosuch"),
        (["show"], "Missing argument"),
        (["bench", "x", "--stride", "2", "--fps", "3"], "give --stride or --fps, not both"),
        (["bench", "x", "--resize", "big"], "--resize big: write 256 or HEIGHTxWIDTH"),
        (["bench", "x", "--stride", "0"], "--stride"),
        (["ls", "--repo", "x", "--s3-arg", "secret"], "--s3-arg takes NAME=VALUE"),
        (["ingest", "x", "--name", "n", "--part", "1", "--into", "k"], "--part 1: write I/N"),
        (["ingest", "x"], "--name NAME is missing"),
        (["ingest", "--name", "n"], "SOURCE is missing"),
        (["ingest", "--finish", "k", "--part", "1/2", "--into", "k"], "it takes no --part"),
        (["ingest", "x", "--name", "n", "--part", "5/4", "--into", "k"], "numbered 1/N to N/N"),
        (["ingest", "x", "--name", "n", "--part", "1/4"], "--part I/N and --into KEY go together"),
        (
            ["ingest", "x", "--name", "n", "--shard-size", "huge"],
            "--shard-size: not a byte size: 'huge'",
        ),
        (["gc", "--grace", "soon"], "--grace: not a duration: 'soon'"),
        (["bench", "x", "--frames", "0"], "'--frames': '0' was given, expected 1 or more"),
        (["bench", "x", "--frames", "a"], "'--frames': 'a' was given, expected a whole number"),
        (["bench", "x", "--fps", "x"], "'--fps': 'x' was given, expected a number"),
        (
            ["bench", "x", "--sampling", "foo"],
            "'--sampling': 'foo' is not one of 'uniform', 'grid', 'keyframe'",
        ),
        (["bench", "x", "--crop", "64"], "--crop 64: write HEIGHTxWIDTH such as 180x320"),
        (["ingest", "x", "--name", "n", "--recipe-arg", "a"], "--recipe-arg takes NAME=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_command_lines_end_with_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DSTREAM_REPO", raising=False)
    ran = dstream(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    ran = dstream(*arguments, "--json")
    assert ran.code == 2
    assert message in json.loads(ran.err)["message"]


def test_a_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "dstream_cli", "recipes"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("arguments", "both"), [(["recipes"], False), (["--version"], False), (["recipes"], True)]
)
def test_a_full_disk_behind_stdout_is_told(arguments: list[str], both: bool) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dstream_cli", *arguments],
            stdout=full,
            stderr=full if both else subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    if not both:
        assert done.stderr == (
            "dstream: the result cannot be written to standard output: No space left on device\n"
        )


def test_a_folder_that_is_no_repository_says_how_to_make_one(tmp_path: Path) -> None:
    ran = dstream("ls", "--repo", tmp_path)
    assert ran.code == 10
    assert "is not a dstream repository" in ran.err
    assert f"dstream init {tmp_path}" in ran.err
