"""Publishing a folder as a checkpoint: stage its files, then one commit."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dstream.catalog import Catalog, Generation, PublishOptions, Root, Session
from dstream.catalog.names import check_alias, check_name
from dstream.catalog.publishing import plain_attrs
from dstream.checkpoint.progress import Progress, Tally
from dstream.checkpoint.repository import Repository, checkpoint_of, opened, remember, tool
from dstream.checkpoint.scan import Scan, scan
from dstream.checkpoint.staging import Staged, Stager
from dstream.clock import Clock, SystemClock
from dstream.errors import ConflictError, NotFoundError, SourceChangedError
from dstream.format.checkpoint import (
    KIND,
    CheckpointFile,
    CheckpointManifest,
    encode_checkpoint,
)
from dstream.format.references import referenced_objects
from dstream.measure import Meter

THREADS = 8


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish did."""

    generation: Generation
    files: int
    size_bytes: int
    uploaded_files: int
    uploaded_bytes: int
    is_new: bool
    """False where an earlier publish had made this very generation."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller wants to be published, besides the files."""

    name: str
    step: int | None = None
    message: str = ""
    attrs: Mapping[str, object] | None = None
    loader_state: Mapping[str, object] | None = None
    promote: str | None = None
    idempotency_key: str | None = None

    def content_sha256(self, files: Sequence[CheckpointFile]) -> str:
        """Hash of everything that makes this publish what it is, without random names.

        The message is left out: it may tell the time.
        """
        document = {
            "files": [[f.path, f.object.size_bytes, f.object.sha256, f.mode] for f in files],
            "step": self.step,
            "attrs": plain_attrs(self.attrs),
            "loader_state": self.loader_state,
            "promote": self.promote,
        }
        text = json.dumps(document, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def options(self, files: Sequence[CheckpointFile], parent: int | None) -> PublishOptions:
        """For the catalog."""
        content = self.content_sha256(files)
        return PublishOptions(
            step=self.step,
            message=self.message,
            attrs=plain_attrs(self.attrs),
            idempotency_key=self.idempotency_key or f"content-{content[:40]}",
            content_sha256=content,
            promote=self.promote,
            parent=parent,
        )


def publish(
    repo: Repository,
    path: str | os.PathLike[str],
    name: str,
    *,
    attrs: Mapping[str, object] | None = None,
    step: int | None = None,
    message: str = "",
    promote: str | None = None,
    idempotency_key: str | None = None,
    loader_state: Mapping[str, object] | None = None,
    follow: bool = False,
    threads: int = THREADS,
    progress: Progress | None = None,
    meter: Meter | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] | None = None,
) -> Published:
    """Publish the files at ``path`` as the next generation of ``name``.

    Nothing is visible before the one commit at the end, which makes name, attributes, files and
    alias visible together. Files whose bytes the previous generation has are named again and
    not sent. Run it again after a failure, or after success: without an ``idempotency_key`` the
    key is made of the content (files, step, attributes, loader state, alias), and the same
    content is the same generation; an alias that was moved away since is then left where it is.

    Warm, a publish of n small files takes n + 2 writes and no read.

    Args:
        repo: the repository.
        path: a folder, or one file.
        name: of the artifact.
        attrs: JSON values to keep with the generation, at most 10 kB.
        step: of the training; ``latest`` moves only to the same or a higher one.
        message: for people.
        promote: an alias that points at the new generation from the same commit on.
        idempotency_key: stands for exactly this content; used for other content it is refused.
        loader_state: JSON object that says where the data loader stood.
        follow: publish what symbolic links to files point at; otherwise links are refused.
        threads: files that are sent at the same time.
        progress: told now and then, by one thread at a time.
        meter: counts empty folders that were left out.

    Raises:
        InvalidInputError: nothing to publish, or a file that cannot be; it is named.
        SourceChangedError: a file changed meanwhile; nothing was committed.
        ConflictError: the name is a data set's, the key stands for other content, or the upload
            took so long that collection gave it up.
        OutcomeUnknownError: publish again; the key makes that safe.
    """
    wish = Wish(
        check_name(name),
        step,
        message,
        plain_attrs(attrs),
        loader_state,
        None if promote is None else check_alias(promote),
        idempotency_key,
    )
    root_path = Path(path)
    found = scan(root_path, follow=follow)
    if found.empty_folders and meter is not None:
        meter.event("publish-skip", "empty-folder", len(found.empty_folders))
    with opened(repo) as catalog:
        job = _Publish(
            catalog,
            wish,
            found,
            rescan=lambda: scan(root_path, follow=follow),
            threads=threads,
            progress=progress,
            clock=clock or SystemClock(),
            # Never from a seeded generator: two publishers must not choose the same names.
            new_id=new_id or (lambda: secrets.token_hex(16)),
        )
        try:
            return job.run(use_base=True)
        except ConflictError as error:
            if error.facts.get("reason") != "parent":
                raise
        # The generation whose objects were to be named again is gone: send everything.
        return job.run(use_base=False)


@dataclass(frozen=True, slots=True)
class _Publish:
    """One publish; may be run again."""

    catalog: Catalog
    wish: Wish
    found: Scan
    rescan: Callable[[], Scan]
    threads: int
    progress: Progress | None
    clock: Clock
    new_id: Callable[[], str]

    def run(self, *, use_base: bool) -> Published:
        root = self.catalog.recent()
        base, manifest = self._base(root) if use_base else (None, None)
        session = self.catalog.begin_session(root=root)
        stager = Stager(
            self.catalog.store,
            session,
            new_id=self.new_id,
            clock=self.clock,
            threads=self.threads,
            tally=Tally(len(self.found.files), self.found.size_bytes, self.progress),
        )
        known = [] if manifest is None else referenced_objects(manifest)
        staged = stager.stage(self.found.files, known)
        if self.rescan() != self.found:
            raise SourceChangedError(
                "the folder changed while it was being published; nothing was committed. "
                "Publish when its writer is done"
            )
        new = [item for item in staged if item.is_new]
        shares = base is not None and len(new) < len(staged)
        generation = self._commit(staged, base.version if base and shares else None, session)
        return Published(
            generation,
            files=len(staged),
            size_bytes=self.found.size_bytes,
            uploaded_files=len(new),
            uploaded_bytes=sum(item.file.object.size_bytes for item in new),
            is_new=generation.session == session.session_id,
        )

    def _base(self, root: Root) -> tuple[Generation | None, CheckpointManifest | None]:
        """The generation that most likely has the same files, and its manifest."""
        name, key = self.wish.name, self.wish.idempotency_key
        base = root.newest(name)
        used = None if key is None else root.used_key(name, key)
        if used is not None:
            base = root.generation(name, used.version) or base
        if base is None or base.kind != KIND:
            return None, None
        try:
            return base, checkpoint_of(self.catalog, base)
        except NotFoundError:
            return None, None  # collected meanwhile

    def _commit(self, staged: Sequence[Staged], parent: int | None, session: Session) -> Generation:
        files = tuple(item.file for item in staged)
        manifest = CheckpointManifest(files, tool(), self.wish.loader_state)
        generation = self.catalog.publish(
            session,
            self.wish.name,
            KIND,
            encode_checkpoint(manifest),
            self.wish.options(files, parent),
        )
        if generation.session == session.session_id:
            remember(generation, manifest)
        return generation
