"""SPDL: its pipeline demuxes presigned URLs with threads and decodes with as many as cores."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import boto3
import spdl.io
from botocore.config import Config
from spdl.pipeline import PipelineBuilder

from peers.adapters.protocol import Seen, Task, answer

Place = tuple[str, int]
FETCHERS_A_CORE, SINK = 4, 2
BETWEEN = 2
"""Items that SPDL lets lie between two stages."""


def places(task: Task) -> Iterator[Place]:
    generator, names = random.Random(task.seed), list(task.videos)
    while True:
        name = generator.choices(names, list(task.videos.values()))[0]
        yield name, generator.randrange(task.videos[name] - task.frames + 1)


def demuxed(task: Task, urls: dict[str, str], place: Place) -> tuple[Place, Any]:
    """The packets that the clip's frames need; half a frame of room on either side."""
    name, frame = place
    window = ((frame - 0.5) / task.rate, (frame + task.frames - 0.5) / task.rate)
    return place, spdl.io.demux_video(urls[name], timestamp=(max(0.0, window[0]), window[1]))


def decoded(task: Task, given: tuple[Place, Any]) -> Seen:
    (name, frame), packets = given
    height, width = task.size or (None, None)
    wanted = spdl.io.get_video_filter_desc(
        timestamp=packets.timestamp,
        scale_width=width,
        scale_height=height,
        scale_algo="bilinear",
        scale_mode=None,
        pix_fmt="rgb24",
    )
    buffer = spdl.io.convert_frames(spdl.io.decode_packets(packets, filter_desc=wanted))
    return Seen(name, frame, spdl.io.to_numpy(buffer))


def opened(task: Task) -> Iterator[Seen]:
    version_4 = Config(signature_version="s3v4")  # the older one is boto3's default for URLs
    client = boto3.client("s3", endpoint_url=task.endpoint, config=version_4)
    bucket, _, prefix = task.raw.removeprefix("s3://").partition("/")
    urls = {
        name: client.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": f"{prefix}/{name}"}, ExpiresIn=3600
        )
        for name in task.videos
    }
    fetching = FETCHERS_A_CORE * task.cores
    pipeline = (
        PipelineBuilder()
        .add_source(places(task))
        .pipe(partial(demuxed, task, urls), concurrency=fetching)
        .pipe(partial(decoded, task), concurrency=task.cores)
        .add_sink(SINK)
        .build(num_threads=fetching + task.cores)
    )

    def stream() -> Iterator[Seen]:
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return stream()


def stock_clips(task: Task) -> int:
    """Being demuxed, being decoded, and between and behind these."""
    return FETCHERS_A_CORE * task.cores + BETWEEN + task.cores + BETWEEN + SINK


if __name__ == "__main__":
    answer(opened, stock_clips)
