"""From files on disk through ingest to batches: the actions are those of the frames shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import dstream as library
from action_files import WRITERS, Table
from cli_runner import dstream
from made_video import frame_times, make_video, read_frame_number

FRAMES = 90
RATE = 30


def shown_frames(video: NDArray[np.uint8]) -> list[int]:
    """Frame numbers that are drawn into a clip [T, 3, H, W]."""
    luma = np.tensordot(np.array([0.299, 0.587, 0.114]), video, axes=(0, 1))
    return [read_frame_number(picture.astype(np.uint8)) for picture in luma]


def make_source(folder: Path, ending: str, table: Table, *, vfr: bool, container: str) -> Path:
    make_video(
        folder / "day1" / "run 7.mp4", frames=FRAMES, rate=RATE, vfr=vfr, container=container
    )
    (folder / "day1" / f"run 7{ending}").write_bytes(WRITERS[f".{ending.split('.')[-1]}"](table))
    return folder


def ingested(tmp_path: Path, source: Path, *options: str) -> library.Clips:
    repo = tmp_path / "repo"
    assert dstream("init", repo).code == 0
    ran = dstream(
        "ingest", source, "--name", "runs", "--repo", repo, "--recipe", "gameplay", *options
    )
    assert (ran.code, ran.err) == (0, "")
    return library.open(repo).clips("runs", frames=8, stride=2, array="numpy")


@pytest.mark.parametrize("layout", ["--in-place", "--quiet"])
@pytest.mark.parametrize("ending", [".actions.jsonl", ".csv", ".actions.parquet"])
def test_clips_carry_the_actions_of_their_frames(ending: str, layout: str, tmp_path: Path) -> None:
    table: Table = {
        "n": list(range(FRAMES)),
        "half": [n / 2 for n in range(FRAMES)],
        "even": [n % 2 == 0 for n in range(FRAMES)],
        "stick": [[n, -n] for n in range(FRAMES)],
        "key": ["w" * (n % 3) for n in range(FRAMES)],
    }
    source = make_source(tmp_path / "in", ending, table, vfr=True, container="mp4")
    clips = ingested(tmp_path, source, layout)
    with clips.loader(3, workers=2) as loader:
        batches = list(loader)
    assert batches
    for batch in batches:
        numbers = np.array([shown_frames(video) for video in batch.video])
        side = batch.side
        np.testing.assert_array_equal(side["actions.n"], numbers)
        np.testing.assert_array_equal(side["actions.half"], numbers / 2)
        np.testing.assert_array_equal(side["actions.even"], numbers % 2 == 0)
        np.testing.assert_array_equal(side["actions.stick"], np.stack([numbers, -numbers], -1))
        assert side["actions.key"].tolist() == [["w" * (n % 3) for n in row] for row in numbers]
        expected = np.stack([numbers, numbers / 2, numbers % 2 == 0], -1)
        np.testing.assert_array_equal(side["actions"], expected)
        assert side["actions"].dtype == np.float32
    clip = clips.clip("day1/run 7.mp4", start_s=1.0, frames=4)
    assert clip.side["actions.n"].tolist() == shown_frames(clip.video)


@pytest.mark.parametrize("container", ["mp4", "mkv", "mp4-fragmented-sidx"])
def test_by_time_the_row_in_force_is_returned_on_variable_frame_rate(
    container: str, tmp_path: Path
) -> None:
    pts_s = np.array(frame_times(FRAMES, RATE, vfr=True)) / 90_000
    steps = np.random.default_rng(5).uniform(0.01, 0.15, size=60)
    times_s = np.round(np.concatenate([[0.0], np.cumsum(steps)]), 4)
    # A row that falls within half a millisecond of a frame could go either way.
    apart = np.abs(times_s[:, None] - pts_s[None, :]).min(axis=1) > 0.002
    times_s = times_s[apart | (times_s == 0)]
    table: Table = {"t": times_s.tolist(), "row": list(range(len(times_s)))}
    source = make_source(tmp_path / "in", ".actions.jsonl", table, vfr=True, container=container)
    clips = ingested(tmp_path, source, "--recipe-arg", "align=time")
    with clips.loader(2) as loader:
        for batch in loader:
            numbers = np.array([shown_frames(video) for video in batch.video])
            rows = np.searchsorted(times_s, pts_s[numbers], side="right") - 1
            np.testing.assert_array_equal(batch.side["actions.row"], rows)


def test_a_video_whose_rows_do_not_fit_is_quarantined_with_the_numbers(tmp_path: Path) -> None:
    source = make_source(
        tmp_path / "in", ".csv", {"n": list(range(FRAMES - 1))}, vfr=False, container="mp4"
    )
    make_video(source / "lonely.mp4", frames=10)
    make_video(source / "good.mp4", frames=10)
    (source / "good.actions.csv").write_bytes(WRITERS[".csv"]({"n": list(range(10))}))
    repo = tmp_path / "repo"
    dstream("init", repo)
    ran = dstream("ingest", source, "-n", "runs", "--repo", repo, "--recipe", "gameplay", "--json")
    assert ran.code == 3
    document = ran.document()
    assert document["samples"] == 1
    found = {row["name"]: row for row in document["quarantined"]}
    assert {row["reason"] for row in found.values()} == {"bad-side-file"}
    assert "89 rows for 90 frames" in found["day1/run 7.mp4"]["detail"]
    assert "no actions file" in found["lonely.mp4"]["detail"]


def test_the_three_formats_give_equal_batches(tmp_path: Path) -> None:
    table: Table = {"n": list(range(FRAMES)), "dx": [n / 7 for n in range(FRAMES)]}
    hashes = set()
    for ending in WRITERS:
        folder = tmp_path / ending
        source = make_source(folder / "in", f".actions{ending}", table, vfr=False, container="mp4")
        with ingested(folder, source).loader(4) as loader:
            hashes.add(
                tuple(side.tobytes() for batch in loader for _, side in sorted(batch.side.items()))
            )
    assert len(hashes) == 1
