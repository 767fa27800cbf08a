from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from action_files import WRITERS, Table, as_csv, as_jsonl
from dstream.errors import InvalidInputError, MediaError, MediaReason
from dstream.format.index import VideoTrack
from dstream.recipe import ClipFacts, Label, SideFile, VideoFile
from dstream_recipes import gameplay, video

TRACK = VideoTrack(
    container="mp4",
    track_id=0,
    codec="h264",
    profile="High",
    extradata=b"",
    width=64,
    height=48,
    rotation_deg=0,
    mirrored=False,
    sar=Fraction(1),
    pix_fmt="yuv420p",
    color_range=1,
    color_space=1,
    color_primaries=1,
    color_trc=1,
    time_base=Fraction(1, 1000),
    start_pts=40,
    end_pts=1040,
    rate=Fraction(10),
    frame_count=10,
    vfr=False,
    reorder_depth=0,
)
PTS_S: NDArray[np.float64] = np.arange(10) / 10
ROWS = list(range(10))


def video_file(
    side: Mapping[str, bytes], pts_s: NDArray[np.float64] | None = PTS_S, name: str = "d/run.mp4"
) -> VideoFile:
    files = {
        suffix: SideFile(f"d/run{suffix}", suffix, len(data), partial(bytes, data))
        for suffix, data in side.items()
    }
    return VideoFile(name, [TRACK], None if pts_s is None else lambda: pts_s, files)


def clip(frames: list[int], pts_s: NDArray[np.float64] = PTS_S) -> ClipFacts:
    index = np.array(frames)
    return ClipFacts("d/run.mp4", pts_s[index], index)


def configured(**params: Label) -> gameplay.GameplayRecipe:
    return gameplay.RECIPE.configured(params)


def test_a_sample_names_its_actions_file_and_what_is_in_it() -> None:
    data = as_csv({"jump": ROWS, "dx": [0.5] * 10, "key": ["w"] * 10})
    (sample,) = gameplay.RECIPE.samples(video_file({".actions.csv": data, ".wav": b""}))
    assert sample.key == "d/run.mp4"
    assert sample.side == (".actions.csv",)
    assert (sample.streams[0].start_pts, sample.streams[0].end_pts) == (40, 1040)
    assert sample.labels == {"action_rows": 10, "action_columns": 2, "action_align": "frame"}


@pytest.mark.parametrize("ending", WRITERS)
def test_rows_follow_frames(ending: str) -> None:
    table: Table = {
        "jump": [n % 2 == 0 for n in ROWS],
        "dx": [n / 4 for n in ROWS],
        "slot": ROWS,
        "stick": [[n, -n] for n in ROWS],
        "key": [f"k{n}" for n in ROWS],
    }
    arrays = gameplay.RECIPE.side_data(
        clip([2, 4, 6]), {f".actions{ending}": WRITERS[ending](table)}
    )
    assert list(arrays) == [
        "actions",
        "actions.jump",
        "actions.dx",
        "actions.slot",
        "actions.stick",
        "actions.key",
    ]
    assert arrays["actions"].dtype == np.float32
    assert arrays["actions"].tolist() == [[1, 0.5, 2], [1, 1, 4], [1, 1.5, 6]]
    assert arrays["actions.jump"].dtype == np.bool_
    assert arrays["actions.dx"].dtype == np.float32
    assert arrays["actions.slot"].dtype == np.int64
    assert arrays["actions.stick"].tolist() == [[2, -2], [4, -4], [6, -6]]
    assert arrays["actions.key"].dtype == np.object_
    assert arrays["actions.key"].tolist() == ["k2", "k4", "k6"]
    same = configured(numbers="float32").side_data(
        clip([2, 4, 6]), {f".actions{ending}": WRITERS[ending](table)}
    )
    assert same["actions.slot"].dtype == np.float32


def test_rows_follow_time_on_variable_frame_rate() -> None:
    pts_s = np.array([0.0, 0.1, 0.15, 0.4, 0.9, 0.91, 0.92, 0.93, 0.94, 0.99])
    table: Table = {"t": [0.0, 0.15, 0.5], "a": [10, 11, 12]}
    recipe = configured(align="time")
    assert not recipe.needs_packets
    (sample,) = recipe.samples(video_file({".actions.jsonl": as_jsonl(table)}, pts_s=None))
    assert sample.labels["action_align"] == "time"
    arrays = recipe.side_data(
        replace(clip([0, 1, 2, 3, 4], pts_s), frame_index=None),
        {".actions.jsonl": as_jsonl(table)},
    )
    assert arrays["actions.a"].tolist() == [10, 10, 11, 11, 12]
    assert arrays["actions"].tolist() == [[10], [10], [11], [11], [12]]
    assert arrays["actions.t"].dtype == np.float64


def test_times_in_other_units_and_with_an_offset() -> None:
    table: Table = {"ms": [1_000_000, 1_000_150], "a": [1, 2]}
    recipe = configured(align="time", time_column="ms", time_unit_s="0.001", offset_s="-1000")
    arrays = recipe.side_data(clip([0, 1, 2]), {".csv": as_csv(table)})
    assert arrays["actions.a"].tolist() == [1, 1, 2]


def test_auto_prefers_the_frame_column_then_the_time_column() -> None:
    side = {".csv": as_csv({"frame": ROWS, "t": [n / 5 for n in ROWS], "a": ROWS})}
    assert gameplay.RECIPE.samples(video_file(side))[0].labels["action_align"] == "frame"
    assert configured(align="time").samples(video_file(side))[0].labels["action_align"] == "time"
    side = {".csv": as_csv({"t": [n / 10 for n in ROWS], "a": ROWS})}
    assert gameplay.RECIPE.samples(video_file(side))[0].labels["action_align"] == "time"


def test_frames_counted_from_one() -> None:
    data = as_csv({"frame": [n + 1 for n in ROWS], "a": ROWS})
    with pytest.raises(MediaError, match="they name frames 1 to 10"):
        gameplay.RECIPE.samples(video_file({".csv": data}))
    recipe = configured(first_frame=1)
    recipe.samples(video_file({".csv": data}))
    assert recipe.side_data(clip([0, 9]), {".csv": data})["actions.a"].tolist() == [0, 9]


BAD = [
    ({}, {}, r"d/run.mp4: no actions file beside it: none of .actions.jsonl, .actions.csv"),
    ({".csv": b"a\n1\n", ".jsonl": b"{}"}, {}, "two actions files: d/run.jsonl and d/run.csv"),
    ({".csv": as_csv({"a": ROWS[:9]})}, {}, r"d/run.csv: 9 rows for 10 frames"),
    ({".csv": b""}, {}, r"d/run.csv: 0 rows for 10 frames"),
    ({".csv": as_csv({"a": ROWS})}, {"align": "time"}, "no column of times"),
    ({".csv": as_csv({"a": ROWS})}, {"frame_column": "f"}, "no column 'f'; it has a"),
    ({".csv": as_csv({"t": ["x"] * 10})}, {"align": "time"}, "'t' must hold numbers"),
    ({".csv": as_csv({"frame": [0.5] * 10})}, {}, "'frame' must hold whole numbers"),
    ({".csv": as_csv({"t": [0.3, 0.2], "a": [1, 1]})}, {}, "times must not fall"),
    ({".csv": as_csv({"a": ROWS})}, {"suffix": ".keys.csv"}, "none of .keys.csv"),
]


@pytest.mark.parametrize(("side", "params", "fault"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_what_does_not_fit_is_refused_with_its_numbers(
    side: dict[str, bytes], params: dict[str, Label], fault: str
) -> None:
    with pytest.raises(MediaError, match=fault) as caught:
        configured(**params).samples(video_file(side))
    assert caught.value.reason == MediaReason.BAD_SIDE_FILE


def test_the_actions_suffix_is_preferred_to_the_plain_one() -> None:
    side = {".csv": b"", ".actions.csv": as_csv({"a": ROWS})}
    assert gameplay.RECIPE.samples(video_file(side))[0].side == (".actions.csv",)


def test_without_a_packet_table_frames_cannot_be_matched() -> None:
    data = as_csv({"a": ROWS})
    with pytest.raises(MediaError, match="no packet table"):
        gameplay.RECIPE.side_data(replace(clip([1]), frame_index=None), {".csv": data})


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({"alinn": "time"}, "has no parameter 'alinn'; it takes align, suffix"),
        ({"align": "clock"}, "align=clock: expected auto, frame or time"),
        ({"tolerance_frames": "2.5"}, "tolerance_frames=2.5: expected a whole number"),
        ({"tolerance_frames": -1}, "must not be negative"),
        ({"slack_s": "soon"}, "slack_s=soon: expected a number"),
        ({"time_unit_s": 0}, "expected a positive number"),
        ({"numbers": "int"}, "numbers=int: expected typed or float32"),
        ({"group": "scene"}, "group=scene: expected file or folder"),
    ],
)
def test_parameters_are_checked(params: dict[str, Label], fault: str) -> None:
    with pytest.raises(InvalidInputError, match=fault):
        gameplay.RECIPE.configured(params)


@pytest.mark.parametrize("recipe", [gameplay.RECIPE, video.RECIPE])
def test_parameters_come_back_from_the_manifest(
    recipe: gameplay.GameplayRecipe | video.VideoRecipe,
) -> None:
    changed = recipe.configured({"group": "folder", "split": "val"})
    assert recipe.configured(changed.params) == changed
    assert pickle.loads(pickle.dumps(changed)) == changed


def test_video_recipe_groups_by_file_or_folder() -> None:
    (sample,) = video.RECIPE.samples(video_file({}))
    assert (sample.key, sample.group, sample.split) == ("d/run.mp4", "d/run.mp4", "train")
    (sample,) = video.RECIPE.configured({"group": "folder"}).samples(video_file({}))
    assert sample.group == "d"
    assert video.RECIPE.side_data(clip([0]), {}) == {}
