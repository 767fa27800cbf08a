"""Which row of a side table belongs to which frame. Pure functions of numbers.

By frame: row ``i`` belongs to frame ``i``, or a column says which frame a row belongs to.
By time: the row in force at a frame is the last one whose time is not after the frame's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def frame_fault(
    rows: int, frames: int, frame_of_row: Ints | None, tolerance_frames: int
) -> str | None:
    """Why rows and frames do not match one to one, or None where they do.

    Args:
        rows: rows in the table.
        frames: frames in the video.
        frame_of_row: int64 [rows], the frame each row names; None when row ``i`` is frame ``i``.
        tolerance_frames: how many frames may lack a row, and rows a frame, in sum.
    """
    if frame_of_row is None:
        if rows == 0 or abs(rows - frames) > tolerance_frames:
            return f"{rows} rows for {frames} frames (tolerance_frames={tolerance_frames})"
        return None
    if rows == 0:
        return f"0 rows for {frames} frames"
    backward = np.flatnonzero(np.diff(frame_of_row) <= 0)
    if len(backward):
        row = int(backward[0]) + 1
        return (
            f"frame numbers must rise: row {row} names frame {frame_of_row[row]} "
            f"after {frame_of_row[row - 1]}"
        )
    inside = int(np.count_nonzero((frame_of_row >= 0) & (frame_of_row < frames)))
    without_row, without_frame = frames - inside, rows - inside
    if inside == 0 or without_row + without_frame > tolerance_frames:
        return (
            f"{without_row} of {frames} frames have no row and {without_frame} of {rows} rows "
            f"no frame: they name frames {frame_of_row[0]} to {frame_of_row[-1]} "
            f"(tolerance_frames={tolerance_frames})"
        )
    return None


def rows_by_frame(rows: int, frame_of_row: Ints | None, frame_index: Ints) -> Ints:
    """int64 [T] row of each frame. A frame without a row takes the nearest earlier one.

    Frames before the first row take the first: ``frame_fault`` has bounded how many there are.
    """
    if frame_of_row is None:
        wanted = frame_index
    else:
        wanted = np.searchsorted(frame_of_row, frame_index, side="right") - 1
    return np.clip(wanted, 0, rows - 1).astype(np.int64)


def time_fault(
    times_s: Floats, end_s: float, slack_s: float, max_lead_s: float, max_hold_s: float
) -> str | None:
    """Why a column of times cannot be laid over a video, or None where it can.

    Args:
        times_s: float64 [rows] seconds from the video's first frame.
        end_s: length of the video in seconds.
        slack_s: as in :func:`rows_by_time`.
        max_lead_s: how long the video may run before the first row.
        max_hold_s: how long the last row may stay in force at the end; below 0: any time.
    """
    if len(times_s) == 0:
        return "it has no rows"
    bad = np.flatnonzero(~np.isfinite(times_s))
    if len(bad):
        return f"row {bad[0]} has no finite time"
    backward = np.flatnonzero(np.diff(times_s) < 0)
    if len(backward):
        row = int(backward[0]) + 1
        return f"times must not fall: row {row} at {times_s[row]:g} s after {times_s[row - 1]:g} s"
    if times_s[0] >= end_s:
        return f"its first row is at {times_s[0]:g} s, the video ends at {end_s:g} s"
    if times_s[0] > slack_s + max_lead_s:
        return (
            f"its first row is at {times_s[0]:g} s, so the frames before it have none "
            f"(max_lead_s={max_lead_s:g}; offset_s shifts all rows)"
        )
    if 0 <= max_hold_s < end_s - times_s[-1]:
        return (
            f"its last row is at {times_s[-1]:g} s and the video ends at {end_s:g} s "
            f"(max_hold_s={max_hold_s:g})"
        )
    return None


def rows_by_time(times_s: Floats, frame_pts_s: Floats, slack_s: float) -> Ints:
    """int64 [T] the last row with ``time <= frame time + slack_s``; the first where none is.

    Args:
        times_s: float64 [rows] rising seconds from the video's first frame.
        frame_pts_s: float64 [T] seconds from the video's first frame.
        slack_s: half a tick of the coarser clock, so that rounding moves no row to the next
            frame.
    """
    rows = np.searchsorted(times_s, frame_pts_s + slack_s, side="right") - 1
    return np.maximum(rows, 0).astype(np.int64)
