"""What the node's cache costs: a verified hit against the decoding of its clip, and a second epoch
from a warm cache against local files.

python bench/cache_hit.py FOLDER [--seconds 20] [--clips 40] [--rounds 3] [--json]

FOLDER gets the videos (kept) and a cache (removed). Both figures are ratios of what is measured
by turns in one run: hit and decode clip by clip, the two loaders epoch by epoch. Targets: a hit
below 0.02 of its decode, the second epoch at least 0.97 of local files. Takes about two minutes on
two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import dstream
from bench_videos import linked, make_bench_video
from dstream.cache.cache import ExtentCache
from dstream.loader.plan import Order
from dstream.loader.reader import ClipReader
from dstream.measure import Meter
from dstream.media.decode import ClipDecoder
from dstream.store.opening import open_store
from spread import spread

FRAMES = 16
BUDGET_BYTES = 4_000_000_000


def hit_share(folder: Path, gop: int, clips: int, scratch: Path) -> dict[str, float]:
    """Median seconds of a verified hit and of its clip's decoding, clip by clip."""
    meter = Meter()
    source = dstream.clips(
        folder, frames=FRAMES, clips_per_file=clips, cache=scratch, cache_bytes=BUDGET_BYTES,
        meter=meter,
    )  # fmt: skip
    cache = source.cache
    assert isinstance(cache, ExtentCache)
    reader = ClipReader(source.source, source.settings, meter, cache=cache)
    decoder = ClipDecoder(source.settings.pixels, meter)
    order = Order(len(source), 0)
    planned = [reader.plan(order.draw(position)) for position in range(min(clips, len(source)))]
    for clip in planned:
        reader.fetch(clip)
    before = meter.snapshot()
    hits_s, decodes_s, sizes = [], [], []
    out = None
    for clip in planned:
        began_s = time.perf_counter()
        data = reader.fetch(clip)
        hits_s.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        out = decoder.decode(clip.sample.index, clip.plan, data, out).video
        decodes_s.append(time.perf_counter() - began_s)
        sizes.append(clip.size_bytes)
    counts = meter.snapshot().minus(before).sums
    assert not counts.get("cache.misses"), "a clip was not in the cache"
    hit_s, decode_s = statistics.median(hits_s), statistics.median(decodes_s)
    return {
        "keyframes_every": gop,
        "clip_bytes": statistics.median(sizes),
        "hit_us": hit_s * 1e6,
        "decode_ms": decode_s * 1e3,
        "hit_of_decode": statistics.median(
            hit / decode for hit, decode in zip(hits_s, decodes_s, strict=True)
        ),
    }


def epoch_rate(clips: dstream.Clips) -> float:
    """Clips a second of one epoch, all threads of the machine decoding."""
    with clips.loader(8) as loader:
        began_s, taken = time.perf_counter(), 0
        for batch in loader:
            taken += len(batch)
        return taken / (time.perf_counter() - began_s)


def second_epoch(folder: Path, gop: int, clips: int, rounds: int, scratch: Path) -> dict[str, Any]:
    """Rates of a warm cache in front of a store, and of local files, by turns."""
    url = f"memory://cache-hit-{gop}"
    store = open_store(url)
    for path in sorted(folder.glob("*.mp4")):
        store.put(path.name, path.read_bytes())
    per_file = max(1, clips // len(list(folder.glob("*.mp4"))))
    local = dstream.clips(folder, frames=FRAMES, clips_per_file=per_file, cache=False)
    cached = dstream.clips(
        url, frames=FRAMES, clips_per_file=per_file, cache=scratch, cache_bytes=BUDGET_BYTES
    )
    rates: dict[str, list[float]] = {"local": [], "cached": []}
    for turn in range(rounds + 1):
        for name, source in (("local", local), ("cached", cached)):
            rate = epoch_rate(source)
            if turn:  # the first epoch warms both
                rates[name].append(rate)
    ratios = [mine / files for mine, files in zip(rates["cached"], rates["local"], strict=True)]
    return {
        "keyframes_every": gop,
        "local_clips_per_s": statistics.median(rates["local"]),
        "cached_clips_per_s": statistics.median(rates["cached"]),
        "cached_of_local": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=int, default=20, help="length of each video")
    parser.add_argument("--videos", type=int, default=2)
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    for gop in (30, 250):
        folder = arguments.folder / f"cache-hit-{gop}-{arguments.seconds}"
        original = folder.with_suffix(".mp4")
        make_bench_video(original, duration_s=arguments.seconds, gop=gop)
        linked(original, folder, arguments.videos)
        scratch = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            hit = hit_share(folder, gop, arguments.clips, scratch / "hit")
            epoch = second_epoch(folder, gop, arguments.clips, arguments.rounds, scratch / "epoch")
        finally:
            shutil.rmtree(scratch)
        found.append({**hit, **epoch})
    if arguments.json:
        print(json.dumps(found))
        return
    for row in found:
        print(
            f"keyframes every {row['keyframes_every']:.0f}: a hit of "
            f"{row['clip_bytes'] / 1e6:.2f} MB {row['hit_us']:.0f} us, its decode "
            f"{row['decode_ms']:.1f} ms: {row['hit_of_decode']:.2%} (target < 2%); second epoch "
            f"{row['cached_clips_per_s']:.1f} clips/s cached, {row['local_clips_per_s']:.1f} "
            f"local: {spread(row['cached_of_local'])} (target >= 0.97)"
        )


if __name__ == "__main__":
    main()
