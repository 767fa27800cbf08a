"""Memory of a loader: after one epoch and after three, and under small and large byte budgets.

    python bench/memory.py FOLDER [--epochs 3] [--budgets 64MB 1GB]

Makes its own videos in FOLDER: small ones for the epochs, and one of noise whose groups of pictures
are so large (22 MB) that fetched bytes fill a budget. Each measurement is a process of its own. A
loader under a budget is left alone after its first batch, until it fetches no more: what the
process then has beyond what it had before is what the budget allowed. For that glibc is told to
give freed buffers back at once: by itself it keeps one or two for each thread's arena, which says
nothing of the loader.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import av
import numpy as np

from dstream.units import parse_bytes

_QUIET_S = 1.0

_ENVIRONMENT = {"under_budget": {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}}


def noise_video(
    path: Path, *, size: tuple[int, int], frames: int, gop: int, levels: int = 220, qp: int = 0
) -> Path:
    """H.264 of noise of so many levels; without loss about 1.5 bytes a pixel."""
    if path.exists():
        return path
    generator = np.random.default_rng(1)
    draft = path.with_suffix(".tmp")
    with av.open(str(draft), "w", format="mp4") as container:
        options = {"g": str(gop), "keyint_min": str(gop), "sc_threshold": "0", "qp": str(qp)}
        stream: Any = container.add_stream(
            "libx264", rate=30, options={"preset": "ultrafast", **options}
        )
        (stream.width, stream.height), stream.pix_fmt = size, "yuv420p"
        for _ in range(frames):
            shape = size[1] * 3 // 2, size[0]
            picture = generator.integers(16, 16 + levels, shape, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="yuv420p")))
        container.mux(stream.encode())
    return draft.replace(path)


def small_videos(folder: Path) -> Path:
    """Sixteen videos of some kilobytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(16):
        path = folder / f"{number:02d}.mp4"
        noise_video(path, size=(128, 72), frames=128, gop=32 + number, levels=8, qp=30)
    return folder


def resident_bytes() -> int:
    """Memory that this process has now."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def after_epochs(source: str, epochs: int, frames: int = 16) -> list[int]:
    """Resident bytes after each epoch."""
    import dstream

    clips = dstream.clips(source, frames=frames, clips_per_file=8)
    found = []
    with clips.loader(8, workers=2, fetchers=4, last="short") as loader:
        for _ in range(epochs):
            for _ in loader:
                pass
            found.append(resident_bytes())
    return found


def under_budget(source: str, budget_bytes: int) -> dict[str, int]:
    """Resident bytes that a loader takes which fetches as far ahead as its budget lets it."""
    import dstream

    clips = dstream.clips(source, frames=4, clips_per_file=64, array="numpy", resize=(32, 32))
    clips[0]  # the decoder and the index are there before
    before_bytes = resident_bytes()
    loader = clips.loader(
        1, epochs=None, workers=1, fetchers=64, prefetch=1, inflight_bytes=budget_bytes
    )
    with loader:
        next(loader)
        sizes = [0, resident_bytes()]
        until_s = time.monotonic() + _QUIET_S
        while time.monotonic() < until_s:
            time.sleep(0.05)
            sizes.append(resident_bytes())
            if sizes[-1] > max(sizes[:-1]):
                until_s = time.monotonic() + _QUIET_S
        received = loader.report().bytes_received
    return {
        "budget_bytes": budget_bytes,
        "taken_bytes": max(sizes) - before_bytes,
        "received_bytes": received,
    }


def in_process(call: str, *arguments: object) -> Any:
    """What a function of this file returns in a process of its own."""
    command = [sys.executable, __file__, "--call", json.dumps([call, *arguments])]
    environment = os.environ | _ENVIRONMENT.get(call, {})
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--budgets", nargs="*", default=["64MB", "1GB"])
    parser.add_argument("--call", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.call:
        name, *arguments = json.loads(wanted.call)
        calls: dict[str, Any] = {"after_epochs": after_epochs, "under_budget": under_budget}
        print(json.dumps(calls[name](*arguments)))
        return
    small, large = small_videos(wanted.folder / "small"), wanted.folder / "noise.mp4"
    sizes = in_process("after_epochs", str(small), wanted.epochs)
    print("epoch  resident MB  to the first")
    for epoch, size_bytes in enumerate(sizes):
        print(f"{epoch + 1:5}  {size_bytes / 1e6:11.1f}  {size_bytes / sizes[0]:12.3f}")
    noise_video(large, size=(1280, 720), frames=64, gop=16)
    print(f"\n{'budget MB':>9}  {'taken MB':>8}")
    for budget in wanted.budgets:
        took = in_process("under_budget", str(large), parse_bytes(budget))
        print(f"{took['budget_bytes'] / 1e6:9.0f}  {took['taken_bytes'] / 1e6:8.1f}")


if __name__ == "__main__":
    main()
