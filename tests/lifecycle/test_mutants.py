"""Each rule of the protocol is needed: without it the random histories lose something.

Every variant leaves out one rule by replacing one function of the catalog. The search must find
a history in which a promise is broken; the same search finds none in the whole protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from dstream.catalog import Catalog, Generation, Session, retention, transitions
from dstream.catalog.ages import LogAges, store_time_s
from dstream.catalog.contents import KeptKeys
from dstream.catalog.gc import Collector
from dstream.catalog.pins import Pinned
from dstream.catalog.retention import Condemn
from dstream.catalog.tokens import Token
from dstream.errors import ConflictError, CorruptDataError, NotFoundError, OutcomeUnknownError
from dstream.format.entries import Pin
from dstream.format.root import Root, log_key
from lifecycle_machine import LifecycleMachine

Patch = pytest.MonkeyPatch

SEARCH = settings(
    max_examples=1_500,
    stateful_step_count=25,
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def no_fence_check(patch: Patch) -> None:
    """A publisher does not compare its session with the fence."""
    patch.setattr(transitions, "check_fence", lambda *_: None)


def no_condemned_check(patch: Patch) -> None:
    """A promotion does not look whether its target is being deleted."""
    patch.setattr(transitions, "check_not_condemned", lambda _: None)


def pins_as_files(patch: Patch) -> None:
    """A pin is an object beside the log; collection reads them all before it commits."""
    files: dict[str, Pin] = {}
    read: list[dict[str, Pin]] = [{}]

    def pin(self: Catalog, names: list[str] | None = None, **options: object) -> Pinned:
        head = self._log.refresh() if options.get("seq") is None else self._log.read(options["seq"])  # type: ignore[arg-type]
        pin_id = str(options["pin_id"])
        scope = None if names is None else tuple(names)
        for name in scope or ():
            self.resolve(f"{name}@newest")
        files[pin_id] = Pin(head.seq, head.seq, scope)
        return Pinned(pin_id, str(Token(self.store.url, head.seq, head.sha256)), files[pin_id])

    def pins(self: Catalog, **_: object) -> list[Pinned]:
        return [
            Pinned(i, str(Token(self.store.url, p.seq, self._log.read(p.seq).sha256)), p)
            for i, p in files.items()
        ]

    honest_judge = retention.judge
    honest_plan = Collector._plan

    def plan(self: Collector, *args: object) -> object:
        read[0] = dict(files)
        return honest_plan(self, *args)  # type: ignore[arg-type]

    def judge(root: Root, kept: retention.Retention, pins: object) -> list[retention.Kept]:
        return honest_judge(root, kept, read[0].values())

    patch.setattr(Catalog, "pin", pin)
    patch.setattr(Catalog, "pins", pins)
    patch.setattr(Catalog, "unpin", lambda self, pin_id: files.pop(pin_id))
    patch.setattr(Catalog, "renew", lambda self, pin_id: None)
    patch.setattr(Collector, "_plan", plan)
    patch.setattr(retention, "judge", judge)
    patch.setattr(LifecycleMachine, "expire_pins", lambda self: None)
    honest_init = LifecycleMachine.__init__

    def begin(self: LifecycleMachine) -> None:
        files.clear()
        honest_init(self)

    patch.setattr(LifecycleMachine, "__init__", begin)


def log_keys_deleted(patch: Patch) -> None:
    """Old roots are deleted, not cleared."""

    def clear(self: Collector, root: Root, below: int) -> int:
        needed = {pin.seq for pin in root.pins.values()}
        doomed = [(log_key(s), None) for s in range(root.cleared_below, below) if s not in needed]
        self._store.delete_many(doomed)
        return below

    patch.setattr(Collector, "_clear_roots", clear)


def clean_up_on_unknown(patch: Patch) -> None:
    """A lost answer is taken for a failure, and what was uploaded is deleted."""
    honest = Catalog.publish

    def publish(self: Catalog, session: Session, *args: object) -> Generation:
        try:
            return honest(self, session, *args)  # type: ignore[arg-type]
        except OutcomeUnknownError:
            for prefix in (session.data_prefix, session.manifest_prefix):
                self.store.delete_many([(info.key, None) for info in self.store.list(prefix)])
            raise

    patch.setattr(Catalog, "publish", publish)


def no_parent_check(patch: Patch) -> None:
    """A publisher shares objects of a generation that is being deleted."""
    honest = transitions._publish

    def publish(root: Root, op: transitions.Publish, context: object) -> transitions.Transition:
        return honest(root, replace(op, parent=None), context)  # type: ignore[arg-type]

    patch.setattr(transitions, "_publish", publish)


def expired_pins_by_name(patch: Patch) -> None:
    """A pin that was taken for expired is dropped, though it has been renewed since."""
    honest = retention.condemn

    def condemn(root: Root, op: Condemn, seq: int) -> Root:
        names = {name for name, _ in op.expired}
        expired = frozenset((n, p.since_seq) for n, p in root.pins.items() if n in names)
        return honest(root, replace(op, expired=expired), seq)

    patch.setattr(transitions, "condemn", condemn)


def pins_ignored(patch: Patch) -> None:
    """Collection looks at what is live only."""
    honest = retention.judge
    patch.setattr(retention, "judge", lambda root, kept, _: honest(root, kept, ()))


def sweep_before_commit(patch: Patch) -> None:
    """Collection deletes by a root that it has not committed yet."""
    honest = Collector.run

    def run(self: Collector) -> object:
        head = self._log.refresh()
        self._now_s = store_time_s(self._store)
        ages = LogAges(self._store, head.seq, self._now_s)
        root = retention.condemn(head.root, self._plan(head.root, ages).op, head.seq + 1)
        self._sweep(root, ages)
        return honest(self)

    patch.setattr(Collector, "run", run)


def shared_objects_deleted(patch: Patch) -> None:
    """A condemned generation's objects go even where a kept one names them too."""
    patch.setattr(KeptKeys, "__contains__", lambda *_: False)


def pinned_roots_cleared(patch: Patch) -> None:
    """Old roots are cleared, pinned or not."""
    honest = Collector._clear_roots
    patch.setattr(
        Collector,
        "_clear_roots",
        lambda self, root, below: honest(self, replace(root, pins={}), below),
    )


MUTANTS = (
    no_fence_check,
    no_condemned_check,
    pins_as_files,
    log_keys_deleted,
    clean_up_on_unknown,
    no_parent_check,
    expired_pins_by_name,
    pins_ignored,
    sweep_before_commit,
    shared_objects_deleted,
    pinned_roots_cleared,
)


class Searched(LifecycleMachine):
    """Without the check that nothing useless is left, which is no promise of safety."""

    def teardown(self) -> None:
        return


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_without_the_rule_something_is_lost(mutant: Callable[[Patch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        try:
            run_state_machine_as_test(Searched, settings=SEARCH)
        except (AssertionError, NotFoundError, ConflictError, CorruptDataError) as found:
            print(f"{mutant.__name__}: {type(found).__name__}: {str(found)[:200]}")
            return
    pytest.fail(f"no history shows that it matters: {mutant.__doc__}")


def test_with_all_rules_the_same_search_finds_nothing() -> None:
    run_state_machine_as_test(Searched, settings=settings(SEARCH, max_examples=50))
