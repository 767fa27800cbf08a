"""NVDEC or the CPU: what is refused or fails is counted by reason, and decoded after all."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import av
import pytest

from decoder_runs import Video
from dstream.clock import SystemClock
from dstream.errors import InvalidInputError, MediaError
from dstream.measure.counters import Meter
from dstream.media.decoders.contract import Run
from dstream.media.decoders.nvdec import REMEDIES, NvdecDevice, visible_gpus
from dstream.media.decoders.selection import DecoderChoice, Decoders, decoder_choice
from dstream.media.pixels import PixelSettings
from gpu_presence import gpu_absence
from pynvvideocodec_stand_in import StandIn


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Video:
    return Video(tmp_path_factory.mktemp("selection") / "v", frames=20)


class Bench:
    """Decoders with a stand-in for the device, and a meter."""

    def __init__(self, name: str, absence: str | None = None, **options: Any) -> None:
        self.package, self.meter = StandIn(**options), Meter()
        self.device = NvdecDevice(0, lambda: absence, lambda: self.package, lambda: 1)
        choice = DecoderChoice(name)  # type: ignore[arg-type]
        self.decoders = Decoders(
            PixelSettings(), self.meter, SystemClock(), choice, device=self.device
        )

    def decode(self, run: Run) -> set[int]:
        return self.decoders.decode(run).missing

    @property
    def fallbacks(self) -> dict[str, int]:
        return self.meter.snapshot().event("fallback")

    @property
    def sessions(self) -> dict[str, int]:
        return self.meter.snapshot().event("nvdec-session")


def test_what_the_device_does_is_decoded_there(video: Video) -> None:
    bench = Bench("auto")
    for _ in range(3):
        assert bench.decode(video.run(frames=20)) == set()
    assert bench.fallbacks == {}
    assert bench.sessions == {"opened": 1, "reused": 2}
    sums = bench.meter.snapshot().sums
    assert sums["frames.nvdec"] == 60
    assert sums["seconds.nvdec"] > 0
    assert bench.package.asked == 3  # once for each depth


@pytest.mark.parametrize("absence", ["not_installed", "no_driver"])
def test_without_a_device_auto_decodes_on_the_cpu(video: Video, absence: str) -> None:
    bench = Bench("auto", absence)
    run = video.run(frames=20)
    assert bench.decode(run) == set()
    assert all(out.any() for ((out, _),) in run.places.values())
    assert bench.fallbacks == {absence: 1}


def test_a_package_that_cannot_be_used_is_named(video: Video) -> None:
    bench = Bench("auto")

    def broken() -> Any:
        raise RuntimeError("Driver version is too old")

    bench.device._load = broken
    assert bench.decode(video.run(frames=20)) == set()
    assert bench.fallbacks == {"nvdec_unusable": 1}


def test_where_cuda_shows_no_gpu_the_package_is_not_asked(video: Video) -> None:
    """It would end the process."""
    bench = Bench("auto")
    bench.device._gpus = lambda: 0
    assert bench.decode(video.run(frames=20)) == set()
    assert bench.decode(video.run(frames=20)) == set()
    assert bench.fallbacks == {"no_gpu": 2}
    assert bench.package.asked == 0
    second = NvdecDevice(1, lambda: None, lambda: bench.package, lambda: 1)
    assert (second.capabilities("h264"), second.absence) == (None, "no_gpu")


@pytest.mark.skipif(gpu_absence() is None, reason="there is a driver")
def test_without_a_driver_there_is_no_gpu() -> None:
    assert visible_gpus() == 0


def test_what_the_device_does_not_do_goes_to_the_cpu(video: Video) -> None:
    bench = Bench("auto", formats={("HEVC", 8)})
    assert bench.decode(video.run(frames=20)) == set()
    assert bench.fallbacks == {"nvdec_no_h264": 1}
    assert bench.package.opened == 0
    with pytest.raises(InvalidInputError, match=r"nvdec_no_h264.*decoder='auto'"):
        Bench("nvdec", formats={("HEVC", 8)}).decode(video.run(frames=20))


def test_a_session_larger_than_the_pool_is_refused(video: Video) -> None:
    bench = Bench("auto")
    bench.device._max_bytes = 1 << 20
    assert bench.decode(video.run(frames=20)) == set()
    assert bench.fallbacks == {"nvdec_memory": 1}


def test_a_failure_poisons_the_session_and_the_clip_is_decoded_after_all(video: Video) -> None:
    bench = Bench("auto")
    assert bench.decode(video.run(frames=20)) == set()

    def fail() -> None:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    bench.package.on_decode = fail
    assert bench.decode(video.run(frames=20)) == set()
    bench.package.on_decode = lambda: None
    assert bench.decode(video.run(frames=20)) == set()
    assert bench.fallbacks == {"nvdec_failed": 1}
    assert bench.sessions == {"opened": 2, "reused": 1, "poisoned": 1}
    assert len(bench.package.alive) == 1
    strict = Bench("nvdec")
    strict.package.on_decode = fail
    with pytest.raises(MediaError, match="ILLEGAL_ADDRESS"):
        strict.decode(video.run(frames=20))


def test_frames_that_do_not_come_are_asked_of_the_cpu(video: Video) -> None:
    bench, run = Bench("auto"), video.run(frames=20)
    bench.package.withholds = 5
    assert bench.decode(run) == set()
    assert bench.fallbacks == {"nvdec_missing": 1}
    assert [out.any() for ((out, _),) in run.places.values()] == [True] * 20
    strict, run = Bench("nvdec"), video.run(frames=20)
    strict.package.withholds = 5
    assert len(strict.decode(run)) == 1


def test_as_many_run_at_once_as_there_are_engines(video: Video) -> None:
    bench = Bench("auto", engines=2)
    results: list[set[int]] = []

    def work() -> None:
        mine = Decoders(
            PixelSettings(), bench.meter, SystemClock(), DecoderChoice("auto"), bench.device
        )
        for _ in range(3):
            results.append(mine.decode(video.run(frames=20)).missing)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [set()] * 18
    assert bench.package.opened <= 2  # a third would have been opened, had a third run begun
    assert bench.fallbacks == {}


def test_a_hanging_run_keeps_no_engine_from_the_others(video: Video) -> None:
    bench = Bench("auto", engines=1)
    let_go, stuck = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        let_go.wait(60)

    bench.package.on_decode = hang
    run = video.run(frames=20)
    other = Decoders(
        PixelSettings(), bench.meter, SystemClock(), DecoderChoice("auto"), bench.device
    )
    thread = threading.Thread(target=lambda: other.decode(run))
    thread.start()
    assert stuck.wait(60)
    bench.package.on_decode = lambda: None
    other.lose(thread)
    assert bench.decode(video.run(frames=20)) == set()
    assert len(bench.package.alive) == 2
    let_go.set()
    thread.join(60)
    assert len(bench.package.alive) == 1  # the one that was lost is gone now
    assert bench.decode(video.run(frames=20)) == set()
    assert bench.sessions == {"opened": 2, "reused": 1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_device_alone(video: Video) -> None:
    bench = Bench("auto")
    assert bench.decode(video.run(frames=20)) == set()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def work() -> None:
        missing = bench.decode(video.run(frames=20))
        theirs.send((missing, bench.fallbacks, len(bench.package.alive)))

    child = context.Process(target=work, daemon=True)
    child.start()
    assert ours.poll(60)
    # The parent's session is let alone: closing it in the child would reach into CUDA.
    assert ours.recv() == (set(), {"nvdec_forked": 1}, 1)
    child.join(60)
    assert bench.decode(video.run(frames=20)) == set()
    assert (bench.fallbacks, bench.sessions) == ({}, {"opened": 1, "reused": 1})


def test_sessions_end_with_the_process(video: Video) -> None:
    bench = Bench("auto")
    assert bench.decode(video.run(frames=20)) == set()
    bench.package.on_decode = bench.device.close  # while another run is on
    assert bench.decode(video.run(frames=20)) == set()
    assert len(bench.package.alive) == 0


def test_the_choice_is_checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="'cpu', 'nvdec' or 'auto'"):
        decoder_choice("gpu")
    assert decoder_choice("auto", "cuda:3") == DecoderChoice("auto", 3, "cuda:3")
    for reason in ("not_installed", "no_driver"):
        device = NvdecDevice(0, reason.strip)
        monkeypatch.setattr(
            "dstream.media.decoders.selection.nvdec_device", {0: device}.__getitem__
        )
        with pytest.raises(InvalidInputError, match="decoder='auto'") as refused:
            decoder_choice("nvdec")
        assert REMEDIES[reason] in str(refused.value)


def test_a_frame_that_an_earlier_run_left_behind_is_told(video: Video) -> None:
    bench = Bench("auto")
    assert bench.decode(video.run(frames=20)) == set()
    stale = av.VideoFrame(64, 64, "yuv420p")
    stale.pts = bench.package.withholds = 3
    bench.package.late.append(stale)
    assert bench.decode(video.run(frames=20)) == set()
    assert bench.fallbacks == {"nvdec_failed": 1}
    assert bench.sessions == {"opened": 1, "reused": 1, "poisoned": 1}
