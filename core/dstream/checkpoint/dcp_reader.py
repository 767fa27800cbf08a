"""``torch.distributed.checkpoint`` loads from a repository, by ranged reads of what is needed."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import xxhash

from dstream.catalog import Catalog, Generation
from dstream.checkpoint.dcp_metadata import MAX_TWIN_BYTES, TWIN_NAME, Piece, decode_twin
from dstream.checkpoint.direct import DirectTensors
from dstream.checkpoint.repository import Repository, checkpoint_of, parts_of
from dstream.checkpoint.torch_api import (
    LoadItemType,
    ReaderBase,
    StorageMeta,
    done_future,
    narrow,
    torch,
)
from dstream.errors import (
    ConflictError,
    CorruptDataError,
    DstreamError,
    InvalidInputError,
    RefusedError,
)
from dstream.format.checkpoint import CheckpointManifest
from dstream.format.refs import ObjectRef
from dstream.format.root import sha256_hex
from dstream.measure import Purpose

_MAX_GAP_BYTES = 1 << 20
_RUN_BYTES = 32 << 20
_READ_BYTES = 16 << 20
_AHEAD_BYTES = 256 << 20
"""Bytes that are on their way or wait to be taken."""


@dataclass(frozen=True, slots=True)
class Run:
    """Items of one file that are read together."""

    object: ObjectRef
    start_byte: int
    stop_byte: int
    items: tuple[tuple[Any, Piece], ...]


class StorageReader(ReaderBase):  # type: ignore[misc]
    """Loads one generation, onto any number of ranks.

    All ranks must mean the same generation: give an exact one (``name@v7``), or use
    :func:`dstream.checkpoint.load`, which settles it once for all. Ranks that found different
    ones are refused.
    """

    def __init__(
        self,
        repo: Repository,
        reference: str,
        *,
        threads: int = 8,
        allow_pickles: bool = False,
        direct: DirectTensors | None = None,
    ) -> None:
        """A reader of one generation.

        Args:
            repo: the repository.
            reference: ``name@v7``; also an alias, which every rank looks up by itself.
            threads: reads at the same time.
            allow_pickles: hand objects to the planner that torch would not load with
                ``weights_only=True``. Such a pickle runs what its author wrote into it.
            direct: reads tensors into a GPU's memory, past their checksums.
        """
        super().__init__()
        self._store, self._catalog = parts_of(repo)
        self._reference = reference
        self._threads = max(1, threads)
        self._allow_pickles = allow_pickles
        self._direct = direct
        self._found: tuple[Generation, CheckpointManifest] | None = None
        self._pieces: dict[Any, Piece] = {}
        self.failure: DstreamError | None = None
        """Why the metadata could not be read."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_catalog": None}

    @property
    def generation(self) -> Generation:
        """What the reference means. Asked once."""
        return self._settled()[0]

    @property
    def loader_state(self) -> dict[str, object] | None:
        """Where the data loader stood; None where that was not saved."""
        state = self._settled()[1].loader_state
        return None if state is None else dict(state)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Load again; ``checkpoint_id`` is another reference."""
        if checkpoint_id is not None:
            self._reference = os.fspath(checkpoint_id)
        self._found = None
        self._pieces = {}

    def read_metadata(self) -> Any:
        """The list of tensors and of where they are. Nothing is unpickled.

        Raises:
            InvalidInputError: the checkpoint was not saved by this writer.
            CorruptDataError: stored bytes are damaged.
        """
        try:
            return self._metadata()
        except DstreamError as error:
            self.failure = error
            raise

    def _metadata(self) -> Any:
        generation, manifest = self._settled()
        twin = manifest.file(TWIN_NAME)
        if twin is None:
            raise InvalidInputError(
                f"{generation.label} has no {TWIN_NAME}: it was not saved by "
                "dstream.checkpoint; fetch it, and load the folder by what wrote it",
                reference=generation.label,
            )
        where = f"{generation.label}, {TWIN_NAME}"
        if twin.object.size_bytes > MAX_TWIN_BYTES:
            raise CorruptDataError(f"{where}: impossibly large ({twin.object.size_bytes} bytes)")
        data = self._store.get(twin.object.key, purpose=Purpose.COPY).data
        if sha256_hex(data) != twin.object.sha256:
            raise CorruptDataError(f"{where}: its bytes are not those that were published")
        metadata = decode_twin(data, where)
        metadata.storage_meta = StorageMeta(checkpoint_id=generation.label)
        return metadata

    def set_up_storage_reader(
        self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Take over where the items are."""
        self._pieces = metadata.storage_data

    def prepare_local_plan(self, plan: Any) -> Any:
        """Say which generation this rank found."""
        generation = self.generation
        return dataclasses.replace(
            plan, storage_data=f"{generation.label} {generation.manifest.sha256}"
        )

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Refuse ranks that found different generations."""
        found = sorted({str(plan.storage_data) for plan in plans})
        if len(found) > 1:
            raise ConflictError(
                f"ranks found different generations ({found[0].split()[0]}, "
                f"{found[1].split()[0]}): an alias moved while they looked; give an exact "
                "one, or use dstream.checkpoint.load",
                reason="ranks",
            )
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read what the plan wants, check it, and hand it to the planner.

        Raises:
            CorruptDataError: stored bytes are damaged.
            RefusedError: an object is a pickle that only its author's code can read.
        """
        with ThreadPoolExecutor(self._threads, thread_name_prefix="load") as pool:
            try:
                items = self._read_directly(plan.items, planner, pool)
                for run, data in self._read(self._runs(items), pool):
                    for item, piece in run.items:
                        start = piece.offset_bytes - run.start_byte
                        self._give(item, piece, data[start : start + piece.size_bytes], planner)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return done_future(None)

    def _read_directly(
        self, items: Sequence[Any], planner: Any, pool: ThreadPoolExecutor
    ) -> list[Any]:
        """Load the tensors that can be read directly, a few at a time; returns the other items."""
        if self._direct is None:
            return list(items)
        left = [item for item in items if item.type == LoadItemType.BYTE_IO]
        tensors = [item for item in items if item.type != LoadItemType.BYTE_IO]
        objects = {file.path: file.object.key for file in self._settled()[1].files}
        read = self._direct.read
        for start in range(0, len(tensors), self._threads):
            some = tensors[start : start + self._threads]
            pieces = [self._pieces[item.storage_index] for item in some]
            found = pool.map(
                lambda piece: read(objects[piece.path], piece.offset_bytes, piece.size_bytes),
                pieces,
            )
            for item, tensor in zip(some, found, strict=True):
                if tensor is None:
                    left.append(item)
                else:
                    self._take(item, tensor, planner)
        return left

    @property
    def checkpoint_id(self) -> str:
        """For logs."""
        return self._reference

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be a reference."""
        return "/" not in os.fspath(checkpoint_id)[:1]

    def _settled(self) -> tuple[Generation, CheckpointManifest]:
        if self._found is None:
            if self._catalog is None:
                self._catalog = Catalog.open(self._store)
            generation = self._catalog.resolve(self._reference)
            self._found = generation, checkpoint_of(self._catalog, generation)
        return self._found

    def _runs(self, items: Sequence[Any]) -> list[Run]:
        manifest = self._settled()[1]
        objects = {file.path: file.object for file in manifest.files}
        wanted: dict[str, list[tuple[Any, Piece]]] = {}
        for item in items:
            piece = self._pieces[item.storage_index]
            reference = objects.get(piece.path)
            if reference is None or piece.offset_bytes + piece.size_bytes > reference.size_bytes:
                raise CorruptDataError(
                    f"{self.generation.label}: {item.storage_index.fqn} is said to be in "
                    f"{piece.path[:200]!r} at {piece.offset_bytes}, where there is nothing",
                    path=piece.path,
                )
            wanted.setdefault(piece.path, []).append((item, piece))
        return [
            run
            for path, pieces in sorted(wanted.items())
            for run in coalesced(objects[path], pieces)
        ]

    def _read(
        self, runs: Sequence[Run], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[Run, memoryview]]:
        """Runs with their bytes, in order, while later ones are being read."""
        ahead: deque[tuple[Run, list[Future[bytes]]]] = deque()
        ahead_bytes = 0

        def take() -> tuple[Run, memoryview]:
            run, parts = ahead.popleft()
            data = b"".join(part.result() for part in parts)
            parts.clear()
            return run, memoryview(data)

        for run in runs:
            size_bytes = run.stop_byte - run.start_byte
            while ahead and ahead_bytes + size_bytes > _AHEAD_BYTES:
                taken = take()
                ahead_bytes -= taken[0].stop_byte - taken[0].start_byte
                yield taken
            ahead_bytes += size_bytes
            starts = range(run.start_byte, run.stop_byte, _READ_BYTES)
            ahead.append((run, [pool.submit(self._part, run, start) for start in starts]))
        while ahead:
            yield take()

    def _part(self, run: Run, start_byte: int) -> bytes:
        stop_byte = min(start_byte + _READ_BYTES, run.stop_byte)
        return self._store.get(run.object.key, start_byte, stop_byte, purpose=Purpose.COPY).data

    def _give(self, item: Any, piece: Piece, data: memoryview, planner: Any) -> None:
        name = item.storage_index.fqn
        if xxhash.xxh3_64_hexdigest(data) != piece.xxh3:
            raise CorruptDataError(
                f"{self.generation.label}: the bytes of {name} in {piece.path} are not those that "
                "were saved",
                path=piece.path,
            )
        if item.type == LoadItemType.BYTE_IO:
            if not self._allow_pickles:
                self._plain(name, data)
            planner.load_bytes(item, io.BytesIO(data))
            return
        self._take(item, self._plain(name, data), planner)

    def _take(self, item: Any, saved: Any, planner: Any) -> None:
        """Hand a saved tensor, or the part of it that is wanted, to the planner."""
        name = item.storage_index.fqn
        tensor = narrow(saved, item.storage_offsets, item.lengths)
        target = planner.resolve_tensor(item).detach()
        if target.size() != tensor.size():
            raise InvalidInputError(
                f"{name} has the shape {tuple(tensor.size())} in {self.generation.label}, and "
                f"{tuple(target.size())} where it is to be loaded",
                name=name,
            )
        target.copy_(tensor)
        planner.commit_tensor(item, target)

    def _plain(self, name: str, data: memoryview) -> Any:
        """What torch loads without running anything that is stored."""
        try:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
            raise RefusedError(
                f"{self.generation.label}: {name} is a pickled object, and loading it would run "
                "code that its author chose; keep plain values in the state, or give "
                "allow_pickles=True if you trust who saved it",
                name=name,
            ) from error


def coalesced(reference: ObjectRef, pieces: Sequence[tuple[Any, Piece]]) -> Iterator[Run]:
    """Pieces of one object as few runs: close ones together, up to 32 MiB."""
    group: list[tuple[Any, Piece]] = []
    start = stop = 0
    for item, piece in sorted(pieces, key=lambda pair: pair[1].offset_bytes):
        end = piece.offset_bytes + piece.size_bytes
        if group and (piece.offset_bytes > stop + _MAX_GAP_BYTES or end - start > _RUN_BYTES):
            yield Run(reference, start, stop, tuple(group))
            group = []
        if not group:
            start = stop = piece.offset_bytes
        group.append((item, piece))
        stop = max(stop, end)
    if group:
        yield Run(reference, start, stop, tuple(group))
