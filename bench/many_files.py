"""One clip from each of very many small videos: requests a clip, requests for tables, memory.

    python bench/many_files.py --files 100000 [--folder DIR]

One tiny video is put under that many names of a folder, each with a box of its own at the end, so
that no two are equal. They are published in place by the project's writers as an ingest of them
would (index groups of 256 files). A fresh process then takes one clip of each in a global shuffle,
and tells requests and memory as it goes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

from dstream.catalog import Catalog, Session
from dstream.format.index_codec import encode_index_group
from dstream.format.manifest import Manifest, ObjectCount, Part, RecipeRef, TableRef, Totals
from dstream.format.tables import write_table
from dstream.ingest.commit import MAX_PART_FILES
from dstream.ingest.rows import track_row
from dstream.media.index import index_video
from dstream.media.reader import BytesReader
from dstream.store.base import ObjectInfo, Store
from dstream.store.opening import open_store
from dstream.units import MIB

GROUP = 256
FRAMES = 8


def tiny_video(path: Path) -> bytes:
    """A video of one short clip, 64 x 48, a kilobyte or two."""
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=30, options={"g": "4"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(FRAMES):
            picture = np.full((48, 64, 3), number * 10, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path.read_bytes()


def numbered(video: bytes, number: int) -> bytes:
    """The video with a free box at its end that says its number."""
    return video + (16).to_bytes(4, "big") + b"free" + number.to_bytes(8, "big")


def publish(repository: str | Path, source: str | Path, video: bytes) -> int:
    """Publish all files of a source, which are numbered copies of a video; how many groups."""
    store = open_store(repository)
    session = (catalog := Catalog.create(store)).begin_session()
    infos = sorted(open_store(source).list(), key=lambda info: info.key)
    parts = [
        _part(store, session, infos[first : first + MAX_PART_FILES], video, str(source))
        for first in range(0, len(infos), MAX_PART_FILES)
    ]
    manifest = Manifest(RecipeRef("video"), (str(source),), tuple(parts), Totals(), "bench")
    catalog.publish_dataset("many", manifest, session=session, mode="replace")
    return sum(part.indexes.count for part in parts)


def _part(
    store: Store, session: Session, infos: Sequence[ObjectInfo], video: bytes, source: str
) -> Part:
    count = len(infos)
    index = index_video(BytesReader(numbered(video, 0), "video"))[0]
    group, entries = encode_index_group([index] * GROUP)
    names: list[str] = []
    for number in range(-(-count // GROUP)):
        names.append(f"{session.data_prefix}{infos[number * GROUP].key}.idx")
        store.put(names[-1], group)
    keys = [info.key for info in infos]
    files = {
        "name": keys, "object": keys, "store": [0] * count, "offset_bytes": [0] * count,
        "size_bytes": [info.size_bytes for info in infos], "checksum": [None] * count,
        "source_uri": [f"{source}/{key}" for key in keys], "etag": [info.etag for info in infos],
        "version": [info.version for info in infos], "role": ["video"] * count,
    }  # fmt: skip
    streams = {name: [value] * count for name, value in track_row(index).items()} | {
        "file": list(range(count)),
        "index_object": [names[row // GROUP] for row in range(count)],
        "index_offset_bytes": [entries[row % GROUP][0] for row in range(count)],
        "index_size_bytes": [entries[row % GROUP][1] for row in range(count)],
    }
    track = index.track
    samples = {
        "key": [key.removesuffix(".mp4") for key in keys], "group": ["g"] * count,
        "split": ["train"] * count, "streams": [[row] for row in range(count)],
        "names": [["video"]] * count, "start_pts": [[track.start_pts]] * count,
        "end_pts": [[track.end_pts]] * count, "side": [[]] * count, "side_suffixes": [[]] * count,
    }  # fmt: skip

    def table(kind: str, columns: Mapping[str, Any]) -> TableRef:
        data = write_table(kind, columns)
        digest = hashlib.sha256(data).hexdigest()
        key = f"{session.data_prefix}{digest[:32]}.parquet"
        store.put(key, data)
        return TableRef(key, len(data), digest, count)

    return Part(
        table("files", files), table("streams", streams), table("samples", samples), None,
        "in_place", 0, ObjectCount(len(names), len(names) * len(group)),
    )  # fmt: skip


def measure(
    repository: str | Path,
    every: int = 10_000,
    *,
    table_cache_bytes: int = 256 * MIB,
    most_clips: int | None = None,
) -> list[dict[str, Any]]:
    """Take one clip of each file, and tell after every so many what it took."""
    import dstream

    clips = dstream.open(repository).clips(
        "many", frames=FRAMES, array="numpy", table_cache_bytes=table_cache_bytes
    )
    told: list[dict[str, Any]] = []
    with clips.loader(16, last="short", clips_per_epoch=most_clips) as loader:
        for batch in loader:
            if (loader.position // every) > ((loader.position - len(batch)) // every):
                told.append(_told(loader.report().as_json()))
        told.append(_told(loader.report().as_json()))
    return told


def _told(report: dict[str, object]) -> dict[str, Any]:
    names = ("clips", "data_requests", "table_requests", "table_bytes", "clips_per_second")
    status = Path("/proc/self/status")
    rss_kib = status.read_text().split("VmRSS:")[1].split()[0] if status.exists() else 0
    return {**{name: report[name] for name in names}, "rss_mib": int(rss_kib) // 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="dstream-many-files-"))
    if options.measure:
        for told in measure(folder / "repo", max(1, options.files // 10)):
            print(json.dumps(told), flush=True)
        return
    try:
        folder.mkdir(exist_ok=True)
        video = tiny_video(folder / "video.mp4")
        for number in range(options.files):
            place = folder / "videos" / f"{number // 1000:04d}" / f"{number:07d}.mp4"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(numbered(video, number))
        groups = publish(folder / "repo", folder / "videos", video)
        print(json.dumps({"files": options.files, "groups": groups, "file_bytes": len(video) + 16}))
        command = [sys.executable, __file__, "--measure", "--folder", str(folder)]
        subprocess.run([*command, "--files", str(options.files)], check=True)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
