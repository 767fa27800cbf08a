"""Which samples are shown: ``split=`` and ``where=`` together, in every process alike."""

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dstream
from dstream import forks
from dstream.catalog import Catalog
from dstream.errors import InvalidInputError, StorageError
from dstream.format import chosen_rows
from dstream.format.chosen_rows import Choice
from dstream.format.manifest import Manifest, merge_manifests
from dstream.format.where import parse_where
from dstream.loader import generation
from dstream.loader.generation import GenerationSource
from dstream.measure import Purpose
from dstream.store.opening import open_store
from loader_data import fill, new_url, publish, videos

LABELS: dict[str, list[Any]] = {
    "motion": [0.1, 0.2, 0.3, 0.4], "place": ["a", "b", None, "a"], "width": [1, 2, 3, 4],
}  # fmt: skip
SPLITS = {"v00": "train", "v01": "val", "v02": "train", "v03": "train"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("choosing")
    source, repository = new_url(), new_url()
    fill(open_store(source), videos(folder, 4, frames=24))
    publish(repository, source, packed=True, splits=SPLITS, labels=LABELS)
    other = {"blur": [5, 6, 7, 8]}
    publish(repository, source, packed=True, name="other", labels=other)
    return repository


def shown(repository: str, **choice: Any) -> dstream.Clips:
    return dstream.open(repository).clips("d", frames=4, array="numpy", **choice)


def test_a_filter_and_a_split_hold_together(repository: str) -> None:
    assert shown(repository, where="motion > 0.15").keys() == ["v01", "v02", "v03"]
    assert shown(repository, where="motion > 0.15", split="train").keys() == ["v02", "v03"]
    clips = shown(repository, where="place = 'a' and codec = 'h264'", split="train")
    assert clips.keys() == ["v00", "v03"]
    with clips.loader(2, epochs=2) as loader:
        keys = [key for batch in loader for key in batch.keys]
    assert sorted(set(keys)) == ["v00", "v03"]
    assert clips["v03"].key == "v03"
    with pytest.raises(dstream.NotFoundError, match="v01"):
        clips.clip("v01")
    with pytest.raises(InvalidInputError, match="has no sample with split='val' and where="):
        shown(repository, where="motion > 0.3", split="val")


def test_the_fingerprint_is_that_of_what_was_chosen(repository: str) -> None:
    everything = shown(repository).fingerprint
    some = shown(repository, where="motion > 0.15").fingerprint
    assert some == shown(repository, where="sample.motion >= 0.16 -- others").fingerprint
    assert len({everything, some, shown(repository, where="motion > 0.25").fingerprint}) == 3


def test_an_unknown_column_is_told_with_those_there_are(repository: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"no column 'movement'; there are .*motion"
    ) as caught:
        shown(repository, where="movement > 1")
    assert "first_pts" not in str(caught.value)
    with pytest.raises(InvalidInputError, match=r"write sample\.width or stream\.width"):
        shown(repository, where="width > 1")
    assert shown(repository, where="sample.width > 3 and stream.width > 3").keys() == ["v03"]


def test_a_label_of_one_part_is_null_in_the_others(repository: str) -> None:
    store = open_store(repository)
    catalog = Catalog.open(store)
    manifests = [catalog.dataset(catalog.resolve(name)) for name in ("d", "other")]
    both: Manifest = merge_manifests(manifests[0], manifests[1])

    def keys(where: str) -> list[str]:
        choice = Choice(where=parse_where(where))
        return GenerationSource("both", store, both, open_store, choice=choice).keys()

    assert keys("blur > 6 or motion < 0.15") == ["v00", "v02", "v03"]
    assert keys("blur is null and place is null") == ["v02"]
    with pytest.raises(InvalidInputError, match=r"no column 'sharpness'; there are .*blur"):
        keys("sharpness is null")


def test_what_was_chosen_goes_along_and_is_not_evaluated_again(
    repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = shown(repository, where="motion > 0.25")

    def no_database(*_: object, **__: object) -> None:
        raise AssertionError("DuckDB after opening")

    monkeypatch.setattr(chosen_rows, "locked_connection", no_database)
    monkeypatch.setattr(duckdb, "connect", no_database)
    assert pickle.loads(pickle.dumps(clips)).keys() == ["v02", "v03"]
    answer = in_fork(lambda: (clips.keys(), clips.fingerprint, clips["v03"].video.shape))
    assert answer == (["v02", "v03"], clips.fingerprint, clips["v03"].video.shape)


def test_a_hostile_filter_stops_before_anything_is_read(repository: str, tmp_path: Path) -> None:
    repo = dstream.open(repository)
    before = repo.meter.snapshot()
    for where in ("random() < 0.5", "1 = (select 1)", f"read_text('{tmp_path}') is null"):
        with pytest.raises(InvalidInputError, match="not allowed"):
            repo.clips("d", frames=4, where=where)
    assert repo.meter.snapshot().minus(before).total().count == 0


def in_fork(work: Any) -> Any:
    """What ``work()`` gives in a forked process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=lambda: theirs.send(work()), daemon=True)
    child.start()
    assert ours.poll(60), "the child hangs"
    answer = ours.recv()
    child.join()
    return answer


def test_names_of_a_large_dataset_are_read_with_the_first_sample_and_before_a_fork(
    repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shown(repository)
    monkeypatch.setattr(generation, "EAGER_ROWS", 3)

    def tables(clips: dstream.Clips) -> int:
        return clips.meter.snapshot().total(purpose=Purpose.TABLE).count

    clips = shown(repository, split="train", where="motion < 0.35")
    opened = tables(clips)
    with clips.loader(1) as loader:
        assert len(loader) == 12
    assert tables(clips) == opened  # nothing but the plan
    assert clips["v02"].key == "v02"
    assert tables(clips) == opened + 3 + 1  # names and places, and the group of packet tables
    assert clips.keys() == ["v00", "v02"]
    assert tables(clips) == opened + 4
    late = shown(repository)
    opened = tables(late)
    assert in_fork(lambda: (late.keys(), tables(late))) == (whole.keys(), opened + 3)
    assert tables(late) == opened + 3
    assert late.fingerprint == whole.fingerprint


def test_a_child_that_was_forked_without_the_names_says_so(
    repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "EAGER_ROWS", 3)
    clips = shown(repository)
    monkeypatch.setattr(forks, "_PREPARABLE", {})

    def ask() -> str:
        try:
            return clips.source.key(0)
        except StorageError as error:
            return str(error)

    assert "was not read before this process was forked" in in_fork(ask)
    assert pickle.loads(pickle.dumps(clips)).keys() == ["v00", "v01", "v02", "v03"]
