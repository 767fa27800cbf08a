"""What ``show`` tells of a video: its track, its groups of pictures, and what clips cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dstream.format.index import VideoIndex
from dstream.format.index_codec import encode_index_group
from dstream.loader.source import Sample
from dstream.media.row_form import ARRAY_CODEC
from dstream.units import format_bytes, format_duration
from dstream_cli.lengths import length
from dstream_cli.plain import counted, sparkline
from dstream_cli.render import Facts, Part

Document = dict[str, Any]


def sample_facts(sample: Sample) -> Document:
    """Where a sample lies."""
    track = sample.index.track
    tick_s = float(track.time_base)
    return {
        "key": sample.key,
        "start_s": (sample.start_pts - track.start_pts) * tick_s,
        "duration_s": sample.duration_s,
        "object": sample.video.key,
        "store": sample.video.store.url,
        "offset_bytes": sample.video.offset_bytes,
        "side": sorted(sample.side),
    }


def video_document(indexes: Sequence[VideoIndex]) -> Document:
    """Everything that ``show VIDEO --json`` prints of a file's tracks."""
    return {"tracks": [_track(index) for index in indexes]}


def _track(index: VideoIndex) -> Document:
    track, gops = index.track, index.gops
    starts_s = (gops.key_pts - track.start_pts) * float(track.time_base)
    lengths_s = np.diff(np.sort(starts_s), append=track.duration_s)
    stored, _ = encode_index_group([index])
    return {
        "container": track.container,
        "codec": track.codec,
        "profile": track.profile,
        "coded_size": [track.width, track.height],
        "display_size": list(reversed(track.display_size)),
        "rotation_deg": track.rotation_deg,
        "mirrored": track.mirrored,
        "sample_aspect_ratio": str(track.sar),
        "pix_fmt": track.pix_fmt,
        "duration_s": track.duration_s,
        "rate": float(track.rate),
        "vfr": track.vfr,
        "frames": track.frame_count,
        "packets": None if index.packets is None else len(index.packets),
        "access": str(index.access),
        "size_bytes": index.size_bytes,
        "gops": {
            "count": len(gops),
            "mean_bytes": float(gops.size_bytes.mean()) if len(gops) else 0.0,
            "largest_bytes": int(gops.size_bytes.max(initial=0)),
            "longest_s": float(lengths_s.max(initial=0.0)),
            "longest_packets": _longest_packets(index),
            "payload_share": _payload_share(index),
            "checksums": gops.checksum is not None,
            "offset_bytes": gops.offset_bytes.tolist(),
            "size_bytes": gops.size_bytes.tolist(),
            "key_s": starts_s.tolist(),
        },
        "index": {
            "stored_bytes": len(stored),
            "bytes_read": index.cost.bytes_read,
            "reads": index.cost.runs,
            "full_pass": index.cost.full_pass,
        },
    }


def _longest_packets(index: VideoIndex) -> int | None:
    if index.packets is None or not len(index.gops):
        return None
    ends = np.append(index.gops.first_packet[1:], len(index.packets))
    return int((ends - index.gops.first_packet).max())


def _payload_share(index: VideoIndex) -> float | None:
    """The video's own bytes over the bytes of its GOPs' ranges; the rest is other tracks."""
    gops = index.gops
    if not len(gops) or (gops.payload_bytes < 0).any():
        return None
    return float(gops.payload_bytes.sum() / max(1, gops.size_bytes.sum()))


def video_parts(document: Document) -> list[Part]:
    """The same for people."""
    parts: list[Part] = []
    sample = document.get("sample")
    if sample is not None:
        is_rows = document["tracks"][0]["codec"] == ARRAY_CODEC
        parts.append(Facts(_sample_facts(document["generation"], sample, is_rows), sample["key"]))
    for number, track in enumerate(document["tracks"]):
        several = len(document["tracks"]) > 1
        parts += _track_parts(track, f"track {number}" if several else "")
    return parts


def _sample_facts(generation: str, sample: Document, is_rows: bool) -> list[tuple[str, object]]:
    start_s, lasts_s = sample["start_s"], sample["duration_s"]
    start = f"{start_s:,.0f}" if is_rows else format_duration(start_s)
    return [
        ("generation", generation),
        ("span", f"{length(lasts_s, lasts_s if is_rows else 0.0)} from {start}"),
        ("bytes in", f"{sample['object']} at byte {sample['offset_bytes']:,}"),
        ("store", sample["store"]),
        ("side files", ", ".join(sample["side"]) or "none"),
    ]


def _pixels(track: Document) -> str:
    """The form of its pixels.

    >>> _pixels({"sample_aspect_ratio": "1"}), _pixels({"sample_aspect_ratio": "16/15"})
    ('square pixels', 'pixels 16:15')
    """
    width, _, height = str(track["sample_aspect_ratio"]).partition("/")
    return f"pixels {width}:{height or 1}" if (width, height) != ("1", "") else "square pixels"


def _track_parts(track: Document, title: str) -> list[Part]:
    gops = track["gops"]
    facts = _array_facts(track) if track["codec"] == ARRAY_CODEC else _video_facts(track)
    parts: list[Part] = [Facts([*facts, *_access_facts(track)], title=title)]
    if gops["count"] > 1:
        what = "block" if track["codec"] == ARRAY_CODEC else "GOP"
        bars = sparkline(gops["size_bytes"])
        parts.append(f"bytes by {what}, up to {format_bytes(gops['largest_bytes'])}:\n{bars}")
    return parts


def _array_facts(track: Document) -> list[tuple[str, str]]:
    return [
        ("array", f"{track['profile']} in {track['container']}"),
        ("a row", track["pix_fmt"]),
        ("rows", f"{track['frames']:,}"),
        ("blocks", _sizes(track["gops"])),
    ]


def _video_facts(track: Document) -> list[tuple[str, str]]:
    gops = track["gops"]
    width, height = track["display_size"]
    turned = f", turned by {track['rotation_deg']}°" if track["rotation_deg"] else ""
    profile = f" ({track['profile']})" if track["profile"] else ""
    rate = {None: "rate unsure", True: "variable rate", False: "constant rate"}[track["vfr"]]
    frames = "unknown number of" if track["frames"] is None else f"{track['frames']:,}"
    longest = format_duration(gops["longest_s"])
    if gops["longest_packets"] is not None:
        longest += f", {gops['longest_packets']:,} packets"
    share = gops["payload_share"]
    others = "" if share is None else f"; {share:.1%} of the bytes are this track's"
    return [
        ("video", f"{track['codec']}{profile} in {track['container']}, {track['pix_fmt']}"),
        ("picture", f"{width}x{height}{turned}, {_pixels(track)}"),
        ("length", f"{format_duration(track['duration_s'])}, {frames} frames"),
        ("frame rate", f"{track['rate']:.6g}/s, {rate}"),
        ("GOPs", _sizes(gops)),
        ("longest GOP", longest + others),
    ]


def _sizes(gops: Document) -> str:
    mean, largest = format_bytes(gops["mean_bytes"]), format_bytes(gops["largest_bytes"])
    return f"{gops['count']:,} of {mean} on average, largest {largest}"


def _access_facts(track: Document) -> list[tuple[str, str]]:
    gops, index = track["gops"], track["index"]
    passed = ", a pass over the whole file" if index["full_pass"] else ""
    return [
        ("access", f"{track['access']}, checksums {'kept' if gops['checksums'] else 'not kept'}"),
        (
            "index",
            f"{format_bytes(index['stored_bytes'])} stored; found by "
            f"{counted(index['reads'], 'read')} "
            f"of {format_bytes(index['bytes_read'])}{passed}",
        ),
    ]
