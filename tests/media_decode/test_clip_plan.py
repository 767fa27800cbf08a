from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coded_order import PACKET_BYTES, Coded, coded, open_gops
from dstream.errors import InvalidInputError, MediaError, MediaReason
from dstream.format.index import Access
from dstream.media.clip import (
    ClipPlan,
    ClipRequest,
    Extent,
    NeedMoreData,
    coalesce,
    feed_range,
    plan_clip,
    resolve_targets,
    widen,
)


def request(video: Coded, **values: Any) -> ClipRequest:
    track = video.index.track
    defaults: dict[str, Any] = {"start_s": 0.0, "frames": 4, "stride": 1}
    if "fps" in values:
        del defaults["stride"]
    spans = {"start_pts": track.start_pts, "end_pts": track.end_pts}
    return ClipRequest(**{**defaults, **spans, **values})


def regular(leading: int = 0, codec: str = "h264", frames: int = 50) -> Coded:
    times = [40 * i for i in range(frames)]
    return coded(open_gops(times, 10, leading), 40 * frames, codec)


def gops_of(plan: ClipPlan) -> tuple[int, int]:
    return plan.first_gop, plan.stop_gop


@pytest.mark.parametrize(
    ("start_s", "gops"),
    [(0.0, (0, 1)), (0.24, (0, 1)), (0.28, (0, 2)), (0.4, (1, 2)), (9.0, (4, 5))],
)
def test_a_plan_holds_the_gops_of_its_frames(start_s: float, gops: tuple[int, int]) -> None:
    plan = plan_clip(regular().index, request(regular(), start_s=start_s))
    assert gops_of(plan) == gops
    assert [extent.gop for extent in plan.extents] == list(range(*gops))


def test_a_plan_counts_the_packets_it_needs() -> None:
    plan = plan_clip(regular().index, request(regular(), start_s=0.48))
    assert plan.target_pts is not None
    assert plan.target_pts.tolist() == [480, 520, 560, 600]
    assert plan.frame_index is not None
    assert plan.frame_index.tolist() == [12, 13, 14, 15]
    assert plan.payload_bytes == 6 * PACKET_BYTES  # keyframe 10 up to frame 15
    assert plan.extents[0] == Extent(1, 1000 + 10 * PACKET_BYTES, 10 * PACKET_BYTES, None)


def test_frames_shown_before_their_keyframe_need_the_gop_before() -> None:
    video = regular(leading=2)  # GOP 1 is coded 12, 10, 11, 13 ...
    assert gops_of(plan_clip(video.index, request(video, start_s=0.40))) == (0, 2)
    assert gops_of(plan_clip(video.index, request(video, start_s=0.48))) == (1, 2)


def test_frames_outside_the_edit_list_are_no_targets() -> None:
    gops = [[(pts, pts < 80) for pts in range(0, 400, 40)]]
    video = coded(gops, 400)
    plan = plan_clip(video.index, request(video))
    assert plan.target_pts is not None
    assert plan.target_pts.tolist() == [80, 120, 160, 200]
    start, stop = feed_range(video.index, plan, video.read(plan), plan.target_pts)
    assert (start, stop) == (0, 6)


def test_an_index_without_keyframes_is_refused() -> None:
    video = regular()
    none = np.empty(0, np.int64)
    gops = replace(
        video.index.gops,
        offset_bytes=none,
        size_bytes=none,
        key_pts=none,
        first_packet=none,
        payload_bytes=none,
    )
    with pytest.raises(MediaError) as caught:
        plan_clip(replace(video.index, gops=gops), request(video))
    assert caught.value.reason is MediaReason.NO_FRAMES


def test_an_index_that_contradicts_itself_is_refused() -> None:
    video = regular()
    with pytest.raises(MediaError, match="packet table"):
        plan_clip(replace(video.without_packets(), access=Access.PACKETS), request(video))
    index = video.without_packets()
    gops = replace(index.gops, key_pts=index.gops.key_pts[::-1].copy())
    with pytest.raises(MediaError, match="do not rise"):
        plan_clip(replace(index, gops=gops), request(video))
    plan = plan_clip(video.index, request(video))
    with pytest.raises(MediaError, match="promises"):
        feed_range(video.index, plan, video.read(plan), np.array([41]))


@pytest.mark.parametrize(
    ("gap_bytes", "expected"),
    [(0, [(0, 20), (30, 50)]), (9, [(0, 20), (30, 50)]), (10, [(0, 50)])],
)
def test_extents_close_together_become_one_range(
    gap_bytes: int, expected: list[tuple[int, int]]
) -> None:
    sizes = [(30, 20), (0, 10), (10, 10), (35, 5)]
    extents = [Extent(i, offset, size, None) for i, (offset, size) in enumerate(sizes)]
    assert coalesce(extents, gap_bytes) == expected


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60)), max_size=12), st.integers(0, 40)
)
def test_coalesced_ranges_cover_all_bytes_and_stay_apart(
    spans: list[tuple[int, int]], gap_bytes: int
) -> None:
    ranges = coalesce([Extent(i, o, s, None) for i, (o, s) in enumerate(spans)], gap_bytes)
    assert all(b[0] - a[1] > gap_bytes for a, b in pairwise(ranges))
    for offset, size in spans:
        assert any(start <= offset and offset + size <= stop for start, stop in ranges)


def resolve(
    video: Coded, index: Any, wanted: ClipRequest
) -> tuple[list[int], list[tuple[int, int]]]:
    """The targets, and the GOPs of every plan on the way."""
    plan = plan_clip(index, wanted)
    tried = [gops_of(plan)]
    while True:
        try:
            packets = video.read(plan)
            targets = resolve_targets(index, plan, packets)
            start, stop = feed_range(index, plan, packets, targets)
        except NeedMoreData as need:
            plan = need.plan
            assert plan.stop_gop - plan.first_gop > tried[-1][1] - tried[-1][0]
            tried.append(gops_of(plan))
            continue
        fed = packets.pts[start:stop]
        assert packets.is_key[start]
        assert np.isin(targets, fed).all()
        return [int(pts) for pts in targets], tried


@pytest.mark.parametrize("codec", ["h264", "vp9"])
@pytest.mark.parametrize("start", range(0, 47))
def test_ordinary_clips_without_a_packet_table_cost_one_request(codec: str, start: int) -> None:
    video = regular(codec=codec)
    targets, tried = resolve(video, video.without_packets(), request(video, start_s=start * 0.04))
    assert targets == [40 * (start + i) for i in range(4)]
    assert len(tried) == 1
    assert tried[0][1] - tried[0][0] <= 2


def test_leading_pictures_are_found_in_the_next_gop() -> None:
    video = regular(leading=2)
    index = video.without_packets()
    targets, tried = resolve(video, index, request(video, start_s=0.32))
    assert targets == [320, 360, 400, 440]
    assert tried == [(0, 1), (0, 2)]
    assert resolve(video, index, request(video, start_s=0.2))[1] == [(0, 1)]


def test_a_wrong_average_rate_costs_requests_but_no_exactness() -> None:
    video = regular(codec="vp9")
    index = video.without_packets()
    for rate in (1, 400):
        wrong = replace(index, track=replace(index.track, rate=rate * index.track.rate / 25))
        for start in (0.0, 0.5, 1.9):
            wanted = request(video, start_s=start, frames=8, stride=3)
            assert resolve(video, wrong, wanted)[0] == resolve(video, index, wanted)[0]


def test_missing_frames_are_sought_earlier_twice_and_no_more() -> None:
    video = regular()
    plan: ClipPlan | None = plan_clip(video.index, request(video, start_s=1.6))
    found = []
    while plan is not None:
        found.append((plan.first_gop, plan.backed_up))
        assert plan.target_pts is not None
        assert feed_range(video.index, plan, video.read(plan), plan.target_pts)[0] == 0
        plan = widen(video.index, plan)
    assert found == [(4, 0), (3, 1), (2, 2)]
    assert widen(video.index, plan_clip(video.index, request(video))) is None


def test_missing_frames_are_sought_earlier_without_a_packet_table() -> None:
    video = regular(codec="vp9")
    index = video.without_packets()
    plan = plan_clip(index, request(video, start_s=1.6))
    wider = widen(index, plan)
    assert wider is not None
    assert gops_of(wider) == (3, 5)
    targets = resolve_targets(index, wider, video.read(wider))
    assert targets.tolist() == [1600, 1640, 1680, 1720]
    assert feed_range(index, wider, video.read(wider), targets) == (0, 14)


@given(
    # Steps differ by less than half of the smallest: what lies between is then decided.
    steps=st.lists(st.integers(40, 59), min_size=1, max_size=40),
    gop=st.integers(1, 12),
    leading=st.integers(0, 3),
    start_s=st.floats(0, 2.5),
    frames=st.integers(1, 6),
    stride=st.integers(1, 4),
    fps=st.floats(5, 60),
    by_time=st.booleans(),
    span=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_plan_without_packets_finds_the_same_frames(
    steps: list[int],
    gop: int,
    leading: int,
    start_s: float,
    frames: int,
    stride: int,
    fps: float,
    by_time: bool,
    span: tuple[float, float],
) -> None:
    times = [sum(steps[:i]) for i in range(len(steps))]
    end = times[-1] + steps[-1]
    video = coded(open_gops(times, gop, leading), end)
    low, high = sorted(round(end * part) for part in span)
    kind: dict[str, Any] = {"fps": fps} if by_time else {"stride": stride}
    wanted = request(
        video, start_s=start_s, frames=frames, start_pts=low, end_pts=max(high, low + 1), **kind
    )
    try:
        plan = plan_clip(video.index, wanted)
    except InvalidInputError:
        with pytest.raises(InvalidInputError):
            resolve(video, video.without_packets(), wanted)
        return
    assert plan.target_pts is not None
    start, stop = feed_range(video.index, plan, video.read(plan), plan.target_pts)
    assert plan.payload_bytes == (stop - start) * PACKET_BYTES
    assert resolve(video, video.without_packets(), wanted)[0] == plan.target_pts.tolist()
