"""What a GPU does with clips and arrays. Written without one: **this has never been run.**

    python bench/gpu.py FOLDER [--json FILE]            measure; makes videos and arrays in FOLDER
    python bench/gpu.py --table TESTS.XML BENCH.JSON    one table of the tests and the figures

Decoding is held against one long sequential decode on one session, and against what NVIDIA
publishes of an engine (``dstream.diagnose.bench.engines``), where that is known for the GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

import dstream
from bench_videos import HEIGHT, WIDTH, make_bench_video
from dstream.catalog import Catalog
from dstream.diagnose.bench.engines import published_frames_per_second
from dstream.ingest import ingest
from dstream.measure import Meter
from dstream.media.clip import ClipRequest, plan_clip
from dstream.media.decode import packets_of
from dstream.media.decoders.contract import Run
from dstream.media.decoders.nvdec import nvdec_device
from dstream.media.decoders.nvdec_backend import feed_of
from dstream.media.index import index_video
from dstream.media.reader import FileReader
from dstream.store.opening import open_store
from dstream_recipes.arrays import RECIPE

CODECS = {"h264": "libx264", "hevc": "libx265"}
"""Encoder of each."""
SECONDS = 120
CLIP_FRAMES, BATCH, BATCHES = 16, 8, 200
STEP_MS = 100.0
ARRAYS, ARRAY_SHAPE = 16, (512, 16, 64, 64)
Figures = dict[str, float]


def sequential_frames_per_s(video: Path) -> float:
    """One session, one run over the whole file, left on the GPU, nothing converted."""
    device, meter = nvdec_device(0), Meter()
    with FileReader(video) as reader:
        index = index_video(reader)[0]
        track = index.track
        request = ClipRequest(
            start_s=0.0,
            frames=int(track.frame_count or 0),
            stride=1,
            start_pts=track.start_pts,
            end_pts=track.end_pts,
        )
        plan = plan_clip(index, request)
        data = [reader.read(e.offset_bytes, e.offset_bytes + e.size_bytes) for e in plan.extents]
    if device.capabilities(track.codec) is None:
        raise SystemExit(f"NVDEC cannot be used: {device.absence} {device.failure}")
    feed = feed_of(Run(track, packets_of(index, plan, data)[0], {}))
    rates: list[float] = []
    for _ in range(3):
        with device.pool().session(replace(feed.key, on_device=True), meter) as session:
            began_s = time.perf_counter()
            frames = sum(1 for _ in session.decode(feed.packets))
            rates.append(frames / (time.perf_counter() - began_s))
    return max(rates)


def random_clips(video: Path) -> Figures:
    """Random clips of one file by ``decoder="nvdec"`` into batches on the GPU."""
    clips = dstream.clips(video, frames=CLIP_FRAMES, stride=1)
    engines = max(1, nvdec_device(0).engines)
    import_module("torch").cuda.reset_peak_memory_stats()
    with clips.loader(
        BATCH, epochs=None, decoder="nvdec", device="cuda", workers=2 * engines
    ) as loader:
        next(loader)
        began_s = time.perf_counter()
        for _ in range(BATCHES):
            next(loader)
        wall_s = time.perf_counter() - began_s
        report = loader.report()
    held = report.device_memory
    return {
        **{f"device memory at most, {name}, MB": n / 1e6 for name, n in held.items()},
        "bytes copied for each delivered": report.copies_per_byte,
        "delivered frames/s": BATCHES * BATCH * CLIP_FRAMES / wall_s,
        "decoded frames/s of a session": report.nvdec_frames_per_second,
        "decoded frames/s of an engine": report.nvdec_frames_per_engine,
    }


def idle_share(video: Path, decoder: Any) -> float:
    """Share of the time in which the GPU has no step to work on, with steps of a fixed length."""
    torch: Any = import_module("torch")
    clips = dstream.clips(video, frames=CLIP_FRAMES, stride=1)
    ticks = ticks_of(torch, STEP_MS)
    events: list[tuple[Any, Any]] = []
    with clips.loader(BATCH, epochs=None, decoder=decoder, device="cuda") as loader:
        next(loader)
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(BATCHES // 4):
            batch = next(loader)
            pair = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
            pair[0].record()
            batch.video.float().mean()
            torch.cuda._sleep(ticks)
            pair[1].record()
            events.append((pair[0], pair[1]))
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - began_s
    busy_s: float = sum(begin.elapsed_time(end) for begin, end in events) / 1000
    return 1 - busy_s / wall_s


def ticks_of(torch: Any, duration_ms: float) -> int:
    """Clock ticks that ``torch.cuda._sleep`` takes for so long."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(100_000_000)
    end.record()
    torch.cuda.synchronize()
    return int(100_000_000 * duration_ms / begin.elapsed_time(end))


def arrays(folder: Path) -> Figures:
    """Latents in float16, read past the host, through it, and by ``torch.from_file``."""
    torch: Any = import_module("torch")
    source = folder / "arrays"
    source.mkdir(exist_ok=True)
    for number in range(ARRAYS):
        if not (path := source / f"{number}.npy").exists():
            rng = np.random.default_rng(number)
            np.save(path, rng.standard_normal(ARRAY_SHAPE, np.float32).astype(np.float16))
    store = open_store(folder / "repo")
    catalog = Catalog.create(store, exist_ok=True)
    ingest(catalog, open_store(source), "latents", recipe=RECIPE)
    clips = dstream.open(folder / "repo").clips("latents", frames=CLIP_FRAMES, stride=1)
    figures: Figures = {}
    for name, direct in (("past the host", True), ("through the host", False)):
        with clips.loader(BATCH, epochs=1, device="cuda", direct=direct) as loader:
            began_s, size_bytes = time.perf_counter(), 0
            for batch in loader:
                size_bytes += batch.video.nbytes
            torch.cuda.synchronize()
            figures[f"arrays {name}, MB/s"] = size_bytes / 1e6 / (time.perf_counter() - began_s)
            report = loader.report()
        if direct:
            figures["arrays read by GDS"] = report.gds_reads
            for reason, count in report.fallbacks.items():
                figures[f"arrays, {reason}"] = count
    began_s, size_bytes = time.perf_counter(), 0
    for path in sorted(source.glob("*.npy")):
        mapped = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
        size_bytes += mapped.to("cuda").nbytes
    torch.cuda.synchronize()
    figures["torch.from_file and copy, MB/s"] = size_bytes / 1e6 / (time.perf_counter() - began_s)
    return figures


def measure(folder: Path) -> Figures:
    """All figures by what they are."""
    torch: Any = import_module("torch")
    if not torch.cuda.is_available():
        raise SystemExit("bench/gpu.py: torch sees no CUDA device")
    figures: Figures = {"engines": 0.0}
    capability = torch.cuda.get_device_capability(0)
    for codec, encoder in CODECS.items():
        video = make_bench_video(folder / f"{codec}.mp4", duration_s=SECONDS, gop=60, codec=encoder)
        ceiling = sequential_frames_per_s(video)
        published = published_frames_per_second(capability, codec, 8, WIDTH * HEIGHT)
        if published is not None:
            figures[f"{codec}: published 720p frames/s of an engine, by pixels"] = published
        figures[f"{codec}: sequential 720p frames/s of a session"] = ceiling
        for name, value in random_clips(video).items():
            figures[f"{codec}: {name}"] = value
        share = figures[f"{codec}: decoded frames/s of an engine"] / ceiling
        figures[f"{codec}: engine, share of sequential"] = share
        for decoder in ("nvdec", "cpu"):
            name = f"{codec}: GPU idle share, steps of {STEP_MS:g} ms, {decoder}"
            figures[name] = idle_share(video, decoder)
        figures[f"{codec}: device memory in use, MB"] = used_mb(torch)
    figures["engines"] = nvdec_device(0).engines
    return figures | arrays(folder)


def used_mb(torch: Any) -> float:
    """Of the whole device."""
    free, total = torch.cuda.mem_get_info()
    return float(total - free) / 1e6


def table(tests: Path, bench: Path) -> list[str]:
    """Lines: what became of the tests of each file, then the figures."""
    counts: dict[str, dict[str, int]] = {}
    for case in ElementTree.parse(tests).iter("testcase"):
        name = case.get("classname", "").rpartition("tests.")[2]
        found = [kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None]
        worst = found[0] if found else "passed"
        of_file = counts.setdefault(name, {})
        of_file[worst] = of_file.get(worst, 0) + 1
    rows = [
        (name, ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())))
        for name, kinds in sorted(counts.items())
    ]
    if bench.exists():
        figures = json.loads(bench.read_text())
        rows += [(name, f"{n:,.3g}" if n < 10 else f"{n:,.0f}") for name, n in figures.items()]
    else:
        rows.append(("benchmark", "no figures"))
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, nargs=2, metavar=("TESTS", "BENCH"))
    given = parser.parse_args()
    if given.table:
        print("\n".join(table(*given.table)))
        return
    if given.folder is None:
        parser.error("give a folder, or --table")
    figures = measure(given.folder)
    if given.json:
        given.json.write_text(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name}: {value:,.3g}")


if __name__ == "__main__":
    main()
