"""The log of roots: publishing, naming and opening generations."""

from dstream.catalog.backoff import CommitSettings
from dstream.catalog.catalog import Catalog
from dstream.catalog.history import LogEntry
from dstream.catalog.names import Reference
from dstream.catalog.publishing import PublishOptions, Reconcile
from dstream.catalog.sessions import Session
from dstream.format.root import Generation, Root

__all__ = [
    "Catalog",
    "CommitSettings",
    "Generation",
    "LogEntry",
    "PublishOptions",
    "Reconcile",
    "Reference",
    "Root",
    "Session",
]
