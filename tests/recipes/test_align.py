from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream_recipes.align import frame_fault, rows_by_frame, rows_by_time, time_fault


@pytest.mark.parametrize(
    ("rows", "frames", "tolerance", "fault"),
    [
        (10, 10, 0, None),
        (11, 10, 0, "11 rows for 10 frames (tolerance_frames=0)"),
        (9, 10, 0, "9 rows for 10 frames (tolerance_frames=0)"),
        (9, 10, 1, None),
        (11, 10, 1, None),
        (8, 10, 1, "8 rows for 10 frames (tolerance_frames=1)"),
        (0, 1, 5, "0 rows for 1 frames (tolerance_frames=5)"),
    ],
)
def test_rows_must_match_frames(rows: int, frames: int, tolerance: int, fault: str | None) -> None:
    assert frame_fault(rows, frames, None, tolerance) == fault


@pytest.mark.parametrize(
    ("named", "frames", "tolerance", "fault"),
    [
        ([0, 1, 2], 3, 0, None),
        ([0, 2], 3, 0, "1 of 3 frames have no row and 0 of 2 rows no frame"),
        ([0, 2], 3, 1, None),
        ([1, 2, 3], 3, 0, "1 of 3 frames have no row and 1 of 3 rows no frame"),
        ([0, 1, 1], 3, 9, "frame numbers must rise: row 2 names frame 1 after 1"),
        ([7, 8], 3, 99, "3 of 3 frames have no row"),
        ([], 3, 9, "0 rows for 3 frames"),
    ],
)
def test_a_frame_column_must_name_every_frame(
    named: list[int], frames: int, tolerance: int, fault: str | None
) -> None:
    found = frame_fault(len(named), frames, np.array(named, dtype=np.int64), tolerance)
    assert (found is None) == (fault is None)
    assert fault is None or fault in str(found)


@pytest.mark.parametrize(
    ("times", "fault"),
    [
        ([0.0, 0.5, 0.5], None),
        ([], "it has no rows"),
        ([0.0, np.nan], "row 1 has no finite time"),
        ([0.0, 0.5, 0.4], "times must not fall: row 2 at 0.4 s after 0.5 s"),
        ([9.0], "its first row is at 9 s, the video ends at 2 s"),
        ([0.3, 1.0], "its first row is at 0.3 s, so the frames before it have none"),
    ],
)
def test_times_must_lie_over_the_video(times: list[float], fault: str | None) -> None:
    found = time_fault(np.array(times), 2.0, 0.0005, 0.0, -1.0)
    assert (found is None) == (fault is None)
    assert fault is None or fault in str(found)


def test_lead_and_hold_are_bounded_when_asked() -> None:
    times = np.array([0.3, 1.0])
    assert time_fault(times, 2.0, 0.0005, 0.3, 1.0) is None
    assert "ends at 2 s (max_hold_s=0.5)" in str(time_fault(times, 2.0, 0.0005, 0.3, 0.5))


def test_a_frame_without_a_row_takes_the_earlier_one() -> None:
    rows = rows_by_frame(3, np.array([1, 2, 5]), np.array([0, 1, 2, 3, 4, 5, 6]))
    assert rows.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert rows_by_frame(3, None, np.array([0, 2, 4])).tolist() == [0, 2, 2]


def test_a_row_rounded_up_to_the_millisecond_is_in_force_at_its_frame() -> None:
    # 30 frames a second: frame 1 is at 33.333 ms, its row was logged at 33.4 ms.
    rows = rows_by_time(np.array([0.0, 0.0334]), np.array([0.0, 1 / 30]), 0.0005)
    assert rows.tolist() == [0, 1]


@given(
    times=st.lists(st.integers(0, 1000), min_size=1, max_size=30).map(sorted),
    frames=st.lists(st.integers(0, 1000), min_size=1, max_size=30),
    slack=st.integers(0, 3),
)
def test_by_time_is_the_last_row_not_after_the_frame(
    times: list[int], frames: list[int], slack: int
) -> None:
    rows = rows_by_time(np.array(times, float), np.array(frames, float), float(slack))
    for frame, row in zip(frames, rows.tolist(), strict=True):
        due = [i for i, time in enumerate(times) if time <= frame + slack]
        assert row == (due[-1] if due else 0)


@given(st.sets(st.integers(0, 60), min_size=1), st.lists(st.integers(0, 60), min_size=1))
def test_by_frame_is_the_row_that_names_the_frame_or_the_last_before(
    named: set[int], wanted: list[int]
) -> None:
    column = sorted(named)
    rows = rows_by_frame(len(column), np.array(column), np.array(wanted))
    for frame, row in zip(wanted, rows.tolist(), strict=True):
        if frame in named:
            assert column[row] == frame
        else:
            due = [i for i, name in enumerate(column) if name < frame]
            assert row == (due[-1] if due else 0)
