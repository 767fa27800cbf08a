"""``gameplay``: a video with a file of actions beside it, one row a frame or one row a moment.

``run7.mp4`` finds ``run7.actions.jsonl``, ``.actions.csv`` or ``.actions.parquet``, or the same
without ``.actions``. A clip comes with ``actions`` (float32 [T, D]: the columns that hold one
number a row, in file order) and with every column by itself as ``actions.<column>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.recipe import ClipFacts, Label, SampleSpec, SideFile, VideoFile
from dstream_recipes.align import frame_fault, rows_by_frame, rows_by_time, time_fault
from dstream_recipes.columns import Array, SideTable, bad_side_file
from dstream_recipes.settings import as_params, with_params
from dstream_recipes.side_table import parse_side_table
from dstream_recipes.video import check_group, group_of, whole_file

SUFFIXES = (
    (".actions.jsonl", ".actions.csv", ".actions.parquet"),
    (".jsonl", ".csv", ".parquet"),
)
"""Suffixes of the actions file; one of the first group is preferred to one of the second."""

FRAME_COLUMNS = ("frame", "frame_index")
TIME_COLUMNS = ("t", "time_s", "timestamp")


@dataclass(frozen=True, slots=True)
class GameplaySettings:
    """Parameters of the recipe ``gameplay``."""

    align: str = "auto"
    """``frame``: by frame number. ``time``: by a column of times. ``auto``: by the frame column
    if there is one, else by the time column if there is one, else row ``i`` is frame ``i``.
    Anything but ``time`` indexes every packet of the video, to know how many frames it has."""
    suffix: str = ""
    """Suffix of the actions file, for example ``.keys.csv``; empty: one of ``SUFFIXES``."""
    frame_column: str = ""
    """Column of frame numbers; empty: ``frame`` or ``frame_index`` where there is one."""
    first_frame: int = 0
    """The number that the frame column gives to the video's first frame."""
    tolerance_frames: int = 0
    """By frame: how many frames may lack a row, and rows a frame, before it is quarantined."""
    time_column: str = ""
    """Column of times; empty: ``t``, ``time_s`` or ``timestamp`` where there is one."""
    time_unit_s: float = 1.0
    """Seconds a unit of the time column: 0.001 where it counts milliseconds."""
    offset_s: float = 0.0
    """Added to every row's time to get seconds from the video's first frame."""
    slack_s: float = 0.0005
    """A row may be this much later than a frame and still be in force: half a tick of a clock
    of milliseconds, which is what Matroska and most logs have."""
    max_lead_s: float = 0.0
    """By time: how long the video may run before the first row, which then holds there too."""
    max_hold_s: float = -1.0
    """By time: how long the last row may hold at the end; below 0: any time."""
    numbers: str = "typed"
    """``typed``: whole numbers are int64, others float32, so a column that holds ``0`` in one
    file and ``0.5`` in another fits into no common batch. ``float32``: both are float32."""
    group: str = "file"
    """``file`` or ``folder``, as in the recipe ``video``."""
    split: str = "train"
    """The split that every sample is put into."""

    def __post_init__(self) -> None:
        check_group(self.group)
        if self.align not in ("auto", "frame", "time"):
            raise InvalidInputError(
                f"align={self.align}: expected auto, frame or time", parameter="align"
            )
        if self.numbers not in ("typed", "float32"):
            raise InvalidInputError(
                f"numbers={self.numbers}: expected typed or float32", parameter="numbers"
            )
        if self.tolerance_frames < 0:
            raise InvalidInputError("tolerance_frames must not be negative")
        if not (np.isfinite(self.time_unit_s) and self.time_unit_s > 0):
            raise InvalidInputError(f"time_unit_s={self.time_unit_s}: expected a positive number")


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """How the rows of one table lie on its video: by frame, or by time."""

    by: str
    """``frame`` or ``time``."""
    column: str | None
    """The column it goes by; None when row ``i`` is frame ``i``."""
    frame_of_row: NDArray[np.int64] | None = None
    """int64 [rows], by a frame column: 0 is the video's first frame."""
    times_s: NDArray[np.float64] | None = None
    """float64 [rows], by time: seconds from the video's first frame."""


@dataclass(frozen=True, slots=True)
class GameplayRecipe:
    """A video and its actions. Samples are whole files; see the module."""

    settings: GameplaySettings = field(default_factory=GameplaySettings)
    name: str = "gameplay"

    @property
    def needs_packets(self) -> bool:
        """True unless aligned by time: the number of frames must be known."""
        return self.settings.align != "time"

    @property
    def params(self) -> dict[str, Label]:
        """The settings by name."""
        return as_params(self.settings)

    def configured(self, params: Mapping[str, Label]) -> GameplayRecipe:
        """This recipe with other settings. Raises ``InvalidInputError``."""
        return replace(self, settings=with_params(self.name, self.settings, params))

    def samples(self, video: VideoFile) -> Sequence[SampleSpec]:
        """The one sample of ``video``, with its actions checked against its frames.

        Labels: ``action_rows``, ``action_columns`` (how many the matrix has), ``action_align``.

        Raises:
            MediaError: ``bad-side-file``: no actions file, two of them, an unreadable one, or
                one whose rows do not fit the frames.
        """
        side = _actions_file(video, self.settings)
        table = parse_side_table(side.name, side.read())
        alignment = alignment_of(side.name, table, self.settings)
        fault = _alignment_fault(video, table, alignment, self.settings)
        if fault is not None:
            raise bad_side_file(side.name, fault, rows=table.rows)
        return [
            SampleSpec(
                key=video.name,
                group=group_of(video.name, self.settings.group),
                streams=(whole_file(video),),
                split=self.settings.split,
                side=(side.suffix,),
                labels={
                    "action_rows": table.rows,
                    "action_columns": len(_matrix_columns(table, alignment)),
                    "action_align": alignment.by,
                },
            )
        ]

    def side_data(
        self, facts: ClipFacts, side: Mapping[str, bytes]
    ) -> Mapping[str, NDArray[np.generic]]:
        """``actions`` float32 [T, D], and each column as ``actions.<name>`` [T] or [T, K].

        Numbers with fractions are float32, except the time column (float64); whole numbers
        int64; truth values bool; text an object array of ``str``. ``settings`` say how frames
        are matched.

        Raises:
            MediaError: ``bad-side-file``.
        """
        ((suffix, data),) = side.items()
        name = f"{facts.sample_key}: side file {suffix}"
        table = parse_side_table(name, data)
        alignment = alignment_of(name, table, self.settings)
        rows = _rows_of_clip(name, table, alignment, facts, self.settings.slack_s)
        arrays: dict[str, Array] = {}
        matrix = [table.columns[column][rows] for column in _matrix_columns(table, alignment)]
        if matrix:
            arrays["actions"] = np.stack(matrix, axis=1, dtype=np.float32, casting="unsafe")
        for column, values in table.columns.items():
            taken = values[rows]
            if taken.dtype.kind == "U":
                # The width of a text type depends on the file: no two would make a batch.
                taken = taken.astype(np.object_)
            elif column != alignment.column and self._becomes_float32(taken.dtype):
                taken = taken.astype(np.float32)
            arrays[f"actions.{column}"] = taken
        return arrays

    def _becomes_float32(self, dtype: np.dtype[np.generic]) -> bool:
        return dtype.kind == "f" or (dtype.kind == "i" and self.settings.numbers == "float32")


def alignment_of(name: str, table: SideTable, settings: GameplaySettings) -> Alignment:
    """What the table's rows go by, and the numbers.

    Raises:
        MediaError: ``bad-side-file``: the column is missing, or not numbers.
    """
    frame_column = _named_column(name, table, settings.frame_column, FRAME_COLUMNS)
    time_column = _named_column(name, table, settings.time_column, TIME_COLUMNS)
    by_time = settings.align == "time" or (
        settings.align == "auto" and frame_column is None and time_column is not None
    )
    if by_time:
        if time_column is None:
            raise bad_side_file(
                name, f"no column of times: none of {', '.join(TIME_COLUMNS)}; see time_column"
            )
        times = _numbers(name, table, time_column, "if").astype(np.float64)
        times_s = times * settings.time_unit_s + settings.offset_s
        return Alignment("time", time_column, times_s=times_s)
    if frame_column is None:
        return Alignment("frame", None)
    frames = _numbers(name, table, frame_column, "i").astype(np.int64)
    return Alignment("frame", frame_column, frame_of_row=frames - settings.first_frame)


def _named_column(name: str, table: SideTable, wanted: str, usual: Sequence[str]) -> str | None:
    if wanted:
        if wanted not in table.columns:
            columns = ", ".join(table.columns)[:200]
            raise bad_side_file(name, f"no column {wanted!r}; it has {columns}", column=wanted)
        return wanted
    return next((column for column in usual if column in table.columns), None)


def _numbers(name: str, table: SideTable, column: str, kinds: str) -> Array:
    values = table.columns[column]
    if values.ndim != 1 or values.dtype.kind not in kinds:
        wanted = "whole numbers" if kinds == "i" else "numbers"
        raise bad_side_file(name, f"column {column!r} must hold {wanted}", column=column)
    return values


def _matrix_columns(table: SideTable, alignment: Alignment) -> list[str]:
    return [column for column in table.numeric_scalars() if column != alignment.column]


def _actions_file(video: VideoFile, settings: GameplaySettings) -> SideFile:
    groups = ((settings.suffix,),) if settings.suffix else SUFFIXES
    for group in groups:
        found = [video.side[suffix] for suffix in group if suffix in video.side]
        if len(found) > 1:
            names = " and ".join(side.name for side in found)
            raise bad_side_file(video.name, f"two actions files: {names}; see suffix")
        if found:
            return found[0]
    wanted = ", ".join(suffix for group in groups for suffix in group)
    raise bad_side_file(video.name, f"no actions file beside it: none of {wanted}")


def _alignment_fault(
    video: VideoFile, table: SideTable, alignment: Alignment, settings: GameplaySettings
) -> str | None:
    if alignment.times_s is not None:
        return time_fault(
            alignment.times_s,
            video.tracks[0].duration_s,
            settings.slack_s,
            settings.max_lead_s,
            settings.max_hold_s,
        )
    frames = _frame_count(video)
    if frames is None:
        return f"{video.name} has no packet table, so its frames cannot be counted; see align"
    return frame_fault(table.rows, frames, alignment.frame_of_row, settings.tolerance_frames)


def _frame_count(video: VideoFile) -> int | None:
    if video.frame_pts_s is not None:
        return len(video.frame_pts_s())
    return video.tracks[0].frame_count


def _rows_of_clip(
    name: str, table: SideTable, alignment: Alignment, facts: ClipFacts, slack_s: float
) -> NDArray[np.int64]:
    if table.rows == 0:
        raise bad_side_file(name, "it has no rows")
    if alignment.times_s is not None:
        return rows_by_time(alignment.times_s, facts.pts_s, slack_s)
    if facts.frame_index is None:
        raise bad_side_file(name, "the video has no packet table, so its frames have no number")
    return rows_by_frame(table.rows, alignment.frame_of_row, facts.frame_index)


RECIPE = GameplayRecipe()
