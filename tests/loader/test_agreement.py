"""Ranks that would read different things stop at once; their reports come together."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from contextlib import closing
from pathlib import Path

import pytest

import dstream
from dstream.catalog import Catalog
from dstream.errors import InvalidInputError
from dstream.loader.report import RunFacts, gather_reports, make_report
from dstream.loader.state import RankFacts, check_agreement
from dstream.loader.steps import Ranks
from dstream.measure import Snapshot
from dstream.store.opening import open_store
from loader_data import videos


@pytest.fixture
def facts(tmp_path: Path) -> RankFacts:
    videos(tmp_path, 1, frames=24, size=(64, 64))
    loader = dstream.clips(tmp_path, frames=4, clips_per_file=6).loader(2, rank=0, world_size=4)
    return loader.facts


def world(facts: RankFacts, size: int = 4) -> list[RankFacts]:
    return [dataclasses.replace(facts, ranks=Ranks(2, rank, size)) for rank in range(size)]


def test_ranks_that_agree_pass(facts: RankFacts) -> None:
    check_agreement(world(facts))
    check_agreement(world(facts) * 2)  # two groups of processes read the same
    check_agreement(world(facts, 1))


def test_what_differs_is_named(facts: RankFacts) -> None:
    cursor = dataclasses.replace(facts.cursor, position=8)
    others = {
        "data": dataclasses.replace(
            facts.identity, data="0" * 64, name="other", slots=5, order="x"
        ),
        "seed": dataclasses.replace(facts.identity, seed=3, order="y"),
    }
    for name, identity in others.items():
        ranks = world(facts)
        ranks[2] = dataclasses.replace(ranks[2], identity=identity)
        with pytest.raises(InvalidInputError, match="process 2 of 4 does not read") as caught:
            check_agreement(ranks)
        assert set(caught.value.facts["differences"]) == {name}  # type: ignore[call-overload]
    ranks = world(facts)
    ranks[3] = dataclasses.replace(ranks[3], cursor=cursor)
    with pytest.raises(InvalidInputError, match="position 0 on 0, 8 there"):
        check_agreement(ranks)
    ranks[3] = dataclasses.replace(facts, ranks=Ranks(1, 3, 4, "drop"))
    with pytest.raises(InvalidInputError, match=r"batch_size 2 on 0, 1 there; last wrap on 0"):
        check_agreement(ranks)


def test_a_missing_rank_is_found(facts: RankFacts) -> None:
    ranks = world(facts)
    ranks[3] = ranks[2]
    with pytest.raises(InvalidInputError, match=r"ranks \[0, 1, 2, 2\] of 4"):
        check_agreement(ranks)
    with pytest.raises(InvalidInputError, match="read by none"):
        check_agreement(ranks[:3])


def test_the_slowest_rank_is_the_one_that_was_waited_for() -> None:
    def report(wait_s: float) -> dstream.LoaderReport:
        sums = {"seconds.wait": wait_s, "clips.delivered": 10.0}
        run = RunFacts(10.0, 0.5, 4, 2, 2)
        return make_report(Snapshot(sums=sums), Snapshot(), run)

    whole = gather_reports([report(0.5), report(6.0), report(1.0)])
    assert isinstance(whole, dstream.RanksReport)
    assert (whole.slowest_rank, whole.wait_seconds, whole.clips) == (1, 6.0, 30)
    assert whole.slowest is whole.ranks[1]
    assert whole.clips_per_second == pytest.approx(3.0)
    assert whole.wait_spread_seconds == pytest.approx(5.5)
    assert whole.summary.startswith("Rank 1 of 3 waited longest, 6.0 s; the least was 0.5 s.")
    document = json.loads(json.dumps(whole.as_json()))
    assert document["slowest_rank"] == 1
    assert len(document["ranks"]) == 3


def test_alone_there_is_nobody_to_ask(tmp_path: Path) -> None:
    videos(tmp_path, 1, frames=24, size=(64, 64))
    with dstream.clips(tmp_path, frames=4).loader(1) as loader:
        with pytest.raises(InvalidInputError, match="is not initialised"):
            loader.check_ranks()
        with pytest.raises(InvalidInputError, match="report\\(gather=True\\)"):
            loader.report(gather=True)


def test_real_ranks_that_list_other_data_stop_all(tmp_path: Path) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    import loader_ranks

    sources = [str(tmp_path / "a"), str(tmp_path / "b")]
    videos(tmp_path / "a", 2, frames=24, size=(64, 64))
    videos(tmp_path / "b", 1, frames=24, size=(64, 64))
    with closing(open_store(tmp_path / "repo")) as store:
        Catalog.create(store)
    (out := tmp_path / "out").mkdir()
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch.distributed.checkpoint", "torch.distributed.tensor"])
    arguments = (2, str(out), sources, str(tmp_path / "repo"))
    processes = [
        server.Process(target=loader_ranks.enter, args=({}, rank, *arguments)) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    told = [json.loads((out / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [each.pop("place") for each in told] == ["0 of 2", "1 of 2"]
    assert told[0] == told[1]
    assert "position 0 on 0, 2 there" in told[0]["position"]
    assert "ranks 0 and 1 stand at different places (position 0 and 2)" in told[0]["save"]
    assert "process 1 of 2 does not read what process 0 reads: data" in told[0]["data"]
    with dstream.open(tmp_path / "repo") as repo:
        assert repo.names() == []
