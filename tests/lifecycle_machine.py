"""Random histories of publishing, promoting, pinning, retiring and collecting, in trouble.

A plain model is told what each call answered. The invariants are checked on the objects in the
store: what is live, aliased or pinned is whole and is what was published, and nothing goes that
the rules do not let go. Clients' clocks are ten years off, in both directions.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from catalog_audit import audit
from catalog_faults import Fault
from catalog_made import counted_ids, create_catalog
from dstream.catalog import Catalog, GcSettings, Generation
from dstream.clock import FakeClock
from dstream.errors import ConflictError, NotFoundError
from lifecycle_made import file_refs, read_files, upload
from lifecycle_world import (
    CLIENTS,
    NEVER_ENDING,
    LifecycleWorld,
    Staged,
    clients,
    faults,
    names,
    require,
    versions,
)


class LifecycleMachine(LifecycleWorld):
    """Three clients, one store, one model."""

    @initialize()
    def create(self) -> None:
        create_catalog(self.memory, "creator")
        self.catalogs = [self.opened(client) for client in range(CLIENTS)]
        self.steady = Catalog.open(
            self.memory, FakeClock(), np.random.default_rng(0), new_id=counted_ids("steady")
        )
        self.steady.head()

    # --- publishing --------------------------------------------------------------------------

    @rule(name=names, shares=st.sampled_from((True, True, False)))
    def stage(self, name: str, shares: bool) -> None:
        """Upload, and commit later or never."""
        self.count += 1
        session = self.steady.begin_session()
        texts = {"weights": f"text {self.count}"}
        files: dict[str, object] = dict(texts)
        parent = self.model.aliases.get((name, "latest"))
        if shares and parent is not None:
            base = self.steady.resolve(f"{name}@v{parent}")
            files["shared"] = file_refs(self.steady, base)["weights"]
            texts["shared"] = self.model.texts[name, parent]["weights"]
        else:
            parent = None
        manifest = upload(self.memory, session, files)  # type: ignore[arg-type]
        self.staged.append(Staged(name, session, manifest, texts, parent))

    @precondition(lambda self: self.staged)
    @rule(client=clients, which=st.integers(0, 9), trouble=faults)
    def publish(self, client: int, which: int, trouble: list[Fault]) -> None:
        staged = self.staged.pop(which % len(self.staged))
        made: list[Generation] = []

        def call(catalog: Catalog) -> None:
            made.append(self.publish_staged(catalog, staged))

        try:
            committed = self.act(client, trouble, call)
        except ConflictError as error:
            if error.facts.get("reason") == "fenced":
                assert staged.session.base_seq < self.steady.head().upload_floor
            else:
                require(error.facts.get("reason") == "parent", repr(error))
            return
        if committed:
            self.published(staged)

    @rule(name=names)
    def publish_now(self, name: str) -> None:
        """Without trouble, so that there is something to name, pin and retire."""
        self.stage(name, shares=False)
        staged = self.staged.pop()
        self.publish_staged(self.steady, staged)
        self.published(staged)

    @rule(client=clients, name=names, lost=st.sampled_from(NEVER_ENDING))
    def publish_unheard(self, client: int, name: str, lost: list[Fault]) -> None:
        """The store stops answering for good, just as the commit is sent."""
        self.stage(name, shares=False)
        self.publish(client, len(self.staged) - 1, list(lost))

    # --- naming ------------------------------------------------------------------------------

    @rule(client=clients, name=names, version=versions, trouble=faults)
    def promote(self, client: int, name: str, version: int, trouble: list[Fault]) -> None:
        try:
            done = self.act(client, trouble, lambda c: c.promote(f"{name}@v{version}", "prod"))
        except NotFoundError:
            assert (name, version) not in self.model.live
            return
        except ConflictError as error:
            require(error.facts["reason"] == "condemned", repr(error))
            assert (name, version) not in self.model.live
            return
        if done:
            self.promoted(name, version)

    @rule(client=clients, name=names, trouble=faults)
    def remove_alias(self, client: int, name: str, trouble: list[Fault]) -> None:
        try:
            done = self.act(client, trouble, lambda c: c.remove_alias(name, "prod"))
        except NotFoundError:
            assert (name, "prod") not in self.model.aliases
            return
        if done:
            del self.model.aliases[name, "prod"]

    @precondition(lambda self: self.model.live)
    @rule(client=clients, which=st.integers(0, 9), trouble=faults)
    def retire(self, client: int, which: int, trouble: list[Fault]) -> None:
        name, version = sorted(self.model.live)[which % len(self.model.live)]
        try:
            done = self.act(client, trouble, lambda c: c.retire(f"{name}@v{version}"))
        except NotFoundError:
            assert (name, version) not in self.model.live
            return
        except ConflictError:
            assert version in [v for (n, _), v in self.model.aliases.items() if n == name]
            return
        if done:
            self.model.live.discard((name, version))

    @precondition(lambda self: self.model.live)
    @rule(which=st.integers(0, 9), when=st.sampled_from(("before", "during", "after")))
    def change_of_mind(self, which: int, when: str) -> None:
        """Retire something, and promote it after all: before, during or after a collection."""
        name, version = sorted(self.model.live)[which % len(self.model.live)]
        self.retire(0, which, [])
        if when == "during":
            self.collect(0, None, 0.0, [], "promote", 1e9, 0.0)
            return
        if when == "after":
            self.collect(0, None, 1e9, [], None, 1e9, 0.0)
        self.promote(1, name, version, [])

    # --- pins --------------------------------------------------------------------------------

    @rule(
        client=clients,
        scope=st.sampled_from((None, "a", "b")),
        back=st.sampled_from((0, 0, 1, 3, 8)),
        trouble=faults,
    )
    def pin(self, client: int, scope: str | None, back: int, trouble: list[Fault]) -> None:
        self.count += 1
        pin_id = f"p{self.count}"
        chosen = None if scope is None else [scope]
        try:
            seq = max(0, self.steady.head().seq - back) if back else None
            done = self.act(
                client, trouble, lambda c: c.pin(chosen, pin_id=pin_id, ttl_s=3600.0, seq=seq)
            )
        except NotFoundError:
            assert not any(n == scope for n, _ in self.model.texts)
            return
        except ConflictError as error:
            require(error.facts.get("reason") == "snapshot-expired", repr(error))
            return
        if done:
            self.pinned(pin_id, scope)

    @precondition(lambda self: self.model.pins)
    @rule(client=clients, which=st.integers(0, 9), renew=st.booleans(), trouble=faults)
    def renew_or_unpin(self, client: int, which: int, renew: bool, trouble: list[Fault]) -> None:
        pin_id = sorted(self.model.pins)[which % len(self.model.pins)]
        call = (lambda c: c.renew(pin_id)) if renew else (lambda c: c.unpin(pin_id))
        if self.act(client, trouble, call) and not renew:
            del self.model.pins[pin_id]

    # --- collection --------------------------------------------------------------------------

    @rule(
        client=clients,
        keep_last=st.sampled_from((None, 1, 1, 2)),
        grace_s=st.sampled_from((0.0, 0.0, 1e9)),
        trouble=faults,
        during=st.sampled_from((None, None, "pin", "promote", "publish", "renew")),
        session_grace_s=st.sampled_from((0.0, 1e9)),
        later_s=st.sampled_from((0.0, 0.0, 3600.0)),
    )
    def collect(
        self,
        client: int,
        keep_last: int | None,
        grace_s: float,
        trouble: list[Fault],
        during: str | None,
        session_grace_s: float,
        later_s: float,
    ) -> None:
        self.server.sleep(later_s)
        self.expire_pins()
        settings = GcSettings(
            keep_last=keep_last, grace_s=grace_s, session_grace_s=session_grace_s, log_age_s=0.0
        )
        rivals = {
            "pin": self.rival_pins,
            "promote": self.rival_promotes,
            "publish": self.rival_publishes,
            "renew": self.rival_renews,
        }
        rival = None if during is None else rivals[during]
        self.act(client, trouble, lambda c: c.gc(settings), rival)
        self.compare_after_collection(keep_last)

    @precondition(lambda self: self.model.pins)
    @rule()
    def renewed_just_in_time(self) -> None:
        """Pins that a collection has taken for expired are renewed before it commits."""
        self.collect(0, 1, 0.0, [], "renew", 1e9, 3600.0)

    @rule(name=names)
    def slow_publisher(self, name: str) -> None:
        """Shares objects of a generation that is given up before the commit."""
        self.stage(name, shares=True)
        slow = self.staged.pop()
        self.publish_now(name)
        self.collect(0, 1, 0.0, [], None, 1e9, 0.0)
        try:
            self.publish_staged(self.steady, slow)
        except ConflictError as error:
            require(error.facts.get("reason") == "parent", repr(error))
            return
        self.published(slow)

    @rule(client=clients, entries=st.sampled_from((0, 1, 3, 100)))
    def listings_lag(self, client: int, entries: int) -> None:
        """From now on this client is not shown the newest entries of the log."""
        self.stores[client].unlisted = entries

    @rule(client=clients)
    def start_anew(self, client: int) -> None:
        self.catalogs[client] = self.opened(client)

    # --- what must always hold ---------------------------------------------------------------

    @invariant()
    def promises_hold(self) -> None:
        if not self.catalogs:
            return
        state = audit(self.memory).states[-1]
        assert set(state.live()) == self.model.live
        aliases = {(n, a): v for n, row in state.aliases.items() for a, v in row.items()}
        assert aliases == self.model.aliases
        reader = Catalog.open(self.memory)
        for name, version in self.model.live:
            entry = reader.resolve(f"{name}@v{version}")
            assert read_files(reader, entry) == self.model.texts[name, version]
        for token, kept in self.model.pins.values():
            frozen = Catalog.open_at(self.memory, token)
            for name, version in kept:
                entry = frozen.resolve(f"{name}@v{version}")
                assert read_files(frozen, entry) == self.model.texts[name, version]

    def teardown(self) -> None:
        """Once nothing is pinned, only what is live has bytes left."""
        if not self.catalogs:
            return
        for pin_id in list(self.steady.head().pins):
            self.steady.unpin(pin_id)
        at_once = GcSettings(grace_s=0, session_grace_s=0, log_age_s=0)
        for _ in range(2):
            self.steady.gc(at_once)
        floor = self.steady.head().upload_floor
        needed = {
            ref.key
            for name, version in self.model.live
            for ref in file_refs(self.steady, self.steady.resolve(f"{name}@v{version}")).values()
        }
        for info in self.memory.list("data/"):
            assert info.key in needed or int(info.key.split("/")[1]) >= floor, f"left: {info.key}"
