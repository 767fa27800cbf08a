"""Parts of a loader's report, by the names of its fields: the cache's and the GPU's."""

from __future__ import annotations

from typing import Any

from dstream.measure import Snapshot
from dstream.media.decoders.nvdec import NvdecDevice

_WAYS = ("to", "on", "from")


def cache_facts(counts: Snapshot, since_open: Snapshot) -> dict[str, Any]:
    """Hits, misses, and what was kept."""
    sums = counts.sums
    hits, misses = int(sums.get("cache.hits", 0)), int(sums.get("cache.misses", 0))
    hit = int(sums.get("bytes.cache_hit", 0))
    missed = int(sums.get("bytes.cache_missed", 0))
    return {
        "cache_hits": hits,
        "cache_misses": misses,
        "cache_hit_rate": ratio(hits, hits + misses),
        "cache_bytes_hit": hit,
        "cache_bytes_missed": missed,
        "cache_byte_hit_rate": ratio(hit, hit + missed),
        "cache_bytes_admitted": int(sums.get("bytes.cache_admitted", 0)),
        "cache_bytes_refused": int(sums.get("bytes.cache_refused", 0)),
        "cache_evictions": int(sums.get("cache.evicted_segments", 0)),
        "cache_bytes_evicted": int(sums.get("bytes.cache_evicted", 0)),
        "cache_bytes_moved": int(sums.get("bytes.cache_moved", 0)),
        "cache_seconds": sums.get("seconds.cache", 0.0),
        "cache_refusals": counts.event("cache-refused"),
        "cache_rot": counts.event("cache-rot"),
        "cache_off": since_open.event("cache-off"),
    }


def device_facts(counts: Snapshot, wall_s: float, engines: int) -> dict[str, Any]:
    """What a GPU decoded and read, and what was copied to it, on it and from it."""
    sums = counts.sums
    frames, busy_s = sums.get("frames.nvdec", 0.0), sums.get("seconds.nvdec", 0.0)
    copied = {f"bytes_{way}_device": int(sums.get(f"bytes.{way}_device", 0)) for way in _WAYS}
    return {
        "nvdec_frames": int(frames),
        "nvdec_frames_per_second": ratio(frames, busy_s),
        "nvdec_frames_per_engine": ratio(frames, wall_s * engines),
        "nvdec_busy_share": ratio(busy_s, wall_s * engines),
        "nvdec_sessions": counts.event("nvdec-session"),
        "gds_reads": int(sums.get("reads.gds", 0)),
        **copied,
        "copies_per_byte": ratio(sum(copied.values()), sums.get("bytes.delivered", 0)),
    }


def device_memory(nvdec: NvdecDevice | None, device: str | None) -> dict[str, int]:
    """Most bytes that a GPU's decoders and torch's allocator held.

    Args:
        nvdec: the decoders, where they are used.
        device: where batches go.
    """
    held = {}
    if nvdec is not None and nvdec.peak_bytes:
        held["nvdec_sessions"] = nvdec.peak_bytes
    if device is not None and device.startswith("cuda"):
        import torch

        held["torch"] = int(torch.cuda.max_memory_allocated(device))
    return held


def ratio(part: float, whole: float) -> float:
    """0 where nothing was counted."""
    return part / whole if whole > 0 else 0.0
