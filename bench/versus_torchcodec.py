"""Random 16-frame clips of 720p video: dstream beside torchcodec, over S3 and local files.

Both read the same objects through the same endpoint, relayed with a round trip, in turns
within one run, so that ratios hold while the machine's speed drifts::

    python bench/versus_torchcodec.py VIDEOS --endpoint http://127.0.0.1:9002 --rtt-ms 20

VIDEOS is a folder made by ``bench_videos.py``. Credentials come as boto3 finds them. torchcodec
(with a torch that it fits, and FFmpeg's libraries) must be importable; it reads S3 through a
file-like object that buffers a mebibyte a request.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import boto3
import numpy as np

import dstream
from dstream.catalog import Catalog
from dstream.measure import Meter, Purpose
from dstream.store.base import ObjectInfo, Store
from dstream.store.opening import open_store

BUCKET = "dstream-bench"
FRAMES, WORKERS = 16, 2
READ_AHEAD_BYTES = 1 << 20
"""torchcodec asks for 64 KiB at a time; a mebibyte a request is kinder to it at 20 ms."""


@dataclass(frozen=True)
class Place:
    """One clip to read: an object and a frame in it."""

    key: str
    frame: int


class RangeFile(io.RawIOBase):
    """A seekable file over one object; every read is one exact range request."""

    def __init__(self, store: Store, info: ObjectInfo) -> None:
        self._store, self._info, self._position = store, info, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._info.size_bytes)[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        stop = min(self._info.size_bytes, self._position + len(buffer))
        if stop <= self._position:
            return 0
        blob = self._store.get(self._info.key, self._position, stop, purpose=Purpose.DATA)
        size = stop - self._position
        buffer[:size] = blob.data
        self._position = stop
        return size


Contender = Callable[[Sequence[Place]], object]


def torchcodec_remote(store: Store, infos: dict[str, ObjectInfo], mode: str) -> Contender:
    from torchcodec.decoders import VideoDecoder

    def one(place: Place) -> object:
        source: object = io.BufferedReader(RangeFile(store, infos[place.key]), READ_AHEAD_BYTES)
        if mode == "whole":
            source = store.get(place.key, purpose=Purpose.DATA).data
        decoder = VideoDecoder(
            source,
            seek_mode="exact" if mode == "exact" else "approximate",
            num_ffmpeg_threads=1,
        )
        return decoder.get_frames_in_range(place.frame, place.frame + FRAMES).data

    return lambda places: _in_threads(one, places)


def torchcodec_local(folder: Path, *, keep_open: bool) -> Contender:
    from torchcodec.decoders import VideoDecoder

    kept = threading.local()

    def opened(key: str) -> Any:
        return VideoDecoder(folder / key, seek_mode="approximate", num_ffmpeg_threads=1)

    def one(place: Place) -> object:
        if keep_open:
            decoders = kept.__dict__.setdefault("decoders", {})
            decoder = decoders.setdefault(place.key, None) or opened(place.key)
            decoders[place.key] = decoder
        else:
            decoder = opened(place.key)
        return decoder.get_frames_in_range(place.frame, place.frame + FRAMES).data

    return lambda places: _in_threads(one, places)


def _in_threads(one: Callable[[Place], object], places: Sequence[Place]) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        for _ in pool.map(one, places):
            pass


class DstreamLoader:
    """The loader over an artifact; each call streams as many clips as there are places."""

    def __init__(self, url: str, name: str) -> None:
        self._repo = dstream.open(url)
        self._name, self._turn = name, 0
        self.meter = self._repo.meter

    def __call__(self, places: Sequence[Place]) -> None:
        self._turn += 1
        clips = self._repo.clips(self._name, frames=FRAMES, stride=1, seed=self._turn)
        with clips.loader(batch_size=1, workers=WORKERS, epochs=None) as loader:
            for count, _ in enumerate(loader, start=1):
                if count == len(places):
                    return


def draw_places(keys: Sequence[str], count: int, frame_count: int, seed: int) -> list[Place]:
    generator = np.random.default_rng(seed)
    return [
        Place(str(generator.choice(list(keys))), int(generator.integers(0, frame_count - FRAMES)))
        for _ in range(count)
    ]


def start_relay(endpoint: str, rtt_ms: float) -> tuple[subprocess.Popen[str], str]:
    port = endpoint.rsplit(":", 1)[1].strip("/")
    command = [
        sys.executable,
        str(Path(__file__).with_name("delay_relay.py")),
        port,
        "--rtt-ms",
        str(rtt_ms),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    if process.stdout is None:
        raise SystemExit("the relay has no output")
    return process, f"http://127.0.0.1:{process.stdout.readline().strip()}"


@dataclass
class Row:
    """What one contender did in each counted round."""

    name: str
    rates: list[float]
    requests: list[float]
    megabytes: list[float]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def as_json(self, best_peer: float) -> dict[str, object]:
        return {
            "name": self.name,
            "clips_per_s": round(self.rate, 2),
            "ratio_to_best_peer": round(self.rate / best_peer, 2),
            "data_requests_per_clip": round(statistics.median(self.requests), 2),
            "MB_per_clip": round(statistics.median(self.megabytes), 2),
            "clips_per_s_by_round": [round(value, 2) for value in self.rates],
        }


@dataclass(frozen=True)
class Entry:
    """A contender, the meter that counts its requests, and its clips in a round."""

    run: Contender
    meter: Meter
    clips: int


def compare(entries: dict[str, Entry], keys: Sequence[str], frames: int, rounds: int) -> list[Row]:
    """Run all in turns. The first turn warms up (tables, decoders) and is not counted."""
    rows = {name: Row(name, [], [], []) for name in entries}
    for turn in range(-1, rounds):
        for name, entry in entries.items():
            count = 2 * len(keys) if turn < 0 else entry.clips
            places = draw_places(keys, count, frames, seed=100 + turn)
            before, start_s = entry.meter.snapshot(), time.perf_counter()
            entry.run(places)
            elapsed_s = time.perf_counter() - start_s
            counted = entry.meter.snapshot().minus(before)
            used = counted.total(verb="get", purpose=Purpose.DATA)
            # The loader reads ahead of its last delivered clip; those bytes are not that clip's.
            fetched = counted.sums.get("clips.fetched", count)
            if turn >= 0:
                rows[name].rates.append(count / elapsed_s)
                rows[name].requests.append(used.count / fetched)
                rows[name].megabytes.append(used.bytes_received / fetched / 1e6)
                print(
                    f"  round {turn}: {name}: {rows[name].rates[-1]:.2f} clips/s", file=sys.stderr
                )
    return list(rows.values())


def prepare(endpoint: str, folder: Path, gop: int, copies: int) -> tuple[str, list[Path]]:
    """Upload copies of one video and index them in place; returns the prefix and the files."""
    original = next(folder.glob(f"*gop{gop}-*.mp4"))
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    client = boto3.client("s3")
    if BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=BUCKET)
    prefix = f"s3://{BUCKET}/{original.stem}"
    store = open_store(prefix + "/raw")
    present = {info.key for info in store.list()}
    local = []
    for number in range(copies):
        path = folder / f"gop{gop}" / f"{number}.mp4"
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.hardlink_to(original)
        if path.name not in present:
            store.upload(path.name, path)
        local.append(path)
    return prefix, local


def index_in_place(repo: str, source: str) -> None:
    """Make the repository unless it is there, and ingest the videos where they lie."""
    Catalog.create(open_store(repo), exist_ok=True)
    command = [sys.executable, "-m", "dstream_cli", "ingest", source, "--name", "bench"]
    subprocess.run(
        [*command, "--in-place", "--repo", repo, "--json"], stdout=subprocess.DEVNULL, check=True
    )


def entries_for(prefix: str, folder: Path, local_repo: str, clips: int) -> dict[str, Entry]:
    """All contenders; the slow ones get fewer clips a round."""
    peer_meter = Meter()
    store = open_store(prefix + "/raw", meter=peer_meter)
    infos = {info.key: info for info in store.list()}
    remote, local = DstreamLoader(prefix + "/repo", "bench"), DstreamLoader(local_repo, "bench")
    few, none = max(4, clips // 6), Meter()
    return {
        "dstream, S3": Entry(remote, remote.meter, clips),
        "torchcodec approximate, S3 ranges": Entry(
            torchcodec_remote(store, infos, "approximate"), peer_meter, clips // 2
        ),
        "torchcodec exact, S3 ranges": Entry(
            torchcodec_remote(store, infos, "exact"), peer_meter, few
        ),
        "torchcodec, whole S3 object": Entry(
            torchcodec_remote(store, infos, "whole"), peer_meter, few
        ),
        "dstream, local files": Entry(local, local.meter, clips),
        "torchcodec approximate, local, open per clip": Entry(
            torchcodec_local(folder, keep_open=False), none, clips
        ),
        "torchcodec approximate, local, kept open": Entry(
            torchcodec_local(folder, keep_open=True), none, clips
        ),
    }


def print_table(gop: int, rows: list[Row]) -> dict[str, object]:
    remote = max(row.rate for row in rows if "torchcodec" in row.name and "S3" in row.name)
    local = max(row.rate for row in rows if "torchcodec" in row.name and "local" in row.name)
    lines = [row.as_json(remote if "S3" in row.name else local) for row in rows]
    print(f"keyframe every {gop} frames")
    print(f"  {'':46} clips/s  ratio  requests     MB")
    for line in lines:
        print(
            f"  {line['name']:46} {line['clips_per_s']:7} {line['ratio_to_best_peer']:6}"
            f" {line['data_requests_per_clip']:9} {line['MB_per_clip']:6}"
        )
    return {"gop": gop, "rows": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("videos", type=Path)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--rtt-ms", type=float, default=20.0)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--clips", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for gop in (250, 30):
        prefix, files = prepare(arguments.endpoint, arguments.videos, gop, arguments.copies)
        with av.open(str(files[0])) as container:
            frames = container.streams.video[0].frames
        with tempfile.TemporaryDirectory() as scratch:
            for repo, source in (
                (prefix + "/repo", prefix + "/raw"),
                (scratch + "/repo", str(files[0].parent)),
            ):
                index_in_place(repo, source)
            process, delayed = start_relay(arguments.endpoint, arguments.rtt_ms)
            os.environ["AWS_ENDPOINT_URL"] = delayed
            try:
                entries = entries_for(prefix, files[0].parent, scratch + "/repo", arguments.clips)
                keys = [path.name for path in files]
                rows = compare(entries, keys, frames, arguments.rounds)
            finally:
                process.terminate()
                process.wait()
        results.append(print_table(gop, rows))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"rtt_ms": arguments.rtt_ms, "runs": results}, indent=1)
        )


if __name__ == "__main__":
    main()
