"""What every decoder must do, on each that this machine has.

``stand-in`` is NVDEC's backend with libav in the place of the hardware: it tests the way there.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from decoder_runs import FRAMES, Video
from dstream.clock import SystemClock
from dstream.errors import MediaError
from dstream.measure.counters import Meter
from dstream.media.decoders.choice import refusal
from dstream.media.decoders.contract import Backend, Outcome, Place, Run
from dstream.media.decoders.cpu import CpuBackend
from dstream.media.decoders.nvdec import NvdecDevice
from dstream.media.decoders.nvdec_backend import NvdecBackend, feed_of
from dstream.media.decoders.nvdec_surfaces import DeviceOutput, HostOutput, Output
from dstream.media.pixels import PixelSettings
from pynvvideocodec_stand_in import StandIn

X264 = "threads=1:sliced-threads=0"
VIDEOS: dict[str, dict[str, Any]] = {
    "h264": {"b_frames": 0},
    "h264-pyramid": {"options": {"x264-params": f"{X264}:bframes=8:b-pyramid=normal:ref=4"}},
    "h264-open-gop": {"options": {"x264-params": f"{X264}:bframes=3:open-gop=1"}},
    "h264-vfr-turned": {"vfr": True, "rotation_deg": 90},
    "h264-mkv": {"container": "mkv"},
    "h264-full-range": {"pix_fmt": "yuvj420p"},
    "hevc-open-gop": {"codec": "libx265", "b_frames": 3},
    "hevc-10-bit": {"codec": "libx265", "pix_fmt": "yuv420p10le"},
    "vp9": {"codec": "libvpx-vp9", "options": {"lag-in-frames": "16", "auto-alt-ref": "1"}},
    "av1": {"codec": "libsvtav1"},
}


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Video]:
    folder = tmp_path_factory.mktemp("contract")
    made: dict[str, Video] = {}

    def get(name: str) -> Video:
        if name not in made:
            made[name] = Video(folder / name, **VIDEOS[name])
        return made[name]

    return get


class InPlaces:
    """A backend whose frames are in their places in the end, wherever it puts them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def decode(self, run: Run, *, skip: bool = True) -> Outcome:
        outcome = self._backend.decode(run, skip=skip)
        if outcome.elsewhere is not None:
            there = [pts for pts in run.places if pts not in outcome.missing]
            wanted = [[pts] for pts in there for _ in run.places[pts]]
            outs = [out for pts in there for out, _ in run.places[pts]]
            for out, clip in zip(outs, outcome.elsewhere.clips(wanted), strict=True):
                np.copyto(out, clip[0].cpu().numpy())
        return outcome


class Maker:
    """Makes backends of one kind, all of one device."""

    def __init__(self, kind: str) -> None:
        stand_in = StandIn()
        self.device: NvdecDevice | None = None
        self.memory = {"stand-in-device": "cpu", "nvdec-device": "cuda:0"}.get(kind)
        if kind.startswith("stand-in"):
            self.device = stand_in.device()
        elif kind.startswith("nvdec"):
            self.device = NvdecDevice(0)

    def __call__(self, pixels: PixelSettings | None = None) -> Backend:
        pixels = pixels or PixelSettings()
        if self.device is None:
            return CpuBackend(pixels, SystemClock())
        assert self.device.capabilities("h264") is not None, self.device.absence
        output: Output = HostOutput(pixels, SystemClock())
        if self.memory is not None:
            output = DeviceOutput(pixels, SystemClock(), self.memory, Meter())
        return InPlaces(NvdecBackend(output, Meter(), SystemClock(), self.device))

    def same(self, run: Run, out: NDArray[np.generic], truth: NDArray[np.generic]) -> bool:
        """Whether a frame is the one it should be.

        Of more than 8 bits libav's own frames say where chroma samples lie, and PyAV cannot say
        it of others: at edges the conversion to 8 bits then differs a little. On a device the
        conversion is another, see :mod:`dstream.media.device_pixels`.
        """
        deep = run.track.pix_fmt.endswith("10le")
        exact = self.device is None or (self.memory is None and not deep)
        apart = np.abs(out.astype(np.int64) - truth.astype(np.int64)).max()
        return bool(apart <= (0 if exact else 4))

    def need(self, run: Run) -> None:
        """Skip what the device does not claim to do."""
        if self.device is not None:
            capabilities = self.device.capabilities(run.track.codec)
            assert capabilities is not None
            reason = refusal(feed_of(run).coding, capabilities)
            if reason is not None:
                pytest.skip(reason)


GPU = pytest.mark.gpu
TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(
    params=[
        "cpu",
        "stand-in",
        pytest.param("stand-in-device", marks=TORCH),
        pytest.param("nvdec", marks=GPU),
        pytest.param("nvdec-device", marks=[GPU, TORCH]),
    ]
)
def make(request: pytest.FixtureRequest) -> Maker:
    return Maker(request.param)


@pytest.mark.parametrize("name", VIDEOS)
def test_every_frame_comes_under_its_own_pts(
    make: Maker, video: Callable[[str], Video], name: str
) -> None:
    shown = video(name)
    outs = {pts: shown.out() for pts in shown.pts}
    run = shown.run({pts: [(out, None)] for pts, out in outs.items()}, frames=FRAMES)
    make.need(run)
    outcome = make().decode(run)
    assert (outcome.missing, outcome.tally.frames) == (set(), FRAMES)
    for pts, out in outs.items():
        assert make.same(run, out, shown.truth[pts]), pts


@pytest.mark.parametrize("name", ["h264-open-gop", "hevc-open-gop", "vp9"])
def test_one_backend_serves_runs_from_anywhere(
    make: Maker, video: Callable[[str], Video], name: str
) -> None:
    shown, backend = video(name), make()
    for first in (22, 5, 38, 0, 13):
        pts, out = shown.pts[first], shown.out()
        run = shown.run({pts: [(out, None)]}, first)
        make.need(run)
        assert backend.decode(run).missing == set()
        assert make.same(run, out, shown.truth[pts]), first


def test_tracks_take_turns_without_mixing(make: Maker, video: Callable[[str], Video]) -> None:
    backend = make()
    for name in ("h264", "hevc-open-gop", "h264-pyramid", "h264", "hevc-open-gop", "h264-mkv"):
        shown = video(name)
        pts, out = shown.pts[17], shown.out()
        run = shown.run({pts: [(out, None)]}, 17)
        assert backend.decode(run).missing == set()
        assert make.same(run, out, shown.truth[pts]), name


def test_what_is_not_there_is_missing_and_nothing_else_is_touched(
    make: Maker, video: Callable[[str], Video]
) -> None:
    shown = video("h264-pyramid")
    here, nowhere = shown.out(), shown.out()
    absent = max(shown.pts) + 1
    places: dict[int, list[Place]] = {shown.pts[3]: [(here, None)], absent: [(nowhere, None)]}
    run = shown.run(places, frames=20)
    assert make().decode(run).missing == {absent}
    assert make.same(run, here, shown.truth[shown.pts[3]])
    assert not nowhere.any()


def test_one_frame_goes_to_all_its_places(make: Maker, video: Callable[[str], Video]) -> None:
    shown = video("h264")
    crop = PixelSettings(crop=(32, 40), crop_mode="random")
    outs = [np.zeros((3, 32, 40), np.uint8) for _ in range(3)]
    at = [(0.0, 0.0), (0.0, 0.0), (0.5, 0.25)]
    run = shown.run({shown.pts[6]: list(zip(outs, at, strict=True))}, 6)
    make(crop).decode(run)
    whole = shown.truth[shown.pts[6]]
    assert make.same(run, outs[0], whole[:, :32, :40])
    assert np.array_equal(outs[1], outs[0])
    assert make.same(run, outs[2], whole[:, 32:64, 22:62])


def test_a_damaged_run_spoils_no_later_one(make: Maker, video: Callable[[str], Video]) -> None:
    shown, backend = video("h264"), make()
    good = shown.run({}, 20)
    packets = [
        type(packet)(b"\xff" * len(packet.data), packet.pts, packet.dts, packet.is_key)
        for packet in good.packets
    ]
    lost, out = shown.out(), shown.out()
    pts = shown.pts[20]
    try:
        outcome = backend.decode(Run(good.track, packets, {pts: [(lost, None)]}))
    except MediaError:
        pass  # refused before it was fed
    else:
        assert outcome.missing == {pts}
    assert not lost.any()
    again = shown.run({pts: [(out, None)]}, 20)
    assert backend.decode(again).missing == set()
    assert make.same(again, out, shown.truth[pts])
