"""What calls cost, with 1, 1,000 and 100,000 generations: the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from catalog_made import create_catalog, open_catalog
from dstream.catalog import Catalog
from dstream.catalog.compaction import MAX_TAIL, compact
from dstream.catalog.edits import with_entries
from dstream.catalog.log import LogReader
from dstream.clock import FakeClock
from dstream.format.refs import ObjectRef
from dstream.format.root import (
    MAX_ROOT_BYTES,
    Artifact,
    Generation,
    encode_root,
    log_key,
    sha256_hex,
)
from dstream.measure import Meter
from dstream.store.memory import MemoryStore
from dstream.store.metered import Metered
from lifecycle_made import AT_ONCE, publish_files

SIZES = (1, 1_000, 100_000)
NAMES = 100


def filled(count: int) -> MemoryStore:
    """A repository with ``count`` generations, most of them of one name, as commits leave it."""
    memory = MemoryStore(clock=FakeClock())
    catalog = create_catalog(memory, "creator")
    publish_files(catalog, "run", {"weights": "the first"})
    if count == 1:
        return memory
    log = LogReader(memory, FakeClock(), Meter())
    head = log.refresh()
    entries, artifacts = [], {}
    for number in range(NAMES):
        name = "run" if number == 0 else f"team-{number:02d}/run"
        rows = (count * 9 // 10 if number == 0 else count // 10 // (NAMES - 1)) + 1
        first = 2 if number == 0 else 1
        for version in range(first, rows + 1):
            ref = ObjectRef("_ds/man/x", 100, sha256_hex(f"{name}{version}".encode()))
            entries.append(
                Generation(name, version, "checkpoint", ref, version, f"s{version}", 0, 1e9)
            )
        artifacts[name] = Artifact("checkpoint", rows + 1)
    root = replace(
        with_entries(head.root, entries),
        seq=head.seq + 1,
        prev_sha256=head.sha256,
        txn_id="filled",
        artifacts=artifacts,
        aliases={name: {"latest": row.next_version - 1} for name, row in artifacts.items()},
    )
    root = compact(root, root.seq, log.shards.write, whole=True)
    memory.put_if_absent(log_key(root.seq), encode_root(root))
    return memory


class Bench:
    def __init__(self, memory: MemoryStore) -> None:
        self.memory = memory
        self.meter = Meter()
        self.store = Metered(memory, self.meter, FakeClock())

    def cost(self, work: Callable[[], object]) -> dict[str, int]:
        """Requests by their verbs."""
        before = self.meter.snapshot()
        work()
        found: dict[str, int] = {}
        for key, totals in self.meter.snapshot().minus(before).requests.items():
            found[key.verb] = found.get(key.verb, 0) + totals.count
        return found


@pytest.fixture(scope="module", params=SIZES)
def memory(request: pytest.FixtureRequest) -> MemoryStore:
    return filled(request.param)


def test_promote_pin_and_publish_warm(memory: MemoryStore) -> None:
    bench = Bench(memory)
    catalog = open_catalog(bench.store, "client")
    catalog.promote("run@v1", "prod")
    catalog.resolve("run@latest")  # now the shards of this name are at hand
    one_write = {"put-if-absent": 1}
    assert bench.cost(lambda: catalog.promote("run@v1", "best")) == one_write
    assert bench.cost(lambda: catalog.pin(pin_id="all")) == one_write
    assert bench.cost(lambda: catalog.pin(["run"], pin_id="some", ttl_s=60)) == one_write
    assert bench.cost(lambda: catalog.renew("all")) == one_write | {"get": 1}
    assert bench.cost(lambda: catalog.unpin("all")) == one_write
    session = catalog.begin_session(root=catalog.recent())
    files = {f"f{number}": f"text {number}" for number in range(3)}
    cost = bench.cost(lambda: publish_files(catalog, "run", files, session=session))
    assert cost == {"put": 3 + 1, "put-if-absent": 1}
    assert len(memory.get(log_key(catalog.head().seq)).data) < MAX_ROOT_BYTES // 8


@pytest.mark.parametrize("reference", ["run@latest", "run@v1", "run@newest"])
def test_opening_what_was_pinned(memory: MemoryStore, reference: str) -> None:
    token = open_catalog(memory, "pinner").pin(pin_id="opened").token
    bench = Bench(memory)
    frozen: list[Catalog] = []
    assert bench.cost(lambda: frozen.append(Catalog.open_at(bench.store, token))) == {"get": 1}
    cost = bench.cost(lambda: frozen[0].resolve(reference))
    assert set(cost) <= {"get"}
    assert cost.get("get", 0) <= 2


def test_opening_the_newest(memory: MemoryStore) -> None:
    bench = Bench(memory)
    cost = bench.cost(lambda: open_catalog(bench.store, "reader").resolve("run@latest"))
    assert cost["list"] == 1
    assert cost["get"] <= 1 + 2


def test_a_root_stays_small_while_it_grows() -> None:
    memory = MemoryStore(clock=FakeClock())
    bench = Bench(memory)
    catalog = create_catalog(bench.store, "creator")
    session = catalog.begin_session()

    def publish_many() -> None:
        for number in range(3 * MAX_TAIL):
            catalog.publish(session, f"n{number % 7}", "checkpoint", b"%d" % number)

    cost = bench.cost(publish_many)
    shard_writes = cost["put"] - 3 * MAX_TAIL
    assert cost["put-if-absent"] == 3 * MAX_TAIL
    assert 2 <= shard_writes <= 20
    assert cost.get("get", 0) <= shard_writes
    sizes = [info.size_bytes for info in memory.list("_ds/log/")]
    assert max(sizes) < 64 * 1024
    assert len(list(catalog.generations("n3"))) == len(range(3, 3 * MAX_TAIL, 7))


def test_collection_costs() -> None:
    """The head four times, the store's time, a page of the log, a list of each prefix."""
    memory = MemoryStore(clock=FakeClock())
    bench = Bench(memory)
    catalog = create_catalog(bench.store, "creator")
    for number in range(5):
        publish_files(catalog, "run", {"weights": f"{number}"})
    idle = bench.cost(catalog.gc)
    assert idle == {"get": 4, "put": 1, "list": 5, "list-uploads": 1}
    catalog.retire("run@v1", "run@v2")
    first = bench.cost(lambda: catalog.gc(AT_ONCE))
    # Two manifests to delete by, three to keep by; a list and two deletes for each generation.
    assert first["put-if-absent"] == 2
    assert first["delete"] == 4
    assert sum(first.values()) <= 30
