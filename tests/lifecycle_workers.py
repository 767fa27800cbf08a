"""What the processes of the lifecycle's race tests run; importable, so that they can be spawned."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from dstream.catalog import Catalog, CommitSettings, GcSettings
from dstream.errors import ConflictError, NotFoundError
from dstream.measure import Meter
from dstream.store.opening import open_store
from lifecycle_made import publish_files, read_files

GRACE_S = 2.0
"""Of collection. Stores that tell whole seconds may take half of it."""
COLLECT = GcSettings(keep_last=3, grace_s=GRACE_S, session_grace_s=2 * GRACE_S)


def publish_and_promote(url: str, worker: int, count: int, swept: Event, acks: Connection) -> None:
    """Publish two files that say the same, then promote; each acknowledgement is sent.

    So often, and on, with pauses, until a collection has deleted something.
    """
    store = open_store(url)
    catalog = Catalog.open(store, settings=CommitSettings(author=f"worker-{worker}"))
    for number in itertools.count():
        if number >= count and swept.wait(1.0 if number > count else 0):
            break
        text = f"worker {worker}, number {number}"
        try:
            entry = publish_files(catalog, "run", {"one": text, "two": text})
        except ConflictError as refused:
            acks.send(("refused", worker, number, str(refused.facts.get("reason"))))
            continue
        acks.send(("published", worker, number, entry.version))
        try:
            catalog.promote(entry.label, "prod")
        except (ConflictError, NotFoundError) as refused:
            acks.send(("not-promoted", worker, number, str(refused.facts.get("reason"))))
        else:
            acks.send(("promoted", worker, number, entry.version))
    store.close()
    acks.close()


def collect_always(url: str, stop: Event, swept: Event, said: Connection) -> None:
    """Collect again and again; sends (runs, generations swept), and tells of the first."""
    store = open_store(url)
    runs = gone = 0
    try:
        while not stop.is_set():
            report = Catalog.open(store).gc(COLLECT)
            runs, gone = runs + 1, gone + len(report.swept)
            if gone:
                swept.set()
        said.send(("ok", runs, gone))
    except BaseException as error:
        said.send((f"{type(error).__name__}: {error}", runs, gone))
        raise
    finally:
        swept.set()
        store.close()
        said.close()


def publish_always(url: str, worker: int, stop: Event, said: Connection) -> None:
    """Publish again and again without a pause; sends how often."""
    with closing(open_store(url)) as store:
        catalog = Catalog.open(store, settings=CommitSettings(author=f"worker-{worker}"))
        done = 0
        while not stop.is_set():
            text = f"worker {worker}, number {done}"
            try:
                publish_files(catalog, f"run-{worker}", {"one": text})
            except ConflictError as refused:
                if refused.facts.get("reason") != "fenced":
                    raise
            else:
                done += 1
        said.send(done)
        said.close()


def collect_until(url: str, wanted: int, said: Connection) -> None:
    """Collect until so many generations are swept; sends (runs, swept, commit events)."""
    with closing(open_store(url)) as store:
        meter = Meter()
        runs = swept = 0
        while swept < wanted:
            report = Catalog.open(store, meter=meter).gc(replace(COLLECT, grace_s=0))
            runs, swept = runs + 1, swept + len(report.swept)
        said.send((runs, swept, dict(meter.snapshot().event("commit"))))
        said.close()


def read_always(url: str, stop: Event, said: Connection) -> None:
    """Open ``latest`` and ``prod`` again and again; sends (reads, fault or "ok")."""
    store = open_store(url)
    reads, fault = 0, "ok"
    while not stop.is_set() and fault == "ok":
        for alias in ("latest", "prod"):
            begun_s = time.monotonic()
            catalog = Catalog.open(store)
            if alias not in catalog.aliases("run"):
                continue
            try:
                entry = catalog.resolve(f"run@{alias}")
                texts = read_files(catalog, entry)
            except (NotFoundError, AssertionError) as error:
                if time.monotonic() - begun_s > GRACE_S / 4:
                    continue  # the machine stood still for longer than a reader may take
                fault = f"{alias}: {type(error).__name__}: {error}"
                break
            if len(set(texts.values())) != 1 or set(texts) != {"one", "two"}:
                fault = f"{alias}: mixed {texts}"
                break
            reads += 1
    said.send((fault, reads, os.getpid()))
    store.close()
    said.close()
