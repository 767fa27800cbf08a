"""A loader renews the pin that it reads through; what it cannot renew, it says."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

import dstream
from dstream.catalog import Catalog, GcSettings
from dstream.clock import FakeClock
from dstream.errors import DstreamWarning, StorageError
from dstream.loader.pins import FrozenView, PinKeeper
from dstream.measure import Meter, Purpose
from dstream.store.base import ObjectInfo, Store
from dstream.store.faulty import FaultyStore
from dstream.store.memory import MemoryStore
from dstream.store.opening import open_store
from lifecycle_made import AT_ONCE, DAY_S, four_runs
from loader_data import fill, new_url, publish, videos
from s3_services import S3Place, absent, plain_client


class Held:
    """A pin of a day in a store with a clock of its own."""

    def __init__(self) -> None:
        self.server, self.client = FakeClock(), FakeClock()
        self.store = MemoryStore(clock=self.server)
        self.catalog = four_runs(self.store)
        self.meter = Meter()

    def keeper(self, ttl_s: float | None = DAY_S, store: Store | None = None) -> PinKeeper:
        token = self.catalog.pin(pin_id="p", ttl_s=ttl_s).token
        return PinKeeper(FrozenView(token, store or self.store, self.client), self.meter)

    def sleep(self, duration_s: float) -> None:
        self.server.sleep(duration_s)
        self.client.sleep(duration_s)

    @property
    def counted(self) -> dict[str, int]:
        return self.meter.snapshot().event("pin")


def test_it_is_renewed_well_before_it_ends() -> None:
    held = Held()
    keeper = held.keeper()
    held.catalog.retire("run@v1")
    for _ in range(20):  # five times as long as it lasts
        wait_s = keeper.renew_once()
        assert wait_s == DAY_S / 4
        held.sleep(wait_s)
        assert not held.catalog.gc(AT_ONCE).expired_pins
    assert held.counted == {"renewed": 20}
    held.sleep(DAY_S)
    assert held.catalog.gc(AT_ONCE).expired_pins == ["p"]
    assert keeper.renew_once() is None
    (notice,) = keeper.notices()
    assert "pin of this run is lost" in notice
    assert keeper.notices() == []
    assert held.counted == {"renewed": 20, "lost": 1}


def test_a_pin_without_a_time_is_left_alone() -> None:
    held = Held()
    keeper = held.keeper(ttl_s=None)
    before = held.catalog.head().seq
    assert keeper.renew_once() is None
    assert held.catalog.head().seq == before
    assert held.counted == {}


class Flaky(FaultyStore):
    """Fails to commit as long as it is told to."""

    down = False

    def put_if_absent(self, key: str, data: bytes, *, purpose: Purpose = Purpose.LOG) -> ObjectInfo:
        if self.down:
            raise StorageError("the store is down")
        return super().put_if_absent(key, data, purpose=purpose)


def test_a_failure_is_tried_again_sooner_and_told_when_it_lasts() -> None:
    held = Held()
    flaky = Flaky(held.store)
    keeper = held.keeper(store=flaky)
    keeper.renew_once()
    flaky.down = True
    held.sleep(DAY_S / 4)
    told: list[str] = []
    for _ in range(6):
        wait_s = keeper.renew_once()
        assert wait_s == DAY_S / 16
        held.sleep(wait_s)
        told += keeper.notices()
    (notice,) = told
    assert "could not be renewed" in notice
    assert "of 86400 s that it lasts" in notice
    flaky.down = False
    assert keeper.renew_once() == DAY_S / 4
    assert held.counted["renewed"] == 2
    assert held.counted["failed"] >= 6


@pytest.fixture
def repo(tmp_path: Path) -> str:
    source = new_url()
    fill(open_store(source), videos(tmp_path / "made", 1, frames=24, size=(64, 64)))
    publish(url := str(tmp_path / "repo"), source, packed=True)
    return url


def renewals(url: str) -> int:
    with dstream.open(url) as repo:
        return sum("renew" in str(entry.ops) for entry in repo.log(None))


def pin_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dstream-pin"]


def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


def test_a_run_holds_its_pin_on_one_rank(repo: str) -> None:
    with dstream.open(repo) as opened:
        token = opened.pin(["d"], pin_id="run", ttl_s=4.0).token
        clips = opened.clips("d", frames=4, array="numpy", pin=token)
        others = clips.loader(1, rank=1, world_size=2, epochs=None)
        next(others)
        assert not pin_threads()
        with clips.loader(1, rank=0, world_size=2, epochs=None) as loader:
            assert not pin_threads()  # nothing before the first batch
            next(loader)
            until(lambda: loader.report().pin_renewals.get("renewed", 0) >= 3)
            assert len(pin_threads()) == 1
        assert not pin_threads()
        others.close()
    assert renewals(repo) >= 3


def test_a_lost_pin_is_told_and_the_run_goes_on(repo: str) -> None:
    with dstream.open(repo) as opened:
        token = opened.pin(["d"], pin_id="run", ttl_s=1000.0).token
        opened.unpin("run")
        clips = opened.clips("d", frames=4, array="numpy", pin=token)
        with clips.loader(1) as loader, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = [next(loader)]
            until(lambda: bool(loader.report().pin_renewals))
            batches += list(loader)
            assert loader.report().pin_renewals == {"lost": 1}
    assert len(batches) == 6
    (warning,) = caught
    assert warning.category is DstreamWarning
    assert "there is no pin 'run'" in str(warning.message)


def test_bytes_that_a_lost_pin_let_go_are_an_error(repo: str) -> None:
    with dstream.open(repo) as opened:
        token = opened.pin(["d"], pin_id="run", ttl_s=1000.0).token
        clips = opened.clips("d", frames=4, array="numpy", pin=token)
        opened.unpin("run")
        opened.remove_alias("d", "latest")
        opened.retire("d@v1")
        opened.gc(GcSettings(grace_s=0.0, session_grace_s=0.0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DstreamWarning)
            with clips.loader(1) as loader, pytest.raises(dstream.NotFoundError):
                list(loader)
        with pytest.raises(dstream.NotFoundError):
            opened.clips("d", frames=4, pin=token)


@pytest.mark.rgw
def test_a_role_that_may_only_read_streams_and_is_warned(
    rgw_bucket: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in rgw_bucket.environment.items():
        monkeypatch.setenv(name, value)
    source = new_url()
    fill(open_store(source), videos(tmp_path / "made", 1, frames=24, size=(64, 64)))
    publish(url := f"{rgw_bucket.url}/repo", source, packed=True)
    with closing(open_store(url)) as store:
        token = Catalog.open(store).pin(["d"], pin_id="run", ttl_s=1000.0).token
    arn = f"arn:aws:s3:::{rgw_bucket.bucket}"
    reading = {
        "Effect": "Allow",
        "Principal": {"AWS": ["arn:aws:iam:::user/dstream-reader"]},
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [arn, f"{arn}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [reading]})
    client = plain_client(rgw_bucket.endpoint_url)
    try:
        client.put_bucket_policy(Bucket=rgw_bucket.bucket, Policy=policy)
    except ClientError as error:
        absent("rgw", f"the server has no users for the roles ({error}); see scripts/rgw-up")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "dstream-reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dstream-reader-secret")
    with dstream.open(token) as opened:
        clips = opened.clips("d", frames=4, array="numpy")
        with clips.loader(1) as loader, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = [next(loader)]
            until(lambda: bool(loader.report().pin_renewals))
            batches += list(loader)
            assert loader.report().pin_renewals == {"no-permission": 1}
    assert len(batches) == 6
    (warning,) = [w for w in caught if w.category is DstreamWarning]
    assert "PutObject" in str(warning.message)
    assert "dstream renew run" in str(warning.message)
