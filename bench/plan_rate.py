"""The plan alone: microseconds of CPU a slot and memory, over a billion clips, for every order.

Each case runs in a process of its own, as one rank of many does: steps dealt out, slots drawn,
from the middle of an epoch and across its end. Memory is the peak of the process over what it was
with the table of slots, which the samples' own lengths take.

    python bench/plan_rate.py --clips 1000000000 --samples 10000000
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dstream.loader.partitions import partition_settings
from dstream.loader.plan import Order, Shuffle, SlotTable
from dstream.loader.steps import Ranks, drawn_steps, steps

CASES: dict[str, tuple[Shuffle, int]] = {
    "global": ("global", 1),
    "affine": ("affine", 1),
    "global, clips_per_gop=8": ("global", 8),
    "affine, clips_per_gop=8": ("affine", 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=10**9)
    parser.add_argument("--samples", type=int, default=10**6)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--slots", type=int, default=200_000, help="drawn in each case")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(given)))
        return
    command = [sys.executable, *sys.argv]
    rows = []
    for case in CASES:
        told = subprocess.run([*command, "--case", case], capture_output=True, check=True).stdout
        rows.append({"order": case, **json.loads(told)})
    if given.json:
        print(json.dumps(rows))
        return
    print(f"{given.clips:,} clips of {given.samples:,} samples, one rank of {given.ranks}")
    print(f"{'order':<26}{'us/slot':>9}{'plan MB':>9}{'table MB':>10}{'ready ms':>10}")
    for row in rows:
        print(
            f"{row['order']:<26}{row['us_per_slot']:>9.2f}{row['plan_bytes'] / 1e6:>9.1f}"
            f"{row['table_bytes'] / 1e6:>10.1f}{row['ready_s'] * 1e3:>10.0f}"
        )


def measure(given: argparse.Namespace) -> dict[str, float]:
    """One case, in this process."""
    shuffle, group = CASES[given.case]
    counts = np.full(given.samples, given.clips // given.samples, dtype=np.int64)
    counts[: given.clips % given.samples] += 1
    table = SlotTable(counts)
    # Code that is loaded and caches of numpy are no part of the plan.
    draw(order_of(SlotTable(counts[:100]), shuffle, group), given, 0, 1000)
    before_bytes = memory("VmRSS")
    reset_peak()
    started_s = time.process_time()
    order = order_of(table, shuffle, group)
    order.draw(order.total - 1)
    order.draw(order.total)
    ready_s = time.process_time() - started_s
    started_s = time.process_time()
    drawn = draw(order, given, order.total // 2, given.slots // 2)
    step_clips = given.ranks * given.batch_size
    steps_before_end = given.slots // 4 // given.batch_size
    drawn += draw(order, given, order.total - steps_before_end * step_clips, given.slots // 2)
    took_s = time.process_time() - started_s
    return {
        "us_per_slot": took_s / drawn * 1e6,
        "plan_bytes": memory("VmHWM") - before_bytes,
        "table_bytes": table.first.nbytes,
        "ready_s": ready_s,
    }


def order_of(table: SlotTable, shuffle: Shuffle, group: int) -> Order:
    settings = partition_settings(
        table.total,
        is_affine=shuffle == "affine",
        partitions=None if shuffle == "global" and group == 1 else 512,
        window_clips=None,
        clips_per_gop=group,
    )
    return Order.of(table, 0, "uniform", shuffle, settings)


def draw(order: Order, given: argparse.Namespace, position: int, least: int) -> int:
    """Draw at least so many clips of one rank; how many they were."""
    ranks = Ranks(given.batch_size, given.ranks // 2, given.ranks)
    drawn = 0
    for _, draws in drawn_steps(steps(position, None, order.total, order, ranks), order):
        drawn += len(draws)
        if drawn >= least:
            break
    return drawn


def memory(name: str) -> int:
    """A figure of /proc/self/status in bytes."""
    found = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def reset_peak() -> None:
    """Let VmHWM begin anew; proc(5), clear_refs."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
