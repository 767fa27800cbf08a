"""Small real datasets for acceptance tests, the command line as a process, hashes of batches."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import dstream
from dstream.loader.batch import Batch
from dstream.store.opening import StoreOptions
from ingest_made import Place, place
from loader_data import batch_hash
from made_video import make_video
from s3_services import REGION, S3Place
from s3_stub import Reply, Request, Stub, stub_server

LARGE = {"libx264": {"qp": "0", "preset": "ultrafast"}, "libvpx-vp9": {"lossless": "1"}}


@lru_cache(maxsize=64)
def large_video(
    container: str, seed: int = 0, audio: bool = False, codec: str = "libx264"
) -> bytes:
    """A few MB, so that a part of it is less than the whole: 8 GOPs of 15 frames each."""
    options = LARGE.get(codec, {"b": "12M"})
    with TemporaryDirectory() as folder:
        path = make_video(
            Path(folder) / "video",
            codec=codec,
            container=container,
            frames=120,
            gop=15,
            size=(640, 480),
            options=options,
            audio=audio,
            seed=seed,
        )
        return path.read_bytes()


@lru_cache(maxsize=1)
def mixed_videos() -> dict[str, bytes]:
    """One size, several containers: some headers know their frames, others only keyframes."""
    with TemporaryDirectory() as folder:
        files = {
            f"{name.partition('.')[0]}/{name}": make_video(
                Path(folder) / name,
                container=container,
                frames=220,
                gop=12,
                seed=number,
                size=(256, 192),
                options={"qp": "1"},
                vfr=number == 4,
            ).read_bytes()
            for number, (name, container) in enumerate(
                [
                    ("a.mp4", "mp4"),
                    ("b.mov", "mp4-moov-end"),
                    ("c.mkv", "mkv"),
                    ("d.mkv", "mkv-no-cues"),
                    ("e.mp4", "mp4"),
                    ("f.mp4", "mp4-fragmented-sidx"),
                    ("g.ts", "mpegts"),
                ]
            )
        }
    assert min(map(len, files.values())) > 200_000, {
        name: len(data) for name, data in files.items()
    }
    return files


@contextmanager
def placed(repository: str, source: str, options: StoreOptions | None = None) -> Iterator[Place]:
    """A repository and a source, closed at the end."""
    here = place(repository, source, options)
    try:
        yield here
    finally:
        here.source.close()
        here.repository.close()


def batch_hashes(
    repository: str,
    name: str,
    loader: dict[str, Any],
    endpoint_url: str | None = None,
    **clips: Any,
) -> list[str]:
    """Of every batch that a fresh loader delivers. Importable, so that a process can run it."""
    options = StoreOptions(endpoint_url=endpoint_url, region=REGION) if endpoint_url else None
    with dstream.open(repository, options=options) as repo:
        seen = repo.clips(name, array="numpy", **clips)
        with seen.loader(**loader) as batches:
            return [batch_hash(batch) for batch in batches]


def clip_hashes(batch: Batch) -> list[str]:
    """Of every clip of a batch: what it is and what it shows."""
    return [
        hashlib.sha256(
            repr((key, start_s, pts_s.tolist())).encode() + np.asarray(video).tobytes()
        ).hexdigest()
        for key, start_s, pts_s, video in zip(
            batch.keys, batch.start_s.tolist(), batch.pts_s, batch.video, strict=True
        )
    ]


def start_cli(*arguments: object) -> subprocess.Popen[str]:
    """Start ``dstream ARGUMENTS`` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "dstream_cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and messages of a process."""
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


@contextmanager
def relay(server: S3Place, seen: Callable[[Request], None]) -> Iterator[Stub]:
    """An endpoint that shows each request to ``seen`` and passes it on to a real server."""
    from s3_stub import forward_to

    forward = forward_to(server.endpoint_url)

    def answer(request: Request) -> Reply:
        seen(request)
        return forward(request)

    with stub_server() as stub:
        stub.answer = answer
        yield stub
