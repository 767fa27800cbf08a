"""The catalog of one repository: publish, name and open generations."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from dstream.catalog.authors import default_author
from dstream.catalog.backoff import CommitSettings
from dstream.catalog.commit import Committer, Intent
from dstream.catalog.creation import create_repository, refuse_newer_format
from dstream.catalog.history import LogEntry, read_history
from dstream.catalog.lifecycle import Lifecycle
from dstream.catalog.log import Head, LogReader
from dstream.catalog.names import Reference, check_name
from dstream.catalog.publishing import (
    AppendIntent,
    FixedIntent,
    ManifestObjects,
    PublishOptions,
    Reconcile,
    plain_attrs,
    publish_op,
)
from dstream.catalog.selection import select
from dstream.catalog.sessions import Session, open_session
from dstream.catalog.tokens import Token
from dstream.catalog.transitions import check_fence
from dstream.clock import Clock, SystemClock
from dstream.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from dstream.format.manifest import Manifest, encode_manifest, merge_manifests
from dstream.format.root import Generation, Root, sha256_hex
from dstream.measure import Meter
from dstream.store.base import Store

MODES = ("append", "replace")
_OPENED_FOR_S = 1.0
_RECENT_FOR_S = 60.0


class Catalog(Lifecycle):
    """One repository's log of roots. Make one with :meth:`open` or :meth:`create`.

    For many threads. Reading never writes. Every call that reads asks the store for the newest
    root first (one request when nothing changed); only the first call within a second of
    :meth:`open` takes the root that opening has just read.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
        *,
        new_id: Callable[[], str] | None = None,
        meter: Meter | None = None,
        settings: CommitSettings | None = None,
    ) -> None:
        self.store = store
        self._clock: Clock = clock or SystemClock()
        # Identifiers come from the system's entropy: a seeded or forked generator would give
        # two writers the same ones, and each would take the other's commit for its own.
        self._new_id = new_id or (lambda: secrets.token_hex(16))
        settings = settings or CommitSettings()
        meter = meter or Meter()
        self._log = LogReader(store, self._clock, meter)
        self._committer = Committer(
            store,
            self._log,
            clock=self._clock,
            rng=rng or np.random.default_rng(),
            new_id=self._new_id,
            author=default_author() if settings.author is None else settings.author,
            meter=meter,
            settings=settings,
        )
        self._manifests = ManifestObjects(store, self._new_id)
        self._meter = meter
        self._just_opened: Head | None = None
        self._frozen: Head | None = None
        self._frozen_pin = ""

    @classmethod
    def open(
        cls,
        store: Store,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
        *,
        new_id: Callable[[], str] | None = None,
        meter: Meter | None = None,
        settings: CommitSettings | None = None,
    ) -> Catalog:
        """The catalog of the repository in ``store``. Costs one listing and one read.

        Args:
            store: rooted at the repository.
            clock: for waits, and for times that people read; nothing is decided by them.
            rng: jitter of the waits.
            new_id: makes identifiers that are unique in the world; for tests.
            meter: counts lost races, resends and fallbacks.
            settings: who commits, and how patiently.

        Raises:
            NotFoundError: there is no repository.
            FormatVersionError: a newer dstream made it.
        """
        catalog = cls(store, clock, rng, new_id=new_id, meter=meter, settings=settings)
        try:
            catalog._just_opened = catalog._log.refresh()
        except NotFoundError:
            refuse_newer_format(store)
            raise
        return catalog

    @classmethod
    def open_at(
        cls,
        store: Store,
        at: int | str,
        clock: Clock | None = None,
        *,
        meter: Meter | None = None,
    ) -> Catalog:
        """The catalog as of a root's number or a pin's token, for ever. Costs one read.

        It cannot be changed. Everything is found through that root, so that all who open the
        same see the same.

        Raises:
            NotFoundError: there is no such root, or it was cleared.
            CorruptDataError: the root is not the one that the token was made of.
        """
        catalog = cls(store, clock, meter=meter)
        catalog._frozen = catalog._head_at(at)
        catalog._frozen_pin = Token.parse(at).pin_id if isinstance(at, str) else ""
        return catalog

    @classmethod
    def create(
        cls,
        store: Store,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
        *,
        exist_ok: bool = False,
        new_id: Callable[[], str] | None = None,
        meter: Meter | None = None,
        settings: CommitSettings | None = None,
    ) -> Catalog:
        """Make a repository in ``store``. Creating one that was interrupted completes it.

        Raises:
            ConflictError: there is one already, and not ``exist_ok``.
            UnsafeStoreError: the store ignores conditional writes; nothing was made.
            FormatVersionError: a newer dstream made one here.
            OutcomeUnknownError: the store kept failing; create again.
        """
        catalog = cls(store, clock, rng, new_id=new_id, meter=meter, settings=settings)
        if not create_repository(store, catalog._log, catalog._committer):
            if not exist_ok:
                raise ConflictError(f"{store.url} is a dstream repository already", url=store.url)
            catalog._just_opened = catalog._log.refresh()
        return catalog

    def head(self) -> Root:
        """The newest root; or the one that the catalog was opened at."""
        if self._frozen is not None:
            return self._frozen.root
        opened, self._just_opened = self._just_opened, None
        if opened is not None and self._clock.monotonic_s() - opened.read_at_s < _OPENED_FOR_S:
            return opened.root
        return self._log.refresh().root

    def recent(self) -> Root:
        """A root that was the newest within the last minute; mostly without any request.

        Enough to begin on: a commit checks everything again on the root that it is built on.
        """
        known = self._log.cached()
        is_old = known is None or self._clock.monotonic_s() - known.read_at_s > _RECENT_FOR_S
        if known is None or is_old or self._frozen is not None:
            return self.head()
        return known.root

    def begin_session(self, key: str | None = None, *, root: Root | None = None) -> Session:
        """A place for uploads. With a ``key``, the same one for all who give the same key.

        Args:
            key: shared by jobs, and by a later run that goes on.
            root: begin on this root, and ask the store nothing; not with a key.

        Raises:
            InvalidInputError: the key cannot be one.
            ConflictError: the session of this key has been fenced; use a new key.
        """
        if root is None or key is not None:
            root = self.head()
        if key is None:
            return Session(self._new_id(), root.seq)
        session = open_session(self.store, key, root.seq, self._new_id)
        check_fence(root, session.base_seq, session.session_id)
        return session

    def publish(
        self,
        session: Session,
        name: str,
        kind: str,
        manifest: bytes,
        options: PublishOptions | None = None,
    ) -> Generation:
        """Make ``manifest`` the next generation of ``name``. Warm: two writes.

        Args:
            session: under which everything that the manifest names was uploaded.
            name: of the artifact.
            kind: ``dataset`` or ``checkpoint``; a name keeps its kind.
            manifest: bytes that say what the generation is made of.
            options: step, message, attributes, idempotency key, whether ``latest`` moves.

        Returns:
            The new generation, or the earlier one that the same idempotency key made.

        Raises:
            ConflictError: other kind, fenced session, or a key used for other content.
            OutcomeUnknownError: settle it with :meth:`resolve_txn`, or publish again with the
                same idempotency key.
        """
        options = _checked(options)
        op = publish_op(session, name, kind, sha256_hex(manifest), options)
        return self._publish(
            FixedIntent(op, lambda: self._manifests.write_bytes(session, manifest))
        )

    def publish_dataset(
        self,
        name: str,
        manifest: Manifest,
        *,
        session: Session,
        mode: Literal["append", "replace"] = "append",
        onto: str | None = None,
        reconcile: Reconcile = merge_manifests,
        message: str = "",
        idempotency_key: str | None = None,
        options: PublishOptions | None = None,
    ) -> Generation:
        """Publish parts of a dataset. Warm: two writes.

        Args:
            name: of the artifact.
            manifest: the new parts only.
            session: under which the parts' objects were uploaded.
            mode: ``append`` adds the parts to those of ``name@latest`` (or of ``onto``), also
                when a rival has just appended: only the list of parts is written again.
                ``replace`` publishes these parts alone.
            onto: what to append to instead of ``latest``: ``v3``, an alias or ``newest``.
            reconcile: (base, new) -> merged manifest; it may drop samples that the base holds
                already, and raises ConflictError for a key with other content. It is called
                once per base.
            message: for people.
            idempotency_key: stands for exactly these parts and this mode.
            options: the rest; its message and key are replaced by those given here.

        Returns:
            The new generation; the earlier one for a known idempotency key; or, for an append
            that adds no part, the generation that it would have appended to.

        Raises:
            InvalidInputError: an unknown mode.
            NotFoundError: ``onto`` names nothing.
            ConflictError, OutcomeUnknownError: as :meth:`publish`.
        """
        given = _checked(options)
        options = replace(
            given,
            message=message or given.message,
            idempotency_key=idempotency_key or given.idempotency_key,
        )
        if mode not in MODES or (mode == "replace" and onto is not None):
            raise InvalidInputError(f"mode is append or replace, got {mode!r} with onto={onto!r}")
        content = sha256_hex(mode.encode() + b"\0" + encode_manifest(manifest))
        op = publish_op(session, name, manifest.kind, content, options)
        objects = self._manifests
        if mode == "replace":
            return self._publish(FixedIntent(op, lambda: objects.write(session, manifest)))
        return self._publish(
            AppendIntent(op, manifest, session, objects, onto=onto, reconcile=reconcile)
        )

    def resolve(self, reference: str, root: Root | None = None) -> Generation:
        """The generation that ``name``, ``name@v3``, ``name@alias`` or ``name@newest`` means.

        Args:
            reference: a bare name means its ``latest``.
            root: look there, and ask the store nothing.

        Raises:
            InvalidInputError: not a reference.
            NotFoundError: the message names close matches, or what there is.
        """
        parsed = Reference.parse(reference)
        return select(root or self.head(), parsed)

    def names(self) -> list[str]:
        """Names of all artifacts, sorted."""
        return self.head().names()

    def generations(self, name: str) -> list[Generation]:
        """Live generations of a name, oldest first.

        Raises:
            NotFoundError: nothing has that name.
        """
        root = self.head()
        if root.row(check_name(name)) is None:
            select(root, Reference(name))
        return list(root.generations(name))

    def aliases(self, name: str) -> dict[str, int]:
        """Alias -> version of a name."""
        return self.head().aliases_of(check_name(name))

    def manifest_bytes(self, generation: Generation) -> bytes:
        """A generation's manifest as stored, checked against the catalog's hash.

        Raises:
            NotFoundError: it was collected.
            CorruptDataError: the stored manifest is gone or damaged.
        """
        with self.told_if_gone(generation):
            return self._manifests.read_bytes(generation.manifest)

    def dataset(self, generation: Generation) -> Manifest:
        """The manifest of a dataset generation.

        Raises:
            InvalidInputError: the generation is no dataset.
            NotFoundError: it was collected.
            CorruptDataError: the stored manifest is gone or damaged.
        """
        if generation.kind != "dataset":
            raise InvalidInputError(
                f"{generation.label} is a {generation.kind}, expected a dataset",
                kind=generation.kind,
            )
        with self.told_if_gone(generation):
            return self._manifests.read(generation.manifest)

    def log(self, limit: int | None = 20) -> list[LogEntry]:
        """The last commits, newest first; the chain of hashes is checked along the way.

        Args:
            limit: most entries to return; None for all. Each costs one read.

        Raises:
            CorruptDataError: a root is missing or was replaced.
        """
        self._just_opened = None
        return read_history(self._log, limit)

    def resolve_txn(self, txn_id: str, slot: int | None = None) -> bool:
        """Settle a commit that ended in OutcomeUnknownError; True when it is in the log.

        Takes the slot with an entry that changes nothing where it is still free, so that the
        answer is final.

        Args:
            txn_id: the transaction that the error named.
            slot: the log number that it named; None: the whole log is read, newest first.

        Raises:
            InvalidInputError: not an outcome of this repository.
            OutcomeUnknownError: the store is still failing; call again later.
        """
        if slot is None:
            known = [entry.txn_id for entry in self.log(None)]
            if txn_id in known:
                return True
            slot = len(known)  # the first free one: a commit that was sent has no later place
        return self._committer.resolve(txn_id, slot)

    def _publish(self, intent: Intent) -> Generation:
        return self._published(self._commit(intent))


def _checked(options: PublishOptions | None) -> PublishOptions:
    options = options or PublishOptions()
    return replace(options, attrs=plain_attrs(options.attrs))
