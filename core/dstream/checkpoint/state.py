"""Saving and loading a training's state in one call, with the position of its data loader."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from dstream.catalog import Generation
from dstream.checkpoint.dcp_reader import StorageReader
from dstream.checkpoint.dcp_writer import StorageWriter
from dstream.checkpoint.direct import device_reads, direct_tensors
from dstream.checkpoint.repository import Repository, opened
from dstream.checkpoint.torch_api import CheckpointException, dcp, dist, is_distributed
from dstream.errors import DstreamError, InvalidInputError
from dstream.measure import Meter


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded, beside the state itself."""

    generation: Generation
    loader_state: dict[str, object] | None
    """Where the data loader stood; None where that was not saved."""
    device_reads: dict[str, int] = field(default_factory=dict)
    """With ``direct``: reads into the GPU's memory by how they went; ``gds`` is GPUDirect
    Storage, all else went through the host."""


class Positioned(Protocol):
    """A data loader that can say where it stands: dstream's own."""

    def state_dict(self) -> dict[str, object]:
        """A JSON object, equal on all ranks."""
        ...

    def load_state_dict(self, state: Mapping[str, object], /) -> None:
        """Go on from there."""
        ...


def save(
    state: Mapping[str, Any],
    repo: Repository,
    name: str,
    *,
    step: int,
    loader: Positioned | None = None,
    loader_state: Mapping[str, object] | None = None,
    attrs: Mapping[str, object] | None = None,
    message: str = "",
    promote: str | None = None,
    idempotency_key: str | None = None,
    spool_dir: str | os.PathLike[str] | None = None,
    planner: Any = None,
    process_group: Any = None,
) -> Generation:
    """Save ``state`` as the next generation of ``name``; every rank of the group calls it.

    Nothing is visible before all ranks have stored their part; then everything is, together with
    the loader's position.

    Args:
        state: tensors and plain values by name, also nested, also sharded over ranks; objects
            with a ``state_dict``.
        repo: the repository.
        name: of the checkpoint.
        step: of the training; ``latest`` is the highest one.
        loader: dstream's loader, whose position goes into the same generation.
        loader_state: instead, a JSON object that says where the data loader stood. The first
            rank's counts.
        attrs: JSON values to keep with the generation.
        message: for people.
        promote: an alias that points at the new generation from the same commit on.
        idempotency_key: stands for exactly this content.
        spool_dir: where files wait to be sent.
        planner: torch's, for its options.
        process_group: torch's; all ranks by default.

    Returns:
        The new generation, on every rank.

    Raises:
        InvalidInputError: on every rank, if their loaders stand at different places.
        DstreamError: on every rank, if one of them failed; nothing became visible. An error of
            torch's own is told in its message.
    """
    if loader is not None:
        if loader_state is not None:
            raise InvalidInputError("give loader= or loader_state=, not both")
        loader_state = _position(loader, process_group)
    with opened(repo) as catalog, _plainly("save"):
        writer = StorageWriter(
            catalog,
            name,
            step=step,
            attrs=attrs,
            loader_state=loader_state,
            message=message,
            promote=promote,
            idempotency_key=idempotency_key,
            spool_dir=spool_dir,
        )
        metadata = dcp.save(
            dict(state),
            storage_writer=writer,
            planner=planner,
            process_group=process_group,
            no_dist=not is_distributed(),
        )
    generation: Generation = metadata.dstream_generation
    return generation


def load(
    state: dict[str, Any],
    repo: Repository,
    reference: str,
    *,
    loader: Positioned | None = None,
    allow_pickles: bool = False,
    direct: str | None = None,
    planner: Any = None,
    process_group: Any = None,
) -> Loaded:
    """Load a generation into ``state``, in place; every rank of the group calls it.

    The number of ranks may differ from that of the save. All ranks load the same generation,
    also where an alias moves meanwhile: the first one looks it up for all.

    Args:
        state: what to fill: tensors of the right shapes, and keys of plain values.
        repo: the repository.
        reference: ``name`` (its latest), ``name@v3``, ``name@alias`` or ``name@newest``.
        loader: dstream's loader; it goes on where that of the save stood.
        allow_pickles: also load objects whose loading runs code that is stored with them.
        direct: ``cuda`` or ``cuda:N``: from a repository on a local file system, tensors are read
            straight into this GPU's memory by kvikio, past their checksums; see docs/gpu.md.
        planner: torch's, for its options.
        process_group: torch's; all ranks by default.

    Raises:
        NotFoundError: there is no such generation.
        InvalidInputError: ``loader`` is not over the data or in the order of the save's; or no
            loader's position was saved.
        DstreamError: on every rank, if one of them failed.
    """
    with opened(repo) as catalog:
        exact = _agreed(lambda: catalog.resolve(reference).label, process_group)
        meter = Meter()
        tensors = None if direct is None else direct_tensors(direct, catalog.store.url, meter)
        reader = StorageReader(catalog, exact, allow_pickles=allow_pickles, direct=tensors)
        try:
            with _plainly("load"):
                dcp.load(
                    state,
                    storage_reader=reader,
                    planner=planner,
                    process_group=process_group,
                    no_dist=not is_distributed(),
                )
        except DstreamError as error:
            # Torch hides why the metadata could not be read behind an error of its own.
            if reader.failure is not None:
                raise reader.failure from error
            raise
        loaded = Loaded(reader.generation, reader.loader_state, device_reads(meter))
    if loader is not None:
        if loaded.loader_state is None:
            raise InvalidInputError(
                f"{loaded.generation.label} was saved without a loader's position; load it without "
                "loader=, and say where the data begin",
                generation=loaded.generation.label,
            )
        loader.load_state_dict(loaded.loader_state)
    return loaded


def _position(loader: Positioned, process_group: Any) -> dict[str, object]:
    """Where the loaders of all ranks stand."""
    mine = loader.state_dict()
    if not is_distributed():
        return mine
    states: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(states, mine, group=process_group)
    for rank, other in enumerate(states):
        differing = [name for name in states[0] if states[0][name] != other.get(name)]
        if differing:
            told = ", ".join(
                f"{name} {states[0][name]} and {other.get(name)}" for name in differing
            )
            raise InvalidInputError(
                f"the loaders of ranks 0 and {rank} stand at different places ({told}): save on "
                "all ranks after the same batch, over the same data",
                rank=rank,
            )
    return mine


def _agreed(look: Any, process_group: Any) -> str:
    """What the group's first rank finds, or the error that it met, on every rank."""
    if not is_distributed():
        found: str = look()
        return found
    told: list[Any] = [None]
    if dist.get_rank(process_group) == 0:
        try:
            told = [look()]
        except Exception as error:
            told = [error]
    first = 0 if process_group is None else dist.get_global_rank(process_group, 0)
    dist.broadcast_object_list(told, src=first, group=process_group)
    if isinstance(told[0], Exception):
        raise told[0]
    return str(told[0])


@contextmanager
def _plainly(verb: str) -> Iterator[None]:
    """Take this library's errors out of torch's, which are no ``Exception``; hide one warning."""
    with warnings.catch_warnings():
        # Torch warns where there is no process group; one process alone is a use like any other.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as error:
            failures = {rank: wrapped[0] for rank, wrapped in error.failures.items()}
            ours = [e for _, e in sorted(failures.items()) if isinstance(e, DstreamError)]
            if ours:
                raise ours[0] from error
            rank, first = min(failures.items())
            raise DstreamError(
                f"torch could not {verb} the state: rank {rank} of {len(failures)} that failed: "
                f"{type(first).__name__}: {first}",
                ranks=sorted(failures),
            ) from error
