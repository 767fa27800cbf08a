"""Small data sets for loader tests: bare, left in place, packed; and frames to compare with."""

import hashlib
import itertools
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import xxhash
from numpy.typing import NDArray

from dstream.catalog import Catalog
from dstream.format.index import VideoIndex
from dstream.format.index_codec import encode_index_group
from dstream.format.manifest import Manifest, ObjectCount, Part, RecipeRef, TableRef, Totals
from dstream.format.tables import write_table
from dstream.loader.batch import Batch
from dstream.media.index import index_video
from dstream.media.reader import BytesReader
from dstream.store.base import Store
from dstream.store.opening import open_store
from made_video import make_video

_names = itertools.count()


def new_url() -> str:
    """A memory store that no other test has."""
    return f"memory://loader-{next(_names)}"


def fill(store: Store, files: dict[str, bytes]) -> Store:
    for name, data in files.items():
        store.put(name, data)
    return store


def videos(folder: Path, count: int = 4, **options: Any) -> dict[str, bytes]:
    """``count`` different videos by name."""
    options = {"frames": 120, "gop": 12, **options}
    return {
        f"v{i:02d}.mp4": make_video(folder / f"v{i:02d}.mp4", seed=i, **options).read_bytes()
        for i in range(count)
    }


def decode_all(data: bytes, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Every frame of a video as [N, 3, H, W], and pts in seconds from the first: by PyAV alone."""
    path = folder / f"{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    with av.open(str(path)) as container:
        shown: list[Any] = list(container.decode(video=0))
    frames = [frame.to_ndarray(format="rgb24").transpose(2, 0, 1) for frame in shown]
    times = [Fraction(frame.pts) * frame.time_base for frame in shown]
    return np.stack(frames), np.array([float(t - times[0]) for t in times])


def batch_hash(batch: Batch) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(np.asarray(batch.video)).tobytes())
    digest.update(repr((batch.keys, batch.pts_s.tolist(), batch.start_s.tolist())).encode())
    return digest.hexdigest()


def with_checksums(index: VideoIndex, data: bytes) -> VideoIndex:
    """What a packed ingest adds: a checksum of every GOP's bytes."""
    gops = index.gops
    sums = [
        xxhash.xxh3_64_intdigest(data[start : start + size])
        for start, size in zip(gops.offset_bytes, gops.size_bytes, strict=True)
    ]
    return replace(index, gops=replace(gops, checksum=np.array(sums, dtype=np.uint64)))


def publish(
    repository: str,
    source: str,
    *,
    packed: bool,
    name: str = "d",
    recipe: str = "video",
    spans: dict[str, list[tuple[str, float, float]]] | None = None,
    splits: dict[str, str] | None = None,
    labels: dict[str, list[Any]] | None = None,
) -> None:
    """Publish the videos of a source as a generation, each file one sample.

    Args:
        repository: URL; made when it is new.
        source: URL of the videos; other files named ``<stem>.<anything>`` are side files.
        packed: copy the bytes into one object of the repository, with checksums.
        name: of the data set.
        recipe: recorded in the manifest.
        spans: (key, start, end) in seconds of the samples of a file, instead of its whole.
        splits: split of each sample; ``train`` by default.
        labels: label columns, a value for each sample.
    """
    store, source_store = open_store(repository), open_store(source)
    catalog = Catalog.create(store, exist_ok=True)
    session = catalog.begin_session()
    infos = [info for info in source_store.list() if info.size_bytes]
    infos = [info for info in infos if not info.key.startswith(("data/", "_ds/"))]
    contents = {info.key: source_store.get(info.key).data for info in infos}
    is_video = {info.key: not info.key.endswith(".jsonl") for info in infos}
    shard_key, shard = f"{session.data_prefix}shard", bytearray(b"head" * 16)
    files: dict[str, list[Any]] = {}
    rows: dict[str, int] = {}
    for row, info in enumerate(infos):
        rows[info.key] = row
        columns = {
            "name": info.key, "object": shard_key if packed else info.key,
            "store": -1 if packed else 0, "offset_bytes": len(shard) if packed else 0,
            "size_bytes": info.size_bytes, "checksum": None,
            "source_uri": f"{source}/{info.key}", "etag": info.etag, "version": info.version,
            "role": "video" if is_video[info.key] else "side",
        }  # fmt: skip
        shard += contents[info.key]
        _append(files, columns)
    indexes = []
    names = [info.key for info in infos if is_video[info.key]]
    for key in names:
        index = index_video(BytesReader(contents[key], key))[0]
        indexes.append(with_checksums(index, contents[key]) if packed else index)
    group, entries = encode_index_group(indexes)
    group_key = f"{session.data_prefix}index"
    streams: dict[str, list[Any]] = {}
    samples: dict[str, list[Any]] = {}
    for row, (key, index, entry) in enumerate(zip(names, indexes, entries, strict=True)):
        _append(streams, _stream_row(rows[key], index, group_key, entry))
        track = index.track
        stem = key.rsplit(".", 1)[0]
        side = [i.key for i in infos if i.key.startswith(f"{stem}.") and not is_video[i.key]]
        whole = (key.rsplit(".", 1)[0], 0.0, track.duration_s)
        for sample, start_s, end_s in (spans or {}).get(key, [whole]):
            _append(samples, {
                "key": sample, "group": "g", "split": (splits or {}).get(sample, "train"),
                "streams": [row], "names": ["video"],
                "start_pts": [track.start_pts + round(start_s / track.time_base)],
                "end_pts": [track.start_pts + round(end_s / track.time_base)],
                "side": [rows[k] for k in side],
                "side_suffixes": [k.removeprefix(stem) for k in side],
            })  # fmt: skip
    store.put(group_key, group)
    if packed:
        store.put(shard_key, bytes(shard))

    def table(kind: str, columns: dict[str, list[Any]]) -> TableRef:
        data = write_table(kind, columns)
        key = f"{session.data_prefix}{kind}.parquet"
        store.put(key, data)
        digest = hashlib.sha256(data).hexdigest()
        return TableRef(key, len(data), digest, len(next(iter(columns.values()))))

    part = Part(
        table("files", files), table("streams", streams),
        table("samples", samples | (labels or {})), None,
        "packed" if packed else "in_place", 0, ObjectCount(1, len(group)),
    )  # fmt: skip
    manifest = Manifest(RecipeRef(recipe), (source,), (part,), Totals(), "test")
    catalog.publish_dataset(name, manifest, session=session, mode="replace")


def _append(columns: dict[str, list[Any]], row: dict[str, Any]) -> None:
    for name, value in row.items():
        columns.setdefault(name, []).append(value)


def _stream_row(
    file: int, index: VideoIndex, group_key: str, entry: tuple[int, int]
) -> dict[str, Any]:
    track = index.track
    return {
        "file": file, "track_id": track.track_id, "container": track.container,
        "codec": track.codec, "profile": track.profile, "width": track.width,
        "height": track.height, "rotation_deg": track.rotation_deg, "mirrored": track.mirrored,
        "sar_num": track.sar.numerator, "sar_den": track.sar.denominator,
        "pix_fmt": track.pix_fmt, "color_range": track.color_range,
        "color_space": track.color_space, "color_primaries": track.color_primaries,
        "color_trc": track.color_trc, "time_base_num": track.time_base.numerator,
        "time_base_den": track.time_base.denominator, "start_pts": track.start_pts,
        "end_pts": track.end_pts, "duration_s": track.duration_s,
        "rate_num": track.rate.numerator, "rate_den": track.rate.denominator,
        "frame_count": track.frame_count, "vfr": track.vfr, "keyframes": len(index.gops),
        "longest_gop_bytes": int(index.gops.size_bytes.max()), "longest_gop_frames": None,
        "clock_offset_s": 0.0, "access": str(index.access), "index_object": group_key,
        "index_offset_bytes": entry[0], "index_size_bytes": entry[1],
        "full_pass": index.cost.full_pass,
    }  # fmt: skip


def clip_lines(batch: Batch) -> dict[int, str]:
    """Position of each clip, and a hash of what it shows."""
    lines = {}
    for row, position in enumerate(batch.positions.tolist()):
        digest = hashlib.sha256(np.ascontiguousarray(np.asarray(batch.video[row])).tobytes())
        digest.update(repr((batch.keys[row], batch.pts_s[row].tolist())).encode())
        lines[position] = digest.hexdigest()[:16]
    return lines
