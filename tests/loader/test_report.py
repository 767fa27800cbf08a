"""The report's arithmetic and its verdict."""

import dataclasses
import json

import pytest

from dstream.loader.report import LoaderReport, RunFacts, make_report
from dstream.measure import Meter, Purpose, RequestTotals

FACTS = RunFacts(wall_seconds=10.0, first_batch_seconds=0.5, fetchers=4, workers=2, prefetch=2)


def report(**sums: float) -> LoaderReport:
    meter = Meter()
    for name, amount in sums.items():
        meter.add(name.replace("__", "."), amount)
    meter.request("get", Purpose.DATA, "ok", RequestTotals(8, 1000, 1000, 1.0))
    meter.request("get", Purpose.DATA, "throttled", RequestTotals(2, 200, 100, 1.0))
    meter.request("get", Purpose.INDEX, "ok", RequestTotals(3, 30, 30, 1.0))
    meter.event("skip", "not-found", 2)
    meter.event("retry", "throttled", 2)
    meter.event("throttle", "503", 2)
    counts = meter.snapshot()
    return make_report(counts, counts, FACTS)


def test_ratios() -> None:
    got = report(
        clips__delivered=20, clips__decoded=5, frames__decoded=60, frames__delivered=40,
        bytes__needed=550, seconds__wait=2.0, seconds__decode=2.0, seconds__convert=1.0,
        seconds__fetch_stage=4.0, seconds__decode_stage=10.0, queue__looks=5, queue__ready=5,
    )  # fmt: skip
    assert got.clips_per_second == 2.0
    assert got.wait_share == 0.2
    assert got.decode_amplification == 1.5
    assert got.decode_frames_per_second == 20
    assert got.data_requests == 10
    assert got.data_requests_per_clip == 2.0
    assert got.bytes_received == 1100
    assert got.byte_amplification == 2.0
    assert got.index_bytes == 30
    assert got.fetch_busy_share == 0.1
    assert got.decode_busy_share == 0.5
    assert got.queue_occupancy == 0.5
    assert (got.skips, got.retries, got.throttles) == ({"not-found": 2}, {"throttled": 2}, 2)


def test_rates_of_the_gpu_s_decoders() -> None:
    meter = Meter()
    meter.add("frames.nvdec", 14_000)
    meter.add("seconds.nvdec", 20.0)
    meter.event("nvdec-session", "opened", 7)
    for name, count in (("to", 30), ("on", 40), ("from", 50)):
        meter.add(f"bytes.{name}_device", count)
    meter.add("bytes.delivered", 80)
    counts = meter.snapshot()
    got = make_report(counts, counts, dataclasses.replace(FACTS, engines=7))
    assert got.nvdec_frames == 14_000
    assert got.nvdec_frames_per_second == 700
    assert got.nvdec_frames_per_engine == 200
    assert got.nvdec_busy_share == pytest.approx(2 / 7)
    assert got.nvdec_sessions == {"opened": 7}
    assert (got.bytes_to_device, got.bytes_on_device, got.bytes_from_device) == (30, 40, 50)
    assert got.copies_per_byte == 1.5
    assert make_report(counts, counts, FACTS).nvdec_frames_per_engine == 0


@pytest.mark.parametrize(
    ("wait_s", "fetch_s", "decode_s", "verdict"),
    [
        (0.1, 40, 20, "The consumer sets the pace: it waited for the loader 1% of the time."),
        (9.0, 4, 19, "Decoding sets the pace: its 2 threads were busy 95% of the time"),
        (9.0, 38, 2, "Fetching sets the pace: its 4 threads were busy 95% of the time"),
    ],
)
def test_the_verdict_names_the_busiest_stage(
    wait_s: float, fetch_s: float, decode_s: float, verdict: str
) -> None:
    got = report(
        clips__delivered=20, seconds__wait=wait_s, seconds__fetch_stage=fetch_s,
        seconds__decode_stage=decode_s,
    )  # fmt: skip
    assert got.bottleneck.startswith(verdict)


def test_an_empty_report_has_no_nonsense() -> None:
    empty = make_report(Meter().snapshot(), Meter().snapshot(), RunFacts(0.0, 0.0, 1, 1, 1))
    assert empty.clips_per_second == empty.byte_amplification == empty.wait_share == 0
    assert empty.bottleneck == "Nothing was delivered yet."
    document = json.loads(json.dumps(empty.as_json()))
    assert set(document) == {spec.name for spec in dataclasses.fields(LoaderReport)}
