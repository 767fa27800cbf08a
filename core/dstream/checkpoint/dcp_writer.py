"""``torch.distributed.checkpoint`` saves into a repository; only ``finish`` makes it visible.

Every rank stores its files under names of its own, chosen when it writes them and told to the
coordinator with the results: a plan may be an old one that torch kept, so nothing about the save
travels in it. The coordinator commits once all ranks have answered; if one of them failed, torch
does not call ``finish`` and nothing was ever visible.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from dstream.catalog import Catalog, Generation, Session
from dstream.catalog.names import check_alias, check_name
from dstream.catalog.publishing import plain_attrs
from dstream.checkpoint.dcp_files import FILE_BYTES, FileWriter, RankFile, Stored
from dstream.checkpoint.dcp_metadata import TWIN_NAME, Piece, encode_twin
from dstream.checkpoint.publish import Wish
from dstream.checkpoint.repository import Repository, parts_of, remember, tool
from dstream.checkpoint.torch_api import (
    DCP_VERSION,
    METADATA_NAME,
    StorageInfo,
    StorageMeta,
    WriterBase,
    WriteResult,
    done_future,
    torch,
)
from dstream.errors import InvalidInputError
from dstream.format.checkpoint import (
    KIND,
    CheckpointFile,
    CheckpointManifest,
    encode_checkpoint,
)
from dstream.format.refs import ObjectRef
from dstream.format.root import sha256_hex
from dstream.measure import Purpose


class StorageWriter(WriterBase):  # type: ignore[misc]
    """Saves one generation of ``name``. Give each save a writer of its own; they are cheap.

    Works with ``save`` and ``async_save``, by threads and by processes, with cached plans, and
    with any number of ranks. After an ``async_save``, wait for its future before anything relies
    on the generation; an alias is best moved by ``promote``, in the same commit.
    """

    def __init__(
        self,
        repo: Repository,
        name: str,
        *,
        step: int | None = None,
        attrs: Mapping[str, object] | None = None,
        loader_state: Mapping[str, object] | None = None,
        message: str = "",
        promote: str | None = None,
        idempotency_key: str | None = None,
        threads: int = 2,
        file_bytes: int = FILE_BYTES,
        spool_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """A writer for one save.

        Args:
            repo: the repository; every rank gives the same.
            name: of the checkpoint.
            step: of the training; ``checkpoint_id`` can give it instead, as a number.
            attrs: JSON values to keep with the generation, beside ``world_size`` and ``torch``.
            loader_state: JSON object that says where the data loader stood. The coordinator's
                counts.
            message: for people.
            promote: an alias that points at the new generation from the same commit on.
            idempotency_key: stands for exactly this content.
            threads: files that one rank sends at the same time.
            file_bytes: items are put together in files of about this size.
            spool_dir: where files wait to be sent; it needs room for ``threads`` + 1 of them.

        Raises:
            InvalidInputError: a name, alias or attribute that cannot be used.
        """
        super().__init__()
        self._wish = Wish(
            check_name(name),
            step,
            message,
            plain_attrs(attrs),
            None if loader_state is None else dict(loader_state),
            None if promote is None else check_alias(promote),
            idempotency_key,
        )
        self._store, self._catalog = parts_of(repo)
        self._threads = threads
        self._file_bytes = file_bytes
        self._spool_dir = None if spool_dir is None else os.fspath(spool_dir)
        self._rank = 0
        self._save_id = secrets.token_hex(16)
        self.generation: Generation | None = None
        """What the last save made; on the coordinator only."""

    def __getstate__(self) -> dict[str, Any]:
        # A catalog holds locks; the other process opens its own.
        return {**self.__dict__, "_catalog": None}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save; ``checkpoint_id``, a number, is its step."""
        self._save_id = secrets.token_hex(16)
        if checkpoint_id is not None and os.fspath(checkpoint_id) != self.checkpoint_id:
            if not self.validate_checkpoint_id(checkpoint_id):
                raise InvalidInputError(
                    f"checkpoint_id {os.fspath(checkpoint_id)!r} is no step: give a number, or "
                    "none, and the step to StorageWriter"
                )
            self._wish = dataclasses.replace(self._wish, step=int(os.fspath(checkpoint_id)))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Learn this process's rank.

        Raises:
            InvalidInputError: ``use_collectives=False``: every rank would commit by itself.
        """
        if not kwargs.get("use_collectives", True):
            raise InvalidInputError(
                "use_collectives=False saves every rank by itself, and there would be no moment "
                "at which the checkpoint is whole; leave it on"
            )
        self._rank = int(kwargs.get("rank") or 0)

    def prepare_local_plan(self, plan: Any) -> Any:
        """Nothing: state in a plan would come back with the next one."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Nothing, for the same reason."""
        return plans

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Store this rank's items. Nothing becomes visible."""
        writer = FileWriter(
            self._store,
            self._opened().begin_session(),
            rank=self._rank,
            new_id=lambda: secrets.token_hex(16),
            threads=self._threads,
            file_bytes=self._file_bytes,
            spool_dir=self._spool_dir,
        )
        stored = writer.write(plan.items, planner.resolve_data)
        return done_future(
            [
                WriteResult(index=item.index, size_in_bytes=place.size_bytes, storage_data=place)
                for item, place in stored
            ]
        )

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """Commit: the one moment at which the checkpoint becomes visible, whole."""
        catalog = self._opened()
        stored: dict[Any, Stored] = {
            result.index: result.storage_data for rank in results for result in rank
        }
        files = list({place.file.key: place.file for place in stored.values()}.values())
        session = _joint(catalog.begin_session(root=catalog.recent()), files)
        whole = dataclasses.replace(
            metadata,
            version=DCP_VERSION,
            storage_meta=self.storage_meta(),
            storage_data={
                index: StorageInfo(place.file.path, place.offset_bytes, place.size_bytes)
                for index, place in stored.items()
            },
        )
        twin = encode_twin(
            metadata,
            {
                index: Piece(p.file.path, p.offset_bytes, p.size_bytes, p.xxh3)
                for index, p in stored.items()
            },
        )
        listed = [_ranks(file) for file in files]
        listed.append(self._small(session, METADATA_NAME, pickle.dumps(whole)))
        listed.append(self._small(session, TWIN_NAME, twin))
        self.generation = self._commit(catalog, session, listed, len(results))
        metadata.version, metadata.storage_meta = whole.version, whole.storage_meta
        metadata.storage_data = whole.storage_data
        # Travels to the other ranks with the metadata, which torch sends to all.
        metadata.dstream_generation = self.generation

    def storage_meta(self) -> Any:
        """Names of this save, for logs."""
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._save_id)

    @property
    def checkpoint_id(self) -> str:
        """For logs: name and step."""
        step = self._wish.step
        return self._wish.name if step is None else f"{self._wish.name} step {step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a step."""
        text = os.fspath(checkpoint_id)
        return text.isascii() and text.isdecimal() and len(text) < 19

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog.open(self._store)
        return self._catalog

    def _small(self, session: Session, path: str, data: bytes) -> CheckpointFile:
        key = f"{session.data_prefix}{secrets.token_hex(16)}"
        self._store.put(key, data, purpose=Purpose.COPY)
        return CheckpointFile(path, ObjectRef(key, len(data), sha256_hex(data)))

    def _commit(
        self, catalog: Catalog, session: Session, files: Sequence[CheckpointFile], ranks: int
    ) -> Generation:
        attrs = {"world_size": ranks, "torch": str(torch.__version__), **(self._wish.attrs or {})}
        ordered = tuple(sorted(files, key=lambda file: file.path))
        manifest = CheckpointManifest(ordered, tool(), self._wish.loader_state)
        # Torch's metadata names this very save, which a second one with the same key is not.
        content = [file for file in ordered if file.path != METADATA_NAME]
        options = dataclasses.replace(self._wish, attrs=attrs).options(content, None)
        # Without a key of the caller's every save is one of its own.
        options = dataclasses.replace(options, idempotency_key=self._wish.idempotency_key)
        generation = catalog.publish(
            session, self._wish.name, KIND, encode_checkpoint(manifest), options
        )
        if generation.session == session.session_id:
            remember(generation, manifest)
        return generation


def _joint(own: Session, files: Sequence[RankFile]) -> Session:
    """The session to commit under: the fence must hold for the oldest upload of all ranks."""
    return Session(own.session_id, min([own.base_seq, *(file.base_seq for file in files)]))


def _ranks(file: RankFile) -> CheckpointFile:
    return CheckpointFile(file.path, ObjectRef(file.key, file.size_bytes, file.sha256))
