"""``decoder=`` of a loader: the same batches, and a report of where they were decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dstream
from dstream.diagnose.finding import Verdict
from dstream.diagnose.frame_checks import nvdec_finding
from dstream.loader.batch import device_name
from dstream.media.decoders import selection
from dstream.media.decoders.nvdec import NvdecDevice
from dstream.media.decoders.selection import DecoderChoice
from dstream.store.opening import open_store
from loader_data import batch_hash, fill, new_url, videos
from made_video import make_video
from pynvvideocodec_stand_in import StandIn

LEAST_SESSION_BYTES = 128 << 20


@pytest.fixture
def clips(tmp_path: Path) -> dstream.Clips:
    url = new_url()
    fill(open_store(url), videos(tmp_path, 3, frames=24, gop=12))
    return dstream.clips(url, frames=6, array="numpy")


def use(monkeypatch: pytest.MonkeyPatch, device: NvdecDevice) -> None:
    monkeypatch.setattr(selection, "nvdec_device", {0: device}.__getitem__)


def test_batches_are_the_same_whoever_decodes(
    clips: dstream.Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With libav in the place of the hardware, so the whole way there is tested."""
    package = StandIn(engines=2)
    use(monkeypatch, package.device())
    with clips.loader(2) as loader:
        expected = [batch_hash(batch) for batch in loader]
    assert loader.report().nvdec_sessions == {}
    with clips.loader(2, decoder="auto", workers=3) as loader:
        assert [batch_hash(batch) for batch in loader] == expected
    report = loader.report()
    assert report.fallbacks == {}
    assert report.nvdec_frames == report.frames_decoded > 0
    assert report.nvdec_frames_per_second > 0
    assert report.nvdec_frames_per_engine > 0
    assert 1 <= report.nvdec_sessions["opened"] <= 2
    assert sum(report.nvdec_sessions.values()) == report.clips_decoded
    assert report.device_memory == {
        "nvdec_sessions": report.nvdec_sessions["opened"] * LEAST_SESSION_BYTES
    }
    assert report.bytes_from_device == report.frames_decoded * 128 * 96 * 3 // 2
    assert 0 < report.bytes_to_device < report.bytes_from_device
    copied = report.bytes_to_device + report.bytes_from_device
    assert report.copies_per_byte == copied / report.bytes_delivered


@pytest.mark.parametrize("options", [{}, {"clips_per_gop": 2}])
def test_frames_that_stay_on_the_device_make_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Tensors of the CPU for those of a device, and a file that only the CPU decodes."""
    torch = pytest.importorskip("torch")
    url = new_url()
    store = fill(open_store(url), videos(tmp_path, 3, frames=24, gop=12))
    fill(store, {"other.mp4": make_video(tmp_path / "o", codec="mpeg4", frames=24).read_bytes()})
    clips = dstream.clips(url, frames=6, array="torch")
    with clips.loader(2, **options) as loader:
        expected = [(batch.keys, batch.video) for batch in loader]
    package = StandIn(engines=2)
    use(monkeypatch, package.device())
    monkeypatch.setattr(
        "dstream.loader.clips.decoder_choice",
        lambda name, device: DecoderChoice(name, 0, "cpu"),
    )
    with clips.loader(2, decoder="auto", **options) as loader:
        batches = [(batch.keys, batch.video) for batch in loader]
    for (keys, video), (expected_keys, truth) in zip(batches, expected, strict=True):
        assert keys == expected_keys
        assert isinstance(video, torch.Tensor)
        # What device_pixels states for 8 bits as large as stored.
        assert (video.int() - truth.int()).abs().max() <= 3
    report = loader.report()
    assert report.fallbacks == {"nvdec_no_mpeg4": 1}
    assert 0 < report.nvdec_frames < report.frames_decoded
    # Frames into clips, but for the clip of the CPU's, and clips into batches.
    clip_bytes = report.bytes_delivered // report.clips
    assert report.bytes_on_device == 2 * report.bytes_delivered - clip_bytes
    assert report.bytes_from_device == 0


def test_without_a_device_the_cpu_decodes_and_it_is_counted(
    clips: dstream.Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, NvdecDevice(0, lambda: "no_driver"))
    with clips.loader(2, decoder="auto") as loader:
        batches = list(loader)
    assert len(batches) == 2
    report = loader.report()
    assert report.fallbacks == {"no_driver": report.clips_decoded}
    assert report.nvdec_frames_per_engine == 0
    with pytest.raises(dstream.InvalidInputError, match=r"no_driver.*decoder='auto'"):
        clips.loader(2, decoder="nvdec")


def test_what_only_nvdec_may_decode_and_cannot_ends_the_loop(
    clips: dstream.Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = StandIn(formats={("HEVC", 8)})
    use(monkeypatch, package.device())
    with (
        clips.loader(2, decoder="nvdec", on_error="skip") as loader,
        pytest.raises(dstream.InvalidInputError, match="nvdec_no_h264"),
    ):
        list(loader)
    assert loader.report().skips == {}  # the files are good: none of them is to be given up


def test_the_doctor_names_what_the_device_lacks() -> None:
    package = StandIn({("H264", 8), ("HEVC", 8), ("HEVC", 10), ("VP9", 8)}, engines=7)
    found = nvdec_finding(package.device())
    assert found.verdict is Verdict.GOOD
    assert found.found == (
        "7 engines: h264 8 bit, hevc 8 bit, hevc 10 bit, vp9 8 bit; "
        "nvdec_no_av1, nvdec_no_h264_high10, nvdec_no_vp9_yuv420p10le"
    )
    absent = nvdec_finding(NvdecDevice(0, lambda: "no_driver"))
    assert (absent.verdict, absent.found[:10]) == (Verdict.ABSENT, "no_driver:")

    def broken() -> None:
        raise RuntimeError("Driver version is too old")

    bad = nvdec_finding(NvdecDevice(0, lambda: None, broken, lambda: 1))
    assert bad.verdict is Verdict.BAD
    assert bad.remedy == "RuntimeError: Driver version is too old"


def test_cuda_is_the_gpu_that_is_current_for_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding threads would take the first."""
    torch: Any = pytest.importorskip("torch")
    assert [device_name(each) for each in (None, "cpu", "cuda:1")] == [None, "cpu", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert device_name("cuda") == device_name(torch.device("cuda")) == "cuda:3"
    assert device_name(torch.device("cuda:1")) == "cuda:1"


def test_a_device_may_be_torchs(clips: dstream.Clips) -> None:
    torch: Any = pytest.importorskip("torch")
    with clips.loader(2, decoder="auto", device=torch.device("cpu"), array="torch") as loader:
        assert next(loader).video.device.type == "cpu"
