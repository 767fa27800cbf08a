"""What two ranks of a group do with their loaders; importable, so that they can be started."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import dstream
import dstream.checkpoint
from dstream.errors import InvalidInputError


def disagree(rank: int, ranks: int, out: str, sources: list[str], repo: str) -> None:
    """Each rank opens its own source; what each was told goes to ``rank<R>.json``."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{out}/meet", rank=rank, world_size=ranks)
    told: dict[str, str] = {}
    with dstream.clips(sources[0], frames=4).loader(1) as loader:
        loader.check_ranks()
        told["place"] = f"{loader.ranks.rank} of {loader.ranks.world_size}"
        if rank == 1:
            next(loader)
        state = {"w": torch.zeros(2)}
        calls: dict[str, Callable[[], object]] = {
            "position": loader.check_ranks,
            "save": lambda: dstream.checkpoint.save(state, repo, "run", step=1, loader=loader),
        }
        for name, call in calls.items():
            try:
                call()
            except InvalidInputError as error:
                told[name] = str(error)
    with dstream.clips(sources[rank], frames=4).loader(1) as loader:
        try:
            loader.check_ranks()
        except InvalidInputError as error:
            told["data"] = str(error)
    (Path(out) / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def enter(environment: dict[str, str], *arguments: object) -> None:
    """Run :func:`disagree` in the environment of the test."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    disagree(*arguments)  # type: ignore[arg-type]
