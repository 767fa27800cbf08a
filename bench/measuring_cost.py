"""What measuring costs: a loader's rate without counters, with them, and with a bench's recording.

    python bench/measuring_cost.py FOLDER [--rounds 8] [--clips 600] [--size 128x72]

Makes eight small videos in FOLDER. Small ones, since what measuring takes is the same for every
clip: the cheaper the clip, the larger its share. The kinds of runs take turns, and each round
begins with the next kind, so that a drift of the machine meets all alike. Each kind is compared
with the loader as it is, which counts; the first kind has the counters' methods taken out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import dstream
from dstream.clock import SystemClock
from dstream.diagnose.bench.ratio import compare_rates
from dstream.diagnose.bench.recording import Recording
from dstream.loader import Clips
from dstream.measure import Meter
from memory import noise_video

KINDS = {
    "nothing": "no counters",
    "counters": "the loader as it is",
    "recording": "latencies and timeline, as for --html",
    "trace": "and every span, as for --trace",
}


@contextmanager
def no_counters() -> Iterator[None]:
    """Meters hear nothing."""
    with patch.multiple(
        Meter,
        add=lambda self, name, amount: None,
        event=lambda self, name, reason, count=1: None,
        request=lambda self, verb, purpose, outcome, totals: None,
    ):
        yield


def drain(clips: Clips, count: int, recording: Recording | None) -> tuple[float, float]:
    """Clips a wall second and a CPU second, from the second batch on."""
    spans = None if recording is None else recording.spans
    with clips.loader(8, epochs=None, workers=2, fetchers=8, spans=spans) as loader:
        next(loader)
        began_s, cpu_s, taken = time.perf_counter(), time.process_time(), 0

        def take() -> None:
            nonlocal taken
            while taken < count:
                taken += len(next(loader))

        if recording is None:
            take()
        else:
            with recording.watching(loader):
                take()
        return taken / (time.perf_counter() - began_s), taken / (time.process_time() - cpu_s)


def run(kind: str, source: Path, count: int) -> tuple[float, float]:
    """One run of a kind."""
    clips = dstream.clips(source, frames=8, clips_per_file=16, array="numpy", resize=(32, 32))
    if kind == "nothing":
        with no_counters():
            return drain(clips, count, None)
    if kind == "counters":
        return drain(clips, count, None)
    most = 1_000_000 if kind == "trace" else 0
    return drain(clips, count, Recording(clips.meter, SystemClock(), most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clips", type=int, default=600, help="of each run")
    parser.add_argument("--size", default="128x72")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    width, height = map(int, wanted.size.split("x"))
    folder = wanted.folder / wanted.size
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(8):
        noise_video(
            folder / f"{number}.mp4", size=(width, height), frames=128, gop=16, levels=8, qp=30
        )
    kinds = list(KINDS)
    rates: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    run("trace", folder, wanted.clips)
    for number in range(wanted.rounds):
        for place in range(len(kinds)):
            kind = kinds[(number + place) % len(kinds)]
            rates[kind].append(run(kind, folder, wanted.clips))
    print(f"{'':10} {'clips/s':>9} {'of wall rate':>22} {'of CPU rate':>22}")
    for kind, what in KINDS.items():
        told = []
        for which in (0, 1):
            base, own = ([rate[which] for rate in rates[name]] for name in ("counters", kind))
            found = compare_rates(base, own)
            told.append(f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})")
        median = sorted(rate for rate, _ in rates[kind])[wanted.rounds // 2]
        print(f"{kind:10} {median:9.0f} {told[0]:>22} {told[1]:>22}  {what}")
    if wanted.json:
        wanted.json.write_text(json.dumps(rates))


if __name__ == "__main__":
    main()
