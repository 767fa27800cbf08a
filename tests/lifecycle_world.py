"""The world of the random histories: store, clients, and what they must find in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from catalog_audit import audit
from catalog_faults import Fault, ScriptedStore
from catalog_made import SETTINGS, counted_ids
from dstream.catalog import Catalog, Generation, PublishOptions, Session
from dstream.catalog.tokens import Token
from dstream.clock import FakeClock
from dstream.errors import ConflictError, DstreamError, NotFoundError, OutcomeUnknownError
from dstream.store.memory import MemoryStore

TEN_YEARS_S = 10 * 365 * 86400.0
NAMES = ("a", "b")
CLIENTS = 3
Label = tuple[str, int]

SOME: list[list[Fault]] = [[fault] for fault in Fault]
NEVER_ENDING = [[Fault.LATE] * 300, [Fault.LOST_BEFORE] * 300]
# Mostly none, so that histories get somewhere; at times the store never recovers.
faults = st.sampled_from([*([[]] * 15), *SOME, *NEVER_ENDING]).map(list)
clients = st.integers(0, CLIENTS - 1)
names = st.sampled_from(("a", "a", "a", "b"))
versions = st.integers(1, 3)


@dataclass
class Staged:
    """An upload on its way to a commit."""

    name: str
    session: Session
    manifest: bytes
    texts: dict[str, str]
    parent: int | None


@dataclass
class Model:
    texts: dict[Label, dict[str, str]] = field(default_factory=dict)
    """Of everything that was ever published."""
    pins: dict[str, tuple[str, set[Label]]] = field(default_factory=dict)
    """Id -> token and what it must keep."""
    live: set[Label] = field(default_factory=set)
    aliases: dict[tuple[str, str], int] = field(default_factory=dict)


def require(holds: bool, what: str) -> None:
    """As ``assert``, inside of an ``except``."""
    if not holds:
        raise AssertionError(what)


class LifecycleWorld(RuleBasedStateMachine):
    """Three clients, one store, one model; the rules are in :mod:`lifecycle_machine`."""

    steady: Catalog

    def __init__(self) -> None:
        super().__init__()
        self.server = FakeClock()
        self.memory = MemoryStore(clock=self.server)
        self.stores = [ScriptedStore(self.memory) for _ in range(CLIENTS)]
        self.model = Model()
        self.known_pins: dict[str, tuple[str, set[Label]]] = {}
        self.staged: list[Staged] = []
        self.catalogs: list[Catalog] = []
        self.count = 0

    def opened(self, client: int) -> Catalog:
        self.count += 1
        clock = FakeClock(self.server.now_s() + (client - 1) * TEN_YEARS_S)
        catalog = Catalog.open(
            self.stores[client],
            clock,
            np.random.default_rng(1),
            new_id=counted_ids(f"c{client}-{self.count}"),
            settings=SETTINGS,
        )
        catalog.head()
        return catalog

    def act(
        self,
        client: int,
        trouble: list[Fault],
        call: Callable[[Catalog], object],
        rival: Callable[[], object] | None = None,
    ) -> bool:
        """Run a call; True when its commit is in the log. Refusals are raised."""
        store = self.stores[client]
        store.faults.extend(trouble)
        if rival is not None:
            store.before_log_put.append(rival)
        try:
            call(self.catalogs[client])
        except OutcomeUnknownError as unknown:
            store.faults.clear()
            if "txn_id" not in unknown.facts:
                return False
            txn_id, slot = str(unknown.facts["txn_id"]), unknown.facts["slot"]
            assert isinstance(slot, int)
            self.count += 1
            if self.count % 2:
                store.deliver()  # what was given up arrives after all, before anybody looks
            committed = self.catalogs[client].resolve_txn(txn_id, slot)
            store.deliver()
            return committed
        except (ConflictError, NotFoundError):
            raise
        except DstreamError:
            store.faults.clear()
            store.deliver()
            return False
        finally:
            store.faults.clear()
            store.before_log_put.clear()
        store.deliver()
        return True

    def publish_staged(self, catalog: Catalog, staged: Staged) -> Generation:
        options = PublishOptions(parent=staged.parent)
        return catalog.publish(staged.session, staged.name, "checkpoint", staged.manifest, options)

    def published(self, staged: Staged) -> None:
        version = 1 + max((v for n, v in self.model.texts if n == staged.name), default=0)
        self.model.texts[staged.name, version] = staged.texts
        self.model.live.add((staged.name, version))
        self.model.aliases[staged.name, "latest"] = version

    def promoted(self, name: str, version: int) -> None:
        self.model.aliases[name, "prod"] = version
        self.model.live.add((name, version))

    def pinned(self, pin_id: str, scope: str | None) -> None:
        token = next(p.token for p in self.steady.pins() if p.pin_id == pin_id)
        state = audit(self.memory).states[Token.parse(token).seq]
        assert not state.cleared
        kept = {label for label in state.live() if scope in (None, label[0])}
        self.model.pins[pin_id] = self.known_pins[pin_id] = (token, kept)

    def expire_pins(self) -> None:
        """Pins whose time is over by the server's clock need not be kept any more."""
        pins = self.steady.head().pins
        for pin_id in list(self.model.pins):
            assert pin_id in pins, f"pin {pin_id} is lost"
            since = pins[pin_id].since_seq
            written_s = next(
                info.last_modified_s
                for info in self.memory.list(f"_ds/log/{2**64 - 1 - since:020d}")
            )
            assert written_s is not None
            if self.server.now_s() - written_s >= 3600.0:
                del self.model.pins[pin_id]

    def compare_after_collection(self, keep_last: int | None) -> None:
        """Only what the rules let go may have gone."""
        state = audit(self.memory).states[-1]
        gone = self.model.live - set(state.live())
        for name, version in gone:
            assert keep_last is not None, f"{name}@v{version} went without being asked for"
            assert version not in [v for (n, _), v in self.model.aliases.items() if n == name]
            for pin_id, (_, kept) in self.model.pins.items():
                assert (name, version) not in kept, f"{name}@v{version} was pinned by {pin_id}"
            newer = [v for n, v in self.model.live if n == name and v > version]
            assert len(newer) >= keep_last
        self.model.live -= gone

    def rival_pins(self) -> None:
        self.count += 1
        self.steady.pin(pin_id=f"p{self.count}", ttl_s=3600.0)
        self.pinned(f"p{self.count}", None)

    def rival_renews(self) -> None:
        for pin_id in self.steady.head().pins:
            self.steady.renew(pin_id)
            self.model.pins[pin_id] = self.known_pins[pin_id]

    def rival_promotes(self) -> None:
        for entry in self.steady.head().all_records():
            if not entry.is_live and entry.condemned_seq is None:
                self.steady.promote(entry.label, "prod")
                self.promoted(entry.name, entry.version)
                return

    def rival_publishes(self) -> None:
        if not self.staged:
            return
        staged = self.staged.pop()
        try:
            self.publish_staged(self.steady, staged)
        except ConflictError:
            return
        self.published(staged)
