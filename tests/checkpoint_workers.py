"""What the processes of the checkpoint tests run; importable, so that they can be spawned."""

from __future__ import annotations

from cut_store import Cut, CutStore, kill_self
from dstream.catalog import Catalog
from dstream.checkpoint import fetch, publish
from dstream.store.opening import open_store


def publish_and_die(url: str, folder: str, at: int, when: str) -> None:
    """Publish ``folder`` as run, step 2; SIGKILL at request number ``at``."""
    store = CutStore(open_store(url), at, Cut(when), kill_self)
    publish(Catalog.open(store), folder, "run", step=2, promote="prod", threads=1)


def fetch_and_die(url: str, dest: str, at: int, when: str) -> None:
    """Fetch run to ``dest``; SIGKILL at request number ``at``."""
    store = CutStore(open_store(url), at, Cut(when), kill_self)
    fetch(Catalog.open(store), "run", dest, threads=1)


def replace_and_die(url: str, dest: str, name: str) -> None:
    """Fetch run to ``dest`` over what is there; SIGKILL where ``swap`` would call ``name``."""
    from dstream.checkpoint import swap

    setattr(swap, name, lambda *_, **__: kill_self())
    fetch(Catalog.open(open_store(url)), "run", dest, replace=True)
