from __future__ import annotations

from pathlib import Path

import pytest

from dstream.clock import FakeClock
from dstream.errors import InvalidInputError, NotFoundError
from dstream.ingest import Estimate, IngestSettings, Layout, Prices, dry_run
from dstream.measure import Purpose
from dstream_recipes.video import RECIPE
from ingest_made import Place, fill, place, some_videos, video_bytes


@pytest.fixture
def here(tmp_path: Path) -> Place:
    (tmp_path / "source").mkdir()
    return place(tmp_path / "repo", tmp_path / "source")


def look(here: Place, sample_files: int = 8) -> Estimate:
    return dry_run(here.source, recipe=RECIPE, sample_files=sample_files, meter=here.meter)


def test_a_dry_run_predicts_what_the_ingest_then_costs(here: Place, tmp_path: Path) -> None:
    files = {**some_videos(20), "v000.json": b"{}", "bad.mp4": b"no video"}
    fill(tmp_path / "source", files)
    objects = here.objects()
    guess = look(here, sample_files=100)
    assert here.objects() == objects
    assert (guess.videos, guess.side_files, guess.usable_videos) == (21, 1, 20)
    assert guess.quarantined == {"not-media": 1}
    assert guess.bytes == sum(len(data) for data in files.values())
    assert guess.duration_s == pytest.approx(20 * 0.4, rel=0.1)

    before = here.meter.snapshot()
    here.ingest("packed")
    spent = here.meter.snapshot().minus(before)
    assert spent.total("get", Purpose.COPY).bytes_received == guess.packed.bytes_read
    written = sum(spent.total(verb).bytes_requested for verb in ("put", "upload"))
    assert written == pytest.approx(guess.packed.bytes_written, rel=0.5)

    before = here.meter.snapshot()
    here.ingest("in-place", layout=Layout.IN_PLACE)
    spent = here.meter.snapshot().minus(before)
    source = [spent.total("get", purpose) for purpose in (Purpose.INDEX, Purpose.DATA)]
    assert sum(total.count for total in source) == guess.in_place.get_requests
    assert sum(total.bytes_received for total in source) == guess.in_place.bytes_read


def test_a_sample_is_scaled_up_and_costs_no_more_than_it_says(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(30))
    before = here.meter.snapshot()
    guess = look(here, sample_files=3)
    read = here.meter.snapshot().minus(before).total("get")
    assert guess.sampled_videos == 3
    assert guess.sampled_bytes == read.bytes_received
    assert guess.usable_videos == 30
    assert guess.in_place.get_requests == 10 * (read.count - 3)


def test_files_that_need_a_full_pass_are_foretold(here: Place, tmp_path: Path) -> None:
    files = {f"{i}.ts": video_bytes(i, "mpegts", 120) for i in range(4)}
    fill(tmp_path / "source", {**files, "a.mp4": video_bytes(9)})
    guess = look(here)
    assert guess.full_pass_videos == 4
    assert guess.in_place.bytes_read >= sum(len(data) for data in files.values())


def test_prices_and_hours_follow_from_what_is_measured(here: Place, tmp_path: Path) -> None:
    fill(tmp_path / "source", some_videos(5))
    prices = Prices(put_per_million=1e6, get_per_million=0, storage_per_gb_month=1e9)
    guess = dry_run(here.source, recipe=RECIPE, prices=prices, clock=FakeClock())
    packed = guess.packed
    assert packed.dollars == packed.put_requests + packed.list_requests
    assert packed.dollars_per_month == packed.bytes_written
    assert guess.bytes_per_s == 0  # no time passed
    assert packed.hours == 0
    smaller = dry_run(
        here.source, recipe=RECIPE, settings=IngestSettings(shard_bytes=4_000), prices=prices
    )
    assert smaller.packed.objects_written > packed.objects_written


def test_what_cannot_be_estimated_is_said_so(here: Place) -> None:
    with pytest.raises(InvalidInputError, match="sample_files"):
        dry_run(here.source, recipe=RECIPE, sample_files=0)
    with pytest.raises(NotFoundError, match="no videos"):
        dry_run(here.source, recipe=RECIPE)
