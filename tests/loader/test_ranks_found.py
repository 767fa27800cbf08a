"""Which rank a process is, by what its launcher left in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

import dstream
from dstream.errors import InvalidInputError
from dstream.loader.ranks import place_of
from loader_data import videos

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "job"}
BY_HAND = {"RANK": "3", "WORLD_SIZE": "8"}
STEP = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "7"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "group", "expected"),
    [
        ({}, None, (0, 1)),
        ({}, (2, 4), (2, 4)),
        (BY_HAND, None, (3, 8)),
        (BY_HAND, (3, 8), (3, 8)),
        (TORCHRUN, None, (3, 8)),
        (STEP, None, (1, 2)),
        (BATCH, None, (0, 1)),
        (OPEN_MPI, None, (5, 6)),
        (PMI, None, (1, 2)),
        (PMI | STEP, None, (1, 2)),
        (OPEN_MPI | STEP, None, (5, 6)),
        (TORCHRUN | STEP, None, (3, 8)),
        (TORCHRUN | STEP | PMI, (3, 8), (3, 8)),
        (STEP, (0, 4), (0, 4)),
    ],
)
def test_where_ranks_come_from(
    environment: dict[str, str], group: tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    place = place_of(None, None, environment, group)
    assert (place.rank, place.world_size) == expected
    told = place_of(1, 3, environment, group)
    assert (told.rank, told.world_size) == (1, 3)


@pytest.mark.parametrize(
    ("environment", "group", "names"),
    [
        (BY_HAND, (0, 4), ["torch.distributed: rank 0 of 4", "RANK, WORLD_SIZE: rank 3 of 8"]),
        (BY_HAND | STEP, None, ["RANK, WORLD_SIZE: rank 3 of 8", "SLURM_STEP_NUM_TASKS"]),
        (BY_HAND | OPEN_MPI, None, ["rank 3 of 8", "OMPI_COMM_WORLD_SIZE: rank 5 of 6"]),
        ({"RANK": "1"}, None, ["WORLD_SIZE is not set"]),
        ({"WORLD_SIZE": "2"}, None, ["RANK is not set"]),
        ({"RANK": "1", "WORLD_SIZE": "two"}, None, ["WORLD_SIZE is 'two', no number"]),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, None, ["RANK is '-1'"]),
        ({"RANK": "2", "WORLD_SIZE": "2"}, None, ["RANK=2 is no rank of WORLD_SIZE=2"]),
    ],
)
def test_contradictions_are_named(
    environment: dict[str, str], group: tuple[int, int] | None, names: list[str]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        place_of(None, None, environment, group)
    for name in names:
        assert name in str(caught.value)
    assert "rank= and world_size=" in str(caught.value)
    assert place_of(0, 1, environment, group).origin == "arguments"


def test_half_of_the_arguments_is_refused() -> None:
    for rank, world_size in [(0, None), (None, 4)]:
        with pytest.raises(InvalidInputError, match="rank and world_size, or neither"):
            place_of(rank, world_size, {}, None)


def test_a_loader_finds_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    videos(tmp_path, 1, frames=24, size=(64, 64))
    clips = dstream.clips(tmp_path, frames=4, clips_per_file=6, array="numpy")
    with clips.loader(1) as loader:
        assert len(loader) == 6
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    with clips.loader(1) as loader:
        assert [batch.positions.tolist() for batch in loader] == [[1], [3], [5]]
    with clips.loader(1, rank=0, world_size=1) as loader:
        assert len(loader) == 6
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InvalidInputError, match="WORLD_SIZE is not set"):
        clips.loader(1)
