"""What the processes of the race tests run; importable, so that they can be spawned."""

from __future__ import annotations

from multiprocessing.connection import Connection

from catalog_made import manifest
from dstream.catalog import Catalog, CommitSettings, PublishOptions
from dstream.store.opening import open_store


def publish_many(url: str, worker: int, count: int, acks: Connection) -> None:
    """Publish ``count`` times, in turn to a name of one's own and to a shared one.

    Sends (worker, number, name, version, seq, head before) after each acknowledged commit.
    """
    store = open_store(url)
    catalog = Catalog.open(store, settings=CommitSettings(author=f"worker-{worker}"))
    for number in range(count):
        name = f"run-{worker}" if number % 2 else "shared"
        before = catalog.head().seq
        session = catalog.begin_session()
        entry = catalog.publish(
            session,
            name,
            "checkpoint",
            b"worker %d, number %d" % (worker, number),
            PublishOptions(idempotency_key=f"{worker}-{number}"),
        )
        acks.send((worker, number, name, entry.version, entry.seq, before))
    store.close()
    acks.close()


def part_name(worker: int, number: int) -> str:
    """The part that a worker's ``number``-th append adds."""
    return f"part-{worker}-{number}"


def append_many(url: str, worker: int, count: int, acks: Connection) -> None:
    """Append ``count`` parts of one's own, named by :func:`part_name`, to a shared data set.

    Sends the same as :func:`publish_many`.
    """
    store = open_store(url)
    catalog = Catalog.open(store, settings=CommitSettings(author=f"worker-{worker}"))
    for number in range(count):
        session = catalog.begin_session()
        new = manifest(part_name(worker, number))
        entry = catalog.publish_dataset("d", new, session=session)
        acks.send((worker, number, "d", entry.version, entry.seq, session.base_seq))
    store.close()
    acks.close()
