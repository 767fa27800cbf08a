"""lerobot-lancedb: a LeRobot v3 data set converted to Lance, an episode a video.

Its reader fetches the byte ranges of a whole batch at once, so it gets batches of four.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

BATCH = 4
CAMERA = "observation.images.camera"


def prepare(manifest: dict[str, Any], folder: str) -> None:
    """Lay the videos out as LeRobot v3 does, and convert that with the package's converter."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from lerobot_lancedb.convert import convert

    source = Path(manifest["scratch"]) / "lerobot"
    videos, rate = manifest["videos"], manifest["rate"]
    for part in ("meta/episodes/chunk-000", "data/chunk-000", f"videos/{CAMERA}/chunk-000"):
        (source / part).mkdir(parents=True, exist_ok=True)
    episodes, frames, first = [], [], 0
    for number, (path, length) in enumerate(videos.values()):
        target = source / f"videos/{CAMERA}/chunk-000/file-{number:03d}.mp4"
        target.unlink(missing_ok=True)
        target.hardlink_to(path)
        place = {"chunk_index": 0, "file_index": 0}
        episodes.append(
            {
                "episode_index": number,
                "tasks": ["look"],
                "length": length,
                "dataset_from_index": first,
                "dataset_to_index": first + length,
                **{f"data/{name}": value for name, value in place.items()},
                **{f"meta/episodes/{name}": value for name, value in place.items()},
                f"videos/{CAMERA}/chunk_index": 0,
                f"videos/{CAMERA}/file_index": number,
                f"videos/{CAMERA}/from_timestamp": 0.0,
                f"videos/{CAMERA}/to_timestamp": length / rate,
            }
        )
        frames += [
            {
                "timestamp": frame / rate,
                "frame_index": frame,
                "episode_index": number,
                "index": first + frame,
                "task_index": 0,
            }
            for frame in range(length)
        ]
        first += length
    columns = {"timestamp": pa.float32(), **dict.fromkeys(list(frames[0])[1:], pa.int64())}
    pq.write_table(
        pa.Table.from_pylist(frames, schema=pa.schema(list(columns.items()))),
        source / "data/chunk-000/file-000.parquet",
    )
    pq.write_table(
        pa.Table.from_pylist(episodes), source / "meta/episodes/chunk-000/file-000.parquet"
    )
    import pandas

    pandas.DataFrame({"task_index": [0]}, index=pandas.Index(["look"], name="task")).to_parquet(
        source / "meta/tasks.parquet"
    )
    features = {
        CAMERA: {
            "dtype": "video",
            "shape": [720, 1280, 3],
            "names": ["height", "width", "channels"],
            "info": {"video.fps": rate, "video.codec": "h264", "video.is_depth_map": False},
        },
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        **{
            name: {"dtype": "int64", "shape": [1], "names": None}
            for name in ("frame_index", "episode_index", "index", "task_index")
        },
    }
    info = {
        "codebase_version": "v3.0",
        "robot_type": "none",
        "total_episodes": len(videos),
        "total_frames": first,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": rate,
        "splits": {"train": f"0:{len(videos)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    (source / "meta/info.json").write_text(json.dumps(info))
    (source / "meta/stats.json").write_text("{}")
    convert(Path(folder), root=source)


def opened(task: Any) -> Iterator[Any]:
    os.environ["HF_LEROBOT_HOME"] = task.scratch  # it keeps a copy of meta/ there
    os.environ["HF_HUB_OFFLINE"] = "1"
    from lerobot_lancedb import LanceDBDataset, lance_mp_context

    from peers.adapters.protocol import Seen
    from peers.adapters.torch_loader import RandomPlaces, endless

    options = {
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "aws_endpoint": task.endpoint,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    dataset = LanceDBDataset(
        root=task.prepared,
        delta_timestamps={CAMERA: [i / task.rate for i in range(task.frames)]},
        return_uint8=True,
        storage_options=options,
        image_transforms=Smaller(task.size) if task.size else None,
    )
    names = list(task.videos)
    starts = dict(zip(names, accumulate(task.videos.values(), initial=0), strict=False))

    class Rows:
        """Rows of the first frames of random clips."""

        def __iter__(self) -> Iterator[int]:
            for name, frame in RandomPlaces(task):
                yield starts[name] + frame

    items = endless(
        dataset, task, start=lance_mp_context(), batch_size=BATCH, sampler=Rows(), collate_fn=list
    )

    def stream() -> Iterator[Seen]:
        for batch in items:
            for item in batch:
                yield Seen(
                    names[int(item["episode_index"])], int(item["frame_index"]), item[CAMERA]
                )

    return stream()


def stock_clips(task: Any) -> int:
    from peers.adapters import torch_loader

    return torch_loader.stock_clips(task, BATCH)


class Smaller:
    """torchvision's resize of uint8 frames, picklable."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size

    def __call__(self, frames: Any) -> Any:
        from torchvision.transforms import v2

        return v2.functional.resize(frames, list(self._size), antialias=False)


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        with open(sys.argv[2]) as given:
            prepare(json.load(given), sys.argv[3])
    else:
        from peers.adapters.protocol import answer

        answer(opened, stock_clips)
