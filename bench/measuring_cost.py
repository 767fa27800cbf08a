"""What measuring costs: a loader's rate without counters, with them, and with a bench's recording.

    python bench/measuring_cost.py FOLDER [--minutes 10] [--slice-s 0.5] [--size 128x72]

Makes eight small videos in FOLDER. Small ones, since what measuring takes is the same for every
clip: the cheaper the clip, the larger its share. One process takes slices of half a second, each of
a new loader whose first batches are not timed. Every slice of a kind lies between two of the loader
as it is, which counts, and is held against their mean, so a machine that grows slower or faster
meanwhile changes nothing. The kinds take turns, and which comes first rotates. "control" is the
loader as it is once more: its ratio has to be 1, and its interval says what can be seen at all.

The estimate is the median of the means of all pairs of differences, the interval that of Wilcoxon's
signed ranks, of 95% whatever the distribution is, if it is symmetric (Hollander, Wolfe and Chicken,
"Nonparametric Statistical Methods", 3rd edition, sections 3.2 and 3.3).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import dstream
from dstream.clock import SystemClock
from dstream.diagnose.bench.ratio import CONFIDENCE
from dstream.diagnose.bench.recording import Recording
from dstream.loader import Clips
from dstream.measure import Meter
from memory import noise_video

BASE = "counters"
KINDS = {
    "nothing": "no counters",
    "recording": "latencies and timeline, as for --html",
    "trace": "and every span, as for --trace",
    "control": "the loader as it is, against itself",
}
UNTIMED_BATCHES = 2
"""Threads are started and decoders opened for them. None is in stock then: the consumer waits."""


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


def slice_of(kind: str, clips: Clips, slice_s: float) -> tuple[float, float]:
    """Clips a wall second and a CPU second, of a new loader for so long."""
    recording = None
    if kind in ("recording", "trace"):
        recording = Recording(clips.meter, SystemClock(), 1_000_000 if kind == "trace" else 0)
    spans = None if recording is None else recording.spans
    with (
        no_counters() if kind == "nothing" else nullcontext(),
        clips.loader(8, epochs=None, workers=2, fetchers=8, spans=spans) as loader,
        nullcontext() if recording is None else recording.watching(loader),
    ):
        for _ in range(UNTIMED_BATCHES):
            next(loader)
        began_s, cpu_s, taken = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began_s < slice_s:
            taken += len(next(loader))
        return taken / (time.perf_counter() - began_s), taken / (time.process_time() - cpu_s)


def rounds(until_s: float) -> Iterator[list[str]]:
    """The kinds of each round, in an order that rotates, until the time is over."""
    kinds = list(KINDS)
    while time.perf_counter() < until_s:
        yield kinds
        kinds = [*kinds[1:], kinds[0]]


def log_ratio(before: float, own: float, after: float) -> float:
    """Of a slice to the two beside it.

    >>> round(math.exp(log_ratio(400.0, 420.0, 441.0)), 9)
    1.0
    """
    return math.log(own) - (math.log(before) + math.log(after)) / 2


def signed_rank_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The pseudomedian of values, and the interval of it that Wilcoxon's signed ranks give.

    >>> signed_rank_interval([1.0, 2.0, 4.0])
    (2.25, -inf, inf)
    >>> signed_rank_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (3.5, 1.0, 6.0)
    """
    means = sorted((a + b) / 2 for place, a in enumerate(values) for b in values[place:])
    ways = [1] + [0] * len(means)  # in how many of the 2^n signs the ranks' sum is 0, 1, ...
    for rank in range(1, len(values) + 1):
        for total in range(len(means), rank - 1, -1):
            ways[total] += ways[total - rank]
    outside, below = 0, 0
    while 2 * (below + ways[outside]) <= (1 - CONFIDENCE) * 2 ** len(values):
        below += ways[outside]
        outside += 1
    if not outside:
        return statistics.median(means), -math.inf, math.inf
    return statistics.median(means), means[outside - 1], means[-outside]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10, help="that slices are begun")
    parser.add_argument("--slice-s", type=float, default=0.5)
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
    clips = dstream.clips(folder, frames=8, clips_per_file=16, array="numpy", resize=(32, 32))
    for kind in (BASE, *KINDS):
        slice_of(kind, clips, wanted.slice_s)
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    base = [slice_of(BASE, clips, wanted.slice_s)]
    for kinds in rounds(time.perf_counter() + wanted.minutes * 60):
        for kind in kinds:
            own = slice_of(kind, clips, wanted.slice_s)
            base.append(slice_of(BASE, clips, wanted.slice_s))
            wall, cpu = (log_ratio(base[-2][i], own[i], base[-1][i]) for i in (0, 1))
            found[kind].append((wall, cpu))
    tell(base, found)
    if wanted.json:
        wanted.json.write_text(json.dumps({"base": base, "log_ratios": found}))


def tell(base: Sequence[tuple[float, float]], found: dict[str, list[tuple[float, float]]]) -> None:
    wall, cpu = (statistics.median(rates) for rates in zip(*base, strict=True))
    print(
        f"{BASE}, the loader as it is: {wall:.0f} clips/s, {1000 / cpu:.2f} ms of CPU a clip, "
        f"medians of {len(base)} slices"
    )
    print(f"{'':10} {'slices':>6} {'of its rate':>22} {'of its rate by CPU':>22}")
    for kind, ratios in found.items():
        told = []
        for which in (0, 1):
            ends = map(math.exp, signed_rank_interval([ratio[which] for ratio in ratios]))
            told.append("{:.3f} ({:.3f} to {:.3f})".format(*ends))
        print(f"{kind:10} {len(ratios):6} {told[0]:>22} {told[1]:>22}  {KINDS[kind]}")


if __name__ == "__main__":
    main()
