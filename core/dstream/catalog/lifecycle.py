"""What the catalog can do with generations after they are published."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from dstream.catalog.commit import Committed, Committer, Intent
from dstream.catalog.contents import Contents
from dstream.catalog.gc import Collector
from dstream.catalog.gc_report import GcReport, GcSettings
from dstream.catalog.log import Head, LogReader
from dstream.catalog.names import Reference
from dstream.catalog.pinning import PinRoot, RenewPin, Unpin
from dstream.catalog.pins import Pinned, bytes_of, kept_alone
from dstream.catalog.publishing import ManifestObjects
from dstream.catalog.retention import Retire
from dstream.catalog.selection import select
from dstream.catalog.tokens import Token
from dstream.catalog.transitions import MoveAlias, RemoveAlias
from dstream.catalog.verify import Verifier, VerifyReport
from dstream.errors import CorruptDataError, InvalidInputError, NotFoundError, RefusedError
from dstream.format.root import Generation, Root
from dstream.measure import Meter
from dstream.store.base import Store


class Lifecycle(ABC):
    """Promote, pin, retire, collect, verify: the part of a catalog that ends things."""

    store: Store
    _log: LogReader
    _committer: Committer
    _manifests: ManifestObjects
    _meter: Meter
    _new_id: Callable[[], str]
    _just_opened: Head | None
    _frozen: Head | None
    _frozen_pin: str

    @property
    def token(self) -> str | None:
        """What opens this very view anywhere; None where it follows the newest root."""
        return None if self._frozen is None else self._token(self._frozen, self._frozen_pin)

    @abstractmethod
    def head(self) -> Root:
        """The newest root."""

    def at(self, seq: int | str) -> Root:
        """Root ``seq``: the catalog as it was after that commit; or the root of a pin's token.

        Costs one request; what the root says is read from the shards that it names. A token's
        root is checked against the token's hash.

        Raises:
            NotFoundError: not written yet, or cleared by collection.
            CorruptDataError: the root is not the one that the token was made of.
        """
        return self._head_at(seq).root

    def move_alias(
        self, name: str, alias: str, version: int, expect: int | None = None
    ) -> Generation:
        """Point ``name@alias`` at a generation; one write.

        Args:
            name: of the artifact.
            alias: the name to move or make; ``latest`` is one like any other.
            version: the generation's number.
            expect: version that the alias must have now; 0: it must not exist.

        Raises:
            NotFoundError: there is no such generation.
            ConflictError: ``expect`` does not hold, or the generation is being deleted.
        """
        op = MoveAlias(name, alias, version, expect)
        return self._published(self._commit(lambda _: op))

    def promote(self, reference: str, alias: str, expect: int | str | None = None) -> Generation:
        """Point ``alias`` at the generation that ``reference`` means now; one write.

        Args:
            reference: ``name@v7``, or ``name@newest``, or another alias.
            alias: the name to move or to make.
            expect: version that the alias must have now (``6`` or ``"v6"``); 0: it must not
                exist.

        Raises:
            NotFoundError: there is no such generation.
            ConflictError: ``expect`` does not hold, or the generation is being deleted.
        """
        parsed = Reference.parse(reference)
        expected = _version(expect)

        def intent(root: Root) -> MoveAlias:
            version = parsed.version or select(root, parsed).version
            return MoveAlias(parsed.name, alias, version, expected)

        return self._published(self._commit(intent))

    def remove_alias(self, name: str, alias: str, expect: int | str | None = None) -> None:
        """Take an alias away; its generation stays.

        Raises:
            NotFoundError: there is no such alias.
            ConflictError: ``expect`` does not hold.
        """
        op = RemoveAlias(name, alias, _version(expect))
        self._commit(lambda _: op)

    def pin(
        self,
        names: Iterable[str] | None = None,
        *,
        pin_id: str | None = None,
        owner: str = "",
        ttl_s: float | None = None,
        seq: int | None = None,
    ) -> Pinned:
        """Keep what the catalog lists now, whatever is retired later; one write.

        Args:
            names: only generations of these artifacts; None: of all.
            pin_id: to find it again; pinning the same under the same id again is one pin, and
                does not renew it.
            owner: for people.
            ttl_s: how long it lasts, by the store's clock, unless it is renewed; None: for ever.
            seq: pin an earlier root instead.

        Raises:
            NotFoundError: a name does not exist.
            ConflictError: the id stands for another pin, or for one with another owner or time
                (:meth:`renew` changes the time), or collection has given up what that
                root lists.
        """
        chosen = pin_id or f"pin-{self._new_id()[:16]}"
        op = PinRoot(chosen, None if names is None else tuple(names), owner, ttl_s, seq)
        committed = self._commit(lambda _: op)
        return self._pinned(committed.head, chosen)

    def renew(self, pin_id: str, ttl_s: float | None = None) -> Pinned:
        """Let a pin's time begin anew.

        Raises:
            ConflictError: there is no such pin (fact ``reason`` is ``pin-lost``): if there was
                one, what it kept may be deleted.
        """
        op = RenewPin(pin_id, ttl_s)
        return self._pinned(self._commit(lambda _: op).head, pin_id)

    def unpin(self, pin_id: str) -> None:
        """Give a pin up.

        Raises:
            NotFoundError: there is no such pin.
        """
        self._commit(lambda _: Unpin(pin_id))

    def pins(self, *, with_bytes: bool = False) -> list[Pinned]:
        """All pins by their ids; each costs one read of its root for the token.

        Args:
            with_bytes: add up what each alone keeps alive. Reads manifests, where some
                generation is kept by a pin alone.
        """
        root = self.head()
        contents = Contents(self.store, self._manifests)
        found = []
        for pin_id in sorted(root.pins):
            token = self._token(self._head_at(root.pins[pin_id].seq), pin_id)
            pinned = Pinned(pin_id, token, root.pins[pin_id])
            if with_bytes:
                alone = kept_alone(root, pin_id)
                size_bytes = bytes_of(self.store, contents, root, alone)
                labels = tuple(generation.label for generation in alone)
                pinned = Pinned(pin_id, token, pinned.pin, labels, size_bytes)
            found.append(pinned)
        return found

    def retire(self, *references: str) -> list[Generation]:
        """Take generations out of the listing; collection deletes them unless they are pinned.

        Raises:
            NotFoundError: a reference means nothing.
            ConflictError: an alias points at one of them.
        """
        parsed = [Reference.parse(reference) for reference in references]
        if not parsed:
            raise InvalidInputError("nothing to retire was named")

        def intent(root: Root) -> Retire:
            return Retire(tuple((p.name, p.version or select(root, p).version) for p in parsed))

        committed = self._commit(intent)
        root = committed.head.root
        targets = intent(root).targets if all(p.version for p in parsed) else ()
        return [g for name, version in targets if (g := root.record(name, version))]

    def gc(self, settings: GcSettings | None = None) -> GcReport:
        """Collect: condemn what nothing keeps, and delete what was condemned long enough ago.

        Raises:
            CorruptDataError: something that is kept cannot be read; nothing was deleted.
            OutcomeUnknownError: the log could not be written; run it again.
        """
        self._refuse_frozen()
        self._just_opened = None
        collector = Collector(
            self.store,
            self._log,
            self._committer,
            self._manifests,
            self._meter,
            settings or GcSettings(),
        )
        return collector.run()

    def verify(self, *, deep: bool = False, log_limit: int | None = None) -> VerifyReport:
        """Look for damage: the log's chain, and every object of every generation that is kept.

        Args:
            deep: read all bytes and check their hashes, not only that they are there.
            log_limit: most roots to check; None: all.
        """
        self._just_opened = None
        return Verifier(self.store, self._log, self._manifests, deep=deep).run(
            self.head(), log_limit
        )

    def _commit(self, intent: Intent) -> Committed:
        self._refuse_frozen()
        self._just_opened = None
        return self._committer.commit(intent)

    def _published(self, committed: Committed) -> Generation:
        if committed.generation is None:
            raise CorruptDataError("the commit named no generation", seq=committed.head.seq)
        return committed.generation

    def _refuse_frozen(self) -> None:
        if self._frozen is not None:
            raise RefusedError(
                f"{self.store.url} was opened as of root {self._frozen.seq}, which never "
                "changes; open the repository itself to change it",
                seq=self._frozen.seq,
            )

    @contextmanager
    def told_if_gone(self, generation: Generation) -> Iterator[None]:
        """Say why something that a generation needs is not there: collected, or lost.

        Raises:
            NotFoundError: collection took it.
            CorruptDataError: the generation is kept, and is damaged.
        """
        try:
            yield
        except NotFoundError as error:
            newest = self._log.refresh().root
            record = newest.record(generation.name, generation.version)
            if record is not None and record.condemned_seq is None:
                raise CorruptDataError(
                    f"{generation.label} is kept, and something that it needs is gone ({error}): "
                    "the repository is damaged; see what else is with: dstream verify",
                    name=generation.name,
                    version=generation.version,
                ) from error
            raise NotFoundError(
                f"{generation.label} was collected: its bytes are deleted"
                f"{self._why_unkept(newest)}. See what there is with: dstream ls",
                name=generation.name,
                version=generation.version,
                pin_id=self._frozen_pin,
            ) from error

    def _why_unkept(self, newest: Root) -> str:
        if self._frozen is None:
            return "; it was retired longer ago than the grace of collection"
        pin_id = self._frozen_pin
        if not pin_id:
            return f", and no pin keeps root {self._frozen.seq}, which lists it"
        if pin_id in newest.pins:
            return f", and pin {pin_id!r} does not keep it: the pin is newer, or of other names"
        return f", and pin {pin_id!r} is gone: it expired or was given up"

    def _head_at(self, seq: int | str) -> Head:
        if isinstance(seq, int):
            return self._log.read(seq)
        token = Token.parse(seq)
        try:
            head = self._log.read(token.seq)
        except NotFoundError as error:
            raise NotFoundError(
                f"what {seq} stood for is gone ({error}): the pin expired or was given up",
                seq=token.seq,
                pin_id=token.pin_id,
            ) from error
        if head.sha256 != token.sha256:
            raise CorruptDataError(
                f"root {token.seq} of {self.store.url} has hash {head.sha256[:16]}…, the token "
                f"says {token.sha256[:16]}…: another repository, or its log was replaced",
                seq=token.seq,
            )
        return head

    def _pinned(self, head: Head, pin_id: str) -> Pinned:
        pin = head.root.pins[pin_id]
        pinned = head if pin.seq == head.seq else self._log.read(pin.seq)
        return Pinned(pin_id, self._token(pinned, pin_id), pin)

    def _token(self, head: Head, pin_id: str) -> str:
        return str(Token(self.store.url, head.seq, head.sha256, pin_id))


def _version(expect: int | str | None) -> int | None:
    """A version as a number.

    >>> _version("v6"), _version(0), _version(None)
    (6, 0, None)
    """
    if expect is None or isinstance(expect, int):
        return expect
    digits = expect.removeprefix("v")
    if not digits.isascii() or not digits.isdecimal():
        raise InvalidInputError(f"expected a version such as v6, got {expect!r}")
    return int(digits)
