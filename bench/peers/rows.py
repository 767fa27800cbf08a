"""From the turns of a peer to its row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from peers.environments import Peer
from peers.turns import Turn


def best_rate(turns: Mapping[Peer, Sequence[Turn]]) -> float:
    """Clips a second of the fastest peer, neither ours nor from local files."""
    rates = (median_rate(done) for peer, done in turns.items() if done and peer.is_rival)
    return max(rates, default=float("nan"))


def median_rate(turns: Sequence[Turn]) -> float:
    return statistics.median(turn.rate for turn in turns)


def row(
    peer: Peer, turns: Sequence[Turn], failed: Sequence[str], best: float, gop: int, frames: int
) -> dict[str, Any]:
    """One line of a table. Spreads are over rounds, means over all clips that counted."""
    clips, passed = sum(turn.clips for turn in turns), [turn.passed for turn in turns]
    counted = [clip for turn in turns for clip in turn.counted]
    return {
        "name": peer.name,
        "note": peer.note,
        "reads": peer.reads,
        "clips_per_s": round(median_rate(turns), 2),
        "clips_per_s_by_round": [round(turn.rate, 2) for turn in turns],
        "clips_per_s_by_half": [[round(rate, 2) for rate in turn.rates_by_half] for turn in turns],
        "ratio_to_best_peer": round(median_rate(turns) / best, 2),
        "clips_per_cpu_s": round(clips / max(sum(turn.cpu_s for turn in turns), 1e-9), 2),
        "frames_per_clip": round(statistics.mean(c.frame % gop + frames for c in counted), 1),
        "first_clip_s": round(statistics.median(turn.first_clip_s for turn in turns), 2),
        "data_requests_per_clip": round(sum(each.data_requests for each in passed) / clips, 2),
        "requests_per_clip": round(sum(each.all_requests for each in passed) / clips, 2),
        "MB_per_clip": round(sum(each.received_bytes for each in passed) / clips / 1e6, 2),
        "proxy_cores": round(max(t.passed.proxy_cpu_s / t.seconds for t in turns), 2),
        "exact": sorted({turn.exact for turn in turns}),
        "clips": clips,
        "distinct_clips": sum(turn.distinct for turn in turns),
        "clips_by_round": [turn.clips for turn in turns],
        "arrivals_s_by_round": [[round(c.at_s, 3) for c in turn.counted] for turn in turns],
        "stock_clips": turns[0].stock_clips,
        "passed_clips_by_round": [turn.passed_clips for turn in turns],
        "failed": list(failed),
    }
