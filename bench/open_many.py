"""Open a dataset of very many videos: how long, and in how much memory.

    python bench/open_many.py --samples 10000000 [--folder DIR]

Tables of one-track videos left in place are made by the project's own writers, part by part as an
ingest makes them (250,000 files each), and published in a folder; no video exists. A fresh process
then opens the dataset, makes a loader (which draws up the plan and compares all picture sizes), and
looks samples up, and tells time, processor time and peak
resident memory after each. With ``--keep`` the folder is
left for another run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from dstream.catalog import Catalog
from dstream.format.manifest import Manifest, ObjectCount, Part, RecipeRef, TableRef, Totals
from dstream.format.tables import write_table
from dstream.ingest.commit import MAX_PART_FILES
from dstream.store.opening import open_store

GROUP = 256
"""Videos that share an index group, as in a dataset that is left in place."""


def tables(first: int, count: int, prefix: str) -> dict[str, dict[str, Any]]:
    """Columns of the tables of ``count`` videos, numbered from ``first``."""
    numbers = range(first, first + count)
    rng = np.random.default_rng(first)
    names = [f"session-{n // 1000:06d}/camera-{n % 7}/run-{n:09d}.mp4" for n in numbers]
    ones, zeros = np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    frames = rng.integers(200, 20_000, count)
    size_bytes = frames * 20_000
    group_bytes = np.full(count, 4_000, dtype=np.int64)
    text = {"profile": "High", "pix_fmt": "yuv420p", "container": "mp4", "codec": "h264"}
    streams: dict[str, Any] = {name: [value] * count for name, value in text.items()}
    streams |= {
        "file": np.arange(count), "track_id": zeros, "width": ones * 1280, "height": ones * 720,
        "rotation_deg": zeros, "mirrored": [False] * count, "sar_num": ones, "sar_den": ones,
        "color_range": ones, "color_space": ones, "color_primaries": ones, "color_trc": ones,
        "time_base_num": ones, "time_base_den": ones * 15_360, "start_pts": zeros,
        "end_pts": frames * 512, "duration_s": frames / 30.0, "rate_num": ones * 30,
        "rate_den": ones, "frame_count": frames, "vfr": [False] * count,
        "keyframes": frames // 250 + 1, "longest_gop_bytes": ones * 5_000_000,
        "longest_gop_frames": ones * 250, "clock_offset_s": np.zeros(count),
        "access": ["packets"] * count,
        "index_object": [f"{prefix}{n // GROUP:032x}.idx" for n in numbers],
        "index_offset_bytes": 16 + (np.arange(count) % GROUP) * 4_000,
        "index_size_bytes": group_bytes, "full_pass": [False] * count,
    }  # fmt: skip
    files = {
        "name": names, "object": names, "store": zeros, "offset_bytes": zeros,
        "size_bytes": size_bytes, "checksum": [None] * count,
        "source_uri": [f"s3://raw/{name}" for name in names],
        "etag": [hashlib.md5(name.encode()).hexdigest() for name in names],
        "version": [None] * count, "role": ["video"] * count,
    }  # fmt: skip
    samples = {
        "key": [name.removesuffix(".mp4") for name in names],
        "group": [name.split("/")[0] for name in names], "split": ["train"] * count,
        "streams": [[row] for row in range(count)], "names": [["video"]] * count,
        "start_pts": [[0]] * count, "end_pts": [[int(n) * 512] for n in frames],
        "side": [[]] * count, "side_suffixes": [[]] * count, "motion": rng.random(count),
    }  # fmt: skip
    return {"files": files, "streams": streams, "samples": samples}


def make(folder: Path, samples: int, repeat: int) -> None:
    """Publish a dataset of so many videos, its parts listed ``repeat`` times."""
    store = open_store(folder)
    catalog = Catalog.create(store)
    session = catalog.begin_session()
    parts: list[Part] = []
    for first in range(0, samples, MAX_PART_FILES):
        count = min(MAX_PART_FILES, samples - first)
        refs: dict[str, TableRef] = {}
        for kind, columns in tables(first, count, session.data_prefix).items():
            data = write_table(kind, columns)
            digest = hashlib.sha256(data).hexdigest()
            key = f"{session.data_prefix}{digest[:32]}.parquet"
            store.put(key, data)
            refs[kind] = TableRef(key, len(data), digest, count)
        groups = ObjectCount(-(-count // GROUP), count * 4_000)
        files, streams, rows = refs["files"], refs["streams"], refs["samples"]
        parts.append(Part(files, streams, rows, None, "in_place", 0, groups))
        print(f"made {first + count:,} of {samples:,}", file=sys.stderr)
    total = samples * repeat
    totals = Totals(files=total, samples=total, streams=total)
    manifest = Manifest(RecipeRef("video"), ("s3://raw",), tuple(parts) * repeat, totals, "bench")
    catalog.publish_dataset("many", manifest, session=session, mode="replace")


def measure(folder: Path, where: str | None) -> list[dict[str, Any]]:
    """Open the dataset in this process, and tell what each step cost."""
    import dstream

    told: list[dict[str, Any]] = []
    began_s = time.perf_counter()

    def tell(step: str) -> None:
        now_s = time.perf_counter()
        status = Path("/proc/self/status").read_text()
        sizes = {
            name: int(status.split(f"{name}:")[1].split()[0]) // 1024 for name in ("VmHWM", "VmRSS")
        }
        seconds = round(now_s - began_s, 2)
        cpu_s = round(time.process_time(), 2)
        told.append({"step": step, "seconds": seconds, "cpu_s": cpu_s, "peak_mib": sizes["VmHWM"],
                     "rss_mib": sizes["VmRSS"]})  # fmt: skip

    tell("import")
    repo = dstream.open(folder)
    clips = repo.clips("many", frames=16, fps=8, array="numpy", where=where)
    tell(f"open: {clips.samples:,} samples, {len(clips):,} clips")
    with clips.loader(8) as loader:
        tell("loader")
        assert loader.position == 0
    for sample in range(0, clips.samples, max(1, clips.samples // 200)):
        clips.source.file_of(sample)
    tell("names and places of all parts")
    key = clips.source.key(clips.samples - 1)
    tell("key of the last")
    assert clips.source.key(clips.source.find(key)) == key
    tell("sample by key")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--where", help="open with a filter, such as 'motion > 0.5'")
    parser.add_argument(
        "--repeat", type=int, default=1, help="make so much less, and list the same parts again"
    )
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        for told in measure(options.folder, options.where):
            print(json.dumps(told))
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="dstream-open-many-"))
    try:
        if not (folder / "_ds").exists():
            make(folder, options.samples // options.repeat, options.repeat)
        command = [sys.executable, __file__, "--measure", "--folder", str(folder)]
        if options.where:
            command += ["--where", options.where]
        subprocess.run(command, check=True)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
