"""Random histories of several clients on a store that fails, against a plain model.

The model is told what each call answered; the invariants are checked on the objects in the
store. Every acknowledged commit must be there exactly once, every definite failure never, and
an unknown outcome must be settled for good by ``resolve_txn``, whatever lands late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from catalog_audit import audit
from catalog_faults import Fault, ScriptedStore
from catalog_made import create_catalog, manifest, open_catalog, part_keys
from dstream.catalog import Catalog, Generation, PublishOptions
from dstream.errors import (
    ConflictError,
    DstreamError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
)
from dstream.store.memory import MemoryStore

NAMES = ("a", "b/c")
ALIASES = ("latest", "prod")
CLIENTS = 3

some_faults = st.lists(st.sampled_from(list(Fault)), max_size=4)
# Now and then the store never recovers, so that the outcome stays unknown.
faults = some_faults | some_faults.map(lambda some: [*some, *[Fault.LOST_BEFORE] * 300])
clients = st.integers(0, CLIENTS - 1)
names = st.sampled_from(NAMES)
failing_reads = st.sampled_from((0, 0, 0, 1, 2, 5))


@dataclass
class Model:
    """What the repository must hold."""

    commits: int = 1
    parts: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    seqs: dict[tuple[str, int], int] = field(default_factory=dict)
    aliases: dict[tuple[str, str], int] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def versions(self, name: str) -> list[int]:
        return [version for n, version in self.parts if n == name]

    def publish(self, name: str, parts: list[str]) -> int:
        version = len(self.versions(name)) + 1
        self.parts[name, version] = parts
        self.seqs[name, version] = self.commits
        self.aliases[name, "latest"] = version
        self.commits += 1
        return version

    def append(self, name: str, part: str) -> int:
        base = self.aliases.get((name, "latest")) or len(self.versions(name)) or None
        return self.publish(name, [*(self.parts[name, base] if base else []), part])

    def move(self, name: str, alias: str, version: int) -> None:
        if self.aliases.get((name, alias)) != version:
            self.aliases[name, alias] = version
            self.commits += 1


class RepositoryMachine(RuleBasedStateMachine):
    """Three clients with memories of their own, one store, one model."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryStore()
        self.model = Model()
        self.stores = [ScriptedStore(self.memory) for _ in range(CLIENTS)]
        self.catalogs: list[Catalog] = []
        self.count = 0

    @initialize()
    def create(self) -> None:
        create_catalog(self.memory, "creator")
        self.catalogs = [self.opened(client) for client in range(CLIENTS)]
        self.steady = open_catalog(self.memory, "steady")
        self.rival_catalog = open_catalog(self.memory, "rival")

    def opened(self, client: int) -> Catalog:
        """A new client, past its first call, which may answer with what opening has read."""
        self.count += 1
        catalog = open_catalog(self.stores[client], f"c{client}-{self.count}")
        catalog.head()
        return catalog

    def new_part(self) -> str:
        self.count += 1
        return f"part-{self.count}"

    def act(
        self,
        client: int,
        trouble: list[Fault],
        reads: int,
        rival: str | None,
        call: Callable[[Catalog], Generation],
    ) -> Generation | DstreamError | None:
        """Run one call in trouble. None: its outcome was unknown and resolved to not committed.

        A generation or an error is what the call said; an unknown outcome that turns out to be
        committed is answered by calling again only where the caller has an idempotency key,
        so it is returned as OutcomeUnknownError for the rule to take into the model.
        """
        store = self.stores[client]
        store.faults.extend(trouble)
        store.failing_gets = reads
        if rival is not None:
            store.before_log_put.append(lambda: self.rival_appends(rival))
        try:
            return call(self.catalogs[client])
        except OutcomeUnknownError as unknown:
            store.faults.clear()
            store.failing_gets = 0
            txn_id, slot = unknown.facts["txn_id"], unknown.facts["slot"]
            if not isinstance(txn_id, str) or not isinstance(slot, int):
                raise AssertionError("an unknown outcome must name its transaction") from unknown
            before = self.steady.log(1)[0].seq
            if self.catalogs[client].resolve_txn(txn_id, slot):
                return unknown
            # Where nobody had the slot, settling took it with an entry of its own.
            self.model.commits += self.steady.log(1)[0].seq - before
            self.late_writes_arrive(client)
            return None
        except DstreamError as error:
            return error
        finally:
            store.faults.clear()
            store.before_log_put.clear()
            store.failing_gets = 0

    def rival_appends(self, name: str) -> None:
        part = self.new_part()
        entry = self.rival_catalog.publish_dataset(
            name, manifest(part), session=self.rival_catalog.begin_session()
        )
        assert entry.version == self.model.append(name, part)

    @rule(
        client=clients,
        name=names,
        trouble=faults,
        reads=failing_reads,
        rival=st.none() | names,
        replace=st.booleans(),
    )
    def publish(
        self,
        client: int,
        name: str,
        trouble: list[Fault],
        reads: int,
        rival: str | None,
        replace: bool,
    ) -> None:
        part = self.new_part()
        session = self.steady.begin_session()

        def call(catalog: Catalog) -> Generation:
            mode = "replace" if replace else "append"
            return catalog.publish_dataset(name, manifest(part), session=session, mode=mode)  # type: ignore[arg-type]

        said = self.act(client, trouble, reads, rival, call)
        if isinstance(said, (Generation, OutcomeUnknownError)):
            expected = (
                self.model.publish(name, [part]) if replace else self.model.append(name, part)
            )
            if isinstance(said, Generation):
                assert said.version == expected
                assert said.seq == self.model.seqs[name, expected]
        elif said is not None:
            assert isinstance(said, StorageError), f"unexpected {said!r}"

    @rule(
        client=clients,
        name=names,
        key=st.sampled_from(("k1", "k2")),
        content=st.sampled_from(("x", "y")),
        trouble=faults,
        reads=failing_reads,
    )
    def publish_with_key(
        self, client: int, name: str, key: str, content: str, trouble: list[Fault], reads: int
    ) -> None:
        session = self.steady.begin_session()
        options = PublishOptions(idempotency_key=key, content_sha256=content)

        def call(catalog: Catalog) -> Generation:
            return catalog.publish_dataset(
                name, manifest(content), session=session, mode="replace", options=options
            )

        said = self.act(client, trouble, reads, None, call)
        known = self.model.keys.get((name, key))
        if isinstance(said, Generation) and known is not None:
            assert (said.version, content) == known
        elif isinstance(said, (Generation, OutcomeUnknownError)):
            version = self.model.publish(name, [content])
            self.model.keys[name, key] = (version, content)
        elif isinstance(said, ConflictError):
            assert known is not None
            assert known[1] != content
        elif said is not None:
            assert isinstance(said, StorageError), f"unexpected {said!r}"

    @precondition(lambda self: self.model.parts)
    @rule(
        client=clients,
        name=names,
        alias=st.sampled_from(ALIASES),
        version=st.integers(1, 4),
        expect=st.none() | st.integers(0, 4),
        trouble=faults,
        reads=failing_reads,
        rival=st.none() | names,
    )
    def move_alias(
        self,
        client: int,
        name: str,
        alias: str,
        version: int,
        expect: int | None,
        trouble: list[Fault],
        reads: int,
        rival: str | None,
    ) -> None:
        said = self.act(
            client, trouble, reads, rival, lambda c: c.move_alias(name, alias, version, expect)
        )
        exists = version in self.model.versions(name)
        now = self.model.aliases.get((name, alias), 0)
        holds = expect is None or expect == now
        if isinstance(said, (Generation, OutcomeUnknownError)):
            assert exists
            assert holds
            self.model.move(name, alias, version)
        elif isinstance(said, NotFoundError):
            assert not exists
        elif isinstance(said, ConflictError):
            assert exists
            assert not holds
        elif said is not None:
            assert isinstance(said, StorageError), f"unexpected {said!r}"

    @rule(client=clients)
    def deliver(self, client: int) -> None:
        self.late_writes_arrive(client)

    def late_writes_arrive(self, client: int) -> None:
        before = self.steady.log(1)[0].seq
        self.stores[client].deliver()
        assert self.steady.log(1)[0].seq == before, "a settled write landed after all"

    @rule(client=clients, name=names)
    def read(self, client: int, name: str) -> None:
        catalog = self.catalogs[client]
        root = catalog.head()
        assert root.seq == self.model.commits - 1
        for version in self.model.versions(name):
            entry = catalog.resolve(f"{name}@v{version}", root=root)
            assert part_keys(catalog.dataset(entry)) == self.model.parts[name, version]
            assert entry.seq == self.model.seqs[name, version]
        for (n, alias), version in self.model.aliases.items():
            assert catalog.resolve(f"{n}@{alias}", root=root).version == version
        if not self.model.versions(name):
            try:
                catalog.resolve(name)
            except NotFoundError:
                return
            raise AssertionError(f"{name} was never published")

    @rule(client=clients)
    def start_anew(self, client: int) -> None:
        self.catalogs[client] = self.opened(client)

    @invariant()
    def store_holds_what_was_acknowledged(self) -> None:
        if not self.catalogs:
            return
        report = audit(self.memory)
        assert len(report.roots) == self.model.commits
        assert {(n, v): seq for n, v, seq in report.published()} == self.model.seqs
        aliases = {
            (name, alias): version
            for name, row in report.head["aliases"].items()
            for alias, version in row.items()
        }
        assert aliases == self.model.aliases


RepositoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestRepository = RepositoryMachine.TestCase
