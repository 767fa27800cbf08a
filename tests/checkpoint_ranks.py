"""What the ranks of the torch tests run; importable, so that they can be spawned."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from dstream.catalog import Catalog
from dstream.checkpoint import StorageWriter, load, save
from dstream.checkpoint.repository import checkpoint_of
from dstream.checkpoint.torch_api import CheckpointException, dcp
from dstream.store.opening import open_store

ROWS = 24


def enter(environment: dict[str, str], work: Callable[..., None], *arguments: object) -> None:
    """Run ``work`` in the environment of the test."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    work(*arguments)


def join(rank: int, ranks: int, meeting: str) -> None:
    """Become one rank of a gloo group."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)


def whole(salt: int = 0) -> torch.Tensor:
    return torch.arange(ROWS * 5, dtype=torch.float32).reshape(ROWS, 5) + salt * 1000


def state(ranks: int, salt: int = 0) -> dict[str, Any]:
    """A sharded tensor, one that all ranks have, and plain values."""
    mesh = init_device_mesh("cpu", (ranks,))
    return {
        "model": {"sharded": distribute_tensor(whole(salt), mesh, [Shard(0)])},
        "bias": torch.full((3,), float(salt), dtype=torch.bfloat16),
        "optimizer": {"lr": 0.5 + salt, "betas": [0.9, 0.99], "name": "adam"},
    }


def report(folder: str, rank: int, **facts: Any) -> None:
    """Leave what this rank found for the test."""
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(facts))


def save_many(rank: int, ranks: int, meeting: str, url: str, out: str) -> None:
    """Three saves; the plans of the later ones are cached."""
    join(rank, ranks, meeting)
    planner = DefaultSavePlanner(enable_plan_caching=True)
    labels = []
    for number in range(3):
        made = save(
            state(ranks, number),
            url,
            "run",
            step=number * 10,
            loader_state={"position": number * 7},
            planner=planner,
        )
        labels.append(made.label)
    report(out, rank, labels=labels)
    dist.destroy_process_group()


def save_and_lose_a_rank(rank: int, ranks: int, meeting: str, url: str, out: str, how: str) -> None:
    """The last rank fails, or is killed, when it has written half; the others must not commit."""
    join(rank, ranks, meeting)
    writer = StorageWriter(url, "run", step=99)
    if rank == ranks - 1:
        real = writer.write_data

        def half(plan: Any, planner: Any) -> Any:
            done = real(plan, planner)
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"lost after {done}")

        setattr(writer, "write_data", half)  # noqa: B010
    try:
        dcp.save(state(ranks), storage_writer=writer)
    except (Exception, CheckpointException) as error:
        report(out, rank, error=type(error).__name__)
        return
    report(out, rank, error=None)


def save_async(rank: int, ranks: int, meeting: str, url: str, out: str, kind: str) -> None:
    """async_save, then promote when it is done; latest is looked at all the time before."""
    join(rank, ranks, meeting)
    catalog = Catalog.open(open_store(url))
    before = catalog.resolve("run@latest").label
    future: Any = dcp.async_save(
        state(ranks, 5),
        storage_writer=StorageWriter(url, "run", step=500, promote="prod"),
        async_checkpointer_type=dcp.state_dict_saver.AsyncCheckpointerType(kind),
    )
    seen = set()
    while not future.done():
        seen.add(catalog.resolve("run@latest").label)
        # Whatever latest means is there whole.
        found = checkpoint_of(catalog, catalog.resolve("run@latest"))
        for file in found.files:
            assert catalog.store.head(file.object.key).size_bytes == file.object.size_bytes
    future.result()
    report(out, rank, before=before, seen=sorted(seen), after=catalog.resolve("run@prod").label)
    dist.destroy_process_group()


def load_resharded(
    rank: int, ranks: int, meeting: str, url: str, out: str, reference: str, salt: int
) -> None:
    """Load onto another number of ranks than saved."""
    join(rank, ranks, meeting)
    into = state(ranks, salt=-1)
    found = load(into, url, reference)
    expected = state(ranks, salt)
    same = torch.equal(
        into["model"]["sharded"].full_tensor(), expected["model"]["sharded"].full_tensor()
    )
    report(
        out,
        rank,
        label=found.generation.label,
        loader_state=found.loader_state,
        same=same and torch.equal(into["bias"], expected["bias"]),
        optimizer=into["optimizer"] == expected["optimizer"],
    )
    dist.destroy_process_group()


def load_different(rank: int, ranks: int, meeting: str, url: str, out: str) -> None:
    """Ranks that mean different generations are refused."""
    from dstream.checkpoint import StorageReader

    join(rank, ranks, meeting)
    try:
        dcp.load(state(ranks), storage_reader=StorageReader(url, f"run@v{rank + 1}"))
    except CheckpointException as error:
        report(out, rank, error=str(error))
    dist.destroy_process_group()
