"""The peers' benchmark: which clips count, and what tells that a rate is not one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.adapters.protocol import pictures, rows_sum, whole_sum
from peers.adapters.window import Progress, Rule, may_begin, may_end
from peers.dataset import DataSet
from peers.environments import PEERS
from peers.frame_sums import FrameSums
from peers.processes import session_cpu_s, session_ticks
from peers.report import notes, table
from peers.rows import best_rate, row
from peers.turns import Counted, Passed, Turn, exactness

RULE = Rule(stock_clips=8, window_s=6.0, least_clips=12, settle_limit_s=20.0, limit_s=15.0)
OURS = next(peer for peer in PEERS if peer.reads == "repo")
RIVAL = next(peer for peer in PEERS if peer.module == "litdata_raw")
LOCAL = next(peer for peer in PEERS if peer.reads == "local")


@pytest.mark.parametrize(
    ("now", "begins"),
    [
        (Progress(7, 3.5, 0.5), False),  # one more may be in stock
        (Progress(8, 4.0, 0.5), True),
        (Progress(8, 4.0, 0.1), False),  # this one was there already
        (Progress(3, 20.0, 7.0), True),  # too slow to wait for
        (Progress(0, 0.0, 0.0), False),
    ],
)
def test_counting_begins_at_a_clip_that_was_waited_for_behind_the_stock(
    now: Progress, begins: bool
) -> None:
    assert may_begin(RULE, now) is begins


@pytest.mark.parametrize(
    ("now", "ends"),
    [
        (Progress(20, 5.9, 0.3), False),
        (Progress(20, 6.0, 0.3), True),
        (Progress(20, 6.0, 0.1), False),
        (Progress(11, 6.0, 0.6), False),
        (Progress(11, 15.0, 0.1), True),
    ],
)
def test_counting_ends_at_a_clip_that_was_waited_for(now: Progress, ends: bool) -> None:
    assert may_end(RULE, now) is ends


def counted_rate(rule: Rule, stock: int, burst: int, clips_per_s: float) -> float:
    """Of a loader whose stock was full at its first clip, and that hands over ``burst`` at once."""
    arrivals = [0.0] * stock
    arrivals += [(1 + n // burst) * burst / clips_per_s for n in range(5000)]
    begun, last = None, 0.0
    for number, at_s in enumerate(arrivals[1:], 1):
        wait_s, last = at_s - last, at_s
        if begun is None:
            if may_begin(rule, Progress(number, at_s, wait_s)):
                begun = number, at_s
        elif may_end(rule, now := Progress(number - begun[0], at_s - begun[1], wait_s)):
            return now.clips / now.seconds
    raise AssertionError("it never ended")


@given(st.integers(1, 40), st.integers(1, 16), st.floats(2, 20))
def test_neither_stock_nor_bursts_count(stock: int, burst: int, clips_per_s: float) -> None:
    rule = Rule(stock, window_s=6.0, least_clips=12, settle_limit_s=1e3, limit_s=1e3)
    assert counted_rate(rule, stock, burst, clips_per_s) == pytest.approx(clips_per_s)


def turn(rates: list[float], *, cpu_s: float = 8.0, frame: int = 7, passed: int = 9) -> Turn:
    """Clips at these rates; all from different places unless ``frame`` is negative."""
    at_s, counted = 0.0, []
    for number, rate in enumerate(rates):
        at_s += 1 / rate
        place = 7 if frame < 0 else frame + 250 * number
        counted.append(Counted("0.mp4", place, place, at_s))
    return Turn(counted, 2.0, passed, 9, Passed(40, 44, 10**8, 1.0), cpu_s, "yes")


def made_row(*turns: Turn, **more: Any) -> dict[str, Any]:
    return row(RIVAL, turns, [], best=4.0, gop=250, frames=16) | more


def test_a_row_adds_up() -> None:
    told = made_row(turn([2.0] * 20), turn([4.0] * 20))
    assert told["clips_per_s"] == 3.0
    assert told["clips_per_s_by_round"] == [2.0, 4.0]
    assert told["ratio_to_best_peer"] == 0.75
    assert told["clips_per_cpu_s"] == 2.5
    assert told["frames_per_clip"] == 7 + 16
    assert (told["data_requests_per_clip"], told["MB_per_clip"]) == (2.0, 5.0)
    assert (told["clips"], told["distinct_clips"]) == (40, 40)
    assert notes(told, limit=2.5) == [RIVAL.note]


def test_the_best_peer_is_neither_ours_nor_on_local_files() -> None:
    turns = {OURS: [turn([9.0] * 9)], LOCAL: [turn([10.0] * 9)], RIVAL: [turn([4.0] * 9)]}
    assert best_rate(turns) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("told", "doubt"),
    [
        (made_row(turn([4.0] * 20, passed=5)),
         "**up to 4 of its clips were made before counting began**"),
        (made_row(turn([4.0] * 5)), "**only 5 clips in a window**"),
        (made_row(turn([4.0] * 20, frame=-1)), "**1 different of 20 clips**"),
        (made_row(turn([4.0] * 10 + [1.0] * 10)), "**unsteady: 3.14, then 1.00 clips/s**"),
        (made_row(turn([4.0] * 20, cpu_s=1.0)),
         "**more clips a CPU second than any decoding of local files**"),
    ],
)  # fmt: skip
def test_a_rate_that_is_none_is_doubted(told: dict[str, Any], doubt: str) -> None:
    assert notes(told, limit=2.5) == [RIVAL.note, doubt]


def test_halves_are_cut_between_bursts() -> None:
    bursts = turn(([1e6] * 7 + [1.0]) * 4)  # eight clips at once, each second
    assert bursts.rates_by_half == pytest.approx((8.0, 8.0), rel=1e-3)
    assert turn([2.0]).rates_by_half == (2.0, 2.0)


def test_what_went_wrong_is_told() -> None:
    told = made_row(turn([4.0] * 20), turn([4.0] * 20), exact=["no", "yes"], proxy_cores=0.9)
    assert notes(told | {"failed": ["a worker fell"]}, limit=2.5)[1:] == [
        "**frames differ**", "**1 of 3 turns failed**: a worker fell", "**the proxy's limit**",
    ]  # fmt: skip


def test_the_table_shows_spread_and_the_limit_last() -> None:
    limit = row(LOCAL, [turn([9.0] * 20)], [], best=3.0, gop=250, frames=16)
    run = {"gop": 250, "rtt_ms": 20.0, "size": "full", "missing": {"Energon": "no wheel"},
           "rows": [limit, made_row(turn([2.0] * 20), turn([4.0] * 20))]}  # fmt: skip
    lines = table(run).strip().splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "3.00 (2.00 to 4.00) | 0.75 | 2.50 | 23 |" in lines[2]
    assert lines[3].startswith(f"| {LOCAL.name} (")
    assert lines[4].startswith("| Energon | no wheel |")


def test_each_clip_is_held_against_a_whole_decode(tmp_path: Path) -> None:
    video = np.random.default_rng(5).integers(0, 256, (60, 90, 8, 3), dtype=np.uint8)
    frames = pictures(video)
    assert frames.shape == (60, 3, 90, 8)
    sums = FrameSums([whole_sum(one) for one in frames], [rows_sum(one) for one in frames])
    made = DataSet("", "", 30, {}, "", "", {"0-30": 30})
    first = ("0-30", 2, [sums.whole[32], sums.whole[33]])
    good = Counted("0.mp4", 10, sums.rows[11], 1.0)
    assert exactness([first], [good], 2, made, sums) == "yes"
    assert exactness([first], [Counted("0.mp4", 11, sums.rows[11], 1.0)], 2, made, sums) == "no"
    assert exactness([("0.mp4", 2, first[2])], [good], 2, made, sums) == "no"


def test_cpu_of_a_session_has_its_ended_children_too() -> None:
    stat = "7 (a) b) S 1 7 5 0 -1 0 0 0 0 0 10 20 3 4 20 0"
    assert (session_ticks(stat, 5), session_ticks(stat, 6)) == (37, 0)
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code + "; print(1, flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        assert session_cpu_s(process.pid) >= 0.2
        process.stdin.write("\n")
    assert session_cpu_s(os.getpid() + 10**7) == 0
