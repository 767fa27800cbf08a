"""What the proxy counts, as values: ranges, patterns, the timeline, prices, faults."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstream.clock import FakeClock
from dstream.diagnose.intervals import Intervals
from dstream.diagnose.prices import Prices
from dstream.diagnose.s3_request import Kind, classify, content_range
from dstream.diagnose.shaping import Fault, FaultKind, Pacer, Shape, drawn_fault, parse_fault
from dstream.diagnose.traffic import Exchange, Traffic
from dstream.errors import InvalidInputError


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=40))
def test_intervals_are_a_set_of_bytes(spans: list[tuple[int, int]]) -> None:
    found, bytes_seen = Intervals(), set[int]()
    for start, length in spans:
        new = set(range(start, start + length)) - bytes_seen
        assert found.add(start, start + length) == len(new)
        bytes_seen |= new
        assert found.size_bytes == len(bytes_seen)
    ranges = found.ranges()
    assert bytes_seen == {byte for start, stop in ranges for byte in range(start, stop)}
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("GET /b/k", Kind.GET),
        ("GET /b/k versionId=1&x-id=GetObject&response-content-type=a", Kind.GET),
        ("GET /b/k tagging", Kind.OTHER),
        ("GET /b/k uploadId=1", Kind.OTHER),
        ("GET /b", Kind.LIST),
        ("GET /b/ list-type=2", Kind.LIST),
        ("GET /b uploads&prefix=a", Kind.LIST),
        ("GET /b versioning", Kind.OTHER),
        ("GET /", Kind.LIST),
        ("HEAD /b/k", Kind.HEAD),
        ("HEAD /b", Kind.HEAD),
        ("PUT /b/k x-id=PutObject", Kind.PUT),
        ("PUT /b/k partNumber=1&uploadId=2", Kind.PART),
        ("PUT /b/k acl", Kind.OTHER),
        ("PUT /b", Kind.OTHER),
        ("POST /b/k uploads", Kind.CREATE_UPLOAD),
        ("POST /b/k uploadId=2", Kind.COMPLETE_UPLOAD),
        ("POST /b delete", Kind.DELETE_MANY),
        ("DELETE /b/k", Kind.DELETE),
        ("DELETE /b/k uploadId=2", Kind.ABORT_UPLOAD),
    ],
)
def test_requests_are_told_apart(line: str, kind: Kind) -> None:
    method, path, query = [*line.split(" "), ""][:3]
    assert classify(method, path, query).kind is kind


def test_a_copy_is_told_from_a_put() -> None:
    assert classify("PUT", "/b/k", "", copy_source=True).kind is Kind.COPY


@pytest.mark.parametrize("text", ["bytes 0-/5", "items 0-1/2", "bytes */100", ""])
def test_a_content_range_that_is_none(text: str) -> None:
    assert content_range(text, 7) == (0, 7)


PART = Exchange(
    number=0,
    kind=Kind.GET,
    bucket="b",
    key="a",
    status=206,
    outcome="ok",
    began_s=0.0,
    first_byte_s=0.0,
    ended_s=0.0,
    sent_bytes=0,
    received_bytes=0,
    delivered_bytes=0,
    object_bytes=1000,
    ranged=True,
)


def read(began_s: float, ended_s: float, key: str, start: int, size: int) -> Exchange:
    return replace(
        PART, began_s=began_s, ended_s=ended_s, key=key, range_start=start, received_bytes=size
    )


def test_sums_of_a_small_run() -> None:
    traffic = Traffic(began_s=100.0)
    for one in (
        read(100.0, 100.5, "a", 0, 100),
        read(100.5, 101.5, "a", 100, 100),  # in sequence
        read(100.5, 102.5, "a", 50, 100),  # again, elsewhere
        replace(read(102.0, 102.5, "a", 0, 1000), ranged=False),  # whole
        replace(read(102.0, 102.5, "b", 900, 60), outcome="client-gone"),
        replace(PART, began_s=102.0, ended_s=102.1, status=503, outcome="fault-503"),
    ):
        traffic.begin()
        traffic.end(one, cpu_s=0.001)
    traffic.begin()
    traffic.refuse()
    report = traffic.report(wall_s=3.0, cpu_s=0.3, prices=Prices(get_per_1000=1.0))
    assert (report.requests, report.refused, report.throttled) == (6, 1, 1)
    assert (report.received_bytes, report.aborted_bytes) == (1300, 60)
    assert (report.unique_bytes, report.reread_bytes) == (1060, 300)
    assert report.amplification == pytest.approx(1360 / 1060)
    assert (report.whole_reads, report.sequential_reads, report.random_reads) == (1, 1, 3)
    assert report.pattern == "mixed"
    assert (report.objects, report.objects_bytes) == (2, 2000)
    assert report.outcomes == {"client-gone": 1, "fault-503": 1, "ok": 4}
    assert report.timeline_requests == (3, 0, 3)
    assert report.timeline_bytes == (100, 100, 1160)
    assert report.timeline_concurrency == pytest.approx((1.5, 1.5, 1.6))
    assert report.concurrency_mean == pytest.approx(4.6 / 3)
    assert report.dollars == pytest.approx(0.006)
    assert report.proxy_cpu_share == pytest.approx(0.1)
    assert not report.proxy_is_limit
    assert traffic.report(3.0, 2.9, Prices()).proxy_is_limit


def test_an_empty_run_has_a_report() -> None:
    report = Traffic(0.0).report(0.0, 0.0, Prices())
    assert (report.requests, report.pattern, report.amplification) == (0, "none", 0.0)


def test_a_fault_is_drawn_as_often_as_it_should_be() -> None:
    faults = (Fault(FaultKind.RESET, 0.1), Fault(FaultKind.STALL, 0.05, 2.0))
    drawn = [drawn_fault(faults, 7, number) for number in range(20_000)]
    assert drawn == [drawn_fault(faults, 7, number) for number in range(20_000)]
    for fault in faults:
        assert drawn.count(fault) / 20_000 == pytest.approx(fault.share, rel=0.1)
    assert drawn_fault((), 7, 0) is None


@pytest.mark.parametrize("text", ["", "503", "503=", "503=101%", "other=1%", "reset=-1", "503=x"])
def test_a_fault_that_is_none(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_fault(text)


def test_impossible_shapes_are_refused() -> None:
    for bad in (
        {"delay_s": -1.0},
        {"bytes_per_s": 0.0},
        {"faults": (Fault(FaultKind.RESET, 0.6), Fault(FaultKind.CORRUPT, 0.6))},
    ):
        with pytest.raises(InvalidInputError):
            Shape(**bad)


def test_a_link_carries_so_much_and_no_more() -> None:
    clock = FakeClock(0.0)
    link = Pacer(1000.0, clock)
    for _ in range(5):
        link.pass_through(500)
    assert clock.monotonic_s() == pytest.approx(2.5)
    clock.sleep(10)  # an idle link saves nothing up
    link.pass_through(1000)
    assert clock.monotonic_s() == pytest.approx(13.5)
    Pacer(None, clock).pass_through(10**12)
    assert clock.monotonic_s() == pytest.approx(13.5)
