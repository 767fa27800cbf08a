"""WebDataset: tar shards of eight-second pieces, read by curl, one clip of each piece.

Presigned URLs and curl stand for the documents' ``pipe:aws s3 cp``, which starts slower.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import boto3
import webdataset
from botocore.config import Config

from peers.adapters.protocol import Seen, Task, answer
from peers.adapters.torch_loader import PREFETCH, stock_clips
from peers.adapters.torchcodec_clip import random_clip

SHARD_BYTES = 64 << 20


def prepare(manifest: dict[str, Any], folder: str) -> None:
    """Write the shards of all pieces below ``folder``."""
    with webdataset.ShardWriter(f"{folder}/%06d.tar", maxsize=SHARD_BYTES, verbose=0) as shards:
        for name, path in manifest["pieces"].items():
            with open(path, "rb") as file:
                shards.write({"__key__": name, "mp4": file.read()})


def clip_of(task: Task, sample: dict[str, Any]) -> tuple[str, int, Any]:
    frame, video = random_clip(sample["mp4"], task.size, task.frames, random.random())
    return sample["__key__"], frame, video


def opened(task: Task) -> Iterator[Seen]:
    version_4 = Config(signature_version="s3v4")  # the older one is boto3's default for URLs
    client = boto3.client("s3", endpoint_url=task.endpoint, config=version_4)
    bucket, _, prefix = task.prepared.removeprefix("s3://").partition("/")
    listed = client.list_objects_v2(Bucket=bucket, Prefix=prefix + "/")["Contents"]
    urls = [
        "pipe:curl -s -L '{}'".format(
            client.generate_presigned_url(
                "get_object", Params={"Bucket": bucket, "Key": item["Key"]}, ExpiresIn=3600
            )
        )
        for item in listed
    ]
    dataset = (
        webdataset.WebDataset(urls, resampled=True, shardshuffle=False, seed=task.seed)
        .shuffle(8, initial=8)
        .map(partial(clip_of, task))
    )
    # The shuffle's buffer is no stock: it is full when its first piece comes out, and stays full.
    loader = webdataset.WebLoader(
        dataset, batch_size=None, num_workers=task.workers, prefetch_factor=PREFETCH
    )
    return (Seen(key, int(frame), video) for key, frame, video in loader)


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        with open(sys.argv[2]) as given:
            prepare(json.load(given), sys.argv[3])
    else:
        answer(opened, stock_clips)
