"""Loaders of any make are measured alike, and told in one sentence."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader_factories
from cli_runner import Ran, dstream
from dstream.clock import FakeClock
from dstream.diagnose.bench.any_loader import Limits, measure
from dstream.diagnose.bench.batches import bytes_of, samples_of
from dstream.diagnose.bench.interruption import Interruption
from dstream.diagnose.bench.loader_document import (
    SCHEMA,
    LoaderCause,
    LoaderDocument,
    LoaderRun,
    judge,
    typical,
)
from dstream.diagnose.bench.processes import Watch, descendants, parse_stat, usable_cores
from dstream.errors import InvalidInputError
from loader_data import videos
from made_video import make_video
from s3_services import S3Place, plain_client

RUN = LoaderRun(
    batches=100,
    batches_per_second=10.0,
    samples=800,
    samples_per_second=80.0,
    samples_by="its first axis",
    batch_bytes=1e6,
    factory_s=0.1,
    first_batch_s=1.0,
    wall_s=10.0,
    wait_s=4.0,
    wait_share=0.4,
    in_line_share=0.1,
    exhausted=False,
    cpu_s=5.0,
    cores_busy=0.5,
    other_cores_busy=0.3,
    busiest_thread_share=0.2,
    processes=5,
    peak_rss_bytes=1 << 30,
    peak_pss_bytes=1 << 29,
)
LIMITS = Limits(warmup=2, seconds=None, samples=None, step_s=0.0, batch_size=None)


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def bench(factory: str, *more: object) -> Ran:
    return dstream("bench", "--loader", f"loader_factories:{factory}", "--warmup", 2, *more)


def found(ran: Ran) -> LoaderDocument:
    assert ran.code == 0, ran.err
    return LoaderDocument.parse(ran.document())


# The verdict


@pytest.mark.parametrize(
    ("changes", "step_s", "cause", "keeps_up", "told"),
    [
        ({"wait_share": 0.05}, 0.1, "consumer", True, "keeps up with a step of 100 ms"),
        ({"wait_share": 0.06}, 0.1, "waiting", False, "waits 6% of the time, and a batch takes"),
        ({"wait_share": 0.01}, 0.0, "waiting", None, "At its top speed the loader takes 100 ms"),
        ({"cores_busy": 3.4}, 0.1, "cpu", False, "3.4 of 4 cores are busy. More cores or cheaper"),
        ({"cores_busy": 3.4, "busiest_thread_share": 1.0}, 0.0, "cpu", None, "more workers do not"),
        ({"cores_busy": 1.1, "busiest_thread_share": 0.97}, 0.1, "one-thread", False,
         "a thread computes 97% of the time. More workers or threads help"),
        ({"cores_busy": 0.5, "in_line_share": 0.99, "busiest_thread_share": 0.5}, 0.1, "in-line",
         False, "own thread (99% of the wait is computing there), and 0.5 of 4 cores are busy"),
        ({"cores_busy": 3.5, "in_line_share": 0.99}, 0.1, "cpu", False, "more workers do not"),
        ({"other_cores_busy": 2.9}, 0.1, "other-programs", False,
         "they keep 2.9 of 4 cores busy, the loader 0.5"),
        ({"cores_busy": 3.5, "other_cores_busy": 0.5}, 0.1, "cpu", False, "CPU-bound"),
        ({"other_cores_busy": None}, 0.1, "waiting", False, "no thread computes more than 20%"),
        ({"busiest_thread_share": 0.84}, 0.1, "waiting", False, "more cores do not"),
        ({"cores_busy": None, "busiest_thread_share": None}, 0.1, "unknown", False, "not told on"),
        ({"batches": 2}, 0.1, "unknown", None, "Only 2 batches came between the warm-up and when "
         "counting ended"),
        ({"batches": 0, "batches_per_second": 0.0, "exhausted": True}, 0.0, "unknown", None,
         "when the loader ended"),
    ],
)  # fmt: skip
def test_the_verdict_names_what_sets_the_pace(
    changes: dict[str, Any], step_s: float, cause: str, keeps_up: bool | None, told: str
) -> None:
    verdict = judge(dataclasses.replace(RUN, **changes), step_s, cores=4)
    assert (verdict.cause, verdict.keeps_up) == (cause, keeps_up)
    assert told in verdict.sentence


def test_the_typical_run_is_the_middle_one() -> None:
    runs = [dataclasses.replace(RUN, batches_per_second=rate) for rate in (3.0, 1.0, 2.0, 9.0)]
    assert [typical(runs[:n]).batches_per_second for n in (1, 2, 3, 4)] == [3.0, 1.0, 2.0, 2.0]


# What a batch holds


class Sized:
    def __len__(self) -> int:
        return 7


class Unsized:
    """Has neither a shape nor a length that can be told."""

    shape = (None, 3)

    def __len__(self) -> int:
        raise RuntimeError("endless")


@pytest.mark.parametrize(
    ("given", "samples", "size_bytes"),
    [
        (np.zeros((5, 2), np.int32), 5, 40),
        (np.float32(1), None, 4),
        ((np.zeros((5, 2), np.uint8), np.zeros(5, np.int64)), 5, 50),
        ({"id": ["a", "b"], "video": np.zeros((2, 3), np.uint8)}, 2, 6),
        ({"id": ["a", "b", "c"]}, 3, None),
        ({"n": 3}, None, None),
        (np.zeros((), np.int64), None, 8),
        (Unsized(), None, None),
        ({"a": {"video": np.zeros((4, 2), np.uint8)}, "id": ["x"]}, 4, 8),
        ({"a": (np.zeros((4, 2), np.uint8),), "b": np.zeros(8, np.uint8)}, 8, 16),
        ([b"abc", b"de"], 2, 5),
        ([{"x": np.zeros(3, np.uint8)}] * 4, 4, 12),
        (Sized(), 7, None),
        ("four", None, None),
        (object(), None, None),
    ],
)
def test_samples_and_bytes_are_found_in_batches_of_many_makes(
    given: Any, samples: int | None, size_bytes: int | None
) -> None:
    told = samples_of(given)
    assert (told[0] if told else None, bytes_of(given)) == (samples, size_bytes)


def test_a_batch_that_holds_itself_is_no_trap() -> None:
    batch: list[Any] = [np.zeros(2, np.uint8)]
    batch.append(batch)
    assert samples_of(batch) == (2, "the first axis of [0]")
    assert bytes_of(batch)


# Measuring


def test_warm_up_waits_and_steps_are_told_apart() -> None:
    clock = FakeClock()

    def slow(first_s: float, batch_s: float) -> Any:
        clock.sleep(10)  # the factory
        for number in range(12):
            clock.sleep(batch_s if number else first_s)
            yield np.zeros((4, 8), np.uint8)

    def factory() -> Any:
        made = slow(5.0, 0.25)
        clock.sleep(1)
        return made

    limits = dataclasses.replace(LIMITS, step_s=0.75)
    run = measure("made:up", factory, {}, limits, clock, lambda batches: None, Interruption())
    assert (run.batches, run.samples, run.exhausted) == (10, 40, True)
    assert (run.factory_s, run.first_batch_s) == (1.0, 15.0)
    assert run.wall_s == pytest.approx(10.0)
    assert run.wait_share == pytest.approx(0.25)
    assert run.samples_per_second == pytest.approx(4.0)
    assert run.batch_bytes == 32


def test_a_generator_a_list_and_an_endless_iterable() -> None:
    document = found(bench("generator", "--json"))
    (run,) = document.runs
    assert (run.batches, run.samples, run.exhausted) == (18, 72, True)
    assert (run.samples_by, run.batch_bytes) == ("the first axis of ['video']", 4 * 2 * 3 * 8 * 8)
    assert (document.unit, document.repeats) == ("samples/s", (run.samples_per_second,))
    assert document.versions["python"]

    (run,) = found(bench("endless", "--clips", 100, "--json")).runs
    assert (run.samples, run.exhausted) == (100, False)
    (run,) = found(bench("endless", "--seconds", 0.05, "--json")).runs
    assert run.wall_s >= 0.05
    assert not run.exhausted

    document = found(bench("untold", "--json"))
    assert (document.runs[0].samples, document.unit) == (None, "batches/s")
    document = found(bench("untold", "--batch-size", 3, "--json"))
    assert (document.runs[0].samples, document.runs[0].samples_by) == (24, "--batch-size")


def test_arguments_reach_the_factory_and_repeats_begin_anew() -> None:
    ran = bench("generator", "--loader-arg", "batches=9", "--loader-arg", "size=3", "--repeat", 3,
                "--json")  # fmt: skip
    document = found(ran)
    assert [run.samples for run in document.runs] == [21, 21, 21]
    assert len(document.repeats) == 3
    assert document.settings["--loader-arg batches"] == 9
    assert ran.document()["schema"] == SCHEMA

    before = loader_factories.Closable.closed
    assert bench("Closable", "--repeat", 2).code == 0
    assert loader_factories.Closable.closed == before + 2


def test_people_are_told_within_80_columns() -> None:
    ran = bench("generator", "--step-ms", 1, "--repeat", 2)
    assert ran.code == 0
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    assert "with a step of 1 ms" in " ".join(ran.out.split())


def test_what_the_loader_prints_is_not_in_the_result(capfd: pytest.CaptureFixture[str]) -> None:
    ran = bench("noisy", "--json")
    assert found(ran).runs[0].batches == 18
    assert "printed here" in ran.err
    assert capfd.readouterr() == ("", "printed there\n")


@pytest.mark.parametrize(
    ("factory", "arguments", "code", "told"),
    [
        ("loader_factories:broken", (), 2, "the factory raised RuntimeError: no such bucket"),
        ("loader_factories:number", (), 2, "gave int, which cannot be iterated over"),
        ("loader_factories:generator", ("batches=0",), 2, "gave no batch"),
        ("loader_factories:generator", ("pages=1",), 2, "raised TypeError"),
        ("loader_factories:failing", ("after=7",), 2, "after 7 batches, raised OSError: the disk"),
        ("loader_factories:Unclosable", (), 2, "closing the loader raised OSError: a worker"),
        ("loader_factories:leaving", (), 2, "after 1 batches, raised SystemExit: 7"),
        ("loader_factories:absent", (), 10, "has no 'absent'"),
        ("loader_factories:itertools.absent", (), 10, "has no 'itertools.absent'"),
        ("no_such_module:make", (), 10, "there is no module 'no_such_module'"),
        ("loader_factories", (), 2, "write MODULE:FACTORY"),
        ("loader_factories:np.newaxis", (), 2, "is no function but NoneType"),
    ],
)
def test_a_loader_that_cannot_be_measured_says_why(
    factory: str, arguments: tuple[str, ...], code: int, told: str
) -> None:
    given = [word for argument in arguments for word in ("--loader-arg", argument)]
    ran = dstream("bench", "--loader", factory, *given)
    assert ran.code == code
    assert told in ran.err
    assert ran.err.count("\n") == 1


def test_the_module_may_be_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lies_here.py").write_text("def make():\n    return [[1, 2]] * 9\n")
    (tmp_path / "falls_here.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    (run,) = found(dstream("bench", "--loader", "lies_here:make", "--json")).runs
    assert (run.batches, run.samples) == (4, 8)
    ran = dstream("bench", "--loader", "falls_here:make")
    assert ran.code == 2
    assert "raised ModuleNotFoundError" in ran.err


def test_one_thing_is_measured_at_a_time() -> None:
    for words in ((), ("name", "--loader", "a:b"), ("--loader", "a:b", "--compare", "a", "b")):
        ran = dstream("bench", *words)
        assert ran.code == 2
        assert "one of them" in ran.err


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        ((*("--loader", "loader_factories:endless"), "--workers", "4", "--html", "x"),
         "--loader does not take --html, --workers"),
        (("--compare", "a", "b", "--seconds", "3"), "--compare does not take --seconds"),
        (("./here", "--loader-arg", "n=3"), "NAME or SOURCE does not take --loader-arg"),
    ],
)  # fmt: skip
def test_an_option_that_would_change_nothing_is_refused(
    words: tuple[str, ...], unused: str
) -> None:
    ran = dstream("bench", *words)
    assert ran.code == 2
    assert unused in ran.err


def test_our_own_loader_is_a_loader_like_another(tmp_path: Path) -> None:
    videos(tmp_path, 2, frames=24, size=(64, 64))
    (run,) = found(bench("own_loader", "--loader-arg", f"source={tmp_path}", "--json")).runs
    assert (run.samples, run.samples_by) == (76, "its length")
    assert run.batch_bytes is not None
    assert run.batch_bytes > 2 * 2 * 3 * 64 * 64


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@needs_proc
def test_workers_that_ended_are_counted() -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    counted = ("--loader-arg", "items=80", "--loader-arg", "item_s=0.01", "--json")
    (run,) = found(bench("torch_loader", "--loader-arg", "workers=2", *counted)).runs
    assert (run.batches, run.samples, run.exhausted) == (38, 76, True)
    assert run.processes >= 3
    # Two batches for each worker may have been made during the warm-up.
    assert run.cpu_s is not None
    assert run.cpu_s >= 0.9 * (76 - 8) * 0.01
    assert run.peak_rss_bytes is not None
    assert run.peak_pss_bytes is not None
    assert run.peak_pss_bytes < run.peak_rss_bytes
    (alone,) = found(bench("torch_loader", "--loader-arg", "workers=0", *counted)).runs
    assert alone.in_line_share * alone.wait_s >= 0.9 * 76 * 0.01
    assert alone.busiest_thread_share is not None
    assert alone.busiest_thread_share * alone.wall_s >= 0.9 * 76 * 0.01


@pytest.mark.rgw
def test_the_proxy_counts_what_any_loader_asks_for(
    rgw_bucket: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", rgw_bucket.endpoint_url)
    video = make_video(tmp_path / "v.mp4", frames=40, gop=4, size=(64, 48))
    plain_client(rgw_bucket.endpoint_url).upload_file(str(video), rgw_bucket.bucket, "raw/v.mp4")
    result = tmp_path / "inner.json"
    inner = [
        *(sys.executable, "-m", "dstream_cli", "bench", "--json"),
        *("--loader", "loader_factories:own_loader"),
        *("--loader-arg", f"source={rgw_bucket.url}/raw"),
    ]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
    ran = dstream("proxy", "--json", "--", "sh", "-c", '"$@" > "$0"', result, *inner)
    assert ran.code == 0
    document = LoaderDocument.parse(result.read_text())
    assert document.runs[0].samples == 30
    report = ran.document()["report"]
    gets = {kind["kind"]: kind["requests"] for kind in report["kinds"]}["get"]
    assert gets >= document.runs[0].samples
    assert report["received_bytes"] > 0


# Processes


def test_a_name_may_look_like_the_rest_of_the_line() -> None:
    line = (
        "12 (x) S 1 (y) R 7 7 7 0 -1 0 0 0 0 0 100 20 3 4 20 0 1 0 5 1000 25 18446744073709551615"
    )
    found = parse_stat(line)
    assert (found.pid, found.parent, found.cpu_ticks, found.reaped_ticks) == (12, 7, 120, 7)
    assert found.rss_pages == 25


def test_strangers_are_not_descendants() -> None:
    line = "{} (x) S {} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"
    family = [parse_stat(line.format(pid, parent)) for pid, parent in ((5, 2), (2, 1), (3, 1))]
    assert {process.pid for process in descendants(2, family)} == {2, 5}
    assert descendants(9, family) == []


@needs_proc
def test_a_child_that_came_and_went_is_counted() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    with Watch() as watch:
        subprocess.run([sys.executable, "-c", burn], check=True)
    cpu_s, busiest_s = watch.cpu_s(), watch.busiest_thread_s()
    assert cpu_s is not None
    assert busiest_s is not None
    assert cpu_s >= 0.29
    assert 0 <= busiest_s <= cpu_s + 0.02


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("50000 100000", 0.5), ("900000000 1000", None)]
)
def test_a_containers_quota_bounds_the_cores(
    text: str, cores: float | None, tmp_path: Path
) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert usable_cores(tmp_path / "cpu.max") == (cores or usable_cores(tmp_path / "absent"))


def test_another_version_of_the_document_is_refused() -> None:
    text = json.dumps(found(bench("generator", "--json")).as_json())
    with pytest.raises(InvalidInputError, match="run the bench again"):
        LoaderDocument.parse(text.replace(SCHEMA, "dstream.bench-loader/9"))
    assert LoaderCause("cpu") is LoaderCause.CPU
