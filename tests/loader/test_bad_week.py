"""A store that fails now and then in every way: the same batches, nothing raised, all counted."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dstream
from dstream import Clips
from dstream.measure import Meter
from dstream.store.opening import open_store
from dstream.store.options import StoreOptions
from dstream.store.retry import RetryPolicy
from loader_data import batch_hash, fill, publish, videos
from s3_bad_week import SHARES, BadWeek
from s3_services import REGION, S3Place, own_bucket
from s3_stub import Reply, Request, Stub, forward_to, remembered, stub_server

STALL_S = 4.0
"""Instead of 10 s; and the first timeout is 1 s, not 5 s, so that two in a row are late too."""


def options(url: str) -> StoreOptions:
    quick = RetryPolicy(first_wait_s=0.005, longest_wait_s=0.05)
    return StoreOptions(
        endpoint_url=url, region=REGION, stall_timeout_s=STALL_S / 4, read_timeout_s=30, retry=quick
    )


@pytest.fixture
def front() -> Iterator[Stub]:
    with stub_server() as stub:
        yield stub


@pytest.fixture(scope="module")
def place(moto_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Place]:
    """A packed data set ``d`` and the same left in place, ``p``."""
    made = videos(tmp_path_factory.mktemp("made"), 4, frames=120, gop=12)
    with own_bucket(moto_url) as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", place.endpoint_url)
        fill(open_store(f"{place.url}/raw"), made)
        publish(f"{place.url}/repo", f"{place.url}/raw", packed=True)
        publish(f"{place.url}/repo", f"{place.url}/raw", packed=False, name="p")
        yield place


def opened(place: S3Place, front: Stub, name: str, **wanted: Any) -> tuple[Clips, Meter]:
    meter = Meter()
    repo = dstream.open(f"{place.url}/repo", options=options(front.endpoint_url), meter=meter)
    return repo.clips(name, frames=2, array="numpy", **wanted), meter


def hashes(clips: Clips, **settings: Any) -> list[str]:
    with clips.loader(4, fetchers=8, **settings) as loader:
        return [batch_hash(batch) for batch in loader]


def is_shard(request: Request) -> bool:
    return "/shard" in request.path


@pytest.mark.parametrize("name", ["d", "p"])
def test_a_bad_week_changes_nothing(
    place: S3Place, front: Stub, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", front.endpoint_url)  # of the source left in place
    front.answer = right = remembered(forward_to(place.endpoint_url))
    expected = hashes(opened(place, front, name)[0])
    # Three times the shares: there are 250 reads, and each kind must come up.
    shares = {kind: 3 * share for kind, share in SHARES.items()}
    week = BadWeek(right, seed=3, stall_s=STALL_S, has_checksum=is_shard, shares=shares)
    clips, meter = opened(place, front, name)
    front.answer = week
    assert hashes(clips) == expected
    counts = meter.snapshot()
    happened = dict(week.happened)
    assert counts.event("retry") | counts.event("refetch") == {
        {"wrong": "checksum"}.get(kind, kind): count for kind, count in happened.items()
    }
    assert counts.event("throttle") == {"SlowDown": happened["throttled"]}
    assert set(happened) == set(SHARES) - ({"wrong"} if name == "p" else set())
    unverified = counts.sums.get("bytes.unverified", 0)
    assert unverified == 0 if name == "d" else unverified > 0


def test_bytes_that_stay_wrong_name_their_object(place: S3Place, front: Stub) -> None:
    right = forward_to(place.endpoint_url)
    week = BadWeek(right, seed=0, stall_s=0, has_checksum=is_shard, shares={"wrong": 1.0})
    front.answer = right
    clips, meter = opened(place, front, "d")
    front.answer = week
    with pytest.raises(dstream.CorruptDataError, match=r"object 'data/.*shard' in s3://") as caught:
        hashes(clips, workers=1)
    assert caught.value.facts["sample_key"] in {"v00", "v01", "v02", "v03"}
    assert meter.snapshot().event("refetch")["checksum"] >= 3


STALLS = [
    pytest.param({"stall_s": 20.0}, id="before-headers"),
    pytest.param({"stall_s": 20.0, "stall_at": 100}, id="in-mid-body"),
    pytest.param({"trickle_s": 0.05}, id="trickle"),
]


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("stall", STALLS)
def test_a_read_has_a_deadline(front: Stub, stall: dict[str, Any]) -> None:
    body = np.random.default_rng(0).bytes(1000)
    named = {"Content-Range": "bytes 0-999/1000", "ETag": '"e"'}
    front.script(Reply(206, body, named, **stall), Reply(206, body, named))
    meter = Meter()
    store = open_store("s3://bucket", options=options(front.endpoint_url), meter=meter)
    assert store.get("k", 0, 1000).data == body
    counts = meter.snapshot()
    assert counts.event("retry") == {"read-deadline": 1}
    assert counts.total("get", outcome="read-deadline").count == 1
    store.close()


@pytest.mark.usefixtures("each_engine")
def test_a_slow_store_is_waited_for_longer_each_time(front: Stub) -> None:
    body = b"x" * 1000
    named = {"Content-Range": "bytes 0-999/1000", "ETag": '"e"'}
    front.script(Reply(206, body, named, stall_s=STALL_S * 0.35))
    meter = Meter()
    store = open_store("s3://bucket", options=options(front.endpoint_url), meter=meter)
    assert store.get("k", 0, 1000).data == body
    assert 1 <= meter.snapshot().event("retry")["read-deadline"] <= 3
    store.close()
