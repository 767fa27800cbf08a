"""One data set for all: videos, their pieces, our artifact, and what each peer's format makes.

Copies of one video under several names stand for different videos: nobody caches by content.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import av
import boto3

from bench_repo import ingest_in_place
from bench_videos import RATE, linked, make_bench_video
from dstream.store.opening import open_store
from peers.environments import Peer

BUCKET = "dstream-peers"
PIECE_S = 8.0


class NotPreparedError(Exception):
    """Why a peer's format could not be written, in one line."""


@dataclass(frozen=True)
class DataSet:
    """What was made. Names are those of the objects below ``raw``."""

    prefix: str
    local: str
    """A folder with the videos and our artifact of them, without S3."""
    gop: int
    videos: dict[str, int]
    """Frames by name."""
    original: str
    pieces_folder: str
    pieces: dict[str, int]
    """Which frame of its video a piece begins at, by the piece's name."""

    @property
    def raw(self) -> str:
        return f"{self.prefix}/raw"

    def prepared(self, peer: Peer) -> str:
        known = {
            "raw": self.raw,
            "repo": f"{self.prefix}/repo",
            "local": f"{self.local}/repo",
        }
        return known.get(peer.reads, f"{self.prefix}/{peer.module}")

    @property
    def local_videos(self) -> str:
        return f"{self.local}/videos"


def make(folder: Path, gop: int, seconds: int, copies: int) -> DataSet:
    """Make the videos and the pieces in ``folder``, upload the videos, ingest them in place."""
    original = make_bench_video(
        folder / f"h264-gop{gop}-{seconds}s.mp4", duration_s=seconds, gop=gop
    )
    pieces = folder / f"pieces-gop{gop}-{seconds}s"
    starts = cut(original, pieces)
    names = [f"{number}.mp4" for number in range(copies)]
    made = DataSet(
        f"s3://{BUCKET}/gop{gop}-{seconds}s",
        str(folder / f"local-gop{gop}-{seconds}s"),
        gop,
        dict.fromkeys(names, seconds * RATE),
        str(original),
        str(pieces),
        {f"{name[:-4]}-{start}": start for name in names for start in starts},
    )
    client = boto3.client("s3")
    if BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=BUCKET)
    raw = open_store(made.raw)
    present = {info.key for info in raw.list()}
    for name in names:
        if name not in present:
            raw.upload(name, original)
    ingest_in_place(f"{made.prefix}/repo", made.raw)
    linked(original, Path(made.local_videos), copies)
    ingest_in_place(f"{made.local}/repo", made.local_videos)
    return made


def cut(original: Path, folder: Path) -> list[int]:
    """Cut a video at its keyframes into pieces of eight seconds or a little more.

    Nothing is encoded anew. Returns the first frame of each piece, ``folder/FRAME.mp4``.
    """
    folder.mkdir(exist_ok=True)
    starts: list[int] = []
    with av.open(str(original)) as source:
        stream = source.streams.video[0]
        output: av.container.OutputContainer | None = None
        for packet in source.demux(stream):
            if packet.pts is None or stream.time_base is None:
                continue
            frame = round(packet.pts * stream.time_base * RATE)
            if packet.is_keyframe and (not starts or frame - starts[-1] >= PIECE_S * RATE):
                if output is not None:
                    output.close()
                starts.append(frame)
                output = av.open(str(folder / f"{frame}.mp4"), "w")
                target = output.add_stream_from_template(stream)
                zero = packet.pts
            if output is None:
                continue
            packet.pts -= zero
            packet.dts = None if packet.dts is None else packet.dts - zero
            packet.stream = target
            output.mux(packet)
        if output is not None:
            output.close()
    return starts


def prepare_for(peer: Peer, python: Path, made: DataSet, scratch: Path) -> None:
    """Let the peer write its format and upload that, unless it lies there already.

    Raises:
        NotPreparedError: its adapter fell.
    """
    if peer.reads not in ("pieces", "videos"):
        return
    store = open_store(made.prepared(peer))
    if next(iter(store.list()), None) is not None:
        return
    manifest = {
        **asdict(made),
        "rate": RATE,
        "scratch": str(scratch),
        "videos": {name: (made.original, frames) for name, frames in made.videos.items()},
        "pieces": {
            name: f"{made.pieces_folder}/{start}.mp4" for name, start in made.pieces.items()
        },
    }
    given, written = scratch / "manifest.json", scratch / "written"
    given.write_text(json.dumps(manifest))
    written.mkdir()
    command = [str(python), "-m", f"peers.adapters.{peer.module}", "prepare"]
    ran = subprocess.run(
        [*command, str(given), str(written)], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise NotPreparedError(ran.stderr.strip().splitlines()[-1][:200])
    for path in sorted(written.rglob("*")):
        if path.is_file():
            store.upload(path.relative_to(written).as_posix(), path)
