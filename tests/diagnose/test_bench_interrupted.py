"""Ctrl-C ends a bench with what was measured; a second one ends the command."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dstream as library
from cli_runner import Ran, dstream
from dstream.clock import SystemClock
from dstream.diagnose.bench.alone import Alone
from dstream.diagnose.bench.bench import bench
from dstream.diagnose.bench.document import BenchDocument, Cause, Stage
from dstream.diagnose.bench.interruption import InterruptedRunError, Interruption
from dstream.diagnose.bench.loader_document import LoaderDocument
from dstream.diagnose.bench.page import page
from dstream.diagnose.bench.run import Wish
from dstream.diagnose.prices import Prices
from dstream_cli.bench_tables import bench_parts
from made_video import make_video


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_video(tmp_path / "a.mp4", frames=48, gop=12, size=(64, 48))
    return tmp_path


def measured(folder: Path, at: Callable[[Interruption], Callable[[int], None]]) -> BenchDocument:
    """Three runs of 12 clips in batches of 2."""
    loading = {"workers": 1, "fetchers": 2, "prefetch": 1, "epochs": None, "rank": 0,
               "world_size": 1}  # fmt: skip
    interruption = Interruption()
    document, _, error = bench(
        lambda: library.clips(folder, frames=4), "folder", 2, loading, Wish(clips=12, repeat=3),
        {}, Prices(), SystemClock(), at(interruption), interruption,
    )  # fmt: skip
    assert error is None
    assert BenchDocument.parse(json.dumps(document.as_json())).verdict == document.verdict
    assert document.verdict.sentence in bench_parts(document, details=True)
    assert document.verdict.sentence in page(document)
    return document


@pytest.mark.parametrize(
    ("batch", "clips", "runs", "where"),
    [
        (3, 6, 1, "in run 1 of 3"),  # there is no other than the one that was cut off
        (6 + 3, 12, 1, "in run 2 of 3"),
        (12 + 1, 12, 2, "in run 3 of 3"),
    ],
)
def test_whole_runs_are_told_or_else_the_one_that_was_cut_off(
    folder: Path, batch: int, clips: int, runs: int, where: str
) -> None:
    heard: list[int] = []

    def at(interruption: Interruption) -> Callable[[int], None]:
        def tell(taken: int) -> None:
            heard.append(taken)
            if len(heard) == batch:
                interruption.receive()

        return tell

    document = measured(folder, at)
    assert len(heard) == batch
    assert (document.whole.clips, len(document.repeats)) == (clips, runs)
    assert document.settings["interrupted"] == where
    assert document.verdict.cause is Cause.INTERRUPTED
    assert document.verdict.sentence.startswith(f"Interrupted {where}: ")
    assert document.whole.efficiency is None
    assert 0 < document.whole.explained_share < 1.01
    assert all(rate > 0 for rate in document.repeats)
    for stage in document.stages:
        assert stage.measured is (stage.name is Stage.LIST)
    assert document.settings["alone_s"] is None


def test_stages_that_were_measured_before_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Interruption()
    decode = Alone.decode

    def interrupted(*arguments: Any) -> Any:
        stop.receive()
        return decode(*arguments)

    monkeypatch.setattr(Alone, "decode", interrupted)

    def at(interruption: Interruption) -> Callable[[int], None]:
        monkeypatch.setattr(stop, "receive", interruption.receive)
        return lambda taken: None

    document = measured(folder, at)
    assert document.settings["interrupted"] == "while the stages were measured alone"
    why_not = {stage.name: stage.why_not for stage in document.stages}
    assert (why_not[Stage.LIST], why_not[Stage.FETCH]) == ("", "")
    for stage in (Stage.DECODE, Stage.CONVERT, Stage.COLLATE):
        assert why_not[stage] == "the bench was interrupted"
    assert (len(document.repeats), document.whole.efficiency) == (3, None)


def test_before_the_first_batch_there_is_nothing_to_tell(folder: Path) -> None:
    interruption = Interruption()

    def opened() -> Any:
        interruption.receive()

    with pytest.raises(InterruptedRunError):
        bench(opened, "folder", 2, {}, Wish(clips=2), {}, Prices(), SystemClock(),
              lambda taken: None, interruption)  # fmt: skip


def test_a_second_one_is_python_s_own() -> None:
    interruption = Interruption()
    before = signal.getsignal(signal.SIGINT)
    with interruption.on_signal():
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.came
        with pytest.raises(KeyboardInterrupt) as caught:
            os.kill(os.getpid(), signal.SIGINT)
        assert caught.type is KeyboardInterrupt
        with pytest.raises(InterruptedRunError), interruption.breaking():
            pass
    assert signal.getsignal(signal.SIGINT) is before


# The command


def interrupted_after(count: int, *arguments: object, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """``dstream bench`` with SIGINT to this process when progress is told for this time."""
    told: list[object] = []

    def update(line: object, **progress: object) -> None:
        told.append(progress)
        if len(told) == count:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("dstream_cli.progress.ProgressLine.update", update)
    return dstream("bench", *arguments)


@pytest.mark.parametrize("step_ms", [0, 600_000])
def test_the_command_tells_and_ends_with_130(
    folder: Path, step_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (folder, "--frames", 4, "--batch-size", 2, "--seconds", 600, "--step-ms", step_ms)
    ran = interrupted_after(1, *asked, monkeypatch=monkeypatch)
    assert ran.code == 130
    assert ran.out.startswith("Interrupted in run 1 of 1: ")
    assert "fetch, decode, convert, collate: the bench was interrupted" in ran.out
    ran = interrupted_after(1, *asked, "--json", monkeypatch=monkeypatch)
    assert ran.code == 130
    assert BenchDocument.parse(ran.out).verdict.cause is Cause.INTERRUPTED


@pytest.mark.parametrize(("after", "batches", "runs", "where"), [
    (7, 5, 1, "in run 1 of 3"), (20 + 3, 18, 1, "in run 2 of 3"), (59, 18, 2, "in run 3 of 3"),
])  # fmt: skip
def test_so_does_any_loader(
    after: int, batches: int, runs: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--loader", "loader_factories:generator", "--warmup", 2, "--repeat", 3, "--json")
    ran = interrupted_after(after, *asked, monkeypatch=monkeypatch)
    assert ran.code == 130
    document = LoaderDocument.parse(ran.out)
    assert (len(document.runs), document.settings["interrupted"]) == (runs, where)
    assert document.runs[0].batches == batches
    assert document.verdict.sentence.startswith(f"Interrupted {where}, ")


def test_any_loader_in_its_warm_up_has_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("--loader", "loader_factories:generator", "--warmup", 5)
    ran = interrupted_after(2, *asked, monkeypatch=monkeypatch)
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.strip() == "dstream: interrupted"
