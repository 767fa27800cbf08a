from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.errors import InvalidInputError
from dstream.media.frames import (
    ClipRequest,
    FramesMissingError,
    KnownFrames,
    choose_frames,
    shown_pts,
)

MS = Fraction(1, 1000)


def known(*pts: int, sure_until: int = 10**9, from_start: bool = True) -> KnownFrames:
    return KnownFrames(np.array(pts, np.int64), from_start, sure_until)


def choose(
    frames: KnownFrames,
    *,
    start_s: float = 0.0,
    count: int = 2,
    stride: int | None = None,
    fps: float | None = None,
    span: tuple[int, int] = (0, 200),
    time_base: Fraction = MS,
) -> list[int]:
    request = ClipRequest(
        start_s=start_s, frames=count, stride=stride, fps=fps, start_pts=span[0], end_pts=span[1]
    )
    return [int(pts) for pts in choose_frames(request, time_base, frames)]


EVEN = known(0, 40, 80, 120, 160)


@pytest.mark.parametrize(
    ("start_s", "stride", "expected"),
    [
        (0.0, 1, [0, 40]),
        (0.039, 1, [0, 40]),
        (0.0394, 1, [0, 40]),
        (0.0395, 1, [40, 80]),  # half a tick early still means the frame at 40
        (0.04, 1, [40, 80]),
        (0.04, 3, [40, 160]),
        (0.08, 3, [40, 160]),  # would cross the end: moved back
        (99.0, 1, [120, 160]),
    ],
)
def test_stride_takes_every_nth_frame_and_stays_inside(
    start_s: float, stride: int, expected: list[int]
) -> None:
    assert choose(EVEN, start_s=start_s, stride=stride) == expected


@pytest.mark.parametrize(
    ("start_s", "fps", "expected"),
    [
        (0.0, 25.0, [0, 40]),
        (0.0, 12.5, [0, 80]),
        (0.0, 50.0, [0, 0]),  # slower video repeats frames
        (0.041, 25.0, [40, 80]),
        (0.120, 12.5, [80, 160]),  # the last instant is 199, one tick before the end
        (5.0, 1000 / 199, [0, 160]),
        (5.0, 1000 / 100, [80, 160]),
    ],
)
def test_fps_takes_the_frame_shown_at_each_instant(
    start_s: float, fps: float, expected: list[int]
) -> None:
    assert choose(EVEN, start_s=start_s, fps=fps) == expected


def test_a_clip_sees_only_its_sample() -> None:
    sample = known(80, 120)
    assert choose(sample, stride=1, span=(70, 150)) == [80, 120]
    assert choose(sample, fps=25.0, span=(70, 150)) == [80, 80]  # nothing is shown at 70: the first


def test_a_rate_given_as_float_does_not_drift_over_a_day() -> None:
    time_base = Fraction(1, 30_000)
    pts = np.arange(0, 1001 * 3_000_000, 1001, dtype=np.int64)
    request = ClipRequest(
        start_s=0.0, frames=3, fps=30_000 / 1001, start_pts=0, end_pts=int(pts[-1]) + 1001
    )
    late = ClipRequest(
        start_s=float(2_900_000 * 1001 * time_base),
        frames=3,
        fps=30_000 / 1001,
        start_pts=0,
        end_pts=int(pts[-1]) + 1001,
    )
    whole = KnownFrames(pts, True, 2**62)
    assert choose_frames(request, time_base, whole).tolist() == pts[:3].tolist()
    assert choose_frames(late, time_base, whole).tolist() == pts[2_900_000:2_900_003].tolist()


@pytest.mark.parametrize("kind", [{"stride": 3}, {"fps": 4.9}])
def test_a_sample_that_is_too_short_says_so(kind: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match="sample") as caught:
        choose(EVEN, count=3, **kind)  # type: ignore[arg-type]
    assert caught.value.facts["frames"] == 3


@pytest.mark.parametrize("kind", [{"stride": 1}, {"fps": 25.0}])
def test_a_span_without_frames_says_so(kind: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError):
        choose(known(), **kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"stride": 1, "fps": 1.0},
        {},
        {"stride": 0},
        {"fps": 0.0},
        {"fps": math.nan},
        {"fps": math.inf},
        {"stride": 1, "frames": 0},
        {"stride": 1, "start_s": -0.1},
        {"stride": 1, "start_s": math.nan},
        {"stride": 1, "end_pts": 0},
    ],
)
def test_requests_that_mean_nothing_are_refused(values: dict[str, float]) -> None:
    arguments: dict[str, float] = {"start_s": 0.0, "frames": 2, "start_pts": 0, "end_pts": 9}
    with pytest.raises(InvalidInputError):
        ClipRequest(**{**arguments, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("frames", "arguments", "earlier", "lacking"),
    [
        (known(0, 40, sure_until=40), {"stride": 1, "start_s": 0.04}, False, 1),
        (known(0, 40, sure_until=40), {"stride": 5, "count": 3}, False, 9),
        (known(0, 40, sure_until=40), {"stride": 1, "start_s": 0.09}, False, 1),
        (known(0, 40, sure_until=40), {"fps": 20.0, "start_s": 0.01}, False, 1),
        (known(80, 120, from_start=False), {"stride": 1, "start_s": 0.07}, True, 1),
        (known(80, 120, from_start=False), {"stride": 2, "start_s": 0.08}, True, 1),
        (known(80, 120, from_start=False), {"fps": 25.0, "start_s": 0.07}, True, 1),
    ],
)
def test_frames_that_do_not_decide_the_clip_say_which_are_missing(
    frames: KnownFrames, arguments: dict[str, float], earlier: bool, lacking: int
) -> None:
    with pytest.raises(FramesMissingError) as caught:
        choose(frames, **arguments)  # type: ignore[arg-type]
    assert (caught.value.facts["earlier"], caught.value.facts["frames"]) == (earlier, lacking)


def test_shown_frames_are_distinct_sorted_and_inside_the_edit_list() -> None:
    pts = np.array([0, 120, 40, 80, 80, 160], np.int64)
    discard = np.array([True, False, False, False, False, True])
    assert shown_pts(pts, discard).tolist() == [40, 80, 120]


@given(
    steps=st.lists(st.integers(1, 90), min_size=1, max_size=40),
    tail=st.integers(1, 90),
    start_s=st.floats(0, 4),
    count=st.integers(1, 6),
    stride=st.integers(1, 5),
    fps=st.floats(1, 60),
    by_time=st.booleans(),
)
def test_choice_equals_its_definition(
    steps: list[int],
    tail: int,
    start_s: float,
    count: int,
    stride: int,
    fps: float,
    by_time: bool,
) -> None:
    pts = [sum(steps[:i]) for i in range(len(steps))]
    end = pts[-1] + tail
    kind = {"fps": fps} if by_time else {"stride": stride}
    try:
        got = choose(known(*pts), start_s=start_s, count=count, span=(0, end), **kind)
    except InvalidInputError:
        step = 1000 / Fraction(fps).limit_denominator(10**6)
        too_long = (count - 1) * step > end - 1 if by_time else (count - 1) * stride >= len(pts)
        assert too_long
        return

    def at(tick: Fraction) -> int:
        return max(p for p in pts if p <= tick + Fraction(1, 2))

    start = Fraction(start_s) * 1000
    if by_time:
        step = 1000 / Fraction(fps).limit_denominator(10**6)
        start = min(start, end - 1 - (count - 1) * step)
        assert got == [at(start + i * step) for i in range(count)]
    else:
        first = min(pts.index(at(start)), len(pts) - 1 - (count - 1) * stride)
        assert got == pts[first::stride][:count]
    assert len(got) == count
    assert all(0 <= p < end for p in got)
