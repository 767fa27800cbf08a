"""On a GPU: random clips of files with damaged packets. No clip is wrong, and no memory leaks."""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dstream
from dstream import Clips
from dstream.clock import SystemClock
from dstream.errors import CorruptDataError, MediaError
from dstream.format.index import VideoIndex
from dstream.ingest.settings import Layout
from dstream.loader.plan import Draw
from dstream.media.decode import ClipDecoder
from dstream.media.decoders.selection import DecoderChoice
from dstream_recipes.video import RECIPE
from ingest_made import content, place, stored_index
from made_video import make_video

pytestmark = pytest.mark.gpu

CLIPS = int(os.environ.get("DSTREAM_GPU_CLIPS", "10000"))
FILES, FRAMES, CLIP_FRAMES = 20, 120, 8
DAMAGED_SHARE = 0.01
FLAT_BYTES = 64 << 20
"""How much more device memory may be in use at the end than after the first tenth."""


class Poisoned:
    """A data set whose bytes were damaged after it was ingested, and what is right."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        for seed in range(FILES):
            codec = "libx265" if seed % 2 else "libx264"
            path = folder / "source" / f"{seed}.mp4"
            make_video(path, frames=FRAMES, gop=12, seed=seed, codec=codec)
        made = place(folder / "repo", folder / "source")
        made.ingest("clips", RECIPE, layout=layout)
        self.clips: Clips = dstream.open(folder / "repo").clips(
            "clips", frames=CLIP_FRAMES, stride=1, array="numpy"
        )
        self.truth: dict[str, NDArray[np.generic]] = {
            key: self.clips.clip(key, frames=FRAMES).video for key in self.clips.keys()
        }
        self.bad_gops: dict[str, set[int]] = {}
        stored = content(made.catalog, "clips@v1")
        rng = np.random.default_rng(0)
        for row in stored.streams:
            file = stored.files[row["file"]]
            root = folder / ("repo" if layout is Layout.PACKED else "source")
            path, start = root / file["object"], int(file["offset_bytes"])
            stamp = path.stat().st_mtime_ns
            self.bad_gops[file["name"]] = damage(path, start, stored_index(made, row), rng)
            os.utime(path, ns=(stamp, stamp))


def damage(path: Path, start_byte: int, index: VideoIndex, rng: np.random.Generator) -> set[int]:
    """Turn over bits in some packets; returns the GOPs that they are in."""
    assert index.packets is not None
    chosen = np.flatnonzero(rng.random(len(index.packets)) < DAMAGED_SHARE)
    path.chmod(0o644)
    with path.open("r+b") as file:
        for number in chosen:
            place = start_byte + int(index.packets.offset_bytes[number])
            place += int(index.packets.size_bytes[number]) // 2
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 0x5A]))
    return set((np.searchsorted(index.gops.first_packet, chosen, side="right") - 1).tolist())


def run(poisoned: Poisoned, choice: DecoderChoice, clips: int, look: Any) -> Counter[str]:
    """Decode random clips in eight threads; what became of them. ``look`` is called at times."""
    reader, local, seen = poisoned.clips.reader(), threading.local(), Counter[str]()
    slots = np.random.default_rng(1).integers(0, len(poisoned.clips), clips)

    def one(position: int) -> str:
        if not hasattr(local, "decoder"):
            settings, clock = poisoned.clips.settings.pixels, SystemClock()
            local.decoder = ClipDecoder(settings, reader.meter, clock=clock, choice=choice)
        planned = reader.plan(Draw(position, 0, int(slots[position]), 0.5))
        name = planned.sample.key
        try:
            got = reader.decode(local.decoder, planned, reader.fetch(planned)).decoded
        except (CorruptDataError, MediaError):
            return "refused"
        assert got.frame_index is not None
        right = np.array_equal(got.video, poisoned.truth[name][got.frame_index])
        if right:
            return "right"
        touched = set(range(planned.plan.first_gop, planned.plan.stop_gop))
        # Without checksums damage inside the clip cannot be told; outside of it must not show.
        return "concealed" if touched & poisoned.bad_gops[name] else "wrong"

    with ThreadPoolExecutor(8) as pool:
        for number, what in enumerate(pool.map(one, range(clips))):
            seen[what] += 1
            look(number + 1)
    seen["on the device"] = int(reader.meter.snapshot().sums.get("frames.nvdec", 0))
    return seen


@pytest.mark.parametrize("layout", [Layout.PACKED, Layout.IN_PLACE])
def test_no_clip_is_wrong_and_memory_stays_flat(tmp_path: Path, layout: Layout) -> None:
    torch: Any = import_module("torch")
    used: dict[int, int] = {}

    def look(number: int) -> None:
        if number in (CLIPS // 10, CLIPS):
            free, total = torch.cuda.mem_get_info()
            used[number] = total - free

    seen = run(Poisoned(tmp_path, layout), DecoderChoice("auto"), CLIPS, look)
    assert seen["wrong"] == 0, seen
    assert seen["on the device"] > 0, seen
    if layout is Layout.PACKED:  # every GOP has a checksum
        assert seen["concealed"] == 0, seen
        assert seen["refused"] > 0, seen
    assert used[CLIPS] - used[CLIPS // 10] <= FLAT_BYTES
