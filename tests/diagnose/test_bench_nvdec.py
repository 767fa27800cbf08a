"""A bench whose clips a GPU's engines decode, with libav in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

import dstream
from dstream.clock import SystemClock
from dstream.diagnose.bench.bench import bench
from dstream.diagnose.bench.document import Stage
from dstream.diagnose.bench.interruption import Interruption
from dstream.diagnose.bench.run import Wish
from dstream.diagnose.prices import Prices
from dstream.media.decoders import selection
from dstream.store.opening import open_store
from loader_data import fill, new_url, videos
from pynvvideocodec_stand_in import StandIn


@pytest.mark.parametrize(("decoder", "unit"), [("auto", "frames/s, nvdec"), ("cpu", "frames/s")])
def test_decode_names_its_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: str, unit: str
) -> None:
    device = StandIn(engines=2).device()
    monkeypatch.setattr(selection, "nvdec_device", {0: device}.__getitem__)
    url = new_url()
    fill(open_store(url), videos(tmp_path, 3, frames=24, gop=12))
    document = bench(
        lambda: dstream.clips(url, frames=6, array="numpy"),
        url,
        2,
        {"decoder": decoder, "epochs": None},
        Wish(clips=12),
        {},
        Prices(),
        SystemClock(),
        lambda _: None,
        Interruption(),
    )[0]
    units = {stage.name: stage.own_unit for stage in document.stages}
    assert units[Stage.DECODE] == unit
    told = str(document.settings.get("nvdec_alone", ""))
    assert told.startswith("2 NVDEC engines decode ") is (decoder == "auto")
